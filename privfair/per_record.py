"""Arithmetic in which what a record gets depends on that record and the model alone, to the last bit.

Sensitivities are those of functions that treat every record by itself. A matrix product of a library does not: it
rounds a row in ways that depend on how many rows there are and where the row stands, and so do sums over an axis,
fused multiply-adds at the end of an array, and vectorised exponentials. With weights of 1e8 that cancel, which a server
may choose, such a last bit becomes a whole score, and one record more would move the scores of others.

Here every sum within a record is taken in one fixed order by separate multiplications and additions, each of which
IEEE 754 rounds in one way only. The compiler may put several records into one vector instruction, but may neither
reorder nor fuse ("fastmath" is off). Exponentials and cosines are calls of the mathematical library, one number each.
Sums over records are of whole multiples of a grid, which are exact in any order.
"""

from __future__ import annotations

import math
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba import njit

from accountant.errors import InputError
from privfair.util import FloatArray

EXACTLY_AS_WRITTEN: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": False}
VECTOR_LIBRARY = bool(getattr(numba.config, "USING_SVML", False))  # Intel's rounds exponentials in vectors differently

MOST_RECORDS = 1 << 24  # whose clipped gradients add up exactly
_GRID_BITS = 28  # a clipped gradient is cut to multiples of about 2⁻²⁸ of the bound: 2²⁴ records stay below 2⁵³
_SHORT = 1 - 2.0**-28  # of the bound: more than 10⁸ parameters' squares, their root and two products are rounded by


def recompiled(function: Any, **inner: Any) -> Any:
    """A compiled function once more, exactly as written, with `inner` for the functions of those names that it calls.

    The name under which numba caches it differs, because the cache looks at names and sources and not at options.
    """
    source = function.py_func
    copy = FunctionType(source.__code__, {**source.__globals__, **inner}, source.__name__, source.__defaults__)
    copy.__qualname__, copy.__module__ = f"{source.__qualname__}_alone", source.__module__
    return njit(**EXACTLY_AS_WRITTEN)(copy)


# ---- layers, as matrices (units, records), so that the innermost loops are long whatever the widths are


@njit(**EXACTLY_AS_WRITTEN)
def forward_layer_alone(weights, bias, given, out, rectify):  # type: ignore[no-untyped-def]
    """out[k, i] = bias[k] + Σ_j weights[k, j]·given[j, i], not below 0 where `rectify`."""
    units, inputs = weights.shape
    zero = out.dtype.type(0)
    rest = inputs % 4
    for k in range(units):
        row = out[k]
        row[:] = bias[k]
        for j in range(rest):
            w, g = weights[k, j], given[j]
            for i in range(len(row)):
                row[i] += w * g[i]
        for j in range(rest, inputs, 4):
            w0, w1, w2, w3 = weights[k, j], weights[k, j + 1], weights[k, j + 2], weights[k, j + 3]
            g0, g1, g2, g3 = given[j], given[j + 1], given[j + 2], given[j + 3]
            for i in range(len(row)):
                row[i] += (w0 * g0[i] + w1 * g1[i]) + (w2 * g2[i] + w3 * g3[i])
        if rectify:
            for i in range(len(row)):
                row[i] = row[i] if not row[i] < zero else zero  # NaN stays


@njit(**EXACTLY_AS_WRITTEN)
def backward_linear_alone(weights, arriving, leaving):  # type: ignore[no-untyped-def]
    """leaving[j, i] = Σ_k weights[k, j]·arriving[k, i]."""
    units, inputs = weights.shape
    for j in range(inputs):
        row = leaving[j]
        row[:] = 0
        for k in range(units):
            w, a = weights[k, j], arriving[k]
            for i in range(len(row)):
                row[i] += w * a[i]


@njit(**EXACTLY_AS_WRITTEN)
def backward_layer_alone(weights, given, arriving, leaving):  # type: ignore[no-untyped-def]
    """The same where given[j, i] > 0, else 0."""
    backward_linear_alone(weights, arriving, leaving)
    zero = leaving.dtype.type(0)
    for j in range(len(leaving)):
        row, active = leaving[j], given[j]
        for i in range(len(row)):
            row[i] = row[i] if active[i] > zero else zero


# ---- the same by records


@njit(**EXACTLY_AS_WRITTEN)
def linear(weights, bias, x):  # type: ignore[no-untyped-def]
    """(records, units): bias + weights·x of each row x."""
    out = np.empty((len(weights), len(x)), x.dtype)
    forward_layer_alone(weights, bias, np.ascontiguousarray(x.T), out, False)
    return np.ascontiguousarray(out.T)


@njit(**EXACTLY_AS_WRITTEN)
def transposed_linear(weights, arriving):  # type: ignore[no-untyped-def]
    """(records, inputs): weightsᵀ·a of each row a."""
    leaving = np.empty((weights.shape[1], len(arriving)), arriving.dtype)
    backward_linear_alone(weights, np.ascontiguousarray(arriving.T), leaving)
    return np.ascontiguousarray(leaving.T)


@njit(**EXACTLY_AS_WRITTEN)
def perceptron_outputs(theta, widths, x):  # type: ignore[no-untyped-def]
    """(records,): linear layers of these widths with ReLU between them; `theta` has each one's weights, then biases."""
    given, start = np.ascontiguousarray(x.T), 0
    for level in range(len(widths) - 1):
        inputs, units = widths[level], widths[level + 1]
        middle = start + inputs * units
        out = np.empty((units, len(x)), x.dtype)
        weights, bias = theta[start:middle].reshape(units, inputs), theta[middle : middle + units]
        forward_layer_alone(weights, bias, given, out, level < len(widths) - 2)
        given, start = out, middle + units
    return given[0]


# ---- functions of one number


@njit(**EXACTLY_AS_WRITTEN)
def sigmoids(outputs):  # type: ignore[no-untyped-def]
    """1/(1 + e⁻ᵒ) of each."""
    found, one = np.empty_like(outputs), outputs.dtype.type(1)
    for i in range(len(outputs)):
        found[i] = one / (one + np.exp(-outputs[i]))
    return found


@njit(**EXACTLY_AS_WRITTEN)
def cross_entropies(outputs, labels):  # type: ignore[no-untyped-def]
    """max(o, 0) − o·y + log(1 + e^−|o|) of each."""
    found, zero = np.empty_like(outputs), outputs.dtype.type(0)
    for i in range(len(outputs)):
        o = outputs[i]
        found[i] = (o if not o < zero else zero) - o * labels[i] + np.log1p(np.exp(-abs(o)))
    return found


@njit(**EXACTLY_AS_WRITTEN)
def cosines(angles):  # type: ignore[no-untyped-def]
    """Of each angle of a matrix."""
    found = np.empty_like(angles)
    for i in range(angles.shape[0]):
        for j in range(angles.shape[1]):
            found[i, j] = np.cos(angles[i, j])
    return found


def products(rows: FloatArray, columns: FloatArray) -> FloatArray:
    """rows·columns, each row by itself."""
    weights = np.ascontiguousarray(columns.T)
    found: FloatArray = linear(weights, np.zeros(len(weights)), np.ascontiguousarray(rows))
    return found


# ---- clipped gradients


def grid_of(bound: float) -> float:
    """The power of two whose multiples a clipped gradient is cut to; a bound has 2²⁸ to 2²⁹ of them."""
    return math.ldexp(1.0, math.frexp(bound)[1] - 1 - _GRID_BITS)


def require_summable(records: int) -> None:
    """Raise if a minibatch could have so many records that its sum is no longer exact."""
    if records > MOST_RECORDS:
        raise InputError("records", f"must be at most {MOST_RECORDS} for private training", records)


@njit(**EXACTLY_AS_WRITTEN)
def share_of(square, bound):  # type: ignore[no-untyped-def]
    """min(1, C/(‖g‖ + 1e-6)) from ‖g‖², a little less so that no rounding passes C; 0 if the square is not finite."""
    if not np.isfinite(square):
        return 0.0
    return min(1.0, bound / (np.sqrt(square) + 1e-6)) * _SHORT


@njit(**EXACTLY_AS_WRITTEN)
def clipped_sum(gradients, bound, grid):  # type: ignore[no-untyped-def]
    """Σ_i of the rows, each clipped to norm C = `bound` and cut towards 0 to multiples of `grid`.

    Each term has norm at most C. With share s, |cut(s·g)| ≤ |s·g|·(1 + 2⁻⁵³) in every coordinate, and the computed
    square of ‖g‖ is off by a factor of at most 1 ± (P/4 + 4)·2⁻⁵³, with P ≤ 10⁸ less than 1 ± 2⁻²⁸: `_SHORT` makes up
    for both. The terms are whole multiples of the grid, of at most 2²⁹ steps, so that 2²⁴ of them add up in double
    precision without rounding, in any order. So one record more or less moves the sum by its own term: by C at most.
    A row that is not finite counts as 0.
    """
    records, size = gradients.shape
    total = np.zeros(size)
    for i in range(records):
        row = gradients[i]
        a = b = c = d = 0.0
        rest = size % 4
        for p in range(rest):
            a += row[p] * row[p]
        for p in range(rest, size, 4):
            a += row[p] * row[p]
            b += row[p + 1] * row[p + 1]
            c += row[p + 2] * row[p + 2]
            d += row[p + 3] * row[p + 3]
        share = share_of((a + b) + (c + d), bound) / grid
        if share > 0.0:
            for p in range(size):
                total[p] += np.trunc(share * row[p])
    return total * grid


# ---- clipped gradients in whole numbers, for sums whose noise is whole numbers
#
# The whole numbers are doubles. Σ v² is compared with steps² ≤ 2⁴⁰ exactly, in any order in which it is added up: sums
# of squares up to 2⁵³ are whole numbers that a double holds, and one that has passed 2⁵³ never falls below it again.

_IN_ANY_ORDER = {**EXACTLY_AS_WRITTEN, "fastmath": {"reassoc"}}  # for sums that are exact in any order; NaN stays


@njit(**_IN_ANY_ORDER)
def _to_nearest(row, scale, whole):  # type: ignore[no-untyped-def]
    """whole = scale·row, each rounded to the nearest whole number, and Σ whole²."""
    square = 0.0
    for p in range(len(row)):
        number = np.rint(scale * row[p])
        whole[p] = number
        square += number * number
    return square


@njit(**_IN_ANY_ORDER)
def _toward_zero(row, scale, whole):  # type: ignore[no-untyped-def]
    """The same, each cut."""
    square = 0.0
    for p in range(len(row)):
        number = np.trunc(scale * row[p])
        whole[p] = number
        square += number * number
    return square


@njit(**EXACTLY_AS_WRITTEN)
def inward(row, scale, steps, whole):  # type: ignore[no-untyped-def]
    """whole = scale·row in whole numbers of length at most `steps`, whatever row and scale are.

    Each is rounded to the nearest; if Σ whole² > steps², toward 0 instead. If that is too long, which takes a scale
    that does not clip, the scale is halved until it is not, and what no scale makes short (no numbers) is 0.
    """
    most = steps * steps
    if _to_nearest(row, scale, whole) <= most:  # never so if one is no number
        return
    for _ in range(64):
        if _toward_zero(row, scale, whole) <= most:
            return
        scale *= 0.5
    whole[:] = 0.0


@njit(**EXACTLY_AS_WRITTEN)
def _square(row):  # type: ignore[no-untyped-def]
    """Σ row², in one order."""
    a = b = c = d = e = f = g = h = 0.0
    rest = len(row) % 8
    for p in range(rest):
        a += row[p] * row[p]
    for p in range(rest, len(row), 8):
        a += row[p] * row[p]
        b += row[p + 1] * row[p + 1]
        c += row[p + 2] * row[p + 2]
        d += row[p + 3] * row[p + 3]
        e += row[p + 4] * row[p + 4]
        f += row[p + 5] * row[p + 5]
        g += row[p + 6] * row[p + 6]
        h += row[p + 7] * row[p + 7]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@njit(**EXACTLY_AS_WRITTEN)
def add_whole(row, bound, steps, whole, total):  # type: ignore[no-untyped-def]
    """Add a record's gradient to `total`: clipped to C = `bound`, in units of C/steps, as `inward` has it.

    It is g·steps/max(C, ‖g‖ + 1e-6), clipped as by `share_of`; a gradient whose square is not finite counts as 0. All
    of it depends on the record alone. `whole` is room for one gradient.
    """
    square = _square(row)
    if not np.isfinite(square):
        return
    inward(row, _SHORT * steps / max(bound, np.sqrt(square) + 1e-6), steps, whole)
    for p in range(len(row)):
        total[p] += whole[p]


@njit(**EXACTLY_AS_WRITTEN)
def whole_sum(gradients, bound, steps):  # type: ignore[no-untyped-def]
    """Σ_i of the rows, each clipped to norm C = `bound` and a vector of whole numbers of C/steps; as int64.

    A row more or less moves the sum by a vector of length `steps` at most, exactly. 2²⁴ records of at most 2²⁰ steps
    add up in double precision without rounding.
    """
    total, whole = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1])
    for i in range(len(gradients)):
        add_whole(gradients[i], bound, float(steps), whole, total)
    return total.astype(np.int64)
