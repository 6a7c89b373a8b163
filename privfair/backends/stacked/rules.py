"""The slopes of the penalty in each record's score, for the minibatches of many jobs; see `clients.objectives`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.backends.stacked.fused_slopes import own_slopes
from privfair.backends.stacked.fused_witness import numbered, packed_witness, tracked_slopes
from privfair.clients.objectives import SlopeRule
from privfair.fairness.cells import Cells
from privfair.fairness.tracking import TrackedPenalty


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
    """2λ·D′(S_i)/P, with what takes back the padding of noisy messages."""

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
