"""Fairness tracking, the paper's algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from privfair.algorithms.base import Plain
from privfair.arrays import FloatArray
from privfair.fairness.pooling import pool
from privfair.fairness.quotas import largest_remainder_quotas, random_quotas
from privfair.fairness.tracking import NoisyScores, SharedScores, equal_weights
from privfair.interfaces import Ask, Memory, ServerState, expect
from privfair.messages import Drift, Objective, ScoreRelease, Scores, ScoresRequest, Tracked
from privfair.randomness import stream
from privfair.terms import Sharing


@dataclass(frozen=True)
class MmdFedAvg(Plain):
    """MMD-fair FedAvg (Rychener, Kuhn & Hu 2025, algorithms 1 and 2).

    Each round all clients share `samples` scores per cell, together a simple random sample of the cell; local training
    follows the witness functions built from them. Aggregation weighs clients by their records, as the paper's text
    says (its listing has 1/S, which is the same for equal clients).
    """

    name: ClassVar[str] = "mmd_fedavg"

    strength: float
    kernel: str
    samples: int
    drift: Drift
    quotas: Literal["random", "largest_remainder"]
    domain: tuple[float, float] | None
    seed: int

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """Gather the scores of every cell and broadcast them, pooled."""
        sharing = state.terms.sharing
        shared = self._exact(state, ask) if sharing is None else self._private(state, ask, sharing)
        return Tracked(shared, self.drift), state.algorithm

    def _exact(self, state: ServerState, ask: Ask) -> SharedScores:
        """Scores as they are, of a simple random sample of each cell."""
        cells = np.maximum(state.terms.cells, 0)  # counts may be noisy, where only the scores are exact
        if self.quotas == "random":
            quotas = random_quotas(cells, self.samples, stream(self.seed, "quotas", state.round))
        else:
            quotas = largest_remainder_quotas(cells, self.samples)
        replies = ask(range(state.clients), lambda k: ScoresRequest(state.round, state.model, quotas[k]))
        shared = [reply.cells for reply in expect(Scores, replies)]
        pooled = tuple(np.concatenate(cell) for cell in zip(*shared, strict=True))
        return self._broadcast(state, pooled, equal_weights(pooled))

    def _private(self, state: ServerState, ask: Ask, sharing: Sharing) -> SharedScores:
        """Noisy scores of those who take part, weighed by the released counts, shuffled."""
        sharers = [int(k) for k in np.flatnonzero(sharing.quotas.any(axis=1))]

        def request(client: int) -> ScoresRequest:
            rates = None if sharing.rates is None else sharing.rates[client]
            return ScoresRequest(state.round, state.model, sharing.quotas[client], ScoreRelease(sharing.noise, rates))

        replies = zip(sharers, expect(Scores, ask(sharers, request)), strict=True)
        pooled = pool({k: reply.cells for k, reply in replies}, state.terms, sharing)
        order = stream(self.seed, "shuffle", state.round)
        shuffles = [order.permutation(scores.size) for scores in pooled.scores]
        scores = tuple(values[i] for values, i in zip(pooled.scores, shuffles, strict=True))
        weights = tuple(values[i] for values, i in zip(pooled.weights, shuffles, strict=True))
        return self._broadcast(state, scores, weights, NoisyScores(sharing.noise, sharing.correction, pooled.pads))

    def _broadcast(
        self,
        state: ServerState,
        scores: tuple[FloatArray, ...],
        weights: tuple[FloatArray, ...],
        noisy: NoisyScores | None = None,
    ) -> SharedScores:
        return SharedScores(
            kernel=self.kernel,
            strength=self.strength,
            scores=scores,
            weights=weights,
            counts=state.terms.cell_totals,
            records=float(state.terms.records.sum()),
            domain=self.domain,
            noisy=noisy,
        )
