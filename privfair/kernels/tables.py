"""Look-ups: places in sorted values, and functions computed once by piecewise interpolation with a stated error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from accountant.errors import InputError

if TYPE_CHECKING:
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


class DistanceTable:
    """An even function of a distance, on cells that grow with the distance; computed directly beyond `reach`."""

    _NODES = 16
    _GROWTH = 1.5

    def __init__(self, function: Callable[[FloatArray, int], FloatArray], *, scale: float, reach: float) -> None:
        """Interpolate `function(r, order)`, smooth at distances below `scale`, on [0, reach]."""
        self._function = function
        edges = [0.0, scale / 4]
        while edges[-1] < reach:
            edges.append(edges[-1] * self._GROWTH)
        self._edges = np.array(edges)
        self._half_width = np.diff(self._edges) / 2
        points = _chebyshev_points(self._NODES)
        centre = (self._edges[1:] + self._edges[:-1]) / 2
        r = centre[:, None] + self._half_width[:, None] * points
        values = function(r.reshape(-1), 0).reshape(r.shape)
        self._coefficients = {0: chebyshev.chebfit(points, values.T, self._NODES - 1)}

    def evaluate(self, d: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative at each signed distance."""
        r = np.abs(d)
        inside = r < self._edges[-1]
        value = np.empty_like(r)
        if not inside.all():
            value[~inside] = self._function(r[~inside], order)
        if inside.any():
            cell = np.searchsorted(self._edges, r[inside], side="right") - 1
            half = self._half_width[cell]
            t = (r[inside] - self._edges[cell]) / half - 1
            coefficients = self._derivative_coefficients(order)[:, cell]
            value[inside] = chebyshev.chebval(t, coefficients, tensor=False) / half**order
        return value * np.sign(d) if order % 2 else value

    def _derivative_coefficients(self, order: int) -> FloatArray:
        if order not in self._coefficients:
            self._coefficients[order] = chebyshev.chebder(self._coefficients[0], order)
        return self._coefficients[order]


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
    points = _chebyshev_points(NODES)
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
    points, h = _chebyshev_points(NODES), (high - low) / cells
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


def _chebyshev_points(count: int) -> FloatArray:
    """The zeros of T_count on [−1, 1]."""
    points: FloatArray = np.cos(np.pi * (np.arange(count) + 0.5) / count)[::-1]
    return points
