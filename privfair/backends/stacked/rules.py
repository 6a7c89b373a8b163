"""The slopes of the penalty in each record's score, for the minibatches of many jobs; see `clients.objectives`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.backends.stacked.embeddings import StackedEmbedding
from privfair.backends.stacked.slopes import EnergySums, padded
from privfair.fairness.cells import Cells
from privfair.fairness.tracking import TrackedPenalty
from privfair.kernels.witness import Embedding


@dataclass(frozen=True)
class Step:
    """One step of all jobs that are not done, (jobs, b) or (jobs, b, cells)."""

    parameters: torch.Tensor
    index: torch.Tensor  # rows of the pool
    scores: torch.Tensor
    member: torch.Tensor
    sizes: torch.Tensor  # (jobs,): how many records of the minibatch count


class Rule(Protocol):
    """Gives slopes."""

    def slopes(self, step: Step) -> torch.Tensor:
        """(jobs, b): of each record's penalty in its score, where the mean over the minibatch is taken."""
        ...


class CellFactors:
    """Σ_c 1{record in cell c}·factor_c, with factors of each job's own."""

    def __init__(self, factors: torch.Tensor) -> None:
        """(jobs, cells)."""
        self._columns = [(c, factors[:, c, None]) for c in range(factors.shape[1]) if bool(factors[:, c].any())]

    def of(self, member: torch.Tensor) -> torch.Tensor:
        """(jobs, b)."""
        jobs = len(member)
        total: torch.Tensor | None = None
        for cell, factor in self._columns:
            part = member[..., cell] * factor[:jobs]
            total = part if total is None else total.add_(part)
        return torch.zeros_like(member[..., 0]) if total is None else total


class Sums(Protocol):
    """Derivatives of sums of kernels, for each job its own."""

    def at(self, z: torch.Tensor) -> torch.Tensor:
        """At each z of the first jobs, (jobs, b)."""
        ...


class TrackedRule:
    """2λ·D′(S_i)/P, with what takes back the padding of noisy messages."""

    def __init__(self, penalties: Sequence[TrackedPenalty], dtype: torch.dtype, *, energy: bool) -> None:
        """One for each job, with the same cells; jobs of one run share theirs. `energy`: all kernels are that one."""
        self.coefficients = [CellFactors(c) for c in _by_embedding(penalties, dtype)]
        count = len(self.coefficients)
        self.sums: list[Sums]
        if energy:
            self.sums = [EnergySums(y, w) for y, w in shared_samples(penalties, dtype)]
        else:
            self.sums = [StackedEmbedding([_nth(p.embeddings, e) for p in penalties]) for e in range(count)]
        paddings = [[_nth(p.paddings, e) for p in penalties] for e in range(count)]
        self._paddings = [StackedEmbedding(p) if any(e is not None for e in p) else None for p in paddings]

    def slopes(self, step: Step) -> torch.Tensor:
        """See `Rule`."""
        total = torch.zeros_like(step.scores)
        for coefficients, sums, padding in zip(self.coefficients, self.sums, self._paddings, strict=True):
            slopes = sums.at(step.scores)
            if padding is not None:
                slopes = slopes + padding.at(step.scores)
            total.addcmul_(coefficients.of(step.member), slopes)
        return total


def _nth(embeddings: Sequence[Embedding | None], number: int) -> Embedding | None:
    """A job whose groups are not all there has fewer embeddings."""
    return embeddings[number] if number < len(embeddings) else None


def cell_coefficients(penalty: TrackedPenalty) -> FloatArray:
    """(embeddings, cells): what a record of each cell is multiplied with."""
    return penalty.coefficients(np.eye(len(penalty.cells), dtype=bool))


def _by_embedding(penalties: Sequence[TrackedPenalty], dtype: torch.dtype) -> list[torch.Tensor]:
    """For each embedding (jobs, cells); a job whose groups are not all there has fewer, and 0 instead."""
    tables = [cell_coefficients(p) for p in penalties]
    most = max(len(t) for t in tables)
    stacked = np.zeros((most, len(tables), len(penalties[0].cells)))
    for job, table in enumerate(tables):
        stacked[: len(table), job] = table
    return list(torch.from_numpy(stacked).to(dtype))


def shared_samples(penalties: Sequence[TrackedPenalty], dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each embedding the shared scores (jobs, M) and their weights."""
    none = np.zeros(0)
    result = []
    for e in range(max(len(p.factors) for p in penalties)):
        scores, weights = [], []
        for p in penalties:
            factors = p.factors[e] if e < len(p.factors) else {}
            scores.append(np.concatenate([none, *(p.shared.scores[c] for c in factors)]))
            weights.append(np.concatenate([none, *(f * p.shared.weights[c] for c, f in factors.items())]))
        result.append((padded(scores, dtype), padded(weights, dtype)))
    return result


class OwnEnergy:
    """λ Σ MMD² between the groups of each minibatch, with the energy kernel."""

    def __init__(self, strengths: Sequence[float], cells: Cells, dtype: torch.dtype) -> None:
        """λ of each job."""
        self._strengths = torch.tensor(strengths, dtype=torch.float64)[:, None].to(dtype)
        self._pairs = [pair for comparison in cells.comparisons for pair in combinations(comparison.cells, 2)]

    def slopes(self, step: Step) -> torch.Tensor:
        """2λ·w_i·C′(S_i), w_i = ±1/n of the record's group, times the size of the minibatch."""
        jobs, width = step.scores.shape
        counted = torch.arange(width) < step.sizes[:, None]
        member = step.member * counted[..., None]
        total = torch.zeros_like(step.scores)
        for first, second in self._pairs:
            sides = [member[..., c] for c in (first, second)]
            counts = [side.sum(dim=1, keepdim=True) for side in sides]
            both = (counts[0] > 0) & (counts[1] > 0)
            weights = (sides[0] / counts[0].clamp(min=1) - sides[1] / counts[1].clamp(min=1)) * both
            total.addcmul_(weights, EnergySums(step.scores, weights).at(step.scores), value=2)
        return total * (self._strengths[:jobs] * step.sizes[:, None])


SlopeRule = Callable[[NDArray[np.int64], FloatArray], FloatArray]  # (positions, scores) -> slopes


class OneByOne:
    """Any other penalty: each job's slopes by the code of a client alone."""

    def __init__(self, rules: Sequence[SlopeRule], offsets: Sequence[int]) -> None:
        """Each job's rule, and where its records begin."""
        self._rules, self._offsets = rules, offsets

    def slopes(self, step: Step) -> torch.Tensor:
        """See `Rule`."""
        total = torch.zeros_like(step.scores)
        index, scores = step.index.numpy(), step.scores.double().numpy()
        for job, size in enumerate(step.sizes.tolist()):
            slopes = self._rules[job](index[job, :size] - self._offsets[job], scores[job, :size])
            total[job, :size] = torch.from_numpy(slopes).to(total.dtype)
        return total
