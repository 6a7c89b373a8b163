"""The slopes of tracked penalties, compiled: step functions for the energy kernel, tables for smooth kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.backends.stacked.fused_layers import RULES
from privfair.backends.stacked.rules import cell_coefficients
from privfair.backends.stacked.slopes import TIE
from privfair.fairness.tracking import TrackedPenalty
from privfair.kernels.tables import ScoreTable
from privfair.kernels.witness import Embedding

BUCKETS = 512


class Witness(NamedTuple):
    """The derivatives of tracked penalties: for each penalty and embedding a step function, and smooth tables.

    `steps`: first place, number of places, first value; there is one more value than places. The way to the right
    place is short: the range of the places (`ranges`: low, buckets to a unit) is cut into buckets, and `starts` tells
    how many places there are before each. `tables`: first and end; each has a line in `cells` (first cell, number of
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
            pull[i] += factor * slope * score[i]


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
    x = 2.0 * (position - cell) - 1.0
    total = 0.0
    for m in range(powers.shape[1] - 1, -1, -1):
        total = total * x + powers[start + cell, m]
    return total


def can_be_packed(penalty: TrackedPenalty) -> bool:
    """Whether step functions and tables hold all of it."""
    rest = (*penalty.paddings, *(() if _is_energy(penalty) else penalty.embeddings))
    return all(_within_table(e) for e in rest if e is not None)


def _is_energy(penalty: TrackedPenalty) -> bool:
    """Whether the energy kernel itself meets the shared scores."""
    noisy = penalty.shared.noisy
    return penalty.shared.kernel == "energy" and (noisy is None or noisy.correction == "none")


def _within_table(embedding: Embedding) -> bool:
    """Whether all of it is in a table that covers every score there can be."""
    table = embedding._table
    return embedding._sums is None and table is not None and table.low <= 0.0 and table.high >= 1.0


def packed_witness(tracked: Sequence[TrackedPenalty], cells: int, dtype: np.dtype[Any]) -> Witness:
    """The penalties' derivatives as arrays."""
    most = max((len(p.factors) for p in tracked), default=0)
    factors = np.zeros((len(tracked), most, cells), dtype)
    steps, tables = (np.zeros((len(tracked) * most, n), dtype=np.int64) for n in (3, 2))
    ranges = np.zeros((len(tracked) * most, 2), dtype)
    places: list[FloatArray] = [np.zeros(0)]
    values: list[FloatArray] = [np.zeros(0)]
    smooth: list[ScoreTable] = []
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
            parts = (penalty.paddings[e], None if energy else penalty.embeddings[e])
            found = [p._table for p in parts if p is not None and p._table is not None]
            tables[line] = len(smooth), len(smooth) + len(found)
            smooth += found
    at = np.concatenate(places).astype(dtype)
    starts = np.zeros((len(steps), BUCKETS + 1), dtype=np.int32)
    fill_buckets(at, steps, ranges, starts)
    levels = np.concatenate(values).astype(dtype)
    return Witness(factors, steps, ranges, starts, at, levels, tables, *_packed_tables(smooth))


def _step_function(penalty: TrackedPenalty, e: int) -> tuple[FloatArray, FloatArray]:
    """As `slopes.EnergySums`: every sample at two places, y ± tie, with half its weight at each."""
    factors, shared = penalty.factors[e], penalty.shared
    y = np.concatenate([shared.scores[c] for c in factors])
    w = np.concatenate([f * shared.weights[c] for c, f in factors.items()])
    reach = TIE * np.maximum(np.abs(y), 1.0)
    places = np.concatenate([y - reach, y + reach])
    order = np.argsort(places, kind="stable")
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([w, w])[order])])
    return places[order], (w.sum() - running) / 2


def _packed_tables(tables: Sequence[ScoreTable]) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Cells, spans and powers of `Witness`."""
    rows = [t._derivative_rows(1) for t in tables]
    most = max((len(r) for r in rows), default=1)
    powers = np.zeros((sum(r.shape[1] for r in rows), most))
    cells, end = np.zeros((len(tables), 2), dtype=np.int64), 0
    for line, table in zip(cells, rows, strict=True):
        powers[end : end + table.shape[1], : len(table)] = table.T
        line[:] = end, table.shape[1]
        end += table.shape[1]
    spans = np.array([(t.low, t._cells_per_unit) for t in tables]).reshape(-1, 2)
    return cells, spans, powers
