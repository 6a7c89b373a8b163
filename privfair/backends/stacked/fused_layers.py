"""Forward and backward passes of small perceptrons, compiled; one model and one minibatch at a time.

A step of such a model is microseconds of arithmetic, and every library call around it costs as much. Here a whole local
training is one call, and all it touches stays in the cache; products of matrices are BLAS's, which compiled code calls
directly. A layer is a matrix (units, records), so that the innermost loops are long whatever the widths are; sums over
records are quicker with the input as (records, features), so it is held in both ways. Sums may be taken in any order
("reassoc"), but NaN and infinity stay what they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401 - numba takes its BLAS from there; loaded, its threads can be limited
from numba import njit

RULES: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
EXACTLY_AS_WRITTEN = {**RULES, "fastmath": False}


@njit(**RULES)
def forward_layer(weights, bias, given, out, rectify):  # type: ignore[no-untyped-def]
    """out[k, i] = bias[k] + Σ_j weights[k, j]·given[j, i], not below 0 where `rectify`."""
    np.dot(weights, given, out)
    zero = out.dtype.type(0)
    for k in range(len(out)):
        row, b = out[k], bias[k]
        if rectify:
            for i in range(len(row)):
                value = row[i] + b
                row[i] = value if not value < zero else zero  # NaN stays
        else:
            for i in range(len(row)):
                row[i] += b


@njit(**RULES)
def backward_layer(weights, given, arriving, leaving):  # type: ignore[no-untyped-def]
    """leaving[j, i] = Σ_k weights[k, j]·arriving[k, i] where given[j, i] > 0, else 0."""
    np.dot(weights.T, arriving, leaving)
    values, active = leaving.reshape(-1), given.reshape(-1)
    zero = leaving.dtype.type(0)
    for i in range(len(values)):
        values[i] = values[i] if active[i] > zero else zero


@njit(**EXACTLY_AS_WRITTEN)
def forward_layer_alone(weights, bias, given, out, rectify):  # type: ignore[no-untyped-def]
    """As `forward_layer`, and what a record gets depends on that record alone, to the last bit.

    BLAS rounds a column of a product in ways that depend on how many columns there are and where it stands. For DP-SGD
    that is not good enough: a record that joins a minibatch could move another one over the edge of a rectifier, and
    the clipped sum by more than the bound.
    """
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
def backward_layer_alone(weights, given, arriving, leaving):  # type: ignore[no-untyped-def]
    """As `backward_layer`, each record by itself: see `forward_layer_alone`."""
    units, inputs = weights.shape
    zero = leaving.dtype.type(0)
    for j in range(inputs):
        row, active = leaving[j], given[j]
        row[:] = zero
        for k in range(units):
            w, a = weights[k, j], arriving[k]
            for i in range(len(row)):
                row[i] += w * a[i]
        for i in range(len(row)):
            row[i] = row[i] if active[i] > zero else zero


@njit(**RULES)
def sum_layer(arriving, given, weights, bias):  # type: ignore[no-untyped-def]
    """weights[k, j] = Σ_i arriving[k, i]·given[i, j] and bias[k] = Σ_i arriving[k, i]; `given` is (records, inputs)."""
    np.dot(arriving, given, weights)
    for k in range(len(bias)):
        bias[k] = arriving[k].sum()
