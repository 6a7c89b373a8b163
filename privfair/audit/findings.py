"""The findings of an audit: lower bounds on ε beside the claims, in numbers and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from accountant.events import Adjacency

NOT_SHOWN = (
    '"Consistent" is no proof: these attacks did no better than the claim allows; others might.',
    "The attacked records are made up, as different as one record can be; noise, rates and rounds are the plan's own.",
    "Not attacked: ciphertexts, time, rounding, retries after a crash, other runs on the same data.",
)
COLLUDERS, EVERYBODY = "colluders", "all others"
SHARED_NOISE = (
    "Colluders: the server with as many data holders as the plan allows for, who see the sum of the others. "
    "All others: the server with every holder but one, whose own share of the noise is all that is left."
)
TOLERANCE = 1.001  # ε from the same events, computed in two ways, agrees to a thousandth


class Verdict(StrEnum):
    """What an attack says about a claim."""

    CONSISTENT = "consistent"
    """The attacker was right no more often than the claim allows."""
    INCONCLUSIVE = "inconclusive"
    """It was right more often, but chance can explain that: repeat with more trials."""
    VIOLATED = "violated"
    """Chance does not explain it, but for the stated probability of a false alarm."""


@dataclass(frozen=True)
class Finding:
    """One attack by one adversary."""

    channel: str
    adversary: str
    about: str
    upper: float
    """ε as the ledger has it for what was released."""
    lower: float
    """ε is at least this, with the confidence of the whole audit."""
    without_assumption: float
    if_as_stated: float | None
    """None: the attack has no bound that rests on the law of the noise."""
    noise_factor: float | None
    accuracy: float
    """The share of right guesses."""
    allowed_accuracy: float
    guesses: int
    """How many were counted; as many or fewer served to choose the test."""
    trials: int
    seconds: float
    in_plan: bool
    """Whether all of it is part of the plan, whose ε then must not be below the lower bound either."""
    p_value: float
    """How likely what was seen is at most, if the claim holds; of all tests of this attack together."""
    level: float
    """Below this p-value the claim is violated: this adversary's part of the probability of a false alarm."""
    clients: int = 1
    """How many were attacked, each by itself."""
    worst: str | None = None
    """The client of which most was seen, where one client alone violates the claim."""
    pooled: float | None = None
    """ε of the plan where one share of noise is left, against this adversary; None: the plan's own ε is for it."""

    @property
    def verdict(self) -> Verdict:
        """Violated: by the exact tests, or because the lower bound on ε exceeds the claim."""
        claimed = min(self.upper, math.inf if self.pooled is None else self.pooled)
        if self.p_value < self.level or self.lower > claimed * TOLERANCE:
            return Verdict.VIOLATED
        return Verdict.INCONCLUSIVE if self.accuracy > self.allowed_accuracy else Verdict.CONSISTENT


@dataclass(frozen=True)
class Findings:
    """A whole audit."""

    findings: tuple[Finding, ...]
    skipped: tuple[tuple[str, str], ...]
    """Channels that were not attacked, and why."""
    planned: float
    """ε of the whole plan."""
    delta: float
    confidence: float
    adjacency: Adjacency
    seconds: float

    @property
    def lower(self) -> float:
        """What the ε of the plan is at least: who sees all of it sees each part."""
        return max((f.lower for f in self.findings if f.in_plan), default=0.0)

    @property
    def collusion(self) -> tuple[float, float] | None:
        """(measured, claimed by the plan) against who sees through all shares but one; None where there is nobody."""
        found = [(f.lower, f.pooled) for f in self.findings if f.pooled is not None]
        return max(found, default=None)

    @property
    def outcome(self) -> Verdict:
        """Of the audit: the worst of all attacks, and of the plan as a whole."""
        verdicts = {finding.verdict for finding in self.findings}
        if self.lower > self.planned * TOLERANCE or Verdict.VIOLATED in verdicts:
            return Verdict.VIOLATED
        return Verdict.INCONCLUSIVE if Verdict.INCONCLUSIVE in verdicts else Verdict.CONSISTENT

    @property
    def fine(self) -> bool:
        """Whether no claim is violated."""
        return self.outcome is not Verdict.VIOLATED

    @property
    def membership(self) -> Finding | None:
        """The attack that sees most: the whole run, or else the most successful one; of one adversary by itself."""
        run = [f for f in self.findings if f.channel == "run" and f.adversary.startswith("white")]
        alone = [f for f in self.findings if f.in_plan]
        return run[0] if run else max(alone or self.findings, key=lambda f: f.accuracy, default=None)

    @property
    def sentence(self) -> str:
        """How often an attacker was right, for people."""
        found = self.membership
        if found is None:
            return "Nothing was attacked."
        who = "sees everything that leaves a client" if found.channel == "run" else f"sees the {found.channel}"
        what = "which of two records X has" if self.adjacency is Adjacency.REPLACE_ONE else "whether X took part"
        right, allowed = 100 * found.accuracy, math.ceil(100 * found.allowed_accuracy - 1e-9)
        most = f"the claim allows at most {allowed}" if math.isfinite(found.upper) else "nothing is claimed"
        return f"An attacker who {who} guesses {what}: right in {right:.0f} of 100 cases, a coin in 50; {most}."

    @property
    def verdict(self) -> str:
        """One sentence for the end."""
        chance = f"{1 - self.confidence:.2g}"
        if not self.findings:
            return "Nothing was attacked, so nothing is said about the claim."
        if self.outcome is Verdict.VIOLATED:
            worst = [
                f"{f.channel} ({f.adversary}{f', {f.worst}' if f.worst else ''})" for f in self._with(Verdict.VIOLATED)
            ]
            return (
                f"VIOLATED: more can be seen than the claim allows, by {', '.join(worst) or 'the plan as a whole'}. "
                f"An audit of a run that keeps its claim says so with probability at most {chance}."
            )
        if self.outcome is Verdict.INCONCLUSIVE:
            some = ", ".join(f"{f.channel} ({f.adversary})" for f in self._with(Verdict.INCONCLUSIVE))
            return (
                f"INCONCLUSIVE: right more often than the claim allows, though chance can explain it: {some}. "
                "So it is half of the time where an attack meets the claim exactly; try more --trials and --minutes."
            )
        return f"Consistent: no attack did better than the claim allows, at {100 * self.confidence:g}% confidence."

    def _with(self, verdict: Verdict) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is verdict]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values; an infinite claim is None."""
        return {
            "fine": self.fine,
            "outcome": str(self.outcome),
            "verdict": self.verdict,
            "confidence": self.confidence,
            "delta": self.delta,
            "adjacency": str(self.adjacency),
            "epsilon": {"lower": self.lower, "upper": _number(self.planned)},
            "collusion": self.collusion and {"lower": self.collusion[0], "upper": _number(self.collusion[1])},
            "attacks": [_as_json(f) for f in self.findings],
            "skipped": dict(self.skipped),
            "membership": None if self.membership is None else _membership(self.membership, self.sentence),
            "not_shown": list(NOT_SHOWN),
            "seconds": self.seconds,
        }


def _as_json(found: Finding) -> dict[str, Any]:
    return {
        "channel": found.channel,
        "adversary": found.adversary,
        "about": found.about,
        "epsilon": {
            "lower": found.lower,
            "upper": _number(found.upper),
            "lower_without_assumption": found.without_assumption,
            "lower_if_noise_is_as_stated": found.if_as_stated,
        },
        "noise_at_most_times_stated": None if found.noise_factor is None else _number(found.noise_factor),
        "right_guesses": {"measured": found.accuracy, "coin": 0.5, "allowed": found.allowed_accuracy},
        "guesses": found.guesses,
        "trials": found.trials,
        "seconds": found.seconds,
        "clients": found.clients,
        "worst_client": found.worst,
        "p_value": found.p_value,
        "violated_below": found.level,
        "verdict": str(found.verdict),
        "contradicts": found.verdict is Verdict.VIOLATED,
    }


def _membership(found: Finding, sentence: str) -> dict[str, Any]:
    right, allowed = round(100 * found.accuracy, 1), round(100 * found.allowed_accuracy, 1)
    return {"right_of_100": right, "coin": 50, "allowed": allowed, "sentence": sentence}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
