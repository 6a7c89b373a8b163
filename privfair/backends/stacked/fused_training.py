"""Local training of several clients, one after the other, compiled: see `training` for what it computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privfair.backends.stacked.fused_layers import RULES, backward_layer, forward_layer, sum_layer
from privfair.backends.stacked.fused_slopes import add_own, task_slopes
from privfair.backends.stacked.fused_witness import add_tracked

TASK, TRACKED, OWN = 0, 1, 2  # what is added to the task loss


class Records(NamedTuple):
    """A pool: rows of features, label and cells; `codes` is 2·group + label."""

    rows: NDArray[Any]
    codes: NDArray[np.int64]
    features: int


class Steps(NamedTuple):
    """The minibatches of some orders: (first position, first step, steps, width) of each, and all below each other."""

    orders: NDArray[np.int64]
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    widest: int


class Work(NamedTuple):
    """For each job: which order, where its records begin and how many there are, and how it steps."""

    order: NDArray[np.int64]
    offset: NDArray[np.int64]
    records: NDArray[np.int64]
    rate: NDArray[Any]
    proximal: NDArray[Any]
    shift: NDArray[Any]  # (jobs or 0, P)
    snapshot_after: NDArray[np.int64]  # 0: never
    adam: bool


class Goal(NamedTuple):
    """What is added to the task loss: a tracked penalty of each job, or λ and the pairs of cells that are compared.

    `loss_weights`: (jobs or 0, codes), the weight of each group and label in the task loss.
    """

    kind: int
    penalty: NDArray[np.int64]
    strength: NDArray[Any]
    pairs: NDArray[np.int64]
    loss_weights: NDArray[Any]


@njit(**RULES)
def outputs_and_slopes(theta, widths, features, outcome, goal, witness, job, acts, levels, count, lines):  # type: ignore[no-untyped-def]
    """Forward, then lines[0] = pull of each record: the derivative of its loss and penalty in its output."""
    start = 0
    for level in range(len(widths) - 1):
        before, after = widths[level], widths[level + 1]
        middle = start + before * after
        weights = theta[start:middle].reshape(after, before)
        given = acts[levels[level] : levels[level] + before]
        out = acts[levels[level + 1] : levels[level + 1] + after]
        forward_layer(weights, theta[middle : middle + after], given, out, count, level < len(widths) - 2)
        start = middle + after
    pull, scores, score = lines[0], lines[1], lines[2]
    task_slopes(outcome, acts[levels[-1]], acts[features], count, scores, pull, score)
    member = acts[features + 1 : levels[1]]
    if goal.kind == TRACKED:
        add_tracked(witness, goal.penalty[job], member, scores, score, count, pull)
    elif goal.kind == OWN:
        add_own(goal.pairs, goal.strength[job], member, scores, score, count, pull)


@njit(**RULES)
def arriving(theta, widths, acts, levels, count, deltas):  # type: ignore[no-untyped-def]
    """Fill the rows of every level but the input with what arrives there; those of the output are given."""
    start = len(theta)
    for level in range(len(widths) - 1, 1, -1):
        before, after = widths[level - 1], widths[level]
        start -= after + before * after
        weights = theta[start : start + before * after].reshape(after, before)
        backward_layer(
            weights,
            acts[levels[level - 1] : levels[level - 1] + before],
            deltas[levels[level] : levels[level] + after],
            deltas[levels[level - 1] : levels[level - 1] + before],
            count,
        )


@njit(**RULES)
def sum_layers(widths, acts, deltas, levels, count, gradient):  # type: ignore[no-untyped-def]
    """The gradient, from what was given to each level and what arrives at the next."""
    start = 0
    for level in range(len(widths) - 1):
        before, after = widths[level], widths[level + 1]
        middle = start + before * after
        sum_layer(
            acts[levels[level] : levels[level] + before],
            deltas[levels[level + 1] : levels[level + 1] + after],
            count,
            gradient[start:middle].reshape(after, before),
            gradient[middle : middle + after],
        )
        start = middle + after


@njit(**RULES)
def gather(records, index, offset, count, acts):  # type: ignore[no-untyped-def]
    """Lay the rows of a minibatch side by side."""
    for i in range(count):
        row = records.rows[offset + index[i]]
        for j in range(len(row)):
            acts[j, i] = row[j]


@njit(**RULES)
def level_rows(widths, columns):  # type: ignore[no-untyped-def]
    """The row at which each level begins: the input with label and cells, then the layers; and where all end."""
    levels = np.zeros(len(widths), dtype=np.int64)
    end = columns
    for level in range(1, len(widths)):
        levels[level] = end
        end += widths[level]
    return levels, end


@njit(**RULES)
def descend(theta, start, gradient, work, job, step, mean, square):  # type: ignore[no-untyped-def]
    """One step down; as `steps.Descent` takes it."""
    kind = theta.dtype.type
    if work.proximal[job]:
        for p in range(len(theta)):
            gradient[p] += work.proximal[job] * (theta[p] - start[p])
    if len(work.shift):
        for p in range(len(theta)):
            gradient[p] += work.shift[job, p]
    rate = work.rate[job]
    if not work.adam:
        for p in range(len(theta)):
            theta[p] -= rate * gradient[p]
        return
    keep, keep_square = kind(0.9), kind(0.999)
    scale = kind(rate / (1 - 0.9 ** (step + 1)))
    correction = kind(1 - 0.999 ** (step + 1))
    for p in range(len(theta)):
        mean[p] += (gradient[p] - mean[p]) * (kind(1) - keep)
        square[p] = square[p] * keep_square + gradient[p] * gradient[p] * (kind(1) - keep_square)
        theta[p] -= scale * mean[p] / (np.sqrt(square[p] / correction) + kind(1e-8))


@njit(**RULES)
def train_jobs(records, widths, outcome, steps, work, goal, witness, ends, snapshots):  # type: ignore[no-untyped-def]
    """Move `ends`, (jobs, P), from where each job begins to where it ends."""
    kind = ends.dtype.type
    jobs, size = ends.shape
    levels, height = level_rows(widths, records.rows.shape[1])
    acts, deltas = np.zeros((height, steps.widest), ends.dtype), np.zeros((height, steps.widest), ends.dtype)
    lines = np.zeros((3, steps.widest), ends.dtype)
    gradient, mean, square = np.zeros(size, ends.dtype), np.zeros(size, ends.dtype), np.zeros(size, ends.dtype)
    everyone = np.arange(steps.widest)
    for job in range(jobs):
        theta, begin = ends[job], ends[job].copy()
        place, first, number, width = steps.orders[work.order[job]]
        mean[:] = 0
        square[:] = 0
        whole = False  # whether all records of the client lie in `acts`, in their own order
        for step in range(number):
            count = steps.sizes[first + step]
            index = everyone if count == work.records[job] else steps.positions[place + step * width :]
            if count < work.records[job] or not whole:
                gather(records, index, work.offset[job], count, acts)
                whole = count == work.records[job]
            outputs_and_slopes(theta, widths, records.features, outcome, goal, witness, job, acts, levels, count, lines)
            pull = deltas[levels[-1]]
            share = kind(1) / kind(count)
            for i in range(count):
                pull[i] = lines[0, i] * share
            if len(goal.loss_weights):
                for i in range(count):
                    pull[i] *= goal.loss_weights[job, records.codes[work.offset[job] + index[i]]]
            arriving(theta, widths, acts, levels, count, deltas)
            sum_layers(widths, acts, deltas, levels, count, gradient)
            descend(theta, begin, gradient, work, job, step, mean, square)
            if step + 1 == work.snapshot_after[job]:
                snapshots[job] = theta
