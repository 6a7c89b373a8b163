"""Derivatives of losses and scores in the model's outputs, written out; the formulas are those of `TaskKind`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privfair.clients.task import TaskKind
from privfair.fairness.notions import Score


@dataclass(frozen=True)
class Slopes:
    """At each record: its score, and the derivatives of loss and score in the output."""

    scores: torch.Tensor
    loss: torch.Tensor
    score: torch.Tensor


def slopes_of(task: TaskKind, kind: Score, outputs: torch.Tensor, labels: torch.Tensor, *, scored: bool) -> Slopes:
    """Of every record; without `scored` the score is not needed and not computed."""
    if task.task == "binary":
        p = torch.sigmoid(outputs)
        loss = p - labels
        if not scored:
            return Slopes(p, loss, loss)
        if kind == "prediction":
            return Slopes(p, loss, p * (1 - p))
    else:
        place = outputs + 0.5
        loss = 2 * (place - (labels - task.low) / (task.high - task.low))
        if not scored:
            return Slopes(place, loss, loss)
        if kind == "prediction":
            return Slopes(place.clamp(0.0, 1.0), loss, ((place >= 0) & (place <= 1)).to(outputs.dtype))
    return Slopes(task.losses(outputs, labels), loss, loss)
