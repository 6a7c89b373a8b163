"""Local training by stochastic gradient descent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.clients.objectives import TrainingData, build_loss
from privfair.messages import LocalWork, TrainRequest
from privfair.models import FlatModel


@dataclass(frozen=True)
class Trained:
    """Where local training ended, in how many steps, and where it was at the asked moment."""

    parameters: FloatArray
    steps: int
    snapshot: FloatArray | None


def train_locally(
    request: TrainRequest,
    data: TrainingData,
    model: FlatModel,
    rng: np.random.Generator,
    control: FloatArray | None,
) -> Trained:
    """`epochs` passes over the records in shuffled minibatches: θ ← θ − η(∇loss + μ(θ − θᵗ) + c − c_k).

    μ(θ − θᵗ) is FedProx's pull to the start (Li et al. 2020, arXiv 1812.06127v5, equation 2), c − c_k SCAFFOLD's
    correction (Karimireddy et al. 2020, arXiv 1910.06378v4, equation 3); `control` is c_k.
    """
    model.load(request.parameters)
    start = model.flat.clone()
    work = request.work
    loss = build_loss(request.objective, data, model)
    shift = None
    if request.correction is not None and control is not None:
        shift = torch.from_numpy(np.asarray(request.correction - control)).to(start.dtype)
    total = work.epochs * batches_per_epoch(len(data.y), work)
    snapshot_after = None if request.snapshot_at is None else math.ceil(request.snapshot_at * total)
    snapshot = None
    steps = 0
    model.module.train()
    for positions in minibatches(len(data.y), work, rng):
        batch = torch.from_numpy(positions)
        model.zero_gradient()
        loss(batch, model.outputs(data.x[batch])).backward()
        if work.proximal:
            model.gradient.add_(model.flat - start, alpha=work.proximal)
        if shift is not None:
            model.gradient.add_(shift)
        model.flat.sub_(model.gradient, alpha=work.learning_rate)
        steps += 1
        if steps == snapshot_after:
            snapshot = model.parameters()
    model.module.eval()
    return Trained(model.parameters(), steps, snapshot)


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
