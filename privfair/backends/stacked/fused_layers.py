"""Forward and backward passes of small perceptrons, compiled; one model and one minibatch at a time.

A step of such a model is microseconds of arithmetic, and every library call around it costs as much. Here a whole local
training is one call, and all it touches stays in the cache; products of matrices are BLAS's, which compiled code calls
directly. A layer is a matrix (units, records), so that the innermost loops are long whatever the widths are; sums over
records are quicker with the input as (records, features), so it is held in both ways. Sums may be taken in any order
("reassoc"), but NaN and infinity stay what they are. Layers in which each record is computed by itself, for DP-SGD, are
in `record_arithmetic`.
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


@njit(**RULES)
def sum_layer(arriving, given, weights, bias):  # type: ignore[no-untyped-def]
    """weights[k, j] = Σ_i arriving[k, i]·given[i, j] and bias[k] = Σ_i arriving[k, i]; `given` is (records, inputs)."""
    np.dot(arriving, given, weights)
    for k in range(len(bias)):
        bias[k] = arriving[k].sum()
