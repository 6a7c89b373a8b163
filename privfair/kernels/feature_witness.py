"""The witness function of mean features, C(z) = Σ_j d_j φ_j(z): a table of polynomials, looked up like any other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from privfair.arrays import FloatArray
from privfair.kernels.features import Features
from privfair.kernels.sorted_sums import SortedSums
from privfair.kernels.tables import ScoreTable, cell_polynomials

_CELLS_PER_FEATURE = 16  # φ_j turns through πj over the range: less than 0.2 in a cell, error below 1e-10 of φ_j′


class FeatureWitness:
    """z ↦ Σ_j d_j φ_j(z) with derivatives; beyond the range of the scores it is constant."""

    sums: SortedSums | None = None  # a table says all of it

    def __init__(self, features: Features, differences: FloatArray) -> None:
        """`differences`: d, the difference of two groups' mean features."""
        rows = np.ascontiguousarray(_tables(features) @ differences)
        self.table = ScoreTable.of_rows(rows, features.low, features.high)

    def evaluate(self, z: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative at each z."""
        return self.derivatives(z, (order,))[0]

    def derivatives(self, z: FloatArray, orders: Sequence[int]) -> list[FloatArray]:
        """The asked derivatives at each z, with one look-up for all."""
        found = self.table.derivatives(np.clip(z, self.table.low, self.table.high), orders)
        beyond = ~self.table.contains(z)
        if beyond.any():
            for values, order in zip(found, orders, strict=True):
                if order:
                    values[beyond] = 0.0
        return found


@lru_cache(maxsize=16)
def _tables(features: Features) -> FloatArray:
    """(powers, cells, J): the features themselves, on the same cells."""
    return cell_polynomials(features.values, features.low, features.high, _CELLS_PER_FEATURE * features.count)
