"""Predictions: is a record among those whose scores a client shares?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from privfair.arrays import FloatArray
from privfair.clients.client import Client
from privfair.clients.objectives import all_scores
from privfair.empirical.attack import MOST_OTHERS, Claimed, Coins, Worlds, cells_of, only_trained
from privfair.empirical.messages_law import OneScore, worst_case
from privfair.empirical.subject import FEATURES, Subject, twin
from privfair.messages import Parameters, ScoreRelease, Scores, ScoresRequest
from privfair.privacy.pricing import PREDICTIONS
from privfair.randomness import stream

FAR = 50.0  # a feature large enough for scores at the ends of their range


class PredictionsAttack:
    """A record at one end of the range of scores, the others at the other end; the models change ends every round.

    The attacker is the server: it chooses the models. The messages have one score each, so that no other score hides
    the record's; what a message costs does not depend on its length. All cells are asked for: those in which nobody is
    have padding, or nobody's scores, whose noise must be none of the record's.
    """

    channel: ClassVar[str] = PREDICTIONS
    about: ClassVar[str] = "the noisy scores of every client in all rounds, with and without one record"
    fewest: ClassVar[int] = 80

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Scores without noise have no ε, and some methods share none."""
        if subject.config.privacy.client_level:
            return "not attacked where whole clients are protected"
        if subject.config.fairness.tracker == "embedding":
            return "not shared: sums of their features are (embeddings)"
        if subject.terms.sharing is None:
            return "not shared, or shared without noise: no ε is claimed"
        return None if subject.target else "no group is large enough to be heard"

    def __init__(self, subject: Subject) -> None:
        """Both clients, and the requests of all rounds."""
        sharing, target = subject.terms.sharing, subject.target
        if sharing is None or target is None:
            raise ValueError("no scores are shared")
        self._noise, row, cell = sharing.noise, target[0], target[1]
        if sharing.rates is None:  # one of n: the sampled share of the dearest cell
            count = int(subject.terms.cells[row, cell])
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
        count = len(self._worlds.setting.cells)
        self._rest = [c for c in range(count) if c not in self._cells][:MOST_OTHERS]
        quotas = np.zeros(count, dtype=np.int64)
        quotas[self._cells + self._rest] = 1
        rates = None if sharing.rates is None else np.where(quotas > 0, sharing.rates[row, cell], 0.0)
        release = ScoreRelease(self._noise, rates)
        probe = twin(self._worlds.setting, subject.records(np.stack([-end, end])))
        models, self._scores = [], []
        for values, at in _extreme_models(probe, self._noise.low, self._noise.high):
            models.append(Parameters(values))
            self._scores.append(np.array([self._noise.middle, at[0], at[1]]))
        self._requests = [ScoresRequest(r, models[r % 2], quotas, release) for r in range(subject.rounds)]

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """The server, which gets them and chooses the models."""
        return {"server": tuple(range(5 + len(self._rest)))}

    @property
    def clients(self) -> Sequence[str]:
        """All of the plan."""
        return self._worlds.names

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

    def close(self) -> None:
        """Close the ledger."""
        self._worlds.close()


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
