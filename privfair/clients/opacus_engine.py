"""The only module that imports Opacus: per-example gradients, clipping, noise.

The import takes seconds, so callers import this module only when a private run begins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from accountant.errors import InputError
from privfair.clients.training import NORMALS_AT_ONCE
from privfair.federated.messages import PrivateWork
from privfair.mechanisms.entropy import Entropy
from privfair.per_record import clipped_sum, grid_of

_handlers = list(logging.root.handlers)
from opacus import GradSampleModule  # noqa: E402
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer  # noqa: E402
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN  # noqa: E402
from opacus.optimizers import DPOptimizer  # noqa: E402
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed  # noqa: E402
from opacus.validators import ModuleValidator  # noqa: E402

logging.root.handlers[:] = _handlers  # Opacus configures logging for the whole program; undo that

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
    """Raise unless the gradient has one row per record: only then does clipping rows bound what a record can do."""
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
    comes from `entropy`, not from torch's generator. The caller moves the model.
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
        at_once = max(1, NORMALS_AT_ONCE // size)
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
