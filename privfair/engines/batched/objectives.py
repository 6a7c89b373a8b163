"""The slopes of the penalty in each record's score, for the minibatches of many jobs; see `clients.client`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.clients.client import SlopeRule, TrainingData
from privfair.engines.batched.compiled.training import own_slopes
from privfair.engines.batched.compiled.witness import cell_coefficients, numbered, packed_witness, tracked_slopes
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import SAME_SCORE, DriftingPenalty, TrackedPenalty
from privfair.util import FloatArray


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


class TrackedRule:
    """2λ·D′(S_i)/P, corrected for the padding of noisy messages."""

    def __init__(self, penalties: Sequence[TrackedPenalty], dtype: torch.dtype) -> None:
        """One for each job, with the same cells; jobs of one run share theirs."""
        self._numbers, different = numbered(penalties)
        kind = torch.zeros(0, dtype=dtype).numpy().dtype
        self._witness = packed_witness(different, len(penalties[0].cells), kind)

    def slopes(self, step: Step) -> torch.Tensor:
        """See `Rule`."""
        total = torch.zeros_like(step.scores)
        tracked_slopes(self._witness, self._numbers, *_by_cell(step), total.numpy())
        return total


class OwnEnergy:
    """λ Σ MMD² between the groups of each minibatch, with the energy kernel."""

    def __init__(self, strengths: Sequence[float], cells: Cells) -> None:
        """λ of each job."""
        self._strengths = np.array(strengths)
        self._pairs = compared_pairs(cells)

    def slopes(self, step: Step) -> torch.Tensor:
        """See `Rule`; records that do not count come last."""
        total = torch.zeros_like(step.scores)
        own_slopes(self._pairs, self._strengths, *_by_cell(step), step.sizes.numpy(), total.numpy())
        return total


def _by_cell(step: Step) -> tuple[NDArray[Any], NDArray[Any]]:
    """Membership (jobs, cells, b) and scores (jobs, b) as arrays."""
    return step.member.transpose(1, 2).contiguous().numpy(), step.scores.contiguous().numpy()


def compared_pairs(cells: Cells) -> NDArray[np.int64]:
    """(pairs, 2): the cells whose scores are compared."""
    pairs = [pair for comparison in cells.comparisons for pair in combinations(comparison.cells, 2)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


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


# ---- The tracked penalty with drift correction, for many jobs: every step looks at all records of every client.


AllScores = Callable[[torch.Tensor], torch.Tensor]  # (jobs, P) -> (jobs, most records): scores of all their records


def own_shares(penalty: TrackedPenalty, data: TrainingData, *, shared_drift: bool) -> list[float]:
    """For each cell the weight of one of the client's records in the corrected mean: w_a/n_k^a."""
    shares = []
    for cell, count in enumerate(data.membership.sum(axis=0, dtype=np.int64)):
        whole = 1.0 if shared_drift else count / max(float(penalty.shared.counts[cell]), count, 1)
        shares.append(float(whole / count) if count else 0.0)
    return shares


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
            scores.append(np.concatenate([none, *(p.scores.scores[c] for c in factors)]))
            weights.append(np.concatenate([none, *(f * p.scores.weights[c] for c, f in factors.items())]))
        result.append((padded(scores, dtype), padded(weights, dtype)))
    return result


class EnergySums:
    """z ↦ Σ_j w_j·(−½ sign(z − y_j)): the derivative for the energy kernel, one row of samples for each job.

    A sample that is (nearly) at z counts with the mean of its two one-sided derivatives, 0. With every sample at two
    places, y ± tie, and half its weight at each, the sum is a step function without ties: one search, one look-up.
    """

    def __init__(self, samples: torch.Tensor, weights: torch.Tensor) -> None:
        """(jobs, M) each; a sample that does not count has weight 0."""
        reach = SAME_SCORE * samples.abs().clamp(min=1.0)
        places, order = torch.cat([samples - reach, samples + reach], dim=1).sort(dim=1)
        running = torch.cat([weights, weights], dim=1).gather(1, order).cumsum(dim=1)
        self._places = places
        self._values = torch.cat([torch.zeros_like(running[:, :1]), running], dim=1)
        self._values = (weights.sum(dim=1, keepdim=True) - self._values).mul_(0.5)

    def at(self, z: torch.Tensor) -> torch.Tensor:
        """At each z of the first len(z) jobs, (jobs, b)."""
        jobs = len(z)
        below = torch.searchsorted(self._places[:jobs], z)
        return self._values[:jobs].gather(1, below)


def padded(arrays: Sequence[FloatArray], dtype: torch.dtype, fill: float = 0.0) -> torch.Tensor:
    """The arrays as rows of one tensor, filled up at the end."""
    result = np.full((len(arrays), max(1, *(a.size for a in arrays))), fill)
    for row, array in zip(result, arrays, strict=True):
        row[: array.size] = array
    return torch.from_numpy(result).to(dtype)


class DriftEnergy:
    """C_{k,i} of `DriftingPenalty` with the energy kernel."""

    def __init__(
        self,
        penalties: Sequence[TrackedPenalty],
        data: Sequence[TrainingData],
        shared_drift: Sequence[bool],
        offsets: Sequence[int],
        scores: AllScores,
        start: torch.Tensor,
    ) -> None:
        """`start`: the parameters of the round."""
        self._scores = scores
        self._offsets = torch.tensor(offsets)[:, None]
        self._coefficients = [CellFactors(c) for c in _by_embedding(penalties, start.dtype)]
        at_start = scores(start)
        self._weights = _own_weights(penalties, data, shared_drift, at_start)
        self._fixed = [
            EnergySums(torch.cat([y, at_start], dim=1), torch.cat([w, -own], dim=1))
            for (y, w), own in zip(shared_samples(penalties, start.dtype), self._weights, strict=True)
        ]

    def slopes(self, step: Step) -> torch.Tensor:
        """See `Rule`; own scores come from one and the same pass, so that a record meets itself."""
        jobs = len(step.scores)
        now = self._scores(step.parameters)
        z = now.gather(1, step.index - self._offsets[:jobs])
        total = torch.zeros_like(z)
        for coefficients, fixed, own in zip(self._coefficients, self._fixed, self._weights, strict=True):
            moving = EnergySums(now, own[:jobs])
            total.addcmul_(coefficients.of(step.member), fixed.at(z).add_(moving.at(z)))
        return total


def _own_weights(
    penalties: Sequence[TrackedPenalty], data: Sequence[TrainingData], shared_drift: Sequence[bool], like: torch.Tensor
) -> list[torch.Tensor]:
    """For each embedding (jobs, most records): factor·w/n of each record's cell; 0 beyond a client's records."""
    result = []
    for e in range(max(len(p.factors) for p in penalties)):
        weights = np.zeros(like.shape)
        for job, (penalty, own, alike) in enumerate(zip(penalties, data, shared_drift, strict=True)):
            shares = own_shares(penalty, own, shared_drift=alike)
            for cell, factor in (penalty.factors[e] if e < len(penalty.factors) else {}).items():
                weights[job, : len(own.y)] += factor * shares[cell] * own.membership[:, cell]
        result.append(torch.from_numpy(weights).to(like.dtype))
    return result


class DriftOneByOne:
    """The same for any kernel: each job's slopes by the code of a client alone."""

    def __init__(
        self,
        penalties: Sequence[TrackedPenalty],
        data: Sequence[TrainingData],
        shared_drift: Sequence[bool],
        offsets: Sequence[int],
        scores: AllScores,
        start: torch.Tensor,
    ) -> None:
        """As `DriftEnergy`."""
        self._scores, self._offsets = scores, offsets
        self._coefficients = [p.coefficients(d.membership) for p, d in zip(penalties, data, strict=True)]
        at_start = scores(start).double().numpy()
        self._counts = [len(d.y) for d in data]
        self._penalties = [
            DriftingPenalty(p, d.membership, row[: len(d.y)], shared_drift=alike)
            for p, d, row, alike in zip(penalties, data, at_start, shared_drift, strict=True)
        ]

    def slopes(self, step: Step) -> torch.Tensor:
        """See `Rule`."""
        total = torch.zeros_like(step.scores)
        now = self._scores(step.parameters).double().numpy()
        index = step.index.numpy()
        for job, size in enumerate(step.sizes.tolist()):
            own, positions = now[job, : self._counts[job]], index[job, :size] - self._offsets[job]
            self._penalties[job].refresh(own)
            slopes = self._penalties[job].derivative(own[positions], self._coefficients[job][:, positions])
            total[job, :size] = torch.from_numpy(slopes).to(total.dtype)
        return total
