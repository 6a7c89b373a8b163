"""Local training by DP-SGD (Abadi et al. 2016, arXiv 1607.00133v2, algorithm 1), with Opacus.

A step takes each record with the public probability q, clips the gradient of each record's whole loss (task and
penalty) to norm C over all parameters together, adds noise z·C·N(0, I) to the sum, and divides by a planned number.
What follows (FedProx's pull, SCAFFOLD's correction, Adam) sees the noisy sum only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from accountant.errors import InputError, require_finite, require_positive
from privfair.arrays import FloatArray
from privfair.clients.objectives import TrainingData, build_losses, couples_records
from privfair.clients.steps import Descent, Trained
from privfair.mechanisms.entropy import Entropy, require_rate
from privfair.messages import PrivateWork, TrainRequest
from privfair.models import FlatModel
from privfair.record_arithmetic import require_summable

_CHOICES_AT_ONCE = 1 << 14
_GRADIENTS_AT_ONCE = 1 << 24  # numbers; a larger minibatch is clipped and summed in parts


def train_privately(
    request: TrainRequest,
    parameters: FloatArray,
    data: TrainingData,
    model: FlatModel,
    entropy: Entropy,
    shift: FloatArray | None = None,
) -> Trained:
    """`steps` steps of DP-SGD from `parameters`; `shift` is SCAFFOLD's c − c_k, if it is used.

    The number of steps, the divisor and the form of the answer never depend on the records: no records, or none in
    a minibatch, is a step of noise alone. A feature that is not finite counts as 0, and a record whose gradient is
    not finite counts as one with gradient 0. A record's clipped gradient depends on that record and the parameters
    alone, to the last bit (see `record_arithmetic`): perceptrons have layers for that, and any other module gets one
    record at a time.
    """
    from privfair.clients.opacus_engine import NoisyMean, PerExampleGradients  # seconds to import, and seldom needed

    work = _checked(request)
    require_summable(len(data.y))
    data = data.each_record_alone
    model.load(parameters)
    moving = model.flat.double()
    descent = Descent(moving, work, shift, total=work.steps, snapshot_at=request.snapshot_at)
    losses = build_losses(request.objective, data, model)
    noisy_mean = NoisyMean(moving.numel(), work, entropy)
    x = _finite(data.x)
    rows = max(1, _GRADIENTS_AT_ONCE // moving.numel())
    model.module.train()
    gradients = PerExampleGradients(model.module, model.trainable)

    def parts(positions: torch.Tensor) -> Iterator[torch.Tensor]:
        for batch in positions.split(rows):
            if not len(batch):
                yield moving.new_zeros(0, moving.numel())
            elif model.widths is not None:
                yield gradients.of(losses(batch, model.outputs(x[batch])))
            else:
                each = zip(batch.split(1), model.one_at_a_time(x[batch]), strict=True)
                yield torch.cat([gradients.of(losses(one, model.outputs(record))) for one, record in each])

    try:
        with model.each_record_alone():
            for positions in _minibatches(len(data.y), work, entropy):
                descent.step(noisy_mean.of(parts(positions)))
                model.flat.copy_(moving)
    finally:
        gradients.cleanup()
        model.module.eval()
    return descent.trained(model.flat.dtype)


def _finite(x: torch.Tensor) -> torch.Tensor:
    """The features, with 0 for those that are not finite; the same tensor if all are."""
    return x if math.isfinite(x.sum()) else torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def _minibatches(records: int, work: PrivateWork, entropy: Entropy) -> Iterator[torch.Tensor]:
    """For each step the positions of its records: each in with probability q, whatever happens to the others.

    The choices for several steps are drawn at once: a call takes longer than a choice.
    """
    at_once = max(1, _CHOICES_AT_ONCE // max(1, records))
    for drawn in range(0, work.steps, at_once):
        steps = min(at_once, work.steps - drawn)
        for mask in entropy.poisson_mask(steps * records, work.sampling_rate).reshape(steps, records):
            yield torch.from_numpy(np.flatnonzero(mask))


def _checked(request: TrainRequest) -> PrivateWork:
    """The work, if it makes sense and the objective can be made private record by record."""
    work = request.work
    if not isinstance(work, PrivateWork):
        raise InputError("work", "must be PrivateWork, for training with privacy", type(work).__name__)
    if (reason := couples_records(request.objective)) is not None:
        raise InputError(
            "objective",
            "must be a sum of losses of single records for private training",
            type(request.objective).__name__,
            f"Here {reason}, so clipping one record's gradient does not bound what that record can do.",
        )
    if work.steps < 0 or work.steps != math.floor(work.steps):
        raise InputError("steps", "must be a whole number, 0 or more", work.steps)
    require_rate(work.sampling_rate)
    if require_finite("noise_multiplier", work.noise_multiplier) < 0:
        raise InputError("noise_multiplier", "must be 0 or more", work.noise_multiplier)
    require_positive("max_grad_norm", work.max_grad_norm)
    require_finite("learning_rate", work.learning_rate)
    require_positive("divisor", work.divisor, "It is the planned size of a minibatch.")
    return work
