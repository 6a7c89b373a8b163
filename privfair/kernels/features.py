"""Bounded features of a score: κ(x, y) = Σ_j φ_j(x) φ_j(y) up to terms in x alone and y alone, on a range of scores.

A group's mean of φ then replaces its scores: the witness function is C(z) = Σ_j φ_j(z) (μ₀ − μ₁)_j, up to a constant.
The energy kernel has the cosine series

    −|x − y|/2 = Σ_j φ_j(x) φ_j(y) − g(x) − g(y) − const,    φ_j(x) = √(2·length)/(πj) · cos(πj·(x − low)/length),

every other kernel its eigenfunctions (`mercer`). Each is cut off after J features; `slope_error` bounds the error.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike

from accountant.errors import InputError, require_finite
from privfair.kernels.base import Kernel
from privfair.kernels.witness import ScoreTable, SortedSums, cell_polynomials
from privfair.util import FloatArray

LEAST, MOST = 8, 64  # features by default at least, and at all at most
LEFT_OUT = 0.075  # of the kernel (of the mean of κ̄(x, x)) that the features may leave out by default
_PANEL = 128  # nodes on each side of a kink


@dataclass(frozen=True)
class Features(ABC):
    """φ_1 … φ_J of a kernel on [low, high]; scores beyond it count as its ends, and non-numbers as its middle."""

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
        """Scores that are the zeros of a Chebyshev polynomial in that variable (see `supremum`)."""

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
        from privfair.per_record import cosines  # compiled: it takes a second to import

        frequency = math.pi * np.arange(1, self.count + 1) / self.length
        angle = (place[:, None] + 1) * (self.length / 2) * frequency + order * math.pi / 2
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
        from privfair.per_record import products

        inner = legendre.legder(self._coefficients, order) * (2 / self.length) ** order
        powers = legendre.legvander(place, len(inner) - 1)
        return products(powers, inner) if alone else powers @ inner


@lru_cache(maxsize=64)
def features_of(kernel: Kernel, low: float = 0.0, high: float = 1.0, count: int | None = None) -> Features:
    """J features of a kernel on a range; by default as many as leave out 7.5% of it, and at least 8."""
    low, high = require_finite("low", low), require_finite("high", high)
    if not low < high:
        raise InputError("low", f"must be below high, {high:g}", low)
    if isinstance(count, bool) or (count is not None and not 1 <= count <= MOST):
        raise InputError("features", f"must be between 1 and {MOST}", count)
    if kernel.has_cosines:
        return Cosines(kernel, low, high, LEAST if count is None else count)  # 8 leave out 7.2%
    expansion = mercer(kernel, high - low)
    known = min(MOST, expansion.eigenvalues.size)
    if count is None:
        missing = 1 - np.cumsum(expansion.eigenvalues[:known]) / expansion.trace
        enough = int(np.argmax(missing <= LEFT_OUT)) + 1 if missing[-1] <= LEFT_OUT else MOST + 1
        if enough > MOST:
            rule = f"must be wide enough for {MOST} features on [{low:g}, {high:g}]"
            remedy = "Take a larger bandwidth, or set fairness.features and accept the error; or share scores instead "
            remedy += '(fairness.tracker = "samples").'
            raise InputError("kernel", rule, str(kernel), remedy)
        count = min(max(LEAST, enough), known)
    return Eigenfunctions(kernel, low, high, min(count, known))


# ---- Mercer's expansion of a centred kernel on an interval: its eigenfunctions, as polynomials.
#
#     κ̄(x, y) = κ(x, y) − m(x) − m(y) + M = Σ_j λ_j e_j(x) e_j(y),    m(x) = mean of κ(x, ·), M = mean of m,
#
# under the uniform law on [low, high]. Centring changes a witness function by a constant only, because the two groups'
# weights have the same sum; and it makes the energy kernel, which is only conditionally positive definite, positive
# definite. Centring removes the constants, so the expansion is Galerkin's in the Legendre polynomials but the first.
# Eigenfunctions of kernels with a kink on the diagonal are smooth all the same, and the integrals are split there:
# eight to twelve digits, which a rule on one grid (Nyström) does not reach for such kernels.

DEGREE = 192  # of the polynomials: enough for 64 eigenfunctions, each of which swings once more than the one before
_NODES = 256  # of each half of an integral
_SMALLEST = 1e-12  # eigenvalues below this share of the first are rounding
_NEGLIGIBLE = 1e-10  # of the largest coefficient: what is left out of a polynomial


@dataclass(frozen=True, eq=False)
class Expansion:
    """The eigenvalues, falling, and coefficients (degree + 1, features) of √λ_j·e_j in Legendre polynomials.

    `trace`: the mean of κ̄(x, x), which all eigenvalues together add up to.
    """

    eigenvalues: FloatArray
    coefficients: FloatArray
    trace: float


@lru_cache(maxsize=32)
def mercer(kernel: Kernel, length: float) -> Expansion:
    """The expansion on an interval of this length, computed once for each kernel and length."""
    matrix = _matrix(kernel, length)
    values, vectors = [], []
    for first in (1, 2):  # odd and even functions around the middle never mix, nor do their nearly equal eigenvalues
        block = np.arange(first, DEGREE + 1, 2)
        found, columns = np.linalg.eigh(matrix[np.ix_(block, block)])
        whole = np.zeros((DEGREE + 1, block.size))
        whole[block] = columns
        values.append(found)
        vectors.append(whole)
    eigenvalues, columns = np.concatenate(values), np.concatenate(vectors, axis=1)
    order = [int(j) for j in np.argsort(-eigenvalues) if eigenvalues[j] > _SMALLEST * eigenvalues.max()]
    eigenvalues, columns = eigenvalues[order], columns[:, order]
    coefficients = columns * np.sqrt(eigenvalues) * _norms()[:, None]
    # one sign for everybody: above 0 at the lower end, where P_n = (−1)ⁿ
    coefficients *= np.where((-1.0) ** np.arange(DEGREE + 1) @ coefficients < 0, -1.0, 1.0)
    return Expansion(eigenvalues, coefficients, float(kernel.profile(0.0)) - float(matrix[0, 0]))


def trimmed(coefficients: FloatArray) -> FloatArray:
    """The polynomials without the high degrees in which there is only rounding; what is left defines the features."""
    size = np.abs(coefficients).max(axis=1) / np.abs(coefficients).max()
    return coefficients[: int(np.flatnonzero(size > _NEGLIGIBLE)[-1]) + 1]


def _norms() -> FloatArray:
    """√(2n + 1): what makes Legendre polynomials orthonormal under the uniform law on [−1, 1]."""
    norms: FloatArray = np.sqrt(2.0 * np.arange(DEGREE + 1) + 1)
    return norms


def _matrix(kernel: Kernel, length: float) -> FloatArray:
    """∬ p_a(x) κ(x, y) p_b(y) under the uniform law, p_n the orthonormal polynomials; inner integrals split at x."""
    nodes, weights = legendre.leggauss(_NODES)
    norms, inner = _norms(), np.empty((_NODES, DEGREE + 1))
    half = _NODES // 2
    for row, t in zip(inner[:half], nodes[:half], strict=True):
        below, above = (t + 1) / 2, (1 - t) / 2  # half the lengths of [−1, t] and [t, 1]
        y = np.concatenate([-1 + below * (nodes + 1), t + above * (nodes + 1)])
        mass = np.concatenate([below * weights, above * weights]) / 2
        row[:] = (mass * kernel.form.evaluate((t - y) * length / 2)) @ legendre.legvander(y, DEGREE)
    inner[half:] = inner[:half][::-1] * (-1.0) ** np.arange(DEGREE + 1)  # the mirror image
    found = (legendre.legvander(nodes, DEGREE) * (weights / 2)[:, None]).T @ inner * np.outer(norms, norms)
    symmetric: FloatArray = (found + found.T) / 2
    return symmetric


# ---- What a client sends of one record: features centred, weighted and scaled into the unit ball, W(φ(x) − c)/R.
#
# Noise of one scale on every coordinate of Σψ becomes noise of scale R/w_j on Σφ_j. So the mean squared error that
# noise σ makes in C′(z) = Σ_j φ_j′(z)(…)_j, for z anywhere in the range, is
#
#     σ²·R(W, c)²·Σ_j b_j/w_j²,    b_j = mean of φ_j′²,    R(W, c) = sup_x ‖W(φ(x) − c)‖.
#
# With u_j = w_j² and P a law on the range, min_c sup_x Σ u_j(φ_j(x) − c_j)² = max_P Σ u_j Var_P(φ_j) (von Neumann: both
# are linear in P and convex in c). The least over u of (Σ b_j/u_j)(Σ u_j Var_P(φ_j)) is (Σ √(b_j Var_P(φ_j)))² at
# u_j = √(b_j/Var_P(φ_j)) (Cauchy–Schwarz), and the order of least and greatest may be changed. So the best weights come
# from the P that makes Σ_j √(b_j Var_P(φ_j)) largest: a concave problem on the masses of a grid. They depend on kernel
# and range, not on σ, which is a factor of the whole.


_GRID = 257  # scores between which P is spread
_SWEEPS = 4000
_GAP = 1e-3  # between the error of the weights found and the least possible one
_FINE = 32  # points of the mesh for each degree: sup is overstated by 1/cos(π/64) − 1 = 0.12% of its square at most
_ROUNDING = 1 + 1e-9  # far more than floating-point evaluation of the features can be wrong by


DECISION = math.sqrt(3.0)
"""w: how far apart the two decisions are, where the longest ψ has length 1.

The longest feature vector of the energy kernel on [0, 1] has length 1/√3, so that this is a width of 1 beside it.
"""


@dataclass(frozen=True, eq=False)
class UnitFeatures:
    """ψ(x) = W(φ(x) − c)/R, of norm at most 1 for every score x. `spread`: an upper bound of ‖ψ(x) − ψ(y)‖.

    With a `threshold` the decision is one coordinate more, centred: (ψ(x), w(1{x ≥ threshold} − ½))/√(1 + w²/4), which
    is of norm at most 1 again. Uncentred it would be longer, √(1 + w²), for the same difference of two decisions.
    """

    features: Features
    weights: FloatArray
    centre: FloatArray
    radius: float
    spread: float
    threshold: float | None = None

    @property
    def count(self) -> int:
        """How many numbers a record contributes to."""
        return self.features.count + (self.threshold is not None)

    @property
    def _scale(self) -> float:
        """What ψ is divided by, so that it is of norm at most 1 with the decision."""
        return 1.0 if self.threshold is None else math.sqrt(1 + DECISION**2 / 4)

    def with_decision(self, threshold: float) -> UnitFeatures:
        """The same with one coordinate more: the decision of those who say yes from `threshold` on."""
        found = replace(self, threshold=threshold)
        spread = math.ceil(1e3 * math.hypot(self.spread, DECISION) * _ROUNDING / found._scale) / 1e3
        return replace(found, spread=min(spread, 2.0))

    def values(self, scores: ArrayLike, *, alone: bool = False) -> FloatArray:
        """(scores, J): ψ at each score; `alone`: each depends on its score only, to the last bit."""
        found: FloatArray = (self.features.values(scores, alone=alone) - self.centre) * (self.weights / self.radius)
        if self.threshold is None:
            return found
        decisions = (np.asarray(scores, dtype=np.float64).reshape(-1, 1) >= self.threshold) - 0.5
        return np.concatenate([found, DECISION * decisions], axis=1) / self._scale

    def mean_features(self, mean: FloatArray) -> FloatArray:
        """The mean of φ, from the mean of ψ, brought into the unit ball where noise has moved it out of it."""
        own = mean[..., : self.features.count] * self._scale
        own = own / np.maximum(np.linalg.norm(own, axis=-1, keepdims=True), 1.0)
        found: FloatArray = own * (self.radius / self.weights) + self.centre
        return found

    def mean_decision(self, mean: FloatArray) -> FloatArray | None:
        """The share of records whose decision is 1, from the mean of ψ; with its noise, and so not always a share."""
        if self.threshold is None:
            return None
        found: FloatArray = mean[..., -1] * (self._scale / DECISION) + 0.5
        return found

    @property
    def decision_noise(self) -> float:
        """The noise in a sum of decisions, for noise of scale 1 on Σψ."""
        return self._scale / DECISION

    @property
    def slope_noise(self) -> float:
        """Root mean square over the range of the noise in Σ φ_j′(z)·(sum)_j, for noise of scale 1 on Σψ."""
        whole = float(np.sum(self.features.slope_norms / self.weights**2))
        return self.radius * self._scale * math.sqrt(whole)


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


# ---- The witness function of mean features, C(z) = Σ_j d_j φ_j(z): a table of polynomials, looked up like any other.


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
