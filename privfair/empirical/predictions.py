"""Predictions: is a record among those whose scores a client shares?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from privfair.arrays import FloatArray
from privfair.clients.client import Client
from privfair.clients.objectives import all_scores
from privfair.empirical.attack import Claimed, asked, claimed
from privfair.empirical.messages_law import OneScore, worst_case
from privfair.empirical.subject import FEATURES, Subject, first_client, twin
from privfair.messages import Parameters, ScoreRelease, Scores, ScoresRequest
from privfair.privacy.pricing import PREDICTIONS
from privfair.randomness import stream

FAR = 50.0  # a feature large enough for scores at the ends of their range


class PredictionsAttack:
    """A record at one end of the range of scores, the others at the other end; the models change ends every round.

    The attacker is the server: it chooses the models. The messages have one score each, so that no other score hides
    the record's; what a message costs does not depend on its length.
    """

    channel: ClassVar[str] = PREDICTIONS
    about: ClassVar[str] = "the noisy scores of one client in all rounds, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Scores without noise have no ε, and some methods share none."""
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
        with_record = subject.records(np.vstack([others, end]))
        without = np.vstack([others, -end]) if subject.replaces else others.reshape(-1, FEATURES)
        self._setting = subject.setting(with_record, self.channel)
        present = first_client(self._setting)
        self._clients = {True: present, False: twin(self._setting, subject.records(without))}
        self._cells = [int(c) for c in np.flatnonzero(present.data.membership[-1])]
        quotas = np.zeros(len(self._setting.cells), dtype=np.int64)
        quotas[self._cells] = 1
        rates = None if sharing.rates is None else np.where(quotas > 0, sharing.rates[row, cell], 0.0)
        release = ScoreRelease(self._noise, rates)
        probe = twin(self._setting, subject.records(np.stack([-end, end])))
        models, self._scores = [], []
        for values, at in _extreme_models(probe, self._noise.low, self._noise.high):
            models.append(Parameters(values))
            self._scores.append(np.array([self._noise.middle, at[0], at[1]]))
        self._requests = [ScoresRequest(r, models[r % 2], quotas, release) for r in range(subject.rounds)]

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """The server, which gets them and chooses the models."""
        return {"server": (0, 1, 2, 3)}

    def claim(self) -> Claimed:
        """Of all rounds."""
        asked(self._setting, self._requests)
        return claimed(self._setting, self._cells)

    def trial(self, present: bool) -> tuple[float, ...]:
        """Log-likelihood ratio of all messages; of the first; their lengths; how two rounds differ."""
        ratios, length, means = [], 0, []
        for number, request in enumerate(self._requests):
            reply = self._clients[present].respond(request)
            if not isinstance(reply, Scores):
                raise TypeError(type(reply).__name__)
            told = np.concatenate([reply.cells[c] for c in self._cells])
            scores = self._scores[number % 2]
            ratios.append(float(np.sum(self._law.log_ratio(told, scores, self._noise))) if told.size else 0.0)
            means.append(float(np.mean(told)) if told.size else 0.0)
            length += sum(cell.size for cell in reply.cells)
        differ = means[0] - means[1] if len(means) > 1 else 0.0
        return float(np.sum(ratios)), ratios[0], float(length), differ

    def close(self) -> None:
        """Close the ledger."""
        if self._setting.private is not None:
            self._setting.private.close()


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
