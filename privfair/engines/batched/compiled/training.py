"""Local training, compiled: slopes of losses and penalties, small perceptrons, plain steps and DP-SGD.

The formulas are those of `batched.training` and `batched.objectives`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privfair.engines.batched.compiled.witness import RULES, add_tracked, add_tracked_alone
from privfair.fairness.tracking import SAME_SCORE
from privfair.per_record import (
    EXACTLY_AS_WRITTEN,
    add_whole,
    backward_layer_alone,
    forward_layer_alone,
    recompiled,
    share_of,
)


class Outcome(NamedTuple):
    """What outputs and scores mean; see `TaskKind`."""

    binary: bool
    low: float
    high: float
    by_loss: bool  # the score is the loss, not the prediction


@njit(**RULES)
def task_slopes(outcome, outputs, labels, count, scores, loss, score):  # type: ignore[no-untyped-def]
    """Of each record its score, and the derivatives of loss and score in the output."""
    kind = outputs.dtype.type
    one, half, two, zero = kind(1), kind(0.5), kind(2), kind(0)
    low, length = kind(outcome.low), kind(outcome.high - outcome.low)
    if outcome.binary:
        for i in range(count):
            p = one / (one + np.exp(-outputs[i]))
            loss[i], scores[i], score[i] = p - labels[i], p, p * (one - p)
        if outcome.by_loss:
            for i in range(count):
                o = outputs[i]
                scores[i] = max(o, zero) - o * labels[i] + np.log1p(np.exp(-abs(o)))
                score[i] = loss[i]
        return
    for i in range(count):
        place = outputs[i] + half
        off = place - (labels[i] - low) / length
        loss[i] = two * off
        if outcome.by_loss:
            scores[i], score[i] = off * off, loss[i]
        else:
            inside = zero <= place <= one
            scores[i] = zero if place < zero else (one if place > one else place)
            score[i] = one if inside else zero


task_slopes_alone = recompiled(task_slopes)  # what a record gets depends on that record alone, to the last bit


@njit(**RULES)
def add_own(pairs, strength, member, scores, score, count, pull):  # type: ignore[no-untyped-def]
    """Add to each record's pull the slope of λ Σ MMD² between pairs of groups of the minibatch, energy kernel.

    Times the size of the minibatch, because the caller takes the mean.
    """
    kind = pull.dtype.type
    order = sorted_order(scores, count)
    y, weights = np.empty(count, scores.dtype), np.empty(count, scores.dtype)
    for place in range(count):
        y[place] = scores[order[place]]
    apart = True  # whether no two scores are one score
    for place in range(1, count):
        apart &= y[place] - y[place - 1] > SAME_SCORE * max(1.0, abs(y[place]), abs(y[place - 1]))
    for a, b in pairs:
        first, second = member[a, :count].sum(), member[b, :count].sum()
        if not (first > 0 and second > 0):
            continue
        total = kind(0)
        for place in range(count):
            i = order[place]
            weights[place] = member[a, i] / first - member[b, i] / second
            total += weights[place]
        scale = kind(strength) * count
        passed = kind(0)  # the weights of the samples below, twice
        if apart:
            for place in range(count):
                w = weights[place]
                pull[order[place]] += scale * w * (total - passed - w) * score[order[place]]
                passed += 2 * w
            continue
        near = far = 0  # how many samples' lower and upper ends have been passed
        for place in range(count):
            while near < count and _end(y[near], -SAME_SCORE) < y[place]:
                passed += weights[near]
                near += 1
            while far < count and _end(y[far], SAME_SCORE) < y[place]:
                passed += weights[far]
                far += 1
            pull[order[place]] += scale * weights[place] * (total - passed) * score[order[place]]


@njit(**RULES)
def own_slopes(pairs, strengths, member, scores, sizes, total):  # type: ignore[no-untyped-def]
    """The same for the minibatches of several jobs; member is (jobs, cells, b)."""
    one = np.ones(scores.shape[1], scores.dtype)
    for job in range(len(scores)):
        if sizes[job] > 0:
            add_own(pairs, strengths[job], member[job], scores[job], one, sizes[job], total[job])


@njit(**RULES)
def sorted_order(scores, count):  # type: ignore[no-untyped-def]
    """The positions of the first `count` scores from low to high; those that are not numbers anywhere at the end.

    Into as many buckets as there are scores, then by insertion: a third of the time of a general sort for a minibatch.
    """
    low, high = scores[0], scores[0]
    for i in range(count):
        low, high = min(low, scores[i]), max(high, scores[i])
    per_unit = count / max(high - low, 1e-30)
    starts = np.zeros(count + 1, np.int64)
    buckets = np.empty(count, np.int64)
    for i in range(count):
        position = (scores[i] - low) * per_unit
        buckets[i] = int(position) if 0 <= position < count else count - 1
        starts[buckets[i] + 1] += 1
    for b in range(count):
        starts[b + 1] += starts[b]
    order = np.empty(count, np.int64)
    for i in range(count):
        order[starts[buckets[i]]] = i
        starts[buckets[i]] += 1
    for place in range(1, count):
        i, at = order[place], place
        while at > 0 and scores[order[at - 1]] > scores[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    return order


@njit(**RULES)
def _end(y, reach):  # type: ignore[no-untyped-def]
    """y ± tie."""
    return y + reach * max(1.0, abs(y))


# ---- Forward and backward passes of small perceptrons, compiled; one model and one minibatch at a time.
#
# A step of such a model is microseconds of arithmetic, and every library call around it costs as much. Here a whole
# local training is one call, and all it touches stays in the cache; products of matrices are BLAS's, which compiled
# code calls directly. A layer is a matrix (units, records), so that the innermost loops are long whatever the widths
# are; sums over records are quicker with the input as (records, features), so it is held in both ways. Layers
# in which each record is computed by itself, for DP-SGD, are in `per_record`.


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


# ---- Local training of several clients, one after the other.

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

    `loss_weights`: (jobs or 0, codes), the weight of each group and label in the task loss. `damping`: of each job what
    task and penalty are multiplied with.
    """

    kind: int
    penalty: NDArray[np.int64]
    strength: NDArray[Any]
    pairs: NDArray[np.int64]
    loss_weights: NDArray[Any]
    damping: NDArray[Any]


@njit(**RULES)
def starts(widths):  # type: ignore[no-untyped-def]
    """Units before each layer, input and output included; and of all."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(widths)))


@njit(**RULES)
def layer(buffer, before, level, count):  # type: ignore[no-untyped-def]
    """The matrix (units, records) of a layer, for `count` records; layers follow each other."""
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
    damp(pull, goal.damping[job], count)


@njit(**RULES)
def damp(pull, factor, count):  # type: ignore[no-untyped-def]
    """Multiply every record's pull."""
    if factor != 1:
        for i in range(count):
            pull[i] *= factor


damp_alone = recompiled(damp)


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


# ---- DP-SGD of one client, compiled; `clients.dp_sgd` with Opacus is the reference.
#
# A record's clipped gradient depends on that record and the parameters alone, to the last bit, and sums of them are
# exact: see `per_record`.


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
        passes_alone(theta, before, outcome, goal, witness, job, sides, count, lines, acts, deltas)
        for p in range(before[-1] * count):
            given[p], clipped[p] = acts[p], deltas[p]
        clipped_sums(before, given, inputs, clipped, count, bound, grid, shares, gradient)
        for p in range(size):
            gradient[p] = (gradient[p] + noise[step, p]) / divisor
        descend(end, begin, gradient, work, job, step, mean, square)
        if step + 1 == work.snapshot_after[job]:
            snapshot[:] = end


@njit(**RULES)
def passes_alone(theta, before, outcome, goal, witness, job, sides, count, lines, acts, deltas):  # type: ignore[no-untyped-def]
    """Fill `acts` and `deltas`: every layer's units and what arrives there of each record's loss, each by itself."""
    outputs = forward(theta, before, acts, count, True)
    pull, scores, score = lines[0], lines[1], lines[2]
    task_slopes_alone(outcome, outputs, sides[0], count, scores, pull, score)
    if goal.kind == TRACKED:
        add_tracked_alone(witness, goal.penalty[job], sides[1:], scores, score, count, pull)
    damp_alone(pull, goal.damping[job], count)
    layer(deltas, before, len(before) - 2, count)[0] = lines[0, :count]
    backward(theta, before, acts, count, deltas, True)


@njit(**RULES)
def sum_private_job(records, widths, outcome, steps, work, goal, witness, bound, grid_steps, job, theta):  # type: ignore[no-untyped-def]
    """Σ of a job's clipped gradients at `theta` in whole numbers of `bound`/`grid_steps`: see `per_record.whole_sum`.

    It has one step, and one minibatch. A gradient is the product of what arrives and what was given, in the type of
    the records, as Opacus' sampler makes it: the whole numbers are the same.
    """
    kind = records.rows.dtype
    before = starts(widths)
    room = before[-1] * steps.widest
    acts, deltas, inputs = np.zeros(room, kind), np.zeros(room, kind), np.zeros(records.features * steps.widest, kind)
    sides = np.zeros((records.rows.shape[1] - records.features, steps.widest), kind)
    lines = np.zeros((3, steps.widest), kind)
    place, first, _, _ = steps.orders[work.order[job]]
    count = steps.sizes[first]
    gather(records, steps.positions[place:], work.offset[job], count, inputs, acts, sides)
    passes_alone(theta, before, outcome, goal, witness, job, sides, count, lines, acts, deltas)
    return whole_sums(before, acts, inputs, deltas, count, bound, grid_steps)


@njit(**EXACTLY_AS_WRITTEN)
def whole_sums(before, acts, inputs, deltas, count, bound, grid_steps):  # type: ignore[no-untyped-def]
    """Σ_i of the records' gradients in whole numbers, each by `add_whole`; `inputs`: features by records."""
    units = before[-1]
    given, arrived = acts[: units * count].reshape(units, count), deltas[: units * count].reshape(units, count)
    size = 0
    for level in range(len(before) - 2):
        size += (before[level + 1] - before[level] + 1) * (before[level + 2] - before[level + 1])
    hidden, pulls = given[before[1] :].T.copy(), arrived[before[1] :].T.copy()  # by records
    row, whole, total = np.zeros(size), np.zeros(size), np.zeros(size)
    for i in range(count):
        start = 0
        for level in range(len(before) - 2):
            first, last = before[level] - before[1], before[level + 1] - before[1]
            own = inputs[i * before[1] : (i + 1) * before[1]] if level == 0 else hidden[i, first:last]
            pull = pulls[i, last : before[level + 2] - before[1]]
            for k in range(len(pull)):
                arriving, found = pull[k], row[start : start + len(own)]
                for j in range(len(own)):
                    found[j] = arriving * own[j]
                start += len(own)
            row[start : start + len(pull)] = pull
            start += len(pull)
        add_whole(row, bound, float(grid_steps), whole, total)
    return total.astype(np.int64)


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
