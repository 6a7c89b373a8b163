"""Scores: is a record among those whose noisy scores a client shares?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from privfair.audit.attack import (
    FEATURES,
    MOST_OTHERS,
    Claimed,
    Coins,
    Subject,
    Worlds,
    WorldsAttack,
    cells_of,
    only_trained,
    planned,
    twin,
)
from privfair.channels.scores import PREDICTIONS
from privfair.clients.client import Client, all_scores
from privfair.federated.messages import Parameters, Scores
from privfair.mechanisms.entropy import stream
from privfair.mechanisms.score_release import ScoreNoise
from privfair.util import FloatArray

TINY = 1e-300
FAR = 50.0  # a feature large enough for scores at the ends of their range


@dataclass(frozen=True)
class OneScore:
    """The distribution of a message of one score, before the noise.

    `others` records with one score are there in any case. Taken at rate γ each, a message has a pad if none is taken;
    the attacked record, if taken, is kept against b others with probability 1/(b + 1). Without a rate one of all
    records is drawn, and the attacked record is exchanged for one like the others.
    """

    others: int
    rate: float | None

    @property
    def absent(self) -> FloatArray:
        """Probabilities of (the pad, a score of the others, the attacked record's) without that record."""
        if self.rate is None:
            return np.array([0.0, 1.0, 0.0])
        pad = (1.0 - self.rate) ** self.others
        return np.array([pad, 1.0 - pad, 0.0])

    @property
    def present(self) -> FloatArray:
        """The same with the record; E 1/(B + 1) = (1 − (1 − γ)^(n+1))/((n + 1)γ) for B ~ Binomial(n, γ)."""
        if self.rate is None:
            share = 1.0 / (self.others + 1)
            return np.array([0.0, 1.0 - share, share])
        kept = (1.0 - (1.0 - self.rate) ** (self.others + 1)) / (self.others + 1)
        pad = (1.0 - self.rate) ** (self.others + 1)
        return np.array([pad, 1.0 - pad - kept, kept])

    def log_ratio(self, noisy: FloatArray, scores: FloatArray, noise: ScoreNoise) -> FloatArray:
        """log P(noisy | present) − log P(noisy | absent); `scores`: the pad, the others', the record's."""
        logs = log_density(noise, np.asarray(noisy)[:, None] - scores[None, :])
        at = np.exp(logs - logs.max(axis=1, keepdims=True))  # far from all of them only the ratio is left
        return np.asarray(np.log(at @ self.present + TINY) - np.log(at @ self.absent + TINY))

    def strength(self, noise: ScoreNoise) -> float:
        """The chi-square divergence of present from absent, the record and the others at opposite ends."""
        y = np.linspace(noise.low - 10 * noise.scale, noise.high + 10 * noise.scale, 2001)
        at = np.exp(log_density(noise, y[:, None] - np.array([noise.middle, noise.low, noise.high])[None, :]))
        present, absent = at @ self.present, at @ self.absent
        return float(np.sum((present - absent) ** 2 / np.maximum(absent, TINY)) * (y[1] - y[0]))


def log_density(noise: ScoreNoise, offset: FloatArray) -> FloatArray:
    """The logarithm of the noise's density, of its continuous law, at these offsets."""
    x = np.abs(offset) / noise.scale
    if noise.kind == "laplace":
        return np.asarray(-x - np.log(2.0 * noise.scale))
    return np.asarray(-0.5 * x * x - np.log(noise.scale * np.sqrt(2.0 * np.pi)))


def worst_case(rate: float, noise: ScoreNoise) -> OneScore:
    """The number of other records at which one record shows most, at this public rate."""
    numbers = {0, 1, 2, 3, *(round(x / rate) for x in (0.3, 0.7, 1.5))}
    return max((OneScore(n, rate) for n in sorted(numbers) if n <= 2000), key=lambda law: law.strength(noise))


class PredictionsAttack(WorldsAttack):
    """A record at one end of the range of scores, the others at the other end; the models change ends every round.

    The attacker is the server, which chooses the models. Messages have one score each, so that no other score hides the
    record's; the cost of a message does not depend on its length. All cells are requested: empty ones hold padding,
    whose noise must be independent of the record's.
    """

    channel: ClassVar[str] = PREDICTIONS
    about: ClassVar[str] = "the noisy scores of every client in all rounds, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Scores without noise have no ε, and some methods share none."""
        if subject.config.privacy.client_level:
            return "not attacked where whole clients are protected"
        if subject.config.fairness.tracker == "embedding":
            return "not shared: sums of their features are (embeddings)"
        if subject.release_plan.sharing is None:
            return "not shared, or shared without noise: no ε is claimed"
        return None if subject.target else "no group is large enough to be shared"

    def __init__(self, subject: Subject) -> None:
        """Both clients, and the requests of all rounds."""
        sharing, target = subject.release_plan.sharing, subject.target
        if sharing is None or target is None:
            raise ValueError("no scores are shared")
        self._noise, row, cell = sharing.noise, target[0], target[1]
        if sharing.rates is None:  # one of n: the sampled share of the most costly cell
            count = int(subject.release_plan.cells[row, cell])
            self._law = OneScore(max(1, -(-count // int(sharing.quotas[row, cell]))) - 1, None)
        else:
            self._law = worst_case(float(sharing.rates[row, cell]), self._noise)
        end = np.zeros(FEATURES)
        end[0] = FAR
        others = np.tile(-end, (self._law.others, 1))
        having = subject.records(np.vstack([others, end]))
        lacking = subject.records(np.vstack([others, -end]) if subject.replaces else others.reshape(-1, FEATURES))
        self._worlds = Worlds(subject, self.channel, only_trained(having), only_trained(lacking))
        self._cells = cells_of(self._worlds.present)
        count = len(self._worlds.simulation.cells)
        self._rest = [c for c in range(count) if c not in self._cells][:MOST_OTHERS]
        quotas = np.zeros(count, dtype=np.int64)
        quotas[self._cells + self._rest] = 1
        rates = None if sharing.rates is None else np.where(quotas > 0, sharing.rates[row, cell], 0.0)
        request = planned(subject, self._worlds.simulation, PREDICTIONS, client=row)
        request = replace(request, quotas=quotas, release=replace(request.release, rates=rates))
        probe = twin(self._worlds.simulation, subject.records(np.stack([-end, end])))
        models, self._scores = [], []
        for values, at in _extreme_models(probe, self._noise.low, self._noise.high):
            models.append(Parameters(values))
            self._scores.append(np.array([self._noise.middle, at[0], at[1]]))
        self._requests = [replace(request, round=r, model=models[r % 2]) for r in range(subject.rounds)]

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """The server, which receives them and chooses the models."""
        return {"server": tuple(range(5 + len(self._rest)))}

    def claim(self) -> Claimed:
        """Of all rounds."""
        return self._worlds.claim(self._requests, self._cells)

    def trial(self, present: Coins) -> FloatArray:
        """Log-likelihood ratio of all messages; of the first; their lengths; how two rounds, clients, cells differ."""
        rounds = [self._worlds.ask(present, request, Scores) for request in self._requests]
        beside = 0.0 if rounds[0][1] is None else self._first(rounds[0][1])
        rows = []
        for k in range(len(present)):
            replies = [of_all[k] for of_all, _ in rounds]
            ratios = [self._ratio(reply, number) for number, reply in enumerate(replies)]
            own = self._first(replies[0])
            differ = own - self._first(replies[1]) if len(replies) > 1 else 0.0
            length = sum(cell.size for reply in replies for cell in reply.cells)
            against = [own - _mean(replies[0].cells[c]) for c in self._rest]
            rows.append([sum(ratios), ratios[0], length, differ, own - beside, *against])
        return np.array(rows, dtype=np.float64)

    def _ratio(self, reply: Scores, number: int) -> float:
        found = np.concatenate([reply.cells[c] for c in self._cells])
        return float(np.sum(self._law.log_ratio(found, self._scores[number % 2], self._noise))) if found.size else 0.0

    def _first(self, reply: Scores) -> float:
        return _mean(reply.cells[self._cells[0]])


def _mean(scores: FloatArray) -> float:
    return float(np.mean(scores)) if scores.size else 0.0


def _extreme_models(probe: Client, low: float, high: float) -> list[tuple[FloatArray, FloatArray]]:
    """Two parameter vectors, with the clipped scores of (the others, the record): far apart, one each way."""
    rng = stream(0, "audit", "models")
    size = probe.model.parameters().size
    tried: list[tuple[float, FloatArray, FloatArray]] = []
    for scale in (1.0, 10.0, 0.1):
        for values in scale * rng.standard_normal((64, size)):
            probe.model.load(values)
            at = np.clip(np.nan_to_num(all_scores(probe.model, probe.data), nan=0.5 * (low + high)), low, high)
            tried.append((float(at[1] - at[0]), values.astype(probe.model.parameters().dtype), at))
    best, worst = max(tried, key=lambda t: t[0]), min(tried, key=lambda t: t[0])
    return [(best[1], best[2]), (worst[1], worst[2])]
