"""What a client sends of one record: features weighted, centred and scaled into the unit ball, ψ(x) = W(φ(x) − c)/R.

Noise of one scale on every coordinate of Σψ becomes noise of scale R/w_j on Σφ_j. So the mean squared error that noise
σ makes in C′(z) = Σ_j φ_j′(z)(…)_j, for z anywhere in the range, is

    σ²·R(W, c)²·Σ_j b_j/w_j²,    b_j = mean of φ_j′²,    R(W, c) = sup_x ‖W(φ(x) − c)‖.

With u_j = w_j² and P a law on the range, min_c sup_x Σ u_j(φ_j(x) − c_j)² = max_P Σ u_j Var_P(φ_j) (von Neumann: both
are linear in P and convex in c). The least over u of (Σ b_j/u_j)(Σ u_j Var_P(φ_j)) is (Σ √(b_j Var_P(φ_j)))² at
u_j = √(b_j/Var_P(φ_j)) (Cauchy–Schwarz), and the order of least and greatest may be changed. So the best weights come
from the P that makes Σ_j √(b_j Var_P(φ_j)) largest: a concave problem on the masses of a grid. They depend on kernel
and range, not on σ, which is a factor of the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from privfair.arrays import FloatArray
from privfair.kernels.base import Kernel
from privfair.kernels.features import Features, features_of

_GRID = 257  # scores between which P is spread
_SWEEPS = 4000
_GAP = 1e-3  # between the error of the weights found and the least possible one
_FINE = 32  # points of the mesh for each degree: sup is overstated by 1/cos(π/64) − 1 = 0.12% of its square at most
_ROUNDING = 1 + 1e-9  # far more than floating-point evaluation of the features can be wrong by


@dataclass(frozen=True, eq=False)
class UnitFeatures:
    """ψ(x) = W(φ(x) − c)/R, of norm at most 1 for every score x. `spread`: an upper bound of ‖ψ(x) − ψ(y)‖."""

    features: Features
    weights: FloatArray
    centre: FloatArray
    radius: float
    spread: float

    @property
    def count(self) -> int:
        """How many numbers a record contributes to."""
        return self.features.count

    def values(self, scores: ArrayLike, *, alone: bool = False) -> FloatArray:
        """(scores, J): ψ at each score; `alone`: each depends on its score only, to the last bit."""
        found: FloatArray = (self.features.values(scores, alone=alone) - self.centre) * (self.weights / self.radius)
        return found

    def mean_features(self, mean: FloatArray) -> FloatArray:
        """The mean of φ, from the mean of ψ."""
        return mean * (self.radius / self.weights) + self.centre

    @property
    def slope_noise(self) -> float:
        """Root mean square over the range of the noise in Σ φ_j′(z)·(sum)_j, for noise of scale 1 on Σψ."""
        return self.radius * math.sqrt(float(np.sum(self.features.slope_norms / self.weights**2)))


@lru_cache(maxsize=64)
def unit_features(kernel: Kernel, low: float, high: float, count: int | None = None) -> UnitFeatures:
    """The features of a kernel on a range, with the weights for which noise disturbs C′ least."""
    features = features_of(kernel, low, high, count)
    weights, centre = best_weights(features)
    # every client works them out for itself, and another machine rounds its last digits otherwise
    weights = np.array([float(f"{w:.5g}") for w in weights])
    return weighted(features, weights, np.round(centre, 6))


def weighted(features: Features, weights: FloatArray, centre: FloatArray) -> UnitFeatures:
    """The features with given weights and centre, and bounds that hold for them."""
    radius = math.sqrt(supremum(features, weights, centre)) * _ROUNDING
    spread = math.ceil(1e3 * math.sqrt(widest(features, weights)) * _ROUNDING / radius) / 1e3  # the same everywhere
    return UnitFeatures(features, weights, centre, radius, min(spread, 2.0))


def best_weights(features: Features) -> tuple[FloatArray, FloatArray]:
    """(w, c) of the least error, up to `_GAP`; the masses of P move towards where W(φ − c) is longest."""
    phi, b = features.values(features.mesh(_GRID)), features.slope_norms
    mass = np.full(_GRID, 1 / _GRID)
    for _ in range(_SWEEPS):
        centre = mass @ phi
        square = (phi - centre) ** 2
        variance = mass @ square
        u = np.sqrt(b / variance)
        reach = square @ u  # ‖W(φ(x) − c)‖², whose mean under P is Σ √(b·Var): equal where P is the best
        mean = float(mass @ reach)
        if reach.max() <= mean * (1 + _GAP):
            break
        mass = mass * reach
        mass /= mass.sum()
    return np.sqrt(u), centre


def supremum(features: Features, weights: FloatArray, centre: FloatArray) -> float:
    """An upper bound of sup_x ‖W(φ(x) − c)‖², 0.12% too large at most.

    It is a polynomial of degree 2n in one variable, and |p| ≤ max over M Chebyshev points/cos(π·degree/(2M)) for every
    polynomial (Ehlich & Zeller 1964): no point between those of the mesh can escape.
    """
    points = 2 * features.degree * _FINE
    most = max(
        float((((features.values(x) - centre) * weights) ** 2).sum(axis=1).max()) for x in _blocks(features, points)
    )
    return most / math.cos(math.pi / (2 * _FINE))


def widest(features: Features, weights: FloatArray) -> float:
    """An upper bound of sup_{x, y} ‖W(φ(x) − φ(y))‖²: the same, for a polynomial in each of two variables."""
    fine = 8
    found = 0.0
    x = features.values(features.mesh(2 * features.degree * fine)) * weights
    lengths = (x**2).sum(axis=1)
    for start in range(0, len(x), 512):
        block = slice(start, start + 512)
        found = max(found, float((lengths[block, None] + lengths - 2 * x[block] @ x.T).max()))
    return found / math.cos(math.pi / (2 * fine)) ** 2


def _blocks(features: Features, points: int) -> list[FloatArray]:
    """The mesh in parts of bounded memory."""
    mesh = features.mesh(points)
    return [mesh[start : start + 4096] for start in range(0, points, 4096)]
