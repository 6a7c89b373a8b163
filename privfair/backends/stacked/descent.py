"""How gradients move many stacked parameters: as `clients.steps.Descent`, with numbers of its own for each job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from privfair.arrays import FloatArray
from privfair.messages import TrainRequest


@dataclass(frozen=True)
class Start:
    """What a job starts with."""

    request: TrainRequest
    parameters: FloatArray
    shift: FloatArray | None
    steps: int


class StackedDescent:
    """Local steps of several jobs; those that still move are always the first ones."""

    def __init__(self, starts: Sequence[Start], dtype: torch.dtype) -> None:
        """All jobs use the same local optimiser."""
        works = [s.request.work for s in starts]
        self.parameters = torch.stack([torch.from_numpy(s.parameters) for s in starts]).to(dtype)
        self._rate = torch.tensor([w.learning_rate for w in works], dtype=torch.float64)[:, None].to(dtype)
        self._start = self._proximal = self._shift = None
        if any(w.proximal for w in works):
            self._start = self.parameters.clone()
            self._proximal = torch.tensor([w.proximal for w in works], dtype=torch.float64)[:, None].to(dtype)
        if any(s.shift is not None for s in starts):
            nothing = torch.zeros_like(self.parameters[0])
            shifts = [nothing if s.shift is None else torch.from_numpy(s.shift).to(dtype) for s in starts]
            self._shift = torch.stack(shifts)
        self._snapshot_after = [
            0 if s.request.snapshot_at is None else math.ceil(s.request.snapshot_at * s.steps) for s in starts
        ]
        self._snapshot_steps = set(self._snapshot_after) - {0}
        self.snapshots: dict[int, torch.Tensor] = {}
        self._moments: tuple[torch.Tensor, torch.Tensor] | None = None
        if works[0].optimizer == "adam":
            self._moments = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self._steps = 0

    def step(self, gradient: torch.Tensor) -> None:
        """One step of the first len(gradient) jobs; the gradient is overwritten."""
        jobs = len(gradient)
        moving = self.parameters[:jobs]
        if self._proximal is not None and self._start is not None:
            gradient.addcmul_(moving - self._start[:jobs], self._proximal[:jobs])
        if self._shift is not None:
            gradient.add_(self._shift[:jobs])
        self._steps += 1
        if self._moments is None:
            moving.addcmul_(gradient, self._rate[:jobs], value=-1)
        else:
            self._adam(moving, gradient, *(m[:jobs] for m in self._moments))
        if self._steps in self._snapshot_steps:
            for job in (j for j, after in enumerate(self._snapshot_after) if after == self._steps):
                self.snapshots[job] = self.parameters[job].clone()

    def _adam(self, moving: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> None:
        """As `clients.steps.Adam`."""
        mean.lerp_(gradient, 1 - 0.9)
        square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        root = (square / (1 - 0.999**self._steps)).sqrt_().add_(1e-8)
        moving.sub_(self._rate[: len(moving)] / (1 - 0.9**self._steps) * mean / root)
