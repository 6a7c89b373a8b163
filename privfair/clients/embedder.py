"""A client's part in tracking by features: its vectors out, and the sum of everybody's opened."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.fairness.tracking import EmbeddingPlan, SealedFeatures, SharedFeatures, opened_features
from privfair.federated.model_state import Replica
from privfair.mechanisms.entropy import Entropy
from privfair.mechanisms.vector_release import VectorNoise, grid_sum
from privfair.secure_aggregation import ClientAggregator
from privfair.util import FloatArray


class Embedder:
    """Shared by all clients of a process: the features, and the keys with which sums are made and opened."""

    def __init__(self, plan: EmbeddingPlan, aggregator: ClientAggregator) -> None:
        """The aggregator adds whole numbers, or, where neither noise nor encryption needs a grid, floats."""
        self.plan, self._aggregator = plan, aggregator
        self.open = lru_cache(maxsize=4)(self._opened)  # once for all clients of this process

    @property
    def _whole(self) -> bool:
        return self._aggregator.keys.modulus is not None

    def message(
        self,
        scores: FloatArray,
        membership: NDArray[np.bool_],
        cells: NDArray[np.int64],
        noise: VectorNoise | None,
        entropy: Entropy,
        *,
        client: int = 0,
        round_number: int = 0,
    ) -> bytes:
        """What `vector` gives, as a contribution to the sum of all clients."""
        values = self.vector(scores, membership, cells, noise, entropy)
        return self._aggregator.contribute(values, 1.0, client=client, number=round_number, round_number=round_number)

    def vector(
        self,
        scores: FloatArray,
        membership: NDArray[np.bool_],
        cells: NDArray[np.int64],
        noise: VectorNoise | None,
        entropy: Entropy,
    ) -> FloatArray:
        """Σ ψ(score) over the records of each asked cell, with noise, one cell behind the other.

        Its form depends on the plan alone: cells that are left out by public rule are 0, or, where noise comes in
        shares that others count on, noise alone.
        """
        unit = self.plan.unit
        psi = unit.values(scores, alone=noise is not None)
        total = np.zeros((len(cells), unit.count))
        for cell, asked in enumerate(cells):
            shared = noise is not None and noise.shares > 1
            if not asked and not shared:
                continue
            mine = psi[membership[:, cell]] if asked else psi[:0]
            if noise is not None:
                total[cell] = noise.release(self._in_room(grid_sum(mine, noise.steps), noise), entropy)
            else:
                total[cell] = grid_sum(mine, self.plan.steps) if self._whole else mine.sum(axis=0)
        return total.reshape(-1)

    def _in_room(self, whole: NDArray[np.int64], noise: VectorNoise) -> NDArray[np.int64]:
        """The sum, cut before its noise, which others count on. No two sums get farther apart by that.

        Rooms are planned from released counts: a client may have more records than that.
        """
        room = self.plan.room_beside(noise)
        return whole if room is None else np.clip(whole, -room * noise.steps, room * noise.steps)

    def total(self, message: bytes, round_number: int) -> FloatArray:
        """The sum of a round's vectors in a message, in steps of the grid; one of too few clients is refused."""
        return self._aggregator.open(message, "sum of features", number=round_number, least=self.plan.cohort)

    def _opened(self, sealed: SealedFeatures, round_number: int = 0, replica: Replica | None = None) -> SharedFeatures:
        """The mean features of the round; `replica`: has opened the sum of updates that they may be in."""
        size = len(sealed.shares) * self.plan.unit.count
        total: FloatArray = np.zeros(size)
        if sealed.within is not None:
            if sealed.total or replica is None or replica.round != sealed.within:
                rule = "must be those in the last sum of updates that was opened"
                raise InputError("sum of features", rule, f"those in sum {sealed.within}")
            total = replica.features
        elif sealed.total:
            total = self.total(sealed.total, round_number)
        return opened_features(self.plan, sealed, total, float(self.plan.steps) if self._whole else 1.0)
