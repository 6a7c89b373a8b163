"""Exact figures of a simulation, over the pooled records of all clients. No real deployment can compute them."""

from __future__ import annotations

import math

import numpy as np
import torch

from accountant.errors import InputError
from privfair.clients.client import scaled
from privfair.datasets.records import Federation
from privfair.fairness.metrics import (
    Predicted,
    accuracy,
    largest_unfairness,
    notion_gap,
    penalty_mmd2,
    root_mean_squared_error,
)
from privfair.fairness.notions import Cells
from privfair.kernels.base import Kernel
from privfair.mechanisms.moments import Scaling
from privfair.models import FlatModel, TaskKind

Row = dict[str, float | int | None]


class Evaluator:
    """The objective F(θ) = E L + λ·MMD² on train and test records, accuracy and unfairness on test records."""

    def __init__(self, federation: Federation, cells: Cells, kernel: Kernel, strength: float, model: FlatModel) -> None:
        """Pool the records once."""
        self.schema = federation.schema
        self.cells, self.kernel, self.strength, self.model = cells, kernel, strength, model
        self.task = TaskKind.of(federation.schema)
        self.parts = {"train": federation.pooled_train(), "test": federation.pooled_test()}
        self._scaling: Scaling | None = None
        self.tensors = self._tensors(None)

    def scale(self, scaling: Scaling | None) -> None:
        """From here on the model takes features that are scaled like this."""
        if scaling is not self._scaling:
            self._scaling, self.tensors = scaling, self._tensors(scaling)

    def _tensors(self, scaling: Scaling | None) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Features and labels of the train and the test records."""
        dtype = self.model.flat.dtype
        return {
            name: (torch.tensor(scaled(r, scaling).features, dtype=dtype), torch.tensor(r.labels, dtype=dtype))
            for name, r in self.parts.items()
        }

    def predicted(self, part: str) -> Predicted:
        """What the model says of the train or test records."""
        x, y = self.tensors[part]
        outputs = self.model.evaluate(x)
        predictions = self.task.predictions(outputs).numpy().astype(np.float64)
        losses = self.task.losses(outputs, y).numpy().astype(np.float64)
        scores = self.task.scores(outputs, y, self.cells.notion.score).numpy().astype(np.float64)
        return Predicted(self.parts[part], predictions, losses, scores)

    def row(self, round_number: int) -> Row:
        """One line of the history, under the model's present parameters."""
        row: Row = {"round": round_number}
        for part in ("train", "test"):
            if not len(self.parts[part]):
                continue
            predicted = self.predicted(part)
            row |= self.figures(part, predicted, penalty_mmd2(predicted, self.cells, self.kernel), round_number)
        return row

    def figures(self, part: str, predicted: Predicted, mmd2: float, round_number: int) -> Row:
        """The figures of the train or test records, from their predictions and MMD²."""
        loss = float(predicted.losses.mean())
        if not math.isfinite(loss):
            what = f"{part} loss of round {round_number}"
            raise InputError(what, "must be finite", loss, "Try a smaller learning rate.")
        row: Row = {f"{part}_loss": loss, f"{part}_mmd2": mmd2, f"{part}_objective": loss + self.strength * mmd2}
        if part == "test":
            # every notion is the largest gap over all attributes, that of training on its own conditioning sets
            row |= {"accuracy": accuracy(predicted, self.schema), **largest_unfairness(predicted, self.schema)}
            row[self.cells.notion.name] = notion_gap(predicted, self.schema, self.cells)
            row["rmse"] = root_mean_squared_error(predicted) if self.schema.task == "regression" else None
        return row
