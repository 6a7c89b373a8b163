"""Local figures that some baselines ask of a client. None of them is private."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.clients.objectives import TrainingData
from privfair.fairness.metrics import THRESHOLD
from privfair.models import FlatModel

Measure = Callable[[TrainingData, FloatArray, FloatArray], FloatArray]  # (data, predictions, losses)


def _loss(data: TrainingData, predictions: FloatArray, losses: FloatArray) -> FloatArray:
    """Mean task loss; 0 of no records."""
    return np.array([losses.mean() if losses.size else 0.0])


def _confusion(data: TrainingData, predictions: FloatArray, losses: FloatArray) -> FloatArray:
    """(groups of the first attribute, label, decision): numbers of records."""
    return _table(data, predictions, 0, len(data.cells.comparisons[0].cells)).astype(float)


def _table(data: TrainingData, predictions: FloatArray, attribute: int, groups: int) -> NDArray[np.int64]:
    table = np.zeros((groups, 2, 2), dtype=np.int64)
    decisions = (predictions >= THRESHOLD).astype(np.int64)
    np.add.at(table, (data.records.groups[:, attribute], data.records.labels.astype(np.int64), decisions), 1)
    return table


def confusion_tables(data: TrainingData, model: FlatModel, groups: Sequence[int]) -> list[NDArray[np.int64]]:
    """For each attribute, with so many groups: (groups, label, decision), numbers of records of a binary task."""
    predictions = data.task.predictions(data.outputs(model)).numpy().astype(np.float64)
    return [_table(data, predictions, attribute, size) for attribute, size in enumerate(groups)]


def _group_losses(data: TrainingData, predictions: FloatArray, losses: FloatArray) -> FloatArray:
    """(groups of the first attribute, label, [number of records, sum of losses])."""
    groups = data.records.groups[:, 0]
    table = np.zeros((len(data.cells.comparisons[0].cells), 2, 2))
    labels = data.records.labels.astype(np.int64)
    np.add.at(table[..., 0], (groups, labels), 1)
    np.add.at(table[..., 1], (groups, labels), losses)
    return table


MEASURES: dict[str, Measure] = {"loss": _loss, "confusion": _confusion, "group_losses": _group_losses}


def measure(quantities: Sequence[str], data: TrainingData, model: FlatModel) -> dict[str, FloatArray]:
    """The asked figures under the model's present parameters."""
    unknown = [q for q in quantities if q not in MEASURES]
    if unknown:
        raise InputError("quantities", f"must be of {', '.join(MEASURES)}", unknown[0])
    outputs = model.evaluate(data.x)
    predictions = data.task.predictions(outputs).numpy().astype(np.float64)
    losses = data.task.losses(outputs, data.y).numpy().astype(np.float64)
    return {q: MEASURES[q](data, predictions, losses) for q in quantities}
