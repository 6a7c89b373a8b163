"""Local training of several clients, one after the other, compiled: see `training` for what it computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privfair.backends.stacked.fused_layers import RULES, backward_layer, forward_layer, sum_layer
from privfair.backends.stacked.fused_slopes import add_own, task_slopes
from privfair.backends.stacked.fused_witness import add_tracked
from privfair.record_arithmetic import backward_layer_alone, forward_layer_alone

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
def starts(widths):  # type: ignore[no-untyped-def]
    """Units before each layer, input and output included; and of all."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(widths)))


@njit(**RULES)
def layer(buffer, before, level, count):  # type: ignore[no-untyped-def]
    """The matrix (units, records) of a layer, for so many records; layers lie one after the other."""
    width = before[level + 1] - before[level]
    first = before[level] * count
    return buffer[first : first + width * count].reshape(width, count)


@njit(**RULES)
def linear(theta, before, level):  # type: ignore[no-untyped-def]
    """Weights, (units, inputs), and bias between a layer and the next one, within all parameters or a gradient."""
    start = 0
    for earlier in range(level):
        start += (before[earlier + 1] - before[earlier] + 1) * (before[earlier + 2] - before[earlier + 1])
    inputs, units = before[level + 1] - before[level], before[level + 2] - before[level + 1]
    middle = start + units * inputs
    return theta[start:middle].reshape(units, inputs), theta[middle : middle + units]


@njit(**RULES)
def forward(theta, before, acts, count, alone):  # type: ignore[no-untyped-def]
    """Fill every layer but the input, and return the outputs; `alone`: each record by itself, to the last bit."""
    last = len(before) - 2
    for level in range(last):
        weights, bias = linear(theta, before, level)
        given, out = layer(acts, before, level, count), layer(acts, before, level + 1, count)
        if alone:
            forward_layer_alone(weights, bias, given, out, level < last - 1)
        else:
            forward_layer(weights, bias, given, out, level < last - 1)
    return layer(acts, before, last, count)[0]


@njit(**RULES)
def pulls(outputs, outcome, goal, witness, job, sides, count, lines):  # type: ignore[no-untyped-def]
    """lines[0] = pull of each record: the derivative of its loss and penalty in its output."""
    pull, scores, score = lines[0], lines[1], lines[2]
    task_slopes(outcome, outputs, sides[0], count, scores, pull, score)
    if goal.kind == TRACKED:
        add_tracked(witness, goal.penalty[job], sides[1:], scores, score, count, pull)
    elif goal.kind == OWN:
        add_own(goal.pairs, goal.strength[job], sides[1:], scores, score, count, pull)


@njit(**RULES)
def backward(theta, before, acts, count, deltas, alone):  # type: ignore[no-untyped-def]
    """Fill every layer but the input with what arrives there; that of the output is given."""
    for level in range(len(before) - 3, 0, -1):
        weights, _ = linear(theta, before, level)
        given, arrived = layer(acts, before, level, count), layer(deltas, before, level + 1, count)
        leaving = layer(deltas, before, level, count)
        if alone:
            backward_layer_alone(weights, given, arrived, leaving)
        else:
            backward_layer(weights, given, arrived, leaving)


@njit(**RULES)
def sum_layers(before, acts, inputs, deltas, count, gradient):  # type: ignore[no-untyped-def]
    """The gradient, from what was given to each layer and what arrives at the next; `inputs`: features by records."""
    for level in range(len(before) - 2):
        weights, bias = linear(gradient, before, level)
        given, arrived = layer(acts, before, level, count), layer(deltas, before, level + 1, count)
        if level == 0:
            sum_layer(arrived, inputs[: given.size].reshape(count, len(given)), weights, bias)
        else:
            sum_layer(arrived, given.T, weights, bias)


@njit(**RULES)
def gather(records, index, offset, count, inputs, acts, sides):  # type: ignore[no-untyped-def]
    """The features of a minibatch, by records and by features; labels and cells into `sides`."""
    features = records.features
    for i in range(count):
        row, own = records.rows[offset + index[i]], inputs[i * features : (i + 1) * features]
        for j in range(features):
            own[j] = row[j]
            acts[j * count + i] = row[j]
        for j in range(len(sides)):
            sides[j, i] = row[features + j]


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
    before = starts(widths)
    acts, deltas = np.zeros(before[-1] * steps.widest, ends.dtype), np.zeros(before[-1] * steps.widest, ends.dtype)
    inputs = np.zeros(records.features * steps.widest, ends.dtype)
    sides = np.zeros((records.rows.shape[1] - records.features, steps.widest), ends.dtype)
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
                gather(records, index, work.offset[job], count, inputs, acts, sides)
                whole = count == work.records[job]
            outputs = forward(theta, before, acts, count, False)
            pulls(outputs, outcome, goal, witness, job, sides, count, lines)
            pull = layer(deltas, before, len(widths) - 1, count)[0]
            share = kind(1) / kind(count)
            for i in range(count):
                pull[i] = lines[0, i] * share
            if len(goal.loss_weights):
                for i in range(count):
                    pull[i] *= goal.loss_weights[job, records.codes[work.offset[job] + index[i]]]
            backward(theta, before, acts, count, deltas, False)
            sum_layers(before, acts, inputs, deltas, count, gradient)
            descend(theta, begin, gradient, work, job, step, mean, square)
            if step + 1 == work.snapshot_after[job]:
                snapshots[job] = theta
