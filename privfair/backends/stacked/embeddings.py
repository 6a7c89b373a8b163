"""The derivatives of many `Embedding`s at once: their tables side by side, looked up together, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from privfair.arrays import FloatArray
from privfair.kernels.sorted_sums import SortedSums
from privfair.kernels.tables import ScoreTable
from privfair.kernels.witness import Embedding


class Part(Protocol):
    """Some summands of all jobs' embeddings."""

    def at(self, z: torch.Tensor) -> torch.Tensor:
        """Their derivatives at each z of the first jobs, (jobs, b)."""
        ...


class StackedEmbedding:
    """z ↦ d/dz Σ_j w_j κ(z, y_j), with kernel, samples and weights of each job's own."""

    def __init__(self, embeddings: Sequence[Embedding | None]) -> None:
        """One for each job; None is 0."""
        self._embeddings = embeddings
        sums = [None if e is None else e._sums for e in embeddings]
        tables = [None if e is None else e._table for e in embeddings]
        self._parts: list[Part] = []
        if any(s is not None for s in sums):
            self._parts.append(StackedSums(sums))
        self._tables = StackedTables(tables) if any(t is not None for t in tables) else None

    def at(self, z: torch.Tensor) -> torch.Tensor:
        """At each z of the first jobs, in the type of z."""
        points = z.double()
        total = torch.zeros_like(points)
        for part in self._parts:
            total += part.at(points)
        if self._tables is not None:
            total += self._tables.at(points)
            outside = self._tables.outside(points)
            if outside.any():  # beyond its table a smooth kernel is summed directly; scores with a range never are
                for job in outside.any(dim=1).nonzero()[:, 0].tolist():
                    embedding = self._embeddings[job]
                    if embedding is not None:
                        far = outside[job]
                        values = embedding.evaluate(np.nan_to_num(points[job, far].numpy(), nan=0.5), 1)
                        total[job, far] = torch.from_numpy(values)
        return total.to(z.dtype)


class StackedSums:
    """The first derivatives of several `SortedSums`; see there for the formulas."""

    def __init__(self, sums: Sequence[SortedSums | None]) -> None:
        """None is 0."""
        tables = [None if s is None else s._tables_of(1) for s in sums]
        ys = [np.zeros(1) if s is None else s._y for s in sums]
        self._y = _rows(ys, np.inf)
        self._last = torch.tensor([y.size - 1 for y in ys])[:, None]
        self._centre = torch.tensor([0.0 if s is None else s._centre for s in sums], dtype=torch.float64)[:, None]
        self._polynomial = _powers([None if t is None else t.polynomial for t in tables])
        decaying = max(0 if t is None else len(t.left) for t in tables)
        self._left = [_Decaying([None if t is None else t.left for t in tables], i) for i in range(decaying)]
        self._right = [_Decaying([None if t is None else t.right for t in tables], i) for i in range(decaying)]
        self._kink = torch.tensor([0.0 if t is None else t.kink for t in tables], dtype=torch.float64)[:, None]
        self._has_kink = bool(self._kink.any())
        self._running = _rows([np.zeros(1) if s is None else s._running for s in sums], 0.0)
        self._from = _rows([np.zeros(1) if s is None else s._first for s in sums], np.inf)
        self._to = _rows([np.zeros(1) if s is None else s._last for s in sums], np.inf)

    def at(self, z: torch.Tensor) -> torch.Tensor:
        """See `Part`."""
        jobs = len(z)
        last = self._last[:jobs]
        below = torch.searchsorted(self._y[:jobs], z, right=True).minimum(last + 1)
        total = _horner(self._polynomial, below, z - self._centre[:jobs])
        if self._left:
            anchor, above = (below - 1).clamp_(min=0), below.minimum(last)
            gap_left = (z - self._y[:jobs].gather(1, anchor)).clamp_(min=0)
            gap_right = (self._y[:jobs].gather(1, above) - z).clamp_(min=0)
            for left, right in zip(self._left, self._right, strict=True):
                total += (below > 0) * left.at(anchor, gap_left)
                total -= (below <= last) * right.at(above, gap_right)
        if self._has_kink:
            running = self._running[:jobs]
            passed = running.gather(1, torch.searchsorted(self._to[:jobs], z))
            met = running.gather(1, torch.searchsorted(self._from[:jobs], z, right=True))
            total -= self._kink[:jobs] * (2 * running.gather(1, below) - passed - met)
        return total


class _Decaying:
    """e^{−a·gap} Σ_m T_m·(a·gap)^m, one rate a of each job."""

    def __init__(self, tables: Sequence[list[tuple[float, FloatArray]] | None], number: int) -> None:
        found = [t[number] if t is not None and number < len(t) else None for t in tables]
        self._rate = torch.tensor([0.0 if f is None else f[0] for f in found], dtype=torch.float64)[:, None]
        self._powers = _powers([None if f is None else f[1] for f in found])

    def at(self, column: torch.Tensor, gap: torch.Tensor) -> torch.Tensor:
        scaled = (self._rate[: len(gap)] * gap).clamp_(max=750.0)
        return _horner(self._powers, column, scaled) * torch.exp(-scaled)


class StackedTables:
    """The first derivatives of several `ScoreTable`s."""

    def __init__(self, tables: Sequence[ScoreTable | None]) -> None:
        """None is 0."""

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64)[:, None]

        self._low = column([-np.inf if t is None else t.low for t in tables])
        self._high = column([np.inf if t is None else t.high for t in tables])
        self._from = column([0.0 if t is None else t.low for t in tables])
        self._per_unit = column([0.0 if t is None else t._cells_per_unit for t in tables])
        self._most = torch.tensor([0 if t is None else t.cells - 1 for t in tables])[:, None]
        self._powers = _powers([None if t is None else t._derivative_rows(1) for t in tables])

    def outside(self, z: torch.Tensor) -> torch.Tensor:
        """Which points the tables do not cover."""
        jobs = len(z)
        return ~((z >= self._low[:jobs]) & (z <= self._high[:jobs]))

    def at(self, z: torch.Tensor) -> torch.Tensor:
        """See `Part`; of no meaning at points outside."""
        jobs = len(z)
        position = (z - self._from[:jobs]) * self._per_unit[:jobs]
        cell = torch.nan_to_num(position).long().clamp_(min=0).minimum(self._most[:jobs])
        return _horner(self._powers, cell, 2 * (position - cell) - 1)


def _rows(arrays: Sequence[FloatArray], fill: float) -> torch.Tensor:
    result = np.full((len(arrays), max(a.size for a in arrays)), fill)
    for row, array in zip(result, arrays, strict=True):
        row[: array.size] = array
    return torch.from_numpy(result)


def _powers(tables: Sequence[FloatArray | None]) -> torch.Tensor:
    """(powers, jobs, columns), filled up with 0."""
    found = [t.shape for t in tables if t is not None]
    powers, columns = (max(s[i] for s in found) for i in (0, 1)) if found else (0, 1)
    result = np.zeros((powers, len(tables), columns))
    for job, table in enumerate(tables):
        if table is not None:
            result[: table.shape[0], job, : table.shape[1]] = table
    return torch.from_numpy(result)


def _horner(powers: torch.Tensor, column: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Σ_m powers[m, job, column]·x^m."""
    total = torch.zeros_like(x)
    for row in reversed(powers):
        total = total.mul_(x).add_(row[: len(x)].gather(1, column))
    return total
