"""The slopes of losses and penalties of one minibatch, compiled; the formulas are those of `tasks` and `rules`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from privfair.backends.stacked.fused_layers import RULES
from privfair.backends.stacked.slopes import TIE
from privfair.record_arithmetic import recompiled


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
        apart &= y[place] - y[place - 1] > TIE * max(1.0, abs(y[place]), abs(y[place - 1]))
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
            while near < count and _end(y[near], -TIE) < y[place]:
                passed += weights[near]
                near += 1
            while far < count and _end(y[far], TIE) < y[place]:
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
