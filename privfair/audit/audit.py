"""The audit: every attack that applies, within given trials and minutes, at one confidence for all together."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from accountant.empirical import FEWEST, Distinguished, TradeOff, distinguish
from accountant.errors import InputError
from accountant.events import Event
from privfair.audit.attack import Attack, Subject
from privfair.audit.counts import CountsAttack, EvaluationAttack
from privfair.audit.features import POOLED, EmbeddingsAttack
from privfair.audit.findings import EVERYBODY, Finding, Findings
from privfair.audit.scores import PredictionsAttack
from privfair.audit.updates import (
    CANARIES,
    VIEWS,
    CanariesAttack,
    ClientsAttack,
    Guessed,
    TrackedAttack,
    UpdatesAttack,
    one_run_result,
)
from privfair.audit.whole_run import HolderAttack, WholeRunAttack
from privfair.util import FloatArray

ATTACKS: tuple[type[Attack], ...] = (
    CountsAttack,
    PredictionsAttack,
    EmbeddingsAttack,
    UpdatesAttack,
    TrackedAttack,
    ClientsAttack,
    EvaluationAttack,
    WholeRunAttack,
    HolderAttack,
)
KINDS: dict[str, type[Attack] | type[CanariesAttack]] = {
    **{attack.channel: attack for attack in ATTACKS[:-2]},
    CanariesAttack.channel: CanariesAttack,
    **{attack.channel: attack for attack in ATTACKS[-2:]},
}
CHANNELS = tuple(KINDS)
FEWEST_RUNS = 30
TRIALS_OF_A_RUN = 20  # a training run with canaries stands for so many trials

Report = Callable[[str, int, int], None]  # channel, trials so far, trials in all


@dataclass(frozen=True)
class Effort:
    """How much is tried: releases of each of the two datasets, and minutes in all, whichever ends first.

    Every attack has at least 80 trials of each, however few the minutes (`holder` 40, `canaries` 30 runs). With several
    clients, all are attacked in every trial. 1 − `confidence` is the probability of a false alarm of the whole audit.
    """

    trials: int = 2000
    minutes: float = 5.0
    confidence: float = 0.999

    def __post_init__(self) -> None:
        """Raise if the effort is too small to show anything."""
        if self.trials < 2 * FEWEST:
            raise InputError("trials", f"must be at least {2 * FEWEST}", self.trials, "Fewer show nothing.")
        if not self.minutes > 0:
            raise InputError("minutes", "must be above 0", self.minutes)
        if not 0.5 < self.confidence < 1:
            raise InputError("confidence", "must be between 0.5 and 1", self.confidence)


def audit(
    subject: Subject, effort: Effort | None = None, channels: Sequence[str] = (), report: Report | None = None
) -> Findings:
    """What the attacks on these channels (default: all) show.

    All adversaries share the probability of a false alarm: all lower bounds hold together with the confidence asked
    for.
    """
    effort, started = effort or Effort(), time.perf_counter()
    unknown = [name for name in channels if name not in CHANNELS]
    if unknown:
        raise InputError("channel", f"must be one of {', '.join(CHANNELS)}", unknown[0])
    wanted = [name for name in CHANNELS if not channels or name in channels]
    reasons = {name: KINDS[name].why_not(subject) for name in wanted}
    attacked = [name for name in wanted if reasons[name] is None]
    views = sum(_adversaries(name, subject) for name in attacked)
    rng = fresh_coins()
    level, found = (1.0 - effort.confidence) / max(1, views), list[Finding]()
    for place, name in enumerate(attacked):
        left = 60.0 * effort.minutes - (time.perf_counter() - started)
        until = time.perf_counter() + max(0.0, left) / (len(attacked) - place)
        attack = KINDS[name](subject)
        if isinstance(attack, CanariesAttack):
            found += _canaries(attack, subject, effort, level, until, report)
        else:
            found += _two_worlds(attack, subject, effort, level, until, report, rng)
    claim = subject.release_plan.claim
    return Findings(
        findings=tuple(found),
        skipped=tuple((name, reason) for name, reason in reasons.items() if reason is not None),
        planned=math.inf if claim is None else claim.pld,
        delta=subject.config.privacy.delta,
        confidence=effort.confidence,
        adjacency=subject.adjacency,
        seconds=time.perf_counter() - started,
    )


def fresh_coins() -> np.random.Generator:
    """Coins that decide who has the record in a trial; nobody can know them beforehand."""
    return np.random.default_rng(secrets.randbits(128))


def _adversaries(channel: str, subject: Subject) -> int:
    """The number of adversaries of a channel."""
    two = channel in (CanariesAttack.channel, WholeRunAttack.channel)
    shares = subject.shares("updates" if channel == TrackedAttack.channel else channel)
    return 2 if two or shares > 1 else 1


def _two_worlds(
    attack: Attack,
    subject: Subject,
    effort: Effort,
    level: float,
    until: float,
    report: Report | None,
    rng: np.random.Generator,
) -> list[Finding]:
    """One finding for every adversary of a channel.

    Trials come in pairs: in the first every client has its record by a coin of its own, in the second where it had not.
    So every client is in as many trials with the record as without it, whatever the others have.
    """
    started = time.perf_counter()
    fewest, clients = min(attack.fewest, effort.trials), len(attack.clients)
    trials = max(fewest, -(-effort.trials // clients))
    try:
        claim = attack.claim()
        absent, present = list[FloatArray](), list[FloatArray]()
        while len(present) < trials and (len(present) < fewest or time.perf_counter() < until):
            coins = rng.random(clients) < 0.5
            rows = {True: attack.trial(coins), False: attack.trial(~coins)}
            present.append(np.where(coins[:, None], rows[True], rows[False]))
            absent.append(np.where(coins[:, None], rows[False], rows[True]))
            if report:
                report(attack.channel, len(present), trials)
    finally:
        attack.close()
    without, having = np.array(absent), np.array(present)  # (trials, clients, numbers)
    found = []
    for adversary, columns in attack.views.items():
        against, delta = claim.against(adversary), subject.config.privacy.delta
        seen, p_value, worst = _judged(without[:, :, columns], having[:, :, columns], against.event, delta, level)
        pooled = subject.colluding if adversary in (POOLED, EVERYBODY) else None
        found.append(
            Finding(
                channel=attack.channel,
                adversary=adversary,
                about=attack.about,
                upper=against.epsilon,
                lower=seen.lower,
                without_assumption=seen.without_assumption,
                if_as_stated=seen.if_as_stated,
                noise_factor=seen.noise_factor,
                accuracy=seen.accuracy,
                allowed_accuracy=seen.allowed_accuracy,
                guesses=seen.counted,
                trials=2 * len(present),
                seconds=time.perf_counter() - started,
                in_plan=pooled is None and _in_plan(attack.channel, subject),
                p_value=p_value,
                level=level,
                clients=clients,
                worst=None if worst is None else attack.clients[worst],
                pooled=pooled,
            )
        )
    return found


def _in_plan(channel: str, subject: Subject) -> bool:
    """Whether an attack is within the plan: a single client is in every round, with sizes of made-up records."""
    if channel not in (WholeRunAttack.channel, HolderAttack.channel):
        return True
    return subject.trainings == subject.rounds and not subject.replaces


def _judged(
    absent: FloatArray, present: FloatArray, claim: Event, delta: float, level: float
) -> tuple[Distinguished, float, int | None]:
    """What (trials, clients, numbers) show: of all clients together, or of the one of which most was seen.

    With several clients half of the false alarms are for all together and half are shared by each alone. The p-value is
    of both; a client is named where it violates the claim and all together do not.
    """
    numbers = absent.shape[2]
    if absent.shape[1] == 1:
        seen = distinguish(absent[:, 0], present[:, 0], claim, delta, level)
        return seen, seen.p_value, None
    # client after client within a trial: the first third of the trials chooses the test
    together = distinguish(absent.reshape(-1, numbers), present.reshape(-1, numbers), claim, delta, level / 2)
    clients = absent.shape[1]
    each = [distinguish(absent[:, k], present[:, k], claim, delta, level / (2 * clients)) for k in range(clients)]
    worst = min(range(clients), key=lambda k: (each[k].p_value, -each[k].lower))
    p_value = min(1.0, 2.0 * together.p_value, 2.0 * clients * each[worst].p_value)
    alone = each[worst].refutes and not together.refutes
    return (each[worst], p_value, worst) if alone else (together, p_value, None)


def _canaries(
    attack: CanariesAttack, subject: Subject, effort: Effort, level: float, until: float, report: Report | None
) -> list[Finding]:
    """White-box and black-box guesses of the coins of all runs."""
    started, most = time.perf_counter(), max(FEWEST_RUNS, effort.trials // TRIALS_OF_A_RUN)
    try:
        claim, runs = attack.claim(), list[Guessed]()
        while len(runs) < most and (len(runs) < FEWEST_RUNS or time.perf_counter() < until):
            runs.append(attack.run())
            if report:
                report(attack.channel, len(runs), most)
    finally:
        attack.close()
    found, delta = [], subject.config.privacy.delta
    for view, adversary in VIEWS.items():
        trade_off = TradeOff.of(claim.event)
        seen = one_run_result(runs, view, trade_off, delta, level)
        found.append(
            Finding(
                channel=attack.channel,
                adversary=adversary,
                about=attack.about,
                upper=claim.epsilon,
                lower=seen.epsilon,
                without_assumption=seen.epsilon,
                if_as_stated=None,
                noise_factor=None,
                # of all canaries, without abstaining, so that it can be held against the claim
                accuracy=float(np.mean([run.right(getattr(run, view), CANARIES) / CANARIES for run in runs])),
                allowed_accuracy=trade_off.most_accuracy,
                guesses=seen.guesses,
                trials=len(runs),
                seconds=time.perf_counter() - started,
                in_plan=True,
                p_value=seen.p_value,
                level=level,
            )
        )
    return found
