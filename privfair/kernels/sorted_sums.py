"""Σ_j w_j E(z − y_j) for an exponential polynomial E: sort once, then a look-up for each z. Exact.

For y_i the nearest sample below z, the samples on the left contribute, for each rate a > 0,

    Σ_{j ≤ i} w_j p(z − y_j) e^{−a(z − y_j)} = e^{−a(z − y_i)} Σ_m T_m[i]·(z − y_i)^m

because powers of z − y_j = (z − y_i) + (y_i − y_j) expand; T comes from the moments
M_k[i] = Σ_{j≤i} w_j (y_i − y_j)^k e^{−a(y_i − y_j)}. The samples on the right are the mirror image.
Where a = 0, left and right together are one polynomial in z on each gap between samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privfair.kernels.exponential import ExponentialPolynomial
from privfair.kernels.tables import SortedIndex, horner_columns
from privfair.util import FloatArray

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
