"""DP-SGD of one client, compiled: see `privately` for what it computes, and `clients.dp_sgd` for the reference."""

from __future__ import annotations

import numpy as np
from numba import njit

from privfair.backends.stacked.fused_layers import RULES
from privfair.backends.stacked.fused_training import (
    backward,
    descend,
    forward,
    gather,
    layer,
    pulls,
    starts,
    sum_layers,
)


@njit(**RULES)
def train_private_job(records, widths, outcome, steps, work, goal, witness, noise, clip, divisor, job, end, snapshot):  # type: ignore[no-untyped-def]
    """Move `end`, in double precision, through all steps of one job; `noise` is (steps, P), scaled."""
    kind = records.rows.dtype
    size = len(end)
    before = starts(widths)
    room = before[-1] * steps.widest
    acts, deltas, inputs = np.zeros(room, kind), np.zeros(room, kind), np.zeros(records.features * steps.widest)
    given, clipped = np.zeros(room), np.zeros(room)
    sides = np.zeros((records.rows.shape[1] - records.features, steps.widest), kind)
    lines, shares = np.zeros((3, steps.widest), kind), np.zeros(steps.widest)
    theta, begin = np.zeros(size, kind), end.copy()
    gradient, mean, square = np.zeros(size), np.zeros(size), np.zeros(size)
    place, first, number, width = steps.orders[work.order[job]]
    for step in range(number):
        count = steps.sizes[first + step]
        gather(records, steps.positions[place + step * width :], work.offset[job], count, inputs, acts, sides)
        for p in range(size):
            theta[p] = end[p]
        outputs = forward(theta, before, acts, count, True)
        pulls(outputs, outcome, goal, witness, job, sides, count, lines)
        layer(deltas, before, len(widths) - 1, count)[0] = lines[0, :count]
        backward(theta, before, acts, count, deltas, True)
        for p in range(before[-1] * count):
            given[p], clipped[p] = acts[p], deltas[p]
        clip_records(before, given, inputs, clipped, count, clip, shares)
        sum_layers(before, given, inputs, clipped, count, gradient)
        for p in range(size):
            gradient[p] = (gradient[p] + noise[step, p]) / divisor
        descend(end, begin, gradient, work, job, step, mean, square)
        if step + 1 == work.snapshot_after[job]:
            snapshot[:] = end


@njit(**RULES)
def clip_records(before, acts, inputs, deltas, count, clip, shares):  # type: ignore[no-untyped-def]
    """Multiply what arrives from each record with its share, min(1, C/(‖g_i‖ + 1e-6)).

    In a linear layer g_i is the outer product of what arrives and what was given: ‖g_i‖² = Σ_layers ‖δ_i‖²(‖a_i‖² + 1).
    A record whose gradient is not finite loses it, and all it was made of.
    """
    features, units = before[1], before[-1]
    given, arrived = acts[: units * count].reshape(units, count), deltas[: units * count].reshape(units, count)
    squares = np.zeros(count)
    shares[:count] = 0.0
    for level in range(len(before) - 2):
        squares[:] = 1.0
        for j in range(before[level], before[level + 1]):
            for i in range(count):
                squares[i] += given[j, i] ** 2
        for k in range(before[level + 1], before[level + 2]):
            for i in range(count):
                shares[i] += arrived[k, i] ** 2 * squares[i]
    for i in range(count):
        if np.isfinite(shares[i]):
            shares[i] = min(1.0, clip / (np.sqrt(shares[i]) + 1e-6))
        else:
            shares[i] = 0.0
            given[:, i] = 0.0
            arrived[:, i] = 0.0
            inputs[i * features : (i + 1) * features] = 0.0
    for k in range(features, units):
        for i in range(count):
            arrived[k, i] *= shares[i]
