"""Fairness tracking, the paper's algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from privfair.algorithms.base import Plain
from privfair.arrays import FloatArray
from privfair.fairness.pooling import Pooled, pool
from privfair.fairness.quotas import largest_remainder_quotas, random_quotas
from privfair.fairness.tracking import NoisyScores, SharedScores, equal_weights
from privfair.interfaces import Ask, Memory, ServerState, answered
from privfair.messages import Drift, Objective, Request, ScoreRelease, Scores, ScoresRequest, Tracked
from privfair.randomness import stream
from privfair.terms import Terms


@dataclass(frozen=True)
class MmdFedAvg(Plain):
    """MMD-fair FedAvg (Rychener, Kuhn & Hu 2025, algorithms 1 and 2).

    Each round all clients share `samples` scores per cell, together a simple random sample of the cell; local training
    follows the witness functions built from them. Aggregation weighs clients by their records, as the paper's text
    says (its listing has 1/S, which is the same for equal clients).

    `lagged`: the scores of every round but the first are those under the model of the round before, asked for together
    with that round's training: one exchange a round instead of two, as many releases, a witness one step old.
    """

    name: ClassVar[str] = "mmd_fedavg"

    strength: float
    kernel: str
    samples: int
    drift: Drift
    quotas: Literal["random", "largest_remainder"]
    domain: tuple[float, float] | None
    seed: int
    rounds: int
    lagged: bool = False

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The pooled scores of every cell, broadcast: gathered now, or heard with the last round's updates."""
        if self.lagged and state.algorithm:
            return Tracked(self._broadcast(state.terms, _remembered(state.algorithm)), self.drift), state.algorithm
        requests = self._requests(state, state.round)
        clients = list(requests)
        replies = answered(Scores, clients, ask(clients, requests.__getitem__))
        pooled = self._pooled(state.terms, state.round, replies)
        memory = _memory(pooled) if self.lagged else state.algorithm
        return Tracked(self._broadcast(state.terms, pooled), self.drift), memory

    def beside(self, state: ServerState) -> Mapping[int, Request]:
        """The scores for the next round, if they lag."""
        needed = self.lagged and state.round + 1 < self.rounds
        return self._requests(state, state.round + 1) if needed else {}

    def heard(self, state: ServerState, memory: Memory, replies: Mapping[int, Scores]) -> Memory:
        """The scores for the next round; the old ones again if nobody told any."""
        return _memory(self._pooled(state.terms, state.round + 1, replies)) if replies else memory

    def _requests(self, state: ServerState, number: int) -> dict[int, ScoresRequest]:
        """What each client is asked for round `number`: a simple random sample of each cell, or a private message."""
        terms, sharing = state.terms, state.terms.sharing
        if sharing is not None:
            found = {}
            for k in (int(k) for k in np.flatnonzero(sharing.quotas.any(axis=1))):
                rates = None if sharing.rates is None else sharing.rates[k]
                found[k] = ScoresRequest(number, state.model, sharing.quotas[k], ScoreRelease(sharing.noise, rates))
            return found
        cells = np.maximum(terms.cells, 0)  # counts may be noisy, where only the scores are exact
        if self.quotas == "random":
            quotas = random_quotas(cells, self.samples, stream(self.seed, "quotas", number))
        else:
            quotas = largest_remainder_quotas(cells, self.samples)
        return {k: ScoresRequest(number, state.model, quotas[k]) for k in range(state.clients) if quotas[k].any()}

    def _pooled(self, terms: Terms, number: int, replies: Mapping[int, Scores]) -> Pooled:
        """The scores of those who answered: exact ones alike, noisy ones weighed by released counts and shuffled."""
        cells = terms.cells.shape[1]
        if terms.sharing is None:
            empty = [np.zeros(0)]  # a cell that nobody speaks for
            scores = tuple(np.concatenate([r.cells[c] for r in replies.values()] or empty) for c in range(cells))
            return Pooled(scores, equal_weights(scores), ())
        pooled = pool({k: reply.cells for k, reply in replies.items()}, terms, terms.sharing)
        order = stream(self.seed, "shuffle", number)
        shuffles = [order.permutation(scores.size) for scores in pooled.scores]
        return Pooled(
            tuple(values[i] for values, i in zip(pooled.scores, shuffles, strict=True)),
            tuple(values[i] for values, i in zip(pooled.weights, shuffles, strict=True)),
            pooled.pads,
        )

    def _broadcast(self, terms: Terms, pooled: Pooled) -> SharedScores:
        sharing = terms.sharing
        return SharedScores(
            kernel=self.kernel,
            strength=self.strength,
            scores=pooled.scores,
            weights=pooled.weights,
            counts=terms.cell_totals,
            records=float(terms.records.sum()),
            domain=self.domain,
            noisy=None if sharing is None else NoisyScores(sharing.noise, sharing.correction, pooled.pads),
        )


def _memory(pooled: Pooled) -> Memory:
    """The scores as named arrays, for the next round and for a checkpoint."""
    found: dict[str, FloatArray] = {"pads": np.array(pooled.pads)}
    for cell, (scores, weights) in enumerate(zip(pooled.scores, pooled.weights, strict=True)):
        found |= {f"scores.{cell:06d}": scores, f"weights.{cell:06d}": weights}
    return found


def _remembered(memory: Memory) -> Pooled:
    """What `_memory` kept."""
    scores, weights = ([memory[name] for name in sorted(memory) if name.startswith(p)] for p in ("scores.", "weights."))
    return Pooled(tuple(scores), tuple(weights), tuple(float(pad) for pad in memory["pads"]))
