"""Fairness tracking by features: the same penalty as the paper's, from one vector of each group instead of scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.aggregation import ServerAggregator
from privfair.algorithms.base import Plain
from privfair.fairness.embedding import EmbeddingPlan, SealedFeatures
from privfair.interfaces import Algorithm, Ask, Memory, ServerState, answered
from privfair.messages import Drift, Embeddings, EmbeddingsRequest, Objective, Tracked
from privfair.terms import Terms

Kept = Callable[[int, Callable[[], SealedFeatures]], SealedFeatures]  # the sum of a round, which is made if need be


def made_anew(number: int, make: Callable[[], SealedFeatures]) -> SealedFeatures:
    """For a run whose rounds are whole or never were."""
    return make()


@dataclass(frozen=True)
class EmbeddingTracking(Plain):
    """Each round all clients share Σ ψ(score) of every cell; local training follows ⟨φ(z), μ₀ − μ₁⟩.

    The server adds the vectors, which it need not be able to read, and passes the sum on. No record is sampled, so
    without noise this is the paper's algorithm with all scores shared, up to the features that are left out.
    """

    name: ClassVar[str] = "mmd_fedavg"

    strength: float
    plan: EmbeddingPlan
    drift: Drift
    adder: ServerAggregator | None = None  # None: nobody has keys yet
    kept: Kept = made_anew

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The sum over the clients that answered, broadcast."""
        return Tracked(self.kept(state.round, lambda: self._asked(state, ask)), self.drift), state.algorithm

    def start(self, terms: Terms) -> Memory:
        """Nothing; raise if the sums of these clients have no room, or too few clients share the noise."""
        noise = None if terms.embedding is None else terms.embedding.noise
        room = self.plan.room_beside(noise)
        if room is not None and terms.cells.max() > room:
            remedy = "Fewer clients leave more room for each in a sum of bounded integers."
            rule = f"must have at most {room} records in a group for the embedding tracker"
            raise InputError("every client", rule, int(terms.cells.max()), remedy)
        clients = _asked_of(terms)
        if len(clients) < self.plan.cohort and self.plan.cohort > 1:
            rule = f"must be at most the number of clients that take part, {len(clients)}"
            raise InputError("privacy.smallest_cohort", rule, self.plan.cohort, "Too small a share of noise is left.")
        return {}

    def joined(self, memory: Memory, terms: Terms) -> Memory:
        """As before, if there is room for those who come later."""
        self.start(terms)
        return memory

    def _asked(self, state: ServerState, ask: Ask) -> SealedFeatures:
        terms, cells, clients = state.terms, takes_part(state.terms), _asked_of(state.terms)
        noise = None if terms.embedding is None else terms.embedding.noise

        def request(client: int) -> EmbeddingsRequest:
            return EmbeddingsRequest(state.round, state.model, cells[client], noise)

        return self._sum(terms, cells, answered(Embeddings, clients, ask(clients, request)))

    def _sum(self, terms: Terms, cells: NDArray[np.int64], replies: Mapping[int, Embeddings]) -> SealedFeatures:
        if self.adder is None:
            raise InputError("tracker", "must have somebody who adds the vectors", None)
        there = list(replies) if len(replies) >= self.plan.cohort else []  # too few: their noise is not enough
        names = [f"client {k}" for k in there]
        total = self.adder.add([replies[k].contribution for k in there], names=names) if there else b""
        return SealedFeatures(
            kernel=self.plan.kernel,
            strength=self.strength,
            total=total,
            shares=np.where(cells[there], terms.cells[there], 0).sum(axis=0).astype(float),
            counts=terms.cell_totals,
            records=float(terms.records.sum()),
        )


def _asked_of(terms: Terms) -> list[int]:
    """The clients that send a vector."""
    if terms.embedding is not None:
        return terms.embedding.asked(terms.records)
    return [int(k) for k in np.flatnonzero(takes_part(terms).any(axis=1))]


def takes_part(terms: Terms) -> NDArray[np.int64]:
    """(clients, cells): 1 where a client's vector of a cell is asked for; by released counts, so by public rule."""
    if terms.embedding is not None:
        return terms.embedding.cells
    return (terms.cells > 0).astype(np.int64)


def with_adder(algorithm: Algorithm, adder: ServerAggregator | None, kept: Kept = made_anew) -> Algorithm:
    """The algorithm, with who adds its vectors and who keeps their sum, where it has any."""
    return replace(algorithm, adder=adder, kept=kept) if isinstance(algorithm, EmbeddingTracking) else algorithm
