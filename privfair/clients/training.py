"""Local steps, which plain and private training share, and local training without privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.clients.objectives import TrainingData, build_losses
from privfair.federated.messages import LocalWork, PrivateWork, TrainRequest
from privfair.models import FlatModel
from privfair.util import FloatArray


@dataclass(frozen=True)
class Trained:
    """Where local training ended, in how many steps, and where it was at the asked moment."""

    parameters: FloatArray
    steps: int
    snapshot: FloatArray | None


class Adam:
    """θ ← θ − η·m̂/(√v̂ + 1e-8) with β₁ = 0.9, β₂ = 0.999 (Kingma & Ba 2015, arXiv 1412.6980v9, algorithm 1).

    Not torch.optim.Adam: it divides √v by √(1 − β₂ᵗ) where this takes the root of v/(1 − β₂ᵗ), as the batched and the
    compiled engine do. The results differ in the last bits, which recorded runs and equal engines rest on.
    """

    def __init__(self, parameters: torch.Tensor, learning_rate: float) -> None:
        """It starts afresh: m = v = 0."""
        self._parameters, self._rate, self._steps = parameters, learning_rate, 0
        self._mean, self._square = torch.zeros_like(parameters), torch.zeros_like(parameters)

    def __call__(self, gradient: torch.Tensor) -> None:
        """One step, in place."""
        self._steps += 1
        self._mean.lerp_(gradient, 1 - 0.9)
        self._square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        root = (self._square / (1 - 0.999**self._steps)).sqrt_().add_(1e-8)
        self._parameters.addcdiv_(self._mean, root, value=-self._rate / (1 - 0.9**self._steps))


class Descent:
    """Local steps from θᵗ: each gradient plus μ(θ − θᵗ) + c − c_k goes to the local optimiser.

    μ(θ − θᵗ) is FedProx's pull to the start (Li et al. 2020, arXiv 1812.06127v5, equation 2), c − c_k SCAFFOLD's
    correction (Karimireddy et al. 2020, arXiv 1910.06378v4, equation 3). Neither reads a record.
    """

    def __init__(
        self,
        parameters: torch.Tensor,
        work: LocalWork | PrivateWork,
        shift: FloatArray | None,
        *,
        total: int,
        snapshot_at: float | None,
    ) -> None:
        """`parameters` is moved in place; `shift` is c − c_k; `total` is the number of steps to come."""
        self._parameters, self._rate, self._proximal = parameters, work.learning_rate, work.proximal
        self._start = parameters.clone()
        self._shift = None if shift is None else torch.from_numpy(np.asarray(shift)).to(parameters.dtype)
        self._snapshot_after = None if snapshot_at is None else math.ceil(snapshot_at * total)
        self._snapshot: torch.Tensor | None = None
        self._steps = 0
        if work.optimizer not in ("sgd", "adam"):
            raise InputError("local optimizer", "must be sgd or adam", work.optimizer)
        self._adam = Adam(parameters, work.learning_rate) if work.optimizer == "adam" else None

    def step(self, gradient: torch.Tensor) -> None:
        """One step down this gradient, which is overwritten."""
        if self._proximal:
            gradient.add_(self._parameters - self._start, alpha=self._proximal)
        if self._shift is not None:
            gradient.add_(self._shift)
        if self._adam is None:
            self._parameters.sub_(gradient, alpha=self._rate)
        else:
            self._adam(gradient)
        self._steps += 1
        if self._steps == self._snapshot_after:
            self._snapshot = self._parameters.clone()

    def trained(self, dtype: torch.dtype) -> Trained:
        """Where it stands now, in the type of the model."""
        snapshot = None if self._snapshot is None else self._snapshot.to(dtype).numpy()
        return Trained(self._parameters.to(dtype, copy=True).numpy(), self._steps, snapshot)


def train_locally(
    request: TrainRequest,
    parameters: FloatArray,
    data: TrainingData,
    model: FlatModel,
    rng: np.random.Generator,
    shift: FloatArray | None = None,
) -> Trained:
    """`epochs` passes over the records in shuffled minibatches: θ ← θ − η(∇loss + μ(θ − θᵗ) + c − c_k), or Adam's step.

    `parameters` is θᵗ, `shift` SCAFFOLD's c − c_k (see `Descent`).
    """
    work = request.work
    if not isinstance(work, LocalWork):
        raise InputError("work", "must be LocalWork, for training without privacy", type(work).__name__)
    model.load(parameters)
    losses = build_losses(request.objective, data, model)
    total = work.epochs * batches_per_epoch(len(data.y), work)
    descent = Descent(model.flat, work, shift, total=total, snapshot_at=request.snapshot_at)
    model.module.train()
    for positions in minibatches(len(data.y), work, rng):
        batch = torch.from_numpy(positions)
        model.zero_gradient()
        of_each = losses(batch, model.outputs(data.x.index_select(0, batch)))
        of_each.backward(torch.full_like(of_each, 1 / max(1, len(batch))))  # of their mean
        descent.step(model.gradient)
    model.module.eval()
    return descent.trained(model.flat.dtype)


def batches_per_epoch(records: int, work: LocalWork) -> int:
    """How many minibatches an epoch has; the last may be smaller."""
    return 1 if work.batch_size is None else math.ceil(records / work.batch_size)


def minibatches(records: int, work: LocalWork, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The positions of each minibatch, epoch after epoch, shuffled anew each time."""
    if work.batch_size is None:
        for _ in range(work.epochs):
            yield np.arange(records)
        return
    for _ in range(work.epochs):
        order = rng.permutation(records)
        for start in range(0, records, work.batch_size):
            yield order[start : start + work.batch_size]
