"""Local steps, which plain and private training share, and local training without privacy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from accountant.errors import InputError, require_finite, require_positive
from privfair.clients.client import TrainingData, build_losses, couples_records
from privfair.federated.messages import LocalWork, PrivateWork, TrainRequest
from privfair.mechanisms.entropy import Entropy, require_rate
from privfair.mechanisms.vector_release import GradientRelease
from privfair.models import FlatModel, torch_seeded
from privfair.per_record import require_summable, whole_sum
from privfair.util import FloatArray


@dataclass(frozen=True)
class Trained:
    """Where local training ended, in how many steps, and where it was at the asked moment.

    `gradients`: where that is what leaves, the sum of clipped gradients at the start, in whole numbers, without noise.
    """

    parameters: FloatArray
    steps: int
    snapshot: FloatArray | None
    gradients: NDArray[np.int64] | None = None


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


# ---- Local training by DP-SGD (Abadi et al. 2016, arXiv 1607.00133v2, algorithm 1), with Opacus.
#
# A step takes each record with the public probability q, clips the gradient of each record's whole loss (task and
# penalty) to norm C over all parameters together, adds noise z·C·N(0, I) to the sum, and divides by a planned number.
# What follows (FedProx's pull, SCAFFOLD's correction, Adam) sees the noisy sum only.


_CHOICES_AT_ONCE = 1 << 14
NORMALS_AT_ONCE = 1 << 14
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
    alone, to the last bit (see `per_record`): perceptrons have layers for that, and any other module gets one
    record at a time.
    """
    from privfair.clients.opacus_engine import NoisyMean  # takes seconds to import

    work = _checked(request)
    with _gradients_of_records(request, parameters, data, model) as gradients:
        moving = model.flat.double()
        descent = Descent(moving, work, shift, total=work.steps, snapshot_at=request.snapshot_at)
        noisy_mean = NoisyMean(moving.numel(), work, entropy)
        for positions in _minibatches(len(data.y), work, entropy):
            descent.step(noisy_mean.of(gradients(positions)))
            model.flat.copy_(moving)
    return descent.trained(model.flat.dtype)


def sum_gradients(
    request: TrainRequest, parameters: FloatArray, data: TrainingData, model: FlatModel, entropy: Entropy
) -> Trained:
    """The sum of a sample's clipped gradients in whole numbers: one step of DP-SGD up to noise, which nobody has taken.

    Records, sample, clipping and what counts as 0 are those of `train_privately`; one record moves the sum by a vector
    of length `noise.steps` at most, exactly. The message gets its noise when it leaves, from the same entropy.
    """
    work, release = checked_gradient(request, parameters.size)
    total = np.zeros(parameters.size, dtype=np.int64)
    with _gradients_of_records(request, parameters, data, model) as gradients:
        for positions in _minibatches(len(data.y), work, entropy):  # one
            for part in gradients(positions):
                total += whole_sum(part.contiguous().numpy(), float(release.max_grad_norm), release.noise.steps)
    return Trained(parameters, work.steps, None, total)


@contextmanager
def _gradients_of_records(
    request: TrainRequest, parameters: FloatArray, data: TrainingData, model: FlatModel
) -> Iterator[Callable[[torch.Tensor], Iterator[torch.Tensor]]]:
    """Within it, for some positions the gradients of their records at the model's parameters, in one part or several.

    The model begins at `parameters`, and whoever moves it moves what is computed next.
    """
    from privfair.clients.opacus_engine import PerExampleGradients  # takes seconds to import

    require_summable(len(data.y))
    data = data.each_record_alone
    model.load(parameters)
    losses = build_losses(request.objective, data, model)
    x, size = _finite(data.x), model.flat.numel()
    rows = max(1, _GRADIENTS_AT_ONCE // size)
    model.module.train()
    gradients = PerExampleGradients(model.module, model.trainable)

    def parts(positions: torch.Tensor) -> Iterator[torch.Tensor]:
        for batch in positions.split(rows):
            if not len(batch):
                yield torch.zeros(0, size, dtype=torch.float64)
            elif model.widths is not None:
                yield gradients.of(losses(batch, model.outputs(x[batch])))
            else:
                each = zip(batch.split(1), model.one_at_a_time(x[batch]), strict=True)
                yield torch.cat([gradients.of(losses(one, model.outputs(record))) for one, record in each])

    try:
        with model.each_record_alone():
            yield parts
    finally:
        gradients.cleanup()
        model.module.eval()


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


def checked_gradient(request: TrainRequest, size: int) -> tuple[PrivateWork, GradientRelease]:
    """The work and the release of one step of DP-SGD in whole numbers, if the request is for that and nothing else."""
    work, release = _checked(request), request.gradient
    if release is None:
        raise InputError("request", "must say how gradients are summed in whole numbers", "no release of gradients")
    rule = "must be {} where gradients are summed in whole numbers"
    for name, wanted, found in (
        ("steps", 1, work.steps),
        ("local optimizer", "sgd", work.optimizer),
        ("control variates", "off", "on" if request.correct else "off"),
        ("snapshots", "off", "off" if request.snapshot_at is None else "on"),
        ("clipping of whole updates", "off", "off" if request.release is None else "on"),
        ("max_grad_norm", release.max_grad_norm, work.max_grad_norm),
        ("noise of gradients", f"for {size} parameters", f"for {release.noise.count} parameters"),
    ):
        if found != wanted:
            remedy = "The sum is that of one step's clipped gradients, and everybody takes the step when it is opened."
            raise InputError(name, rule.format(wanted), found, remedy)
    return work, release


# ---- Whether a model can be trained privately: Opacus' own rules, and a trial on random records.

_RULE = "must be made of layers that can be trained privately"
_RECORDS = 3
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, NotImplementedError)


def require_private_model(module: nn.Module, features: int | None = None) -> None:
    """Raise, with the reason, unless DP-SGD bounds what a record can do to this model's training.

    Opacus looks at the kinds of the layers only. With the number of features the model is also tried on random
    records: a record's output must not depend on the others, and per-example gradients must be the true ones.
    """
    from privfair.clients.opacus_engine import opacus_objections

    for layer, reason in opacus_objections(module):
        # the rest of Opacus' text on BatchNorm is about its own utilities
        reason = reason.partition("We offer utilities")[0].strip()
        raise InputError("model", _RULE, layer, f"Opacus: {reason}")
    if features is not None:
        modes = [(m, m.training) for m in module.modules()]
        try:
            _require_separate_records(module, features)
            _require_true_gradients(module, features)
        finally:
            for part, training in modes:
                part.training = training


def _require_separate_records(module: nn.Module, features: int) -> None:
    """Raise if changing one record changes the outputs of others, in training or in use."""
    x = _records(module, features)
    changed = x.clone()
    changed[0] = 3 - 2 * changed[0]
    for training in (True, False):
        module.train(training)
        with torch.no_grad():
            _outputs(module, x[:1])  # a minibatch of one record is a case of its own for many a model
            before, after = _outputs(module, x), _outputs(module, changed)
        if not torch.allclose(before[1:], after[1:], rtol=1e-4, atol=1e-6, equal_nan=True):
            raise InputError(
                "model",
                "must treat every record by itself",
                "an output that depends on the other records of the minibatch",
                "Clipping one record's gradient does not bound what that record does through the others. "
                "Normalise within records (LayerNorm, GroupNorm), not across them.",
            )


def _require_true_gradients(module: nn.Module, features: int) -> None:
    """Raise unless per-example gradients from Opacus equal those of plain autograd, one record at a time."""
    from privfair.clients.opacus_engine import PerExampleGradients

    module.train()
    trainable = [p for p in module.parameters() if p.requires_grad]
    gradients = PerExampleGradients(module, trainable)
    try:
        outputs = _outputs(module, _records(module, features))
        true = torch.stack([_gradient(output, trainable) for output in outputs]).double()
        found = gradients.of(outputs)
    except _FAILURES as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "model",
            "must have gradients that Opacus can compute record by record",
            str(error).strip().partition("\n")[0],
            "Keep dropout out of modules with parameters of their own, and give every such module one tensor.",
        ) from error
    finally:
        gradients.cleanup()
    scale = max(float(true.abs().max()), 1e-6)
    if not torch.allclose(found, true, rtol=0.0, atol=1e-3 * scale, equal_nan=True):
        raise InputError(
            "model",
            "must use its parameters through the layers that hold them",
            "gradients from Opacus that differ from autograd's",
            "A layer's weight that another module reads directly is not seen.",
        )


def _records(module: nn.Module, features: int) -> torch.Tensor:
    """Random records, always the same, in the type of the parameters."""
    draws = torch.randn(_RECORDS, features, generator=torch.Generator().manual_seed(0))
    return draws.to(next(module.parameters()).dtype)


def _outputs(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One number for each record, with the same dropout every time."""
    with torch_seeded(0, "trial"):
        try:
            result: torch.Tensor = module(x)
        except _FAILURES as error:
            if isinstance(error, InputError):
                raise
            what = str(error).strip().partition("\n")[0]
            raise InputError("model", f"must take {x.shape[1]} features for each of {len(x)} records", what) from error
    if result.shape not in ((len(x), 1), (len(x),)):
        raise InputError("model", "must give one number for each record", f"shape {tuple(result.shape)}")
    return result.reshape(-1)


def _gradient(output: torch.Tensor, trainable: list[nn.Parameter]) -> torch.Tensor:
    """The gradient of one output in all parameters, flat."""
    parts = torch.autograd.grad(output, trainable, retain_graph=True, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(trainable, parts, strict=True)]
    )
