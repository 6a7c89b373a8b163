"""DP-SGD of one client, compiled: see `privately` for what it computes, and `clients.dp_sgd` for the reference."""

from __future__ import annotations

import numpy as np
from numba import njit

from privfair.backends.stacked.fused_layers import RULES
from privfair.backends.stacked.fused_training import (
    arriving,
    descend,
    gather,
    level_rows,
    outputs_and_slopes,
    sum_layers,
)


@njit(**RULES)
def train_private_job(records, widths, outcome, steps, work, goal, witness, noise, clip, divisor, job, end, snapshot):  # type: ignore[no-untyped-def]
    """Move `end`, in double precision, through all steps of one job; `noise` is (steps, P), scaled."""
    kind = records.rows.dtype
    size = len(end)
    levels, height = level_rows(widths, records.rows.shape[1])
    acts, deltas = np.zeros((height, steps.widest), kind), np.zeros((height, steps.widest), kind)
    clipped = np.zeros((height, steps.widest))
    lines, shares = np.zeros((3, steps.widest), kind), np.zeros(steps.widest)
    theta, begin = np.zeros(size, kind), end.copy()
    gradient, mean, square = np.zeros(size), np.zeros(size), np.zeros(size)
    place, first, number, width = steps.orders[work.order[job]]
    for step in range(number):
        count = steps.sizes[first + step]
        gather(records, steps.positions[place + step * width :], work.offset[job], count, acts)
        for p in range(size):
            theta[p] = end[p]
        outputs_and_slopes(theta, widths, records.features, outcome, goal, witness, job, acts, levels, count, lines)
        deltas[levels[-1], :count] = lines[0, :count]
        arriving(theta, widths, acts, levels, count, deltas)
        clipping_shares(widths, acts, deltas, levels, count, clip, shares)
        for k in range(levels[1], height):
            for i in range(count):
                clipped[k, i] = shares[i] * np.float64(deltas[k, i])
        sum_layers(widths, acts, clipped, levels, count, gradient)
        for p in range(size):
            gradient[p] = (gradient[p] + noise[step, p]) / divisor
        descend(end, begin, gradient, work, job, step, mean, square)
        if step + 1 == work.snapshot_after[job]:
            snapshot[:] = end


@njit(**RULES)
def clipping_shares(widths, acts, deltas, levels, count, clip, shares):  # type: ignore[no-untyped-def]
    """min(1, C/(‖g_i‖ + 1e-6)) of each record; a record whose gradient is not finite loses it, and all it was made of.

    In a linear layer g_i is the outer product of what arrives and what was given: ‖g_i‖² = Σ_layers ‖δ_i‖²(‖a_i‖² + 1).
    """
    for i in range(count):
        shares[i] = 0.0
    for level in range(len(widths) - 1):
        for i in range(count):
            given = 1.0
            for j in range(widths[level]):
                given += np.float64(acts[levels[level] + j, i]) ** 2
            here = 0.0
            for k in range(widths[level + 1]):
                here += np.float64(deltas[levels[level + 1] + k, i]) ** 2
            shares[i] += here * given
    for i in range(count):
        if np.isfinite(shares[i]):
            shares[i] = min(1.0, clip / (np.sqrt(shares[i]) + 1e-6))
        else:
            shares[i] = 0.0
            acts[:, i] = 0.0
            deltas[:, i] = 0.0
