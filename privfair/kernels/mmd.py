"""Maximum mean discrepancy between two samples of scores, in O(n log n), with gradients and standard errors.

    MMD² = E κ(x, x′) + E κ(y, y′) − 2 E κ(x, y)

The V-statistic (`biased=True`) averages over all pairs, the U-statistic over pairs of different records only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.kernels.base import Kernel, as_scores, as_weights, is_tensor
from privfair.kernels.witness import Embedding, direct_sum
from privfair.mechanisms.score_release import Noise
from privfair.util import FloatArray

_DIRECT_PAIRS = 1 << 14  # up to here a smooth kernel is summed over all pairs; above, from a table
_TABLE_TOLERANCE = 1e-9  # of C and C′; the error of C itself comes out about a hundred times smaller


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error."""

    value: float
    standard_error: float


def mmd2(x: Any, y: Any, kernel: Kernel, *, biased: bool = True, weights0: Any = None, weights1: Any = None) -> Any:
    """MMD² of two samples: a float, or for tensors a scalar tensor with gradients.

    O(n log n) for energy, Laplace and Matérn kernels; smooth kernels by all pairs while these are few, then from a
    table with |error| ≤ 4e-9. The U-statistic (`biased=False`) needs two records on each side.
    """
    if is_tensor(x) or is_tensor(y):
        from privfair.kernels.autograd import tensor_mmd2

        return tensor_mmd2(x, y, kernel, biased, weights0, weights1)
    return Pair(x, y, kernel, weights0, weights1).mmd2(biased)


def mmd2_estimate(x: Any, y: Any, kernel: Kernel, *, biased: bool = False) -> Estimate:
    """MMD² with its standard error over the drawing of the records, by the jackknife of the U-statistic."""
    pair = Pair(x, y, kernel)
    return Estimate(pair.mmd2(biased), pair.standard_error())


def mmd2_from_noisy(x: Any, y: Any, kernel: Kernel, noise: Noise) -> Estimate:
    """An unbiased estimate of the MMD² of the noiseless scores, from scores that carry independent noise on both sides.

    The noise enters every pair twice, so it is taken off the kernel twice; the U-statistic leaves out the pairs of
    a record with itself, whose noise would not be independent. `NoDeconvolution` says which kernels allow it.
    """
    return mmd2_estimate(x, y, kernel.deconvolve(noise, sides=2), biased=False)


class Pair:
    """Two weighted samples under one kernel, with the sums that every statistic of them needs."""

    def __init__(
        self, x: Any, y: Any, kernel: Kernel, weights0: Any = None, weights1: Any = None, *, tie: float = 0.0
    ) -> None:
        """Check the scores and prepare their embeddings; `tie` as for `Embedding`."""
        self._tie = tie
        self.x, self.y = as_scores("x", x), as_scores("y", y)
        self.wx = as_weights("weights0", weights0, self.x.size)
        self.wy = as_weights("weights1", weights1, self.y.size)
        self._kernel = kernel
        self._embeddings: dict[bool, Embedding] = {}

    def mmd2(self, biased: bool) -> float:
        """The V- or U-statistic."""
        cross = float(self.wx @ self.rows(of_x=False, at_x=True))
        if biased:
            value = float(self.wx @ self.rows(True, True)) + float(self.wy @ self.rows(False, False)) - 2 * cross
            return max(value, 0.0)  # it cannot be negative but for rounding
        within = self._without_self(True), self._without_self(False)
        return math.fsum([*(float(w @ rows) / scale for w, rows, scale in within), -2 * cross])

    def slopes(self, biased: bool) -> tuple[FloatArray, FloatArray]:
        """The gradient of `mmd2` in each score of x and of y."""
        scale_x, scale_y = (1.0, 1.0) if biased else (self._without_self(True)[2], self._without_self(False)[2])
        slope_x = 2 * self.wx * (self.rows(True, True, 1) / scale_x - self.rows(False, True, 1))
        slope_y = 2 * self.wy * (self.rows(False, False, 1) / scale_y - self.rows(True, False, 1))
        return slope_x, slope_y

    def standard_error(self) -> float:
        """The jackknife standard error of the U-statistic: leave out each record of each sample in turn."""
        own_x, own_y = self._without_self(True), self._without_self(False)
        cross_x, cross_y = self.rows(False, True), self.rows(True, False)
        return math.sqrt(_jackknife_variance(*own_x[:2], cross_x) + _jackknife_variance(*own_y[:2], cross_y))

    def rows(self, of_x: bool, at_x: bool, order: int = 0) -> FloatArray:
        """Σ_j w_j v(z − y_j) over one sample, at every point of one sample."""
        sample, weights = (self.x, self.wx) if of_x else (self.y, self.wy)
        points = self.x if at_x else self.y
        if points.size * sample.size <= _DIRECT_PAIRS and self._kernel.form.exponential is None:
            return direct_sum(self._kernel.form, points, sample, weights, order)
        if of_x not in self._embeddings:
            both = np.concatenate([self.x, self.y])
            domain = float(both.min()), float(both.max())
            self._embeddings[of_x] = Embedding(
                self._kernel,
                sample,
                weights,
                domain=domain if domain[0] < domain[1] else None,
                tolerance=_TABLE_TOLERANCE,
                tie=self._tie,
            )
        return self._embeddings[of_x].evaluate(points, order)

    def _without_self(self, of_x: bool) -> tuple[FloatArray, FloatArray, float]:
        """Weights, row sums without the record itself, and the weight Σ_{i≠j} w_i w_j of all such pairs."""
        weights = self.wx if of_x else self.wy
        if weights.size < 2:
            name = "x" if of_x else "y"
            raise InputError(name, "must hold two scores or more for the U-statistic", weights.size, "Use biased=True.")
        rows = self.rows(of_x, of_x) - weights * float(self._kernel.profile(0.0))
        return weights, rows, 1.0 - float(weights @ weights)


def _jackknife_variance(weights: FloatArray, own: FloatArray, cross: FloatArray) -> float:
    """(n − 1)/n · Σ (θ₋ᵢ − mean)², θ₋ᵢ the U-statistic without record i of one sample, but for a constant."""
    n = weights.size
    left = 1 - weights
    pairs = left**2 - (float(weights @ weights) - weights**2)
    if n < 3 or not (pairs > 0).all():
        return math.nan
    within = (float(weights @ own) - 2 * weights * own) / pairs
    between = (float(weights @ cross) - weights * cross) / left
    replicates = within - 2 * between
    return (n - 1) / n * float(np.sum(np.square(replicates - replicates.mean())))
