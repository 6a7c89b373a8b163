"""Forward and backward passes of small perceptrons, compiled; one model and one minibatch at a time.

A step of such a model is microseconds of arithmetic, and every library call around it costs as much. Here a whole local
training is one call, and all it touches stays in the cache. Records lie along the last axis, (features, records), so
that the innermost loops are long whatever the widths are, and four inputs are taken at once, so that a sum is read and
written a quarter as often. Sums may be taken in any order ("reassoc"), but NaN and infinity stay what they are.
"""

from __future__ import annotations

from typing import Any

from numba import njit

RULES: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}


@njit(**RULES)
def forward_layer(weights, bias, given, out, count, rectify):  # type: ignore[no-untyped-def]
    """out[k, i] = bias[k] + Σ_j weights[k, j]·given[j, i], not below 0 where `rectify`; for i < count."""
    width, inputs = weights.shape
    zero = out.dtype.type(0)
    rest = inputs % 4  # taken first, together with the bias
    for k in range(width):
        row, b = out[k], bias[k]
        if rest == 0:
            for i in range(count):
                row[i] = b
        elif rest == 1:
            w0, g0 = weights[k, 0], given[0]
            for i in range(count):
                row[i] = b + w0 * g0[i]
        elif rest == 2:
            w0, w1, g0, g1 = weights[k, 0], weights[k, 1], given[0], given[1]
            for i in range(count):
                row[i] = b + w0 * g0[i] + w1 * g1[i]
        else:
            w0, w1, w2, g0, g1, g2 = weights[k, 0], weights[k, 1], weights[k, 2], given[0], given[1], given[2]
            for i in range(count):
                row[i] = b + w0 * g0[i] + w1 * g1[i] + w2 * g2[i]
        for j in range(rest, inputs, 4):
            w0, w1, w2, w3 = weights[k, j], weights[k, j + 1], weights[k, j + 2], weights[k, j + 3]
            g0, g1, g2, g3 = given[j], given[j + 1], given[j + 2], given[j + 3]
            for i in range(count):
                row[i] += w0 * g0[i] + w1 * g1[i] + w2 * g2[i] + w3 * g3[i]
        if rectify:
            for i in range(count):
                row[i] = row[i] if not row[i] < zero else zero  # NaN stays


@njit(**RULES)
def backward_layer(weights, given, arriving, leaving, count):  # type: ignore[no-untyped-def]
    """leaving[j, i] = Σ_k weights[k, j]·arriving[k, i] where given[j, i] > 0, else 0."""
    width, inputs = weights.shape
    zero = leaving.dtype.type(0)
    for j in range(inputs):
        row, active = leaving[j], given[j]
        row[:count] = zero
        for k in range(width):
            w, a = weights[k, j], arriving[k]
            for i in range(count):
                row[i] += w * a[i]
        for i in range(count):
            row[i] = row[i] if active[i] > zero else zero


@njit(**RULES)
def sum_layer(given, arriving, count, weights, bias):  # type: ignore[no-untyped-def]
    """weights[k, j] = Σ_i arriving[k, i]·given[j, i] and bias[k] = Σ_i arriving[k, i], in the type of `weights`."""
    width, inputs = weights.shape
    whole = inputs - inputs % 4
    for k in range(width):
        a = arriving[k]
        for j in range(0, whole, 4):
            g0, g1, g2, g3 = given[j], given[j + 1], given[j + 2], given[j + 3]
            s0 = s1 = s2 = s3 = weights.dtype.type(0)
            for i in range(count):
                s0 += a[i] * g0[i]
                s1 += a[i] * g1[i]
                s2 += a[i] * g2[i]
                s3 += a[i] * g3[i]
            weights[k, j], weights[k, j + 1], weights[k, j + 2], weights[k, j + 3] = s0, s1, s2, s3
        for j in range(whole, inputs):
            g0 = given[j]
            s0 = weights.dtype.type(0)
            for i in range(count):
                s0 += a[i] * g0[i]
            weights[k, j] = s0
        s0 = bias.dtype.type(0)
        for i in range(count):
            s0 += a[i]
        bias[k] = s0
