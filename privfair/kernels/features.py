"""Bounded features of a score: κ(x, y) = Σ_j φ_j(x) φ_j(y) up to terms in x alone and y alone, on a range of scores.

A group's mean of φ is then all that anybody needs of it: the witness function is C(z) = Σ_j φ_j(z) (μ₀ − μ₁)_j, up to
a constant. The energy kernel has the cosine series

    −|x − y|/2 = Σ_j φ_j(x) φ_j(y) − g(x) − g(y) − const,    φ_j(x) = √(2·length)/(πj) · cos(πj·(x − low)/length),

every other kernel its eigenfunctions (`mercer`). Each is cut off after J features; `kernel_error` and `slope_error`
tell what that costs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike

from accountant.errors import InputError, require_finite
from privfair.arrays import FloatArray
from privfair.kernels.base import Kernel
from privfair.kernels.energy import EnergyKernel
from privfair.kernels.mercer import mercer, trimmed

LEAST, MOST = 8, 64  # features unless so many are asked for; and at all
LEFT_OUT = 0.075  # of the kernel (of the mean of κ̄(x, x)) that the features may leave out unless told otherwise
_PANEL = 128  # nodes on each side of a kink


@dataclass(frozen=True)
class Features(ABC):
    """φ_1 … φ_J of a kernel on [low, high]; scores beyond it count as its ends, and what is no number as its middle."""

    kernel: Kernel
    low: float
    high: float
    count: int

    @property
    def length(self) -> float:
        """Of the range."""
        return self.high - self.low

    @property
    @abstractmethod
    def degree(self) -> int:
        """Linear combinations of the features are polynomials of this degree in the variable of `mesh`."""

    @abstractmethod
    def mesh(self, points: int) -> FloatArray:
        """Scores that are the zeros of a Chebyshev polynomial in that variable (see `feature_weights.supremum`)."""

    @abstractmethod
    def _evaluate(self, place: FloatArray, order: int, *, alone: bool = False) -> FloatArray:
        """The order-th derivatives (scores, J) at places −1 … 1 of the range."""

    def values(self, scores: ArrayLike, order: int = 0, *, alone: bool = False) -> FloatArray:
        """(scores, J): φ_j⁽ᵒʳᵈᵉʳ⁾ at each score; `alone`: each depends on its score only, to the last bit."""
        x = np.asarray(scores, dtype=np.float64).reshape(-1)
        x = np.where(np.isfinite(x), x, (self.low + self.high) / 2)
        return self._evaluate(2 * (np.clip(x, self.low, self.high) - self.low) / self.length - 1, order, alone=alone)

    @cached_property
    def slope_norms(self) -> FloatArray:
        """b_j: the mean of φ_j′² over the range."""
        nodes, weights = legendre.leggauss(max(_PANEL, 2 * self.degree + 2))
        norms: FloatArray = (weights / 2) @ self._evaluate(nodes, 1) ** 2
        return norms

    @cached_property
    def kernel_error(self) -> float:
        """sup_x [κ̄(x, x) − Σ φ_j(x)²] on a fine grid: |C − C_J| ≤ 2·`kernel_error`, up to a constant.

        What is left out is positive definite, so its largest value is on its diagonal.
        """
        x = np.linspace(self.low, self.high, 1025)
        outer, mass = legendre.leggauss(_PANEL)
        inner = self._means(self.low + self.length * (outer + 1) / 2)
        centred = float(self.kernel.profile(0.0)) - 2 * self._means(x) + float(mass / 2 @ inner)
        return float(max((centred - (self.values(x) ** 2).sum(axis=1)).max(), 0.0))

    @cached_property
    def slope_error(self) -> float:
        """sup_y of the root mean square over z of ∂_z[κ̄(z, y) − Σ φ_j(z) φ_j(y)], for y on a grid.

        |C′ − C_J′| is at most twice that in the root mean square, whatever the two groups' scores; for two smooth laws
        it is far less. (At a kink of the kernel no finite sum follows C′ everywhere: that is why not the maximum.)
        """
        worst = 0.0
        for y in np.linspace(self.low, self.high, 65):
            nodes, weights = (part[0] for part in self._panels(np.array([y])))
            # m′(z) = ∫ v′(z − u) du/length = [v(z − low) − v(z − high)]/length
            v = self.kernel.form.evaluate
            mean = (v(nodes - self.low) - v(nodes - self.high)) / self.length
            rest = v(nodes - y, 1) - mean - self.values(nodes, 1) @ self.values([y])[0]
            worst = max(worst, float(weights @ rest**2))
        return math.sqrt(worst)

    def _means(self, x: FloatArray) -> FloatArray:
        """m(x): the mean of κ(x, ·)."""
        nodes, weights = self._panels(x)
        values = self.kernel.form.evaluate((x[:, None] - nodes).reshape(-1)).reshape(nodes.shape)
        means: FloatArray = (weights * values).sum(axis=1)
        return means

    def _panels(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Nodes and weights (points, 2·panel) of means over the range, split at each point."""
        nodes, weights = legendre.leggauss(_PANEL)
        below, above = (at[:, None] - self.low) / 2, (self.high - at[:, None]) / 2
        x = np.concatenate([self.low + below * (nodes + 1), at[:, None] + above * (nodes + 1)], axis=1)
        return x, np.concatenate([below * weights, above * weights], axis=1) / self.length


@dataclass(frozen=True)
class Cosines(Features):
    """The energy kernel's: cos(πj·place), which is the Chebyshev polynomial T_j of cos(π·place)."""

    @property
    def degree(self) -> int:
        """J, in cos(π·place)."""
        return self.count

    def mesh(self, points: int) -> FloatArray:
        """The middles of equal parts of the range."""
        return self.low + self.length * (np.arange(points) + 0.5) / points

    def _evaluate(self, place: FloatArray, order: int, *, alone: bool = False) -> FloatArray:
        frequency = math.pi * np.arange(1, self.count + 1) / self.length
        angle = (place[:, None] + 1) * (self.length / 2) * frequency + order * math.pi / 2
        from privfair.record_arithmetic import cosines

        cosine = cosines(angle) if alone else np.cos(angle)
        found: FloatArray = math.sqrt(2 / self.length) * frequency ** (order - 1.0) * cosine
        return found


@dataclass(frozen=True)
class Eigenfunctions(Features):
    """Any other kernel's: polynomials in the score."""

    @cached_property
    def _coefficients(self) -> FloatArray:
        return trimmed(mercer(self.kernel, self.length).coefficients[:, : self.count])

    @property
    def degree(self) -> int:
        """Of the polynomials."""
        return len(self._coefficients) - 1

    def mesh(self, points: int) -> FloatArray:
        """Chebyshev points of the range."""
        nodes = -np.cos(math.pi * (np.arange(points) + 0.5) / points)
        return self.low + self.length * (nodes + 1) / 2

    def _evaluate(self, place: FloatArray, order: int, *, alone: bool = False) -> FloatArray:
        inner = legendre.legder(self._coefficients, order) * (2 / self.length) ** order
        from privfair.record_arithmetic import products

        powers = legendre.legvander(place, len(inner) - 1)
        return products(powers, inner) if alone else powers @ inner


@lru_cache(maxsize=64)
def features_of(kernel: Kernel, low: float = 0.0, high: float = 1.0, count: int | None = None) -> Features:
    """J features of a kernel on a range; unless told, as many as leave out 7.5% of it, and 8 at least."""
    low, high = require_finite("low", low), require_finite("high", high)
    if not low < high:
        raise InputError("low", f"must be below high, {high:g}", low)
    if isinstance(count, bool) or (count is not None and not 1 <= count <= MOST):
        raise InputError("features", f"must be between 1 and {MOST}", count)
    if isinstance(kernel, EnergyKernel):
        return Cosines(kernel, low, high, LEAST if count is None else count)  # 8 leave out 7.2%
    expansion = mercer(kernel, high - low)
    known = min(MOST, expansion.eigenvalues.size)
    if count is None:
        missing = 1 - np.cumsum(expansion.eigenvalues[:known]) / expansion.trace
        enough = int(np.argmax(missing <= LEFT_OUT)) + 1 if missing[-1] <= LEFT_OUT else MOST + 1
        if enough > MOST:
            rule = f"must be wide enough for {MOST} features on [{low:g}, {high:g}]"
            remedy = "Take a larger bandwidth, or say fairness.features yourself and accept the error."
            raise InputError("kernel", rule, str(kernel), remedy)
        count = min(max(LEAST, enough), known)
    return Eigenfunctions(kernel, low, high, min(count, known))
