"""Whether a model can be trained privately: Opacus' own rules, and a trial on made-up records."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from opacus.validators import ModuleValidator
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from accountant.errors import InputError, require_finite, require_positive
from privfair.clients.objectives import TrainingData, build_losses, couples_records
from privfair.clients.training import Descent, Trained
from privfair.federated.messages import PrivateWork, TrainRequest
from privfair.mechanisms.entropy import Entropy, require_rate
from privfair.models import FlatModel, torch_seeded
from privfair.per_record import clipped_sum, grid_of, require_summable
from privfair.util import FloatArray

_RULE = "must be made of layers that can be trained privately"
_RECORDS = 3
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, NotImplementedError)


def require_private_model(module: nn.Module, features: int | None = None) -> None:
    """Nothing, if DP-SGD bounds what a record can do to this model's training; otherwise `InputError` with the reason.

    Opacus looks at the kinds of the layers only. With the number of features the model is also tried on random
    records: a record's output must not depend on the others, and per-example gradients must be the true ones.
    """
    from privfair.clients.dp_sgd import opacus_objections

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
    """Nothing, if changing one record leaves the outputs of the others as they are, in training and in use."""
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
    """Nothing, if per-example gradients from Opacus equal those of plain autograd, one record at a time."""
    from privfair.clients.dp_sgd import PerExampleGradients

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


# ---- Opacus, in the one place where it is imported: per-example gradients, clipping, noise.
#
# Importing it takes seconds, so whoever needs this file imports it when a private run begins.


_handlers = list(logging.root.handlers)

logging.root.handlers[:] = _handlers  # Opacus sets up logging for the whole program; that is not its business

_DRAWS_AT_ONCE = 1 << 14  # normals
_RECURRENT = (DPRNN, DPLSTM, DPGRU)  # their linear parts are hooked one by one


Samples = dict[torch.Tensor, torch.Tensor]  # parameter -> (records, *shape of the parameter)


def _linear(layer: nn.Linear, given: Sequence[torch.Tensor], at_output: torch.Tensor) -> Samples:
    """Opacus' sampler for linear layers; for (records, features) without its einsums, in a third of the time."""
    if at_output.dim() != 2:
        theirs: Samples = GradSampleModule.GRAD_SAMPLERS[nn.Linear](layer, given, at_output)
        return theirs
    samples = {layer.weight: at_output.unsqueeze(2) * given[0].unsqueeze(1)}
    if layer.bias is not None:
        samples[layer.bias] = at_output
    return samples


class PerExampleGradients(GradSampleModule):  # type: ignore[misc]
    """Opacus' gradient samplers on a module, without its backward hooks.

    Opacus' own hooks run in Python inside the backward pass, which also computes the gradients summed over the batch
    that nobody needs: three times the time of a plain step for small models. Here forward hooks note each layer's
    input and the edge of the graph at its output; one call of `autograd.grad` then gives the gradients at those edges
    and nothing else, and Opacus' samplers turn them into gradients of each record. An edge, unlike the output
    itself, stays right when the output is later changed in place. `p.grad` is never touched.
    """

    GRAD_SAMPLERS: ClassVar[dict[type[nn.Module], Any]] = {**GradSampleModule.GRAD_SAMPLERS, nn.Linear: _linear}

    def __init__(self, module: nn.Module, trainable: Sequence[nn.Parameter]) -> None:
        """Attach to the module, which is in training mode, until `cleanup`."""
        self._calls: list[tuple[nn.Module, tuple[Any, ...], GradientEdge]] = []
        super().__init__(module, loss_reduction="sum")
        self._trainable = tuple(trainable)

    def add_hooks(self, *, loss_reduction: str, batch_first: bool, force_functorch: bool) -> None:
        """Forward hooks on every layer with parameters of its own; functorch where Opacus has no sampler."""
        handles: list[RemovableHandle] = []
        self._module.autograd_grad_sample_hooks = self.autograd_grad_sample_hooks = handles  # for `remove_hooks`
        for layer in self.iterate_submodules(self._module):
            if isinstance(layer, _RECURRENT):
                continue
            if type(layer) not in self.GRAD_SAMPLERS:
                prepare_layer(layer)
            handles.append(layer.register_forward_hook(self._note))

    def _note(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Remember what a layer was given and where its output is in the graph."""
        if not isinstance(output, torch.Tensor):
            raise InputError(
                f"layer {type(layer).__name__}", "must return one tensor for private training", type(output).__name__
            )
        if output.requires_grad:
            self._calls.append((layer, inputs, get_gradient_edge(output)))

    def of(self, losses: torch.Tensor) -> torch.Tensor:
        """(records, parameters): the gradient of each loss, in double precision."""
        calls = self._calls.copy()
        self._calls.clear()
        records = losses.shape[0]
        edges = [edge for _, _, edge in calls]
        each = torch.ones_like(losses)
        at_outputs: Sequence[torch.Tensor | None] = ()
        if edges:
            at_outputs = torch.autograd.grad(losses, edges, each, allow_unused=True)
        samples: dict[int, torch.Tensor] = {}  # by the parameter's id: hashing a tensor takes longer
        with torch.no_grad():  # functorch's gradients would otherwise have a graph of their own
            for (layer, given, _), at_output in zip(calls, at_outputs, strict=True):
                if at_output is None:
                    continue
                sampler = self.GRAD_SAMPLERS.get(type(layer), ft_compute_per_sample_gradient)
                for parameter, sample in sampler(layer, given, at_output).items():
                    if parameter.requires_grad:
                        _require_rows(layer, sample, records)
                        known = samples.get(id(parameter))
                        samples[id(parameter)] = sample if known is None else known + sample
        columns = []
        for parameter in self._trainable:
            own = samples.get(id(parameter))  # a layer that was not asked has no gradient
            columns.append(losses.new_zeros(records, parameter.numel()) if own is None else own.reshape(records, -1))
        return torch.cat(columns, dim=1).double()


def _require_rows(layer: nn.Module, sample: torch.Tensor, records: int) -> None:
    """Nothing, if the gradient has one row per record: clipping rows bounds what a record can do only then."""
    if sample.shape[0] != records:
        raise InputError(
            f"layer {type(layer).__name__}",
            f"must see its input with one row per record, {records}",
            sample.shape[0],
            "Keep the records in the first dimension throughout the model.",
        )


class NoisyMean(DPOptimizer):  # type: ignore[misc]
    """Opacus' step up to the optimiser (clip, sum, noise, divide), on all parameters as one flat vector.

    The sum is exact: one record moves it by at most max_grad_norm, rounding included (see `clipped_sum`). The noise
    comes from `entropy`, not from torch's generator. How the result moves the
    model is left to the caller.
    """

    def __init__(self, size: int, work: PrivateWork, entropy: Entropy) -> None:
        """For the steps of one client in one round."""
        self._mean = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self._noise = self._draws(work, entropy)
        super().__init__(
            torch.optim.SGD([self._mean], lr=0.0),  # it never steps
            noise_multiplier=work.noise_multiplier,
            max_grad_norm=work.max_grad_norm,
            expected_batch_size=work.divisor,
            loss_reduction="mean",
        )

    @property
    def params(self) -> list[nn.Parameter]:
        """The one flat vector (Opacus would look it up again many times a step)."""
        return [self._mean]

    def of(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        """(Σ clipped gradients + noise)/divisor of one minibatch, whose gradients come in one part or several."""
        parts = iter(parts)
        part: torch.Tensor | None = next(parts)
        self._mean.summed_grad = None  # type: ignore[attr-defined]
        while part is not None:
            following = next(parts, None)
            self._mean.grad_sample = part  # type: ignore[attr-defined]
            self.signal_skip_step(following is not None)
            self.pre_step()
            part = following
        noisy = self._mean.grad  # set by `add_noise`, scaled by Opacus
        return cast(torch.Tensor, noisy)

    def clip_and_accumulate(self) -> None:
        """Opacus' rule g·min(1, C/(‖g‖ + 1e-6)), each record by itself and on a grid, so that sums are exact.

        A record whose gradient is not finite loses it, or the sum would be lost through any noise.
        """
        gradients = self._mean.grad_sample  # type: ignore[attr-defined]
        _check_processed_flag(gradients)
        bound = float(self.max_grad_norm)
        total = torch.from_numpy(clipped_sum(gradients.contiguous().numpy(), bound, grid_of(bound)))
        so_far = self._mean.summed_grad  # type: ignore[attr-defined]
        self._mean.summed_grad = total if so_far is None else so_far + total  # type: ignore[attr-defined]
        _mark_as_processed(gradients)

    def add_noise(self) -> None:
        """Σ clipped gradients + noise_multiplier·max_grad_norm·N(0, 1)."""
        total = self._mean.summed_grad  # type: ignore[attr-defined]
        _check_processed_flag(total)
        self._mean.grad = total + next(self._noise)
        _mark_as_processed(total)

    def _draws(self, work: PrivateWork, entropy: Entropy) -> Iterator[torch.Tensor]:
        """The noise of one step after the other, drawn for several steps at once: a call takes longer than a draw."""
        size, scale = self._mean.numel(), work.noise_multiplier * work.max_grad_norm
        at_once = max(1, _DRAWS_AT_ONCE // size)
        for drawn in range(0, work.steps, at_once):
            steps = min(at_once, work.steps - drawn)
            yield from torch.from_numpy(scale * entropy.normal(steps * size)).view(steps, size)


def opacus_objections(module: nn.Module) -> list[tuple[str, str]]:
    """What Opacus has against each layer: (the layer, Opacus' reason)."""
    found = []
    for name, layer in module.named_modules():
        known = [ModuleValidator.VALIDATORS[t] for t in type(layer).__mro__ if t in ModuleValidator.VALIDATORS]
        # Opacus passes over layers without parameters; a BatchNorm mixes records with or without them
        trainable = any(p.requires_grad for p in layer.parameters())
        if known and (trainable or isinstance(layer, nn.modules.batchnorm._BatchNorm)):
            found += [(f"{type(layer).__name__} {name}".strip(), str(error)) for error in known[0](layer)]
        elif trainable and any(True for _ in layer.buffers(recurse=False)):
            found.append((f"{type(layer).__name__} {name}".strip(), "A trainable layer with buffers is not supported."))
    return found


# ---- Local training by DP-SGD (Abadi et al. 2016, arXiv 1607.00133v2, algorithm 1), with Opacus.
#
# A step takes each record with the public probability q, clips the gradient of each record's whole loss (task and
# penalty) to norm C over all parameters together, adds noise z·C·N(0, I) to the sum, and divides by a planned number.
# What follows (FedProx's pull, SCAFFOLD's correction, Adam) sees the noisy sum only.


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
    from privfair.clients.dp_sgd import NoisyMean, PerExampleGradients  # seconds to import, and seldom needed

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
