"""What the model's output means: probabilities and cross-entropy, or predictions in a range and squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from privfair.datasets.records import Schema


@dataclass(frozen=True)
class TaskKind:
    """Binary classification or regression with a stated range."""

    task: Literal["binary", "regression"]
    low: float
    high: float

    @staticmethod
    def of(schema: Schema) -> TaskKind:
        """The task of a dataset."""
        low, high = (0.0, 1.0) if schema.task == "binary" else schema.label_range
        return TaskKind(schema.task, low, high)

    def unit_predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Predictions in [0, 1]: a probability, or the place in the label's range (an output of 0 is its middle)."""
        return torch.sigmoid(outputs) if self.task == "binary" else (outputs + 0.5).clamp(0.0, 1.0)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Probabilities, or predictions in units of the label."""
        return self.low + (self.high - self.low) * self.unit_predictions(outputs)

    def losses(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy, or the squared error in units of the range, for each record."""
        if self.task == "binary":
            return functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        return (outputs + 0.5 - (labels - self.low) / (self.high - self.low)).square()

    def scores(self, outputs: torch.Tensor, labels: torch.Tensor, kind: str) -> torch.Tensor:
        """The score that a notion compares: the prediction in [0, 1], or the loss."""
        return self.unit_predictions(outputs) if kind == "prediction" else self.losses(outputs, labels)

    @staticmethod
    def score_range(kind: str) -> tuple[float, float] | None:
        """The range of the scores; a loss has none."""
        return (0.0, 1.0) if kind == "prediction" else None
