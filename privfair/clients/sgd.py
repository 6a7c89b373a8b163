"""Local training by stochastic gradient descent or Adam, without privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.clients.objectives import TrainingData, build_losses
from privfair.clients.steps import Descent, Trained
from privfair.messages import LocalWork, TrainRequest
from privfair.models import FlatModel


def train_locally(
    request: TrainRequest,
    parameters: FloatArray,
    data: TrainingData,
    model: FlatModel,
    rng: np.random.Generator,
    shift: FloatArray | None = None,
) -> Trained:
    """`epochs` passes over the records in shuffled minibatches: θ ← θ − η(∇loss + μ(θ − θᵗ) + c − c_k), or Adam's step.

    `parameters` is θᵗ, `shift` SCAFFOLD's c − c_k (see `steps.Descent`).
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
