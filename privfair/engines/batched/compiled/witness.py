"""The slopes of tracked penalties, compiled: step functions for the energy kernel, sorted sums, tables.

The formulas are those of `kernels.sorted_sums` and `kernels.tables`; the energy kernel, whose sum is a step function,
has a quicker way of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privfair.fairness.tracking import SAME_SCORE, Curve, SharedScores, TrackedPenalty
from privfair.kernels.witness import ScoreTable, SortedSums
from privfair.per_record import recompiled
from privfair.util import FloatArray

# sums may be taken in any order ("reassoc"), but NaN and infinity stay what they are
RULES: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
BUCKETS = 512


class Sums(NamedTuple):
    """`SortedSums` of first derivatives, all below each other.

    `lines`: for each penalty and embedding first and end of its sums; `sums`: first sample, number of samples, first
    row of `polynomials`, first and end of its decaying terms; `decaying`: first row of `left` and `right`.
    """

    lines: NDArray[np.int64]  # (penalties · embeddings, 2)
    sums: NDArray[np.int64]  # (sums, 5)
    numbers: FloatArray  # (sums, 2): centre, kink
    samples: FloatArray  # (all samples, 3): where it is, and where it begins and ends to be one with a score
    running: FloatArray  # one more for each sum than samples, beginning at first sample + number of the sum
    polynomials: FloatArray  # (…, powers)
    decaying: NDArray[np.int64]  # (decaying terms,)
    rates: FloatArray
    left: FloatArray  # (…, powers)
    right: FloatArray


class Witness(NamedTuple):
    """The derivatives of tracked penalties: for each penalty and embedding a step function, sorted sums, tables.

    `steps`: first place, number of places, first value; there is one more value than places. The way to the right
    place is short: the range of the places (`ranges`: low, buckets to a unit) is cut into buckets, and `starts` has
    the number of places before each. `tables`: first and end; each has a line in `cells` (first cell, number of
    cells) and in `spans` (where it begins, cells to a unit), and a cell is a polynomial in the place within it,
    −1 … 1.
    """

    factors: NDArray[Any]  # (penalties, embeddings, cells of the notion)
    steps: NDArray[np.int64]  # (penalties · embeddings, 3)
    ranges: NDArray[Any]  # (penalties · embeddings, 2)
    starts: NDArray[np.int32]  # (penalties · embeddings, BUCKETS + 1)
    places: NDArray[Any]
    values: NDArray[Any]
    tables: NDArray[np.int64]  # (penalties · embeddings, 2)
    cells: NDArray[np.int64]  # (tables, 2)
    spans: FloatArray  # (tables, 2)
    powers: FloatArray  # (all cells, powers)
    sums: Sums


@njit(**RULES)
def add_tracked(witness, penalty, member, scores, score, count, pull):  # type: ignore[no-untyped-def]
    """Add 2λ·D′(S_i)/P·S′_i to each record's pull."""
    kind = pull.dtype.type
    for e in range(witness.factors.shape[1]):
        number = penalty * witness.factors.shape[1] + e
        first, places, value = witness.steps[number]
        low, per_bucket = witness.ranges[number]
        starts = witness.starts[number]
        from_table, to_table = witness.tables[number]
        for i in range(count):
            factor = kind(0)
            for c in range(len(member)):
                factor += member[c, i] * witness.factors[penalty, e, c]
            slope = kind(0)
            if places:
                bucket = _bucket(scores[i], low, per_bucket)
                below, end = starts[bucket], starts[bucket + 1]
                while below < end and witness.places[first + below] < scores[i]:
                    below += 1
                slope += witness.values[value + below]
            for t in range(from_table, to_table):
                begin, per_unit = witness.spans[t]
                start, cells = witness.cells[t]
                slope += kind(_polynomial(witness.powers, start, cells, (scores[i] - begin) * per_unit))
            for k in range(witness.sums.lines[number, 0], witness.sums.lines[number, 1]):
                slope += kind(_sorted_sum(witness.sums, k, float(scores[i])))
            pull[i] += factor * slope * score[i]


@njit(**RULES)
def tracked_slopes(witness, numbers, member, scores, total):  # type: ignore[no-untyped-def]
    """Of each record of each job's minibatch; member is (jobs, cells, b)."""
    one = np.ones(scores.shape[1], scores.dtype)
    for job in range(len(scores)):
        add_tracked(witness, numbers[job], member[job], scores[job], one, scores.shape[1], total[job])


@njit(**RULES)
def _sorted_sum(sums, k, z):  # type: ignore[no-untyped-def]
    """The k-th sum at z."""
    first, count, row, from_term, to_term = sums.sums[k]
    centre, kink = sums.numbers[k]
    base, rest = 0, count  # how many samples are not above z
    while rest > 0:
        half = (rest + 1) // 2
        if sums.samples[first + base + half - 1, 0] <= z:
            base += half
            rest -= half
        else:
            rest = half - 1
    total = _horner(sums.polynomials, row + base, z - centre)
    for term in range(from_term, to_term):
        rate, start = sums.rates[term], sums.decaying[term]
        if base > 0:
            gap = min(rate * (z - sums.samples[first + base - 1, 0]), 750.0)
            total += _horner(sums.left, start + base - 1, gap) * np.exp(-gap)
        if base < count:
            gap = min(rate * (sums.samples[first + base, 0] - z), 750.0)
            total -= _horner(sums.right, start + base, gap) * np.exp(-gap)
    if kink != 0.0:
        passed = met = base  # samples that end before z, and that begin up to it
        while passed > 0 and not sums.samples[first + passed - 1, 2] < z:
            passed -= 1
        while met < count and sums.samples[first + met, 1] <= z:
            met += 1
        running = sums.running[first + k :]
        total -= kink * (2.0 * running[base] - running[passed] - running[met])
    return total


@njit(**RULES)
def _horner(rows, row, x):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(rows.shape[1] - 1, -1, -1):
        total = total * x + rows[row, m]
    return total


@njit(**RULES)
def _bucket(z, low, per_unit):  # type: ignore[no-untyped-def]
    """Which of the equal parts z falls into; it never falls when z rises."""
    position = (z - low) * per_unit
    return 0 if not position > 0 else (int(position) if position < BUCKETS else BUCKETS - 1)


@njit(**RULES)
def fill_buckets(places, steps, ranges, starts):  # type: ignore[no-untyped-def]
    """For each step function and bucket: how many places there are in the buckets before it."""
    for number in range(len(steps)):
        first, count, _ = steps[number]
        low, per_unit = ranges[number]
        for i in range(first, first + count):
            starts[number, _bucket(places[i], low, per_unit) + 1] += 1
        for bucket in range(BUCKETS):
            starts[number, bucket + 1] += starts[number, bucket]


@njit(**RULES)
def _polynomial(powers, start, cells, position):  # type: ignore[no-untyped-def]
    """A table at a position counted in cells; a score that is not a number counts as the first."""
    cell = 0 if not position > 0 else (int(position) if position < cells else cells - 1)
    return _horner(powers, start + cell, 2.0 * (position - cell) - 1.0)


_HORNER = recompiled(_horner)
add_tracked_alone = recompiled(
    add_tracked,
    _bucket=recompiled(_bucket),
    _polynomial=recompiled(_polynomial, _horner=_HORNER),
    _sorted_sum=recompiled(_sorted_sum, _horner=_HORNER),
)  # what a record gets depends on that record alone, to the last bit


def can_be_packed(penalty: TrackedPenalty) -> bool:
    """Whether every table covers all scores there can be; beyond a table a kernel is summed directly, by others."""
    bounded = penalty.shared.domain is not None and penalty.cells.notion.score == "prediction"
    return bounded or all(e is None or e.table is None for e in _parts(penalty))


def _parts(penalty: TrackedPenalty) -> list[Curve | None]:
    """What is not a step function."""
    return [*penalty.paddings, *([] if _is_energy(penalty) else penalty.embeddings)]


def _is_energy(penalty: TrackedPenalty) -> bool:
    """Whether the energy kernel itself meets the shared scores."""
    shared = penalty.shared
    if not isinstance(shared, SharedScores):
        return False
    return shared.kernel == "energy" and (shared.noisy is None or shared.noisy.correction == "none")


def cell_coefficients(penalty: TrackedPenalty) -> FloatArray:
    """(embeddings, cells): what a record of each cell is multiplied with."""
    return penalty.coefficients(np.eye(len(penalty.cells), dtype=bool))


def numbered(penalties: Sequence[TrackedPenalty]) -> tuple[NDArray[np.int64], list[TrackedPenalty]]:
    """The number of each in the list of different ones; the clients of a run share theirs."""
    different = list({id(p): p for p in penalties}.values())
    places = {id(p): number for number, p in enumerate(different)}
    return np.array([places[id(p)] for p in penalties], dtype=np.int64), different


def packed_witness(tracked: Sequence[TrackedPenalty], cells: int, dtype: np.dtype[Any]) -> Witness:
    """The penalties' derivatives as arrays."""
    most = max((len(p.factors) for p in tracked), default=0)
    factors = np.zeros((len(tracked), most, cells), dtype)
    steps, tables = (np.zeros((len(tracked) * most, n), dtype=np.int64) for n in (3, 2))
    ranges = np.zeros((len(tracked) * most, 2), dtype)
    places: list[FloatArray] = [np.zeros(0)]
    values: list[FloatArray] = [np.zeros(0)]
    smooth: list[ScoreTable] = []
    sums: list[SortedSums] = []
    lines = np.zeros((len(tracked) * most, 2), dtype=np.int64)
    ends = [0, 0]
    for number, penalty in enumerate(tracked):
        coefficients = cell_coefficients(penalty)
        factors[number, : len(coefficients)] = coefficients
        energy = _is_energy(penalty)
        for e in range(len(penalty.factors)):
            line = number * most + e
            if energy:
                at, levels = _step_function(penalty, e)
                steps[line] = ends[0], at.size, ends[1]
                ranges[line] = at[0], BUCKETS / max(at[-1] - at[0], 1e-9)
                places.append(at)
                values.append(levels)
                ends = [ends[0] + at.size, ends[1] + levels.size]
            parts = [p for p in (penalty.paddings[e], None if energy else penalty.embeddings[e]) if p is not None]
            tables[line, 0], lines[line, 0] = len(smooth), len(sums)
            smooth += [p.table for p in parts if p.table is not None]
            sums += [p.sums for p in parts if p.sums is not None]
            tables[line, 1], lines[line, 1] = len(smooth), len(sums)
    at = np.concatenate(places).astype(dtype)
    starts = np.zeros((len(steps), BUCKETS + 1), dtype=np.int32)
    fill_buckets(at, steps, ranges, starts)
    levels = np.concatenate(values).astype(dtype)
    return Witness(
        factors, steps, ranges, starts, at, levels, tables, *_packed_tables(smooth), packed_sums(lines, sums)
    )


def _step_function(penalty: TrackedPenalty, e: int) -> tuple[FloatArray, FloatArray]:
    """As `EnergySums`: every sample at two places, y ± tie, with half its weight at each."""
    factors, shared = penalty.factors[e], penalty.scores
    y = np.concatenate([shared.scores[c] for c in factors])
    w = np.concatenate([f * shared.weights[c] for c, f in factors.items()])
    reach = SAME_SCORE * np.maximum(np.abs(y), 1.0)
    places = np.concatenate([y - reach, y + reach])
    order = np.argsort(places, kind="stable")
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([w, w])[order])])
    return places[order], (w.sum() - running) / 2


def _packed_tables(tables: Sequence[ScoreTable]) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Cells, spans and powers of `Witness`."""
    rows = [t.derivative_rows(1) for t in tables]
    ends = np.cumsum([0, *(r.shape[1] for r in rows)])
    cells = np.stack([ends[:-1], np.diff(ends)], axis=1)
    return cells, np.array([(t.low, t.cells_per_unit) for t in tables]).reshape(-1, 2), _below_each_other(rows)


def packed_sums(lines: NDArray[np.int64], sums: Sequence[SortedSums]) -> Sums:
    """`Sums` of these; a sum without a polynomial has one that is 0."""
    tables = [s.tables_of(1) for s in sums]
    table, numbers = np.zeros((len(sums), 5), dtype=np.int64), np.zeros((len(sums), 2))
    samples, running, polynomials = [np.zeros((0, 3))], [np.zeros(0)], []
    left: list[FloatArray] = []
    right: list[FloatArray] = []
    rates: list[float] = []
    starts: list[int] = []
    first = row = term_row = 0
    for k, (own, of) in enumerate(zip(sums, tables, strict=True)):
        count = own.samples.size
        table[k] = first, count, row, len(rates), len(rates) + len(of.left)
        numbers[k] = own.centre, of.kink
        samples.append(np.stack([own.samples, own.begins, own.ends], axis=1))
        running.append(own.running)
        polynomials.append(np.zeros((1, count + 1)) if of.polynomial is None else of.polynomial)
        for (rate, before), (_, after) in zip(of.left, of.right, strict=True):
            rates.append(rate)
            starts.append(term_row)
            left.append(before)
            right.append(after)
            term_row += count
        first, row = first + count, row + count + 1
    return Sums(
        lines, table, numbers, np.concatenate(samples), np.concatenate(running), _below_each_other(polynomials),
        np.array(starts, dtype=np.int64), np.array(rates), _below_each_other(left), _below_each_other(right),
    )  # fmt: skip


def _below_each_other(tables: Sequence[FloatArray]) -> FloatArray:
    """Tables (powers, columns) as rows of powers, filled up with 0."""
    result = np.zeros((sum(t.shape[1] for t in tables), max((len(t) for t in tables), default=1)))
    end = 0
    for t in tables:
        result[end : end + t.shape[1], : len(t)] = t.T
        end += t.shape[1]
    return result
