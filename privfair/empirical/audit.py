"""The audit: every attack that applies, within a number of trials and a time, at one confidence for all together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from accountant.empirical.tradeoff import TradeOff
from accountant.empirical.two_worlds import FEWEST, distinguish
from accountant.errors import InputError
from privfair.empirical.attack import Attack
from privfair.empirical.canaries import CANARIES, VIEWS, CanariesAttack, Guessed, one_run_result
from privfair.empirical.counts import CountsAttack
from privfair.empirical.embeddings import POOLED, EmbeddingsAttack
from privfair.empirical.findings import Finding, Findings
from privfair.empirical.predictions import PredictionsAttack
from privfair.empirical.subject import Subject
from privfair.empirical.updates import UpdatesAttack
from privfair.empirical.whole_run import WholeRunAttack

ATTACKS: tuple[type[Attack], ...] = (
    CountsAttack,
    PredictionsAttack,
    EmbeddingsAttack,
    UpdatesAttack,
    WholeRunAttack,
)
CHANNELS = (*(attack.channel for attack in ATTACKS[:-1]), CanariesAttack.channel, WholeRunAttack.channel)
FEWEST_RUNS = 3
TRIALS_OF_A_RUN = 20  # a training run with canaries stands for so many trials

Report = Callable[[str, int, int], None]  # channel, trials so far, trials in all


@dataclass(frozen=True)
class Effort:
    """How much is tried: releases of each of the two datasets, and minutes in all; whichever ends first.

    Every attack has at least 80 trials of each, however few the minutes.
    """

    trials: int = 2000
    minutes: float = 5.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Refuse what shows nothing."""
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

    The probability of a false alarm is shared by all adversaries: all lower bounds hold together, with the confidence
    that is asked for.
    """
    effort, started = effort or Effort(), time.perf_counter()
    unknown = [name for name in channels if name not in CHANNELS]
    if unknown:
        raise InputError("channel", f"must be one of {', '.join(CHANNELS)}", unknown[0])
    wanted = [name for name in CHANNELS if not channels or name in channels]
    kinds: dict[str, type[Attack] | type[CanariesAttack]] = {attack.channel: attack for attack in ATTACKS}
    kinds[CanariesAttack.channel] = CanariesAttack
    reasons = {name: kinds[name].why_not(subject) for name in wanted}
    attacked = [name for name in wanted if reasons[name] is None]
    views = sum(_adversaries(name, subject) for name in attacked)
    level, found = (1.0 - effort.confidence) / max(1, views), list[Finding]()
    for place, name in enumerate(attacked):
        left = 60.0 * effort.minutes - (time.perf_counter() - started)
        until = time.perf_counter() + max(0.0, left) / (len(attacked) - place)
        if name == CanariesAttack.channel:
            found += _canaries(CanariesAttack(subject), subject, effort, level, until, report)
        else:
            attack = next(a for a in ATTACKS if a.channel == name)(subject)
            found += _two_worlds(attack, subject, effort, level, until, report)
    claim = subject.terms.claim
    return Findings(
        findings=tuple(found),
        skipped=tuple((name, reason) for name, reason in reasons.items() if reason is not None),
        planned=math.inf if claim is None else claim.pld,
        delta=subject.config.privacy.delta,
        confidence=effort.confidence,
        adjacency=subject.adjacency,
        seconds=time.perf_counter() - started,
    )


def _adversaries(channel: str, subject: Subject) -> int:
    """How many a channel has."""
    two = channel in (CanariesAttack.channel, WholeRunAttack.channel)
    return 2 if two or (channel == EmbeddingsAttack.channel and subject.terms.noise_is_shared) else 1


def _two_worlds(
    attack: Attack, subject: Subject, effort: Effort, level: float, until: float, report: Report | None
) -> list[Finding]:
    """One finding for every adversary of a channel."""
    started = time.perf_counter()
    try:
        claim = attack.claim()
        absent, present = list[Sequence[float]](), list[Sequence[float]]()
        while len(present) < effort.trials and (len(present) < 2 * FEWEST or time.perf_counter() < until):
            absent.append(attack.trial(False))
            present.append(attack.trial(True))
            if report:
                report(attack.channel, len(present), effort.trials)
    finally:
        attack.close()
    rows, found = [np.array(absent), np.array(present)], []
    for adversary, columns in attack.views.items():
        told, delta = claim.against(adversary), subject.config.privacy.delta
        seen = distinguish(rows[0][:, columns], rows[1][:, columns], told.event, delta, level)
        pooled = subject.colluding if adversary == POOLED else None
        found.append(
            Finding(
                channel=attack.channel,
                adversary=adversary,
                about=attack.about,
                upper=told.epsilon,
                lower=seen.lower,
                without_assumption=seen.without_assumption,
                if_as_stated=seen.if_as_stated,
                noise_factor=seen.noise_factor,
                accuracy=seen.accuracy,
                allowed_accuracy=seen.allowed_accuracy,
                guesses=2 * (len(present) - len(present) // 3),
                trials=2 * len(present),
                seconds=time.perf_counter() - started,
                # a single client is in every round, and its messages have the sizes of made-up records
                in_plan=pooled is None
                and (
                    attack.channel != WholeRunAttack.channel
                    or (subject.trainings == subject.rounds and not subject.replaces)
                ),
                pooled=pooled,
            )
        )
    return found


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
        seen = one_run_result(runs, view, delta, level)
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
                allowed_accuracy=TradeOff.of(claim.event).most_accuracy,
                guesses=seen.guesses,
                trials=len(runs),
                seconds=time.perf_counter() - started,
                in_plan=True,
            )
        )
    return found
