"""Look-ups: places in sorted values, and functions computed once by piecewise interpolation with a stated error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_positive
from privfair.kernels.base import Form, Kernel, SumKernel, apply, as_scores, as_weights, chebyshev_points
from privfair.kernels.exponential import ExponentialPolynomial
from privfair.util import FloatArray

_CELLS_PER_VALUE = 4
_CROWD = 4  # cells with more values than this are left to binary search
_FEW_POINTS = 1 << 10  # below this, binary search has less overhead


class SortedIndex:
    """Counts of sorted values up to a point: an even grid finds the place, binary search helps in crowded cells.

    Binary search of a million points among two thousand values takes 80 ns a point, nearly all of it mispredicted
    branches; the grid takes 8. Scores crowd at the ends of their range, so crowded cells keep binary search.
    """

    def __init__(self, values: FloatArray) -> None:
        """`values` are sorted and distinct."""
        self._values = values
        self._low, span = float(values[0]), float(values[-1] - values[0])
        self._cells = _CELLS_PER_VALUE * values.size
        self._cells_per_unit = self._cells / span if span > 0 else math.inf
        self._even = math.isfinite(self._cells_per_unit) and math.isfinite(span)

    @cached_property
    def _grid(self) -> tuple[NDArray[np.intp], NDArray[np.bool_], FloatArray, int]:
        """Values before each cell, whether it is crowded, the values with an end, and the steps from cell to place."""
        # values are put into cells by the same rounding as points, so that no value is missed
        per_cell = np.bincount(self._cell(self._values), minlength=self._cells + 1)
        before = np.cumsum(per_cell) - per_cell
        return before, per_cell > _CROWD, np.append(self._values, np.nan), int(min(per_cell.max(), _CROWD))

    def count_up_to(self, points: FloatArray) -> NDArray[np.intp]:
        """For each point, the number of values ≤ it."""
        if not self._even or points.size < _FEW_POINTS:
            return np.searchsorted(self._values, points, side="right")
        before, crowded, padded, steps = self._grid
        cell = self._cell(points)
        count = before.take(cell)
        for _ in range(steps):
            count += padded.take(count) <= points
        in_crowd = np.flatnonzero(crowded.take(cell))
        if in_crowd.size:
            count[in_crowd] = np.searchsorted(self._values, points[in_crowd], side="right")
        return count

    def _cell(self, points: FloatArray) -> NDArray[np.intp]:
        inside = np.clip(points, self._low, self._values[-1])  # first, so that nothing can overflow
        position = (inside - self._low) * self._cells_per_unit
        cell: NDArray[np.intp] = np.nan_to_num(position, copy=False).astype(np.intp)
        return cell


# ---- Piecewise interpolation in Chebyshev points.

NODES = 8  # Chebyshev points on a cell of scores


def _interpolation_error(bound: float, width: float) -> float:
    """2M(h/4)ⁿ/n!: the error of interpolation in n Chebyshev points on a cell of width h, |f⁽ⁿ⁾| ≤ M."""
    return 2 * bound * math.pow(width / 4, NODES) / math.factorial(NODES)


def _cell_width(bound: float, tolerance: float) -> float:
    """The largest width whose `_interpolation_error` is within the tolerance."""
    return 4 * math.pow(tolerance * math.factorial(NODES) / (2 * bound), 1 / NODES)


def condensed(
    samples: FloatArray, weights: FloatArray, bounds: tuple[float, float], tolerance: float
) -> tuple[FloatArray, FloatArray, float, float]:
    """Fewer weighted points with the same Σ w_j f(y_j), and the error made for f and for f′.

    `bounds` are upper bounds of |f⁽ⁿ⁾| and |f⁽ⁿ⁺¹⁾|. Each cell of samples is replaced by its n Chebyshev points, a
    sample giving each of them its Lagrange weight: f is interpolated in y instead of in z. Samples that are not many
    more than the points would be are returned as they are.
    """
    low, high = float(samples.min()), float(samples.max())
    total = float(np.abs(weights).sum())
    width = min(_cell_width(bound * total, tolerance) for bound in bounds)
    cells = max(1, math.ceil(min((high - low) / width, 1e9)))
    if samples.size <= 2 * NODES * cells:
        return samples, weights, 0.0, 0.0
    width = (high - low) / cells or 1.0
    position = (samples - low) / width
    cell = np.minimum(position.astype(np.intp), cells - 1)
    points = chebyshev_points(NODES)
    shares = np.linalg.solve(
        np.vander(points, increasing=True).T, np.vander(2 * (position - cell) - 1, NODES, increasing=True).T
    )
    merged = np.array([np.bincount(cell, weights * share, minlength=cells) for share in shares]).T
    nodes = low + width * (np.arange(cells)[:, None] + (points + 1) / 2)
    errors = [_interpolation_error(bound * total, width) for bound in bounds]
    return nodes.reshape(-1), merged.reshape(-1), errors[0], errors[1]


class ScoreTable:
    """A smooth function of a score on [low, high], by polynomials of degree 7 on equal cells.

    With n = 8 Chebyshev points on a cell of width h and M = sup|f⁽⁸⁾|, |f − p| ≤ 2M(h/4)ⁿ/n! and
    |f′ − p′| ≤ (4n²/h)·M(h/4)ⁿ/n! (Shadrin 1995: the derivatives of the nodal polynomial bound those of the error).
    The cell width is chosen so that both are at most `tolerance`.
    """

    _BLOCK = 1 << 15  # points looked up at a time, so that the intermediate arrays stay in the cache
    _MOST_CELLS = 1 << 16

    def __init__(
        self,
        function: Callable[[FloatArray], FloatArray],
        *,
        low: float,
        high: float,
        bound: float,
        tolerance: float,
    ) -> None:
        """Tabulate `function` on [low, high]; `bound` is an upper bound of |f⁽⁸⁾|."""
        n = NODES
        length = high - low
        for_slope = 4 * (tolerance * math.factorial(n) / (bound * n**2)) ** (1 / (n - 1))
        cells = math.ceil(length / min(_cell_width(bound, tolerance), for_slope, length))
        if cells > self._MOST_CELLS:
            raise InputError(
                "tolerance",
                f"must be reachable with at most {self._MOST_CELLS} cells on [{low:g}, {high:g}]",
                tolerance,
                "Give a narrower domain, a larger tolerance or a larger bandwidth.",
            )
        self.low, self.high, self.cells = low, high, cells
        h = length / cells
        self.cells_per_unit = cells / length
        self.error = _interpolation_error(bound, h)
        self.slope_error = 2 * n**2 / h * self.error
        # row k: coefficient of t^k, t in [−1, 1] on the cell; the derivatives are polynomials on the same cells
        self._rows = {0: cell_polynomials(lambda x: function(x)[:, None], low, high, cells)[..., 0]}

    @classmethod
    def of_rows(cls, rows: FloatArray, low: float, high: float) -> ScoreTable:
        """A table of known coefficients (powers, cells); the caller knows their error."""
        table = cls.__new__(cls)
        table.low, table.high, table.cells = low, high, rows.shape[1]
        table.cells_per_unit = table.cells / (high - low)
        table.error = table.slope_error = math.nan
        table._rows = {0: rows}
        return table

    def contains(self, x: FloatArray) -> NDArray[np.bool_]:
        """Which points the table covers."""
        return (x >= self.low) & (x <= self.high)

    def derivatives(self, x: FloatArray, orders: Sequence[int]) -> list[FloatArray]:
        """The asked derivatives at points that the table covers."""
        results = [np.empty_like(x) for _ in orders]
        for start in range(0, x.size, self._BLOCK):
            block = slice(start, start + self._BLOCK)
            position = (x[block] - self.low) * self.cells_per_unit
            cell = np.minimum(position.astype(np.intp), self.cells - 1)
            t = 2 * (position - cell) - 1
            for result, order in zip(results, orders, strict=True):
                result[block] = horner_columns(self.derivative_rows(order), cell, t)
        return results

    def derivative_rows(self, order: int) -> FloatArray:
        """(powers, cells): the coefficients of the order-th derivative in the place within a cell, −1 … 1."""
        if order not in self._rows:
            lower = self.derivative_rows(order - 1)
            powers = np.arange(1, len(lower))[:, None]
            slope = lower[1:] * powers * (2 * self.cells_per_unit)
            self._rows[order] = slope if len(slope) else np.zeros_like(lower)
        return self._rows[order]


def cell_polynomials(functions: Callable[[FloatArray], FloatArray], low: float, high: float, cells: int) -> FloatArray:
    """(powers, cells, functions): polynomials in the place −1 … 1 within equal cells, through their Chebyshev points.

    `functions` gives (points, functions).
    """
    points, h = chebyshev_points(NODES), (high - low) / cells
    centres = low + h * (np.arange(cells) + 0.5)
    values = functions((centres[:, None] + h / 2 * points).reshape(-1)).reshape(cells, NODES, -1)
    monomials = np.linalg.solve(np.vander(points, increasing=True), values.transpose(1, 0, 2).reshape(NODES, -1))
    return np.ascontiguousarray(monomials.reshape(NODES, cells, -1))


def horner_columns(table: FloatArray, column: NDArray[np.intp], x: FloatArray) -> FloatArray:
    """Σ_m table[m, column]·x^m, a polynomial of its own for each x."""
    value: FloatArray = table[-1].take(column)
    for row in table[-2::-1]:
        value *= x
        value += row.take(column)
    return value


# ---- Σ_j w_j E(z − y_j) for an exponential polynomial E: sort once, then a look-up for each z. Exact.
#
# For y_i the nearest sample below z, the samples on the left contribute, for each rate a > 0,
#
#     Σ_{j ≤ i} w_j p(z − y_j) e^{−a(z − y_j)} = e^{−a(z − y_i)} Σ_m T_m[i]·(z − y_i)^m
#
# because powers of z − y_j = (z − y_i) + (y_i − y_j) expand; T comes from the moments
# M_k[i] = Σ_{j≤i} w_j (y_i − y_j)^k e^{−a(y_i − y_j)}. The samples on the right are the mirror image.
# Where a = 0, left and right together are one polynomial in z on each gap between samples.


Table = tuple[float, FloatArray]  # rate, T with one row per power and one column per sample

_NEAR_RATE_TERMS = 16
_SAFE_EXPONENT = 500.0  # e^500 is finite with room to sum; beyond it prefix sums of e^{ay} would overflow
_BLOCK = 1 << 14  # points evaluated at a time, so that the intermediate arrays stay in the cache


@dataclass(frozen=True)
class _Tables:
    """What one derivative of the sum needs."""

    polynomial: FloatArray | None  # rate 0: one column per gap, powers of z − centre
    left: list[Table]
    right: list[Table]
    kink: float  # E⁽ᵒʳᵈᵉʳ⁾(0+) for odd orders: what a sample exactly at z adds on one side only


@dataclass(frozen=True)
class _Steps:
    """A step function: one more value than places, each from its place on."""

    places: SortedIndex
    values: FloatArray

    def at(self, z: FloatArray) -> FloatArray:
        """Its value at each z."""
        return self.values.take(self.places.count_up_to(z))


class SortedSums:
    """z ↦ Σ_j w_j E(z − y_j) and its derivatives."""

    def __init__(
        self, exponential: ExponentialPolynomial, samples: FloatArray, weights: FloatArray, tie: float = 0.0
    ) -> None:
        """Sort the samples; equal ones become one with the sum of their weights.

        A sample y with |z − y| ≤ tie·max(1, |y|) is taken to be at z where the derivative has a kink.
        """
        self._exponential = exponential
        order = np.argsort(samples, kind="stable")
        y, w = samples[order], weights[order]
        starts = np.flatnonzero(np.diff(y, prepend=-np.inf))
        self.samples = y[starts]
        self._weights = np.add.reduceat(w, starts)
        self.centre = float(self.samples[0] + self.samples[-1]) / 2
        self._index = SortedIndex(self.samples)
        reach = tie * np.maximum(1.0, np.abs(self.samples))
        self.begins, self.ends = self.samples - reach, self.samples + reach
        self.running = np.concatenate([[0.0], np.cumsum(self._weights)])
        self._tables: dict[int, _Tables] = {}
        self._step_functions: dict[int, _Steps | None] = {}

    def derivatives(self, z: FloatArray, orders: Sequence[int]) -> list[FloatArray]:
        """The asked derivatives at each z, with one search for all; at a kink the mean of the two sides."""
        results = [np.empty_like(z) for _ in orders]
        for start in range(0, z.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            points, below = z[block], None
            for result, order in zip(results, orders, strict=True):
                if (steps := self._steps(order)) is not None:
                    result[block] = steps.at(points)
                    continue
                below = self._index.count_up_to(points) if below is None else below
                result[block] = self._block(points, below, order)
        return results

    def _steps(self, order: int) -> _Steps | None:
        """The derivative as a step function, where it is one: it is constant between the places of samples and ties."""
        if order not in self._step_functions:
            tables = self.tables_of(order)
            constant = tables.polynomial is not None and len(tables.polynomial) == 1 and not tables.left
            steps = None
            if constant and tables.kink:
                places = np.unique(np.concatenate([self.begins, self.samples, np.nextafter(self.ends, np.inf)]))
                at = np.concatenate([np.nextafter(places[:1], -np.inf), places])
                steps = _Steps(SortedIndex(places), self._block(at, self._index.count_up_to(at), order))
            self._step_functions[order] = steps
        return self._step_functions[order]

    def _block(self, z: FloatArray, below: NDArray[np.intp], order: int) -> FloatArray:
        tables = self.tables_of(order)
        total = (
            np.zeros_like(z) if tables.polynomial is None else horner_columns(tables.polynomial, below, z - self.centre)
        )
        if tables.left or tables.kink:
            y, last = self.samples, self.samples.size - 1
            anchor, above = np.maximum(below - 1, 0), np.minimum(below, last)
            if tables.left:
                total += (below > 0) * _decaying(tables.left, anchor, np.maximum(z - y[anchor], 0.0))
                sign = -1.0 if order % 2 else 1.0
                total += sign * (below <= last) * _decaying(tables.right, above, np.maximum(y[above] - z, 0.0))
            if tables.kink:
                total -= tables.kink * self._at(z, below)
        return total

    def _at(self, z: FloatArray, below: NDArray[np.intp]) -> FloatArray:
        """The weight of the samples at z that were counted as below it, minus of those counted as above it."""
        passed = self.running.take(np.searchsorted(self.ends, z, side="left"))
        met = self.running.take(np.searchsorted(self.begins, z, side="right"))
        at: FloatArray = 2 * self.running.take(below) - passed - met
        return at

    def tables_of(self, order: int) -> _Tables:
        """What the order-th derivative is looked up in."""
        if order not in self._tables:
            terms, at_zero = _terms(self._exponential, order)
            mirrored = -self.samples[::-1], self._weights[::-1]
            self._tables[order] = _Tables(
                polynomial=next(
                    (
                        _gap_polynomials(p, self.samples - self.centre, self._weights, order)
                        for rate, p in terms
                        if rate == 0
                    ),
                    None,
                ),
                left=[(a, _expanded(p, _moments(self.samples, self._weights, a, len(p)))) for a, p in terms if a],
                right=[(a, _expanded(p, _moments(*mirrored, a, len(p)))[:, ::-1]) for a, p in terms if a],
                kink=at_zero if order % 2 else 0.0,
            )
        return self._tables[order]


@lru_cache(maxsize=64)
def _terms(exponential: ExponentialPolynomial, order: int) -> tuple[list[tuple[float, FloatArray]], float]:
    """The merged terms of E⁽ᵒʳᵈᵉʳ⁾ and its value at 0+; exact fractions are slow, and kernels few."""
    function = exponential.derivative(order)
    return function.merged(_NEAR_RATE_TERMS), float(function.at_zero())


def _decaying(tables: list[Table], column: NDArray[np.intp], gap: FloatArray) -> FloatArray:
    """Σ_rates e^{−a·gap} Σ_m T_m[column]·(a·gap)^m."""
    total = np.zeros_like(gap)
    for rate, table in tables:
        scaled = np.minimum(rate * gap, 750.0)
        total += horner_columns(table, column, scaled) * np.exp(-scaled)
    return total


def _gap_polynomials(p: FloatArray, y: FloatArray, w: FloatArray, order: int) -> FloatArray:
    """Σ_j w_j p(|z − y_j|)·sign^order as polynomials in z, one column for each number of samples below z."""
    count = len(p)
    table = np.zeros((count, y.size + 1))
    for power in range(count):
        running = np.concatenate([[0.0], np.cumsum(w * y**power)])
        rest = running[-1] - running
        for k in range(power, count):
            mirror = (-1) ** (k + order)
            table[k - power] += p[k] * math.comb(k, power) * (-1) ** power * (running + mirror * rest)
    return table


def _expanded(p: FloatArray, moments: list[FloatArray]) -> FloatArray:
    """T_m = Σ_{k ≥ m} p_k C(k, m) M_{k−m}."""
    return np.array(
        [
            sum((p[k] * math.comb(k, m) * moments[k - m] for k in range(m, len(p))), np.zeros_like(moments[0]))
            for m in range(len(p))
        ]
    )


def _moments(y: FloatArray, w: FloatArray, rate: float, count: int) -> list[FloatArray]:
    """M_k[i] = Σ_{j ≤ i} w_j (a(y_i − y_j))^k e^{−a(y_i − y_j)}, k < count."""
    if count == 1 and rate * (y[-1] - y[0]) <= _SAFE_EXPONENT:
        growth = np.exp(rate * (y - y[0]))
        return [np.cumsum(w * growth) / growth]
    return _scanned_moments(rate * y, w, count)


def _scanned_moments(x: FloatArray, w: FloatArray, count: int) -> list[FloatArray]:
    """By doubling: after step s each entry covers its 2s nearest samples to the left. Nothing can overflow."""
    moments = [w.copy()] + [np.zeros_like(w) for _ in range(count - 1)]
    stride = 1
    while stride < x.size:
        gap = x[stride:] - x[:-stride]
        if gap.min() > 750.0:
            break
        gap = np.minimum(gap, 750.0)
        decay = np.exp(-gap)
        before = [m[:-stride].copy() for m in moments]
        for k in range(count):
            arriving = np.zeros_like(gap)
            for lower in range(k + 1):
                arriving += math.comb(k, lower) * gap ** (k - lower) * before[lower]
            moments[k][stride:] += decay * arriving
        stride *= 2
    return moments


# ---- The MMD witness function: fixed for a round, evaluated at every record of every local step.


_DIRECT_BLOCK = 1 << 13  # kernel values held at a time where a sum is taken directly: small enough for the cache


class Embedding:
    """z ↦ Σ_j w_j κ(z, y_j), with derivatives: exact sums over sorted samples, tables for smooth kernels.

    `error` and `slope_error` bound the distance to the exact sum and its derivative; both are 0 (up to rounding)
    for energy, Laplace and Matérn kernels, with Laplace noise on or off.
    """

    def __init__(
        self,
        kernel: Kernel,
        samples: FloatArray,
        weights: FloatArray,
        *,
        domain: tuple[float, float] | None = None,
        tolerance: float = 1e-8,
        tie: float = 0.0,
    ) -> None:
        """Sort or tabulate once. Outside `domain` a smooth kernel is summed directly: slower, and exact.

        A sample within tie·max(1, |sample|) of z is taken to be at z, where a kink gives the mean of its two sides.
        """
        exponential, self._smooth = _split(kernel)
        self.sums = None if exponential is None else SortedSums(exponential, samples, weights, tie)
        self.error = self.slope_error = 0.0
        self.table: ScoreTable | None = None
        if self._smooth is not None:
            low, high = domain if domain is not None else _default_domain(samples)
            bounds = self._smooth.derivative_bound(NODES), self._smooth.derivative_bound(NODES + 1)
            self._samples, self._weights, *errors = condensed(samples, weights, bounds, tolerance / 2)
            total = float(np.abs(weights).sum())
            self.table = ScoreTable(self._direct, low=low, high=high, bound=bounds[0] * total, tolerance=tolerance / 2)
            self.error, self.slope_error = errors[0] + self.table.error, errors[1] + self.table.slope_error

    def evaluate(self, z: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative at each z."""
        return self.derivatives(z, (order,))[0]

    def derivatives(self, z: FloatArray, orders: Sequence[int]) -> list[FloatArray]:
        """The asked derivatives at each z, with one look-up for all."""
        totals = [np.zeros_like(z) for _ in orders] if self.sums is None else self.sums.derivatives(z, orders)
        if self.table is not None:
            inside = self.table.contains(z)
            everywhere = bool(inside.all())
            looked_up = self.table.derivatives(z if everywhere else z[inside], orders)
            for total, part, order in zip(totals, looked_up, orders, strict=True):
                if everywhere:
                    total += part
                else:
                    total[inside] += part
                    total[~inside] += self._direct(z[~inside], order, alone=True)
        return totals

    def _direct(self, z: FloatArray, order: int = 0, *, alone: bool = False) -> FloatArray:
        """The sum of the smooth part, term by term, in blocks of bounded memory."""
        if self._smooth is None:
            return np.zeros_like(z)
        return direct_sum(self._smooth.form, z, self._samples, self._weights, order, alone=alone)


class Witness(Embedding):
    """C(z) = Σ w⁰ κ(z, y⁰) − Σ w¹ κ(z, y¹): call it, or its `derivative`, on numbers, arrays or tensors."""

    def __call__(self, z: Any) -> Any:
        """C(z), differentiable in torch."""
        return apply(self, z)

    def derivative(self, z: Any) -> Any:
        """C′(z)."""
        return apply(self, z, 1)

    def with_derivative(self, z: Any) -> tuple[FloatArray, FloatArray]:
        """C(z) and C′(z) of an array, with one look-up for both."""
        array = np.ascontiguousarray(z, dtype=np.float64)
        value, slope = self.derivatives(array.reshape(-1), (0, 1))
        return value.reshape(array.shape), slope.reshape(array.shape)


def witness(
    y0: Any,
    y1: Any,
    kernel: Kernel,
    weights0: Any = None,
    weights1: Any = None,
    *,
    domain: tuple[float, float] | None = None,
    tolerance: float = 1e-8,
) -> Witness:
    """The witness function of the two samples: C(z) = mean κ(z, y) over y0 − mean κ(z, y) over y1.

    Weights (one per score, any sign, positive sum) replace the plain means. Energy, Laplace and Matérn kernels
    are exact at O(log n) an evaluation. Smooth kernels are tabulated on `domain` (default: the range of the scores,
    widened to [0, 1] if they lie in it) with |error| ≤ `tolerance` for C and for C′, and summed directly outside it.
    """
    first, second = as_scores("y0", y0), as_scores("y1", y1)
    w0, w1 = as_weights("weights0", weights0, first.size), as_weights("weights1", weights1, second.size)
    require_positive("tolerance", tolerance)
    if domain is not None:
        try:
            low, high = map(float, domain)
        except (TypeError, ValueError, OverflowError):
            raise InputError("domain", "must be two numbers, (low, high)", domain) from None
        if not (isfinite(low) and isfinite(high) and low < high):
            raise InputError("domain", "must be (low, high), finite, with low below high", f"{low:g} to {high:g}")
        domain = low, high
    return Witness(
        kernel, np.concatenate([first, second]), np.concatenate([w0, -w1]), domain=domain, tolerance=tolerance
    )


def direct_sum(
    form: Form, z: FloatArray, samples: FloatArray, weights: FloatArray, order: int = 0, *, alone: bool = False
) -> FloatArray:
    """Σ_j w_j v⁽ᵒʳᵈᵉʳ⁾(z − y_j) for each z, term by term, in blocks of bounded memory.

    `alone`: each z by itself, to the last bit.
    """
    from privfair.per_record import products

    result = np.empty_like(z)
    rows = max(1, _DIRECT_BLOCK // samples.size)
    for start in range(0, z.size, rows):
        d = z[start : start + rows, None] - samples
        values = form.evaluate(d.reshape(-1), order).reshape(d.shape)
        result[start : start + rows] = products(values, weights[:, None])[:, 0] if alone else values @ weights
    return result


def _split(kernel: Kernel) -> tuple[ExponentialPolynomial | None, Kernel | None]:
    """The part of a kernel that sorted sums can take, and its smooth part."""
    parts = kernel.parts if isinstance(kernel, SumKernel) else ((1.0, kernel),)
    exact = tuple((c, k) for c, k in parts if k.form.exponential is not None)
    smooth = tuple((c, k) for c, k in parts if k.form.exponential is None)
    return _combined(exact).form.exponential if exact else None, _combined(smooth) if smooth else None


def _combined(parts: tuple[tuple[float, Kernel], ...]) -> Kernel:
    """The sum of the parts; a single one as it is."""
    return parts[0][1] if len(parts) == 1 and parts[0][0] == 1.0 else SumKernel(parts)


def _default_domain(samples: FloatArray) -> tuple[float, float]:
    """The range of the samples; all of [0, 1] if they lie in it; never empty."""
    low, high = float(samples.min()), float(samples.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (low, high) if low < high else (low - 0.5, high + 0.5)
