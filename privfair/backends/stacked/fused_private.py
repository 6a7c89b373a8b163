"""DP-SGD of one client, compiled; `clients.dp_sgd` with Opacus is the reference.

A record's clipped gradient depends on that record and the parameters alone, to the last bit, and sums of them are
exact: see `record_arithmetic`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from privfair.backends.stacked.fused_layers import RULES
from privfair.backends.stacked.fused_slopes import task_slopes_alone
from privfair.backends.stacked.fused_training import (
    TRACKED,
    backward,
    descend,
    forward,
    gather,
    layer,
    linear,
    starts,
)
from privfair.backends.stacked.fused_witness import add_tracked_alone
from privfair.record_arithmetic import EXACTLY_AS_WRITTEN, share_of


@njit(**RULES)
def train_private_job(records, widths, outcome, steps, work, goal, witness, noise, clip, divisor, job, end, snapshot):  # type: ignore[no-untyped-def]
    """Move `end`, in double precision, through all steps of one job; `noise` is (steps, P), scaled.

    `clip`: the bound, and the grid that a clipped gradient is on.
    """
    bound, grid = clip
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
        pull, scores, score = lines[0], lines[1], lines[2]
        task_slopes_alone(outcome, outputs, sides[0], count, scores, pull, score)
        if goal.kind == TRACKED:
            add_tracked_alone(witness, goal.penalty[job], sides[1:], scores, score, count, pull)
        layer(deltas, before, len(widths) - 1, count)[0] = lines[0, :count]
        backward(theta, before, acts, count, deltas, True)
        for p in range(before[-1] * count):
            given[p], clipped[p] = acts[p], deltas[p]
        clipped_sums(before, given, inputs, clipped, count, bound, grid, shares, gradient)
        for p in range(size):
            gradient[p] = (gradient[p] + noise[step, p]) / divisor
        descend(end, begin, gradient, work, job, step, mean, square)
        if step + 1 == work.snapshot_after[job]:
            snapshot[:] = end


@njit(**EXACTLY_AS_WRITTEN)
def clipped_sums(before, acts, inputs, deltas, count, clip, grid, shares, gradient):  # type: ignore[no-untyped-def]
    """gradient = Σ_i of the records' gradients, each clipped to C and cut to multiples of `grid`: see `clipped_sum`.

    In a linear layer g_i is the outer product of what arrives and what was given: ‖g_i‖² = Σ_layers ‖δ_i‖²(‖a_i‖² + 1).
    A record whose gradient is not finite counts as 0.
    """
    units = before[-1]
    given, arrived = acts[: units * count].reshape(units, count), deltas[: units * count].reshape(units, count)
    squares = np.zeros(count)
    shares[:count] = 0.0
    for level in range(len(before) - 2):
        squares[:] = 1.0
        for j in range(before[level], before[level + 1]):
            for i in range(count):
                squares[i] += given[j, i] * given[j, i]
        for k in range(before[level + 1], before[level + 2]):
            for i in range(count):
                shares[i] += (arrived[k, i] * arrived[k, i]) * squares[i]
    for i in range(count):
        shares[i] = share_of(shares[i], clip) / grid
    gradient[:] = 0.0
    for level in range(len(before) - 2):
        weights, bias = linear(gradient, before, level)
        first, last = before[level], before[level + 1]
        by_record = inputs if level == 0 else given[first:last].T.copy().reshape(-1)
        for i in range(count):
            if not shares[i] > 0.0:
                continue
            row = by_record[i * (last - first) : (i + 1) * (last - first)]
            for k in range(len(bias)):
                pull = arrived[last + k, i] * shares[i]
                bias[k] += np.trunc(pull)
                own = weights[k]
                for j in range(len(own)):
                    own[j] += np.trunc(pull * row[j])
    for p in range(len(gradient)):
        gradient[p] *= grid
