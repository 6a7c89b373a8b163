"""Local objectives: for a minibatch, a scalar whose gradient is that of task loss plus penalty.

A penalty enters as Σ slope_i·S_i with the slopes held constant: its gradient in the parameters is exact, and no graph
through a kernel is ever built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.clients.task import TaskKind
from privfair.datasets.records import Records
from privfair.fairness.cells import Cells
from privfair.fairness.tracking import DriftingPenalty, TrackedPenalty, tracked_penalty
from privfair.kernels.mmd import Pair
from privfair.kernels.parse import parse_kernel
from privfair.messages import Objective, OwnPenalty, Reweighted, Task, Tracked
from privfair.models import FlatModel


@dataclass(frozen=True)
class TrainingData:
    """A client's training records as tensors, and which cells they are in."""

    records: Records
    x: torch.Tensor
    y: torch.Tensor
    membership: NDArray[np.bool_]
    cells: Cells
    task: TaskKind


Batch = torch.Tensor  # positions of the records
Loss = Callable[[Batch, torch.Tensor], torch.Tensor]  # (positions, model outputs) -> scalar


def build_loss(objective: Objective, data: TrainingData, model: FlatModel) -> Loss:
    """The loss of a minibatch under an objective; the model holds the parameters of the round's start."""
    if isinstance(objective, Task):
        return lambda batch, outputs: data.task.losses(outputs, data.y[batch]).mean()
    if isinstance(objective, Reweighted):
        return _reweighted(objective, data)
    rule = _tracked(objective, data, model) if isinstance(objective, Tracked) else _own(objective, data)

    def loss(batch: Batch, outputs: torch.Tensor) -> torch.Tensor:
        labels = data.y[batch]
        task = data.task.losses(outputs, labels).mean()
        scores = data.task.scores(outputs, labels, data.cells.notion.score)
        slopes = rule(batch.numpy(), scores.detach().numpy().astype(np.float64))
        return task + torch.dot(torch.from_numpy(slopes).to(scores.dtype), scores)

    return loss


SlopeRule = Callable[[NDArray[np.int64], FloatArray], FloatArray]  # (positions, scores) -> slopes


def _tracked(objective: Tracked, data: TrainingData, model: FlatModel) -> SlopeRule:
    """(1/batch)·2λ·D′(S_i)/P of each record."""
    tracked = tracked_penalty(objective.shared, data.cells)
    coefficients = tracked.coefficients(data.membership)
    penalty: TrackedPenalty | DriftingPenalty = tracked
    if objective.drift != "none":
        penalty = DriftingPenalty(
            tracked, data.membership, all_scores(model, data), shared_drift=objective.drift == "shared"
        )

    def slopes(positions: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        if isinstance(penalty, DriftingPenalty):
            # own scores from one and the same pass: a record must meet itself at distance exactly 0
            now = all_scores(model, data)
            penalty.refresh(now)
            scores = now[positions]
        return penalty.derivative(scores, coefficients[:, positions]) / positions.size

    return slopes


def _own(objective: OwnPenalty, data: TrainingData) -> SlopeRule:
    """The slopes of λ Σ MMD² between every pair of groups within the minibatch, on each conditioning set.

    A pair of which the minibatch holds only one side has no MMD and adds nothing.
    """
    kernel = parse_kernel(objective.kernel)

    def slopes(positions: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        total = np.zeros_like(scores)
        member = data.membership[positions]
        for comparison in data.cells.comparisons:
            rows = [np.flatnonzero(member[:, c]) for c in comparison.cells]
            for first, second in combinations([r for r in rows if r.size], 2):
                slope_first, slope_second = Pair(scores[first], scores[second], kernel).slopes(biased=True)
                total[first] += objective.strength * slope_first
                total[second] += objective.strength * slope_second
        return total

    return slopes


def _reweighted(objective: Reweighted, data: TrainingData) -> Loss:
    """Mean of weight(group, label)·loss."""
    records = data.records
    weights = torch.from_numpy(objective.weights[records.groups[:, 0], records.labels.astype(np.int64)]).to(
        data.x.dtype
    )
    return lambda batch, outputs: (weights[batch] * data.task.losses(outputs, data.y[batch])).mean()


def all_scores(model: FlatModel, data: TrainingData) -> FloatArray:
    """The scores of all records under the model's present parameters."""
    scores = data.task.scores(model.evaluate(data.x), data.y, data.cells.notion.score)
    return scores.numpy().astype(np.float64)
