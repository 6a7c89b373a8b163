"""What the model's output means: probabilities and cross-entropy, or predictions in a range and squared error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.nn import functional

from privfair.datasets.records import Schema


class _SigmoidAlone(torch.autograd.Function):
    """1/(1 + e⁻ᵒ), the same for a record wherever it stands: torch computes the end of a tensor by other code."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor) -> torch.Tensor:
        found = _sigmoids(outputs)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> torch.Tensor:
        (p,) = ctx.saved_tensors
        result: torch.Tensor = arriving[0] * (p * (1 - p))
        return result


class _CrossEntropyAlone(torch.autograd.Function):
    """The loss of a logit and a label, as `_SigmoidAlone`."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from privfair.record_arithmetic import cross_entropies

        ctx.save_for_backward(outputs, labels)
        return torch.from_numpy(cross_entropies(*(t.detach().contiguous().numpy() for t in (outputs, labels))))

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[torch.Tensor, None]:
        outputs, labels = ctx.saved_tensors
        return arriving[0] * (_sigmoids(outputs) - labels), None


def _sigmoids(outputs: torch.Tensor) -> torch.Tensor:
    from privfair.record_arithmetic import sigmoids

    return torch.from_numpy(sigmoids(outputs.detach().contiguous().numpy()))


@dataclass(frozen=True)
class TaskKind:
    """Binary classification or regression with a stated range."""

    task: Literal["binary", "regression"]
    low: float
    high: float
    alone: bool = False
    """Whether a record's numbers depend on that record alone, to the last bit: for private releases."""

    @staticmethod
    def of(schema: Schema) -> TaskKind:
        """The task of a dataset."""
        low, high = (0.0, 1.0) if schema.task == "binary" else schema.label_range
        return TaskKind(schema.task, low, high)

    @property
    def each_record_alone(self) -> TaskKind:
        """The same task, for private releases."""
        return replace(self, alone=True)

    def unit_predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Predictions in [0, 1]: a probability, or the place in the label's range (an output of 0 is its middle)."""
        if self.task == "regression":
            return (outputs + 0.5).clamp(0.0, 1.0)
        if not self.alone:
            return torch.sigmoid(outputs)
        alone: torch.Tensor = _SigmoidAlone.apply(outputs)  # type: ignore[no-untyped-call]
        return alone

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Probabilities, or predictions in units of the label."""
        return self.low + (self.high - self.low) * self.unit_predictions(outputs)

    def losses(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy, or the squared error in units of the range, for each record."""
        if self.task == "binary":
            if self.alone:
                alone: torch.Tensor = _CrossEntropyAlone.apply(outputs, labels)  # type: ignore[no-untyped-call]
                return alone
            return functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        return (outputs + 0.5 - (labels - self.low) / (self.high - self.low)).square()

    def scores(self, outputs: torch.Tensor, labels: torch.Tensor, kind: str) -> torch.Tensor:
        """The score that a notion compares: the prediction in [0, 1], or the loss."""
        return self.unit_predictions(outputs) if kind == "prediction" else self.losses(outputs, labels)

    @staticmethod
    def score_range(kind: str) -> tuple[float, float] | None:
        """The range of the scores; a loss has none."""
        return (0.0, 1.0) if kind == "prediction" else None
