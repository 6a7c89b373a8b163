"""Many models of one kind at once: parameters (jobs, P), records (jobs, b, d), outputs (jobs, b)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, vmap

from privfair.engines.batched.record_pool import Pool
from privfair.models import FlatModel
from privfair.util import FloatArray

# ---- How many jobs go at once: enough to pay for a step's Python, few enough for the cache and the memory.

CACHE_NUMBERS = 1 << 19  # activations of one step: more gain nothing (measured) and leave the cache
LEAST_ROWS = 1 << 11  # fewer records a step and its Python takes longer than its arithmetic
MEMORY_SHARE = 0.25  # of the memory that is free

T = TypeVar("T")


def free_numbers(share: float = MEMORY_SHARE) -> int:
    """How many 8-byte numbers the engine may hold at once."""
    return int(share * _available_bytes()) // 8


def _available_bytes() -> int:
    """Memory available without swapping; half of all memory where the system does not report it."""
    reported = Path("/proc/meminfo")
    if reported.exists():
        for line in reported.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def rows_at_once(width: int, rows: int | None = None, threads: int = 1) -> int:
    """Records in one batched step, for a model that needs `width` numbers for a record.

    `rows`: how many there are in all; with several threads each gets a few parts, so that none waits long for another.
    """
    most = CACHE_NUMBERS // max(width, 1)
    if rows is not None and threads > 1:
        most = min(most, rows // (3 * threads))
    return max(LEAST_ROWS, most)


def cut(items: Sequence[T], cost: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Parts of the list whose largest cost times length is at most `most`; one item at least."""
    part: list[T] = []
    largest = 0
    for item in items:
        grown = max(largest, cost(item))
        if part and grown * (len(part) + 1) > most:
            yield part
            part, grown = [], cost(item)
        part.append(item)
        largest = grown
    if part:
        yield part


# ---- How the models of a stack are computed.

Backward = Callable[[torch.Tensor], torch.Tensor]  # (jobs, b) derivative in the outputs -> (jobs, P) gradient


@dataclass(frozen=True)
class Perceptron:
    """Linear layers with ReLU between them, one output; written out, because a graph costs more than the arithmetic."""

    sizes: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for models that can be stacked."""
        return ("perceptron", *self.sizes)

    @property
    def width(self) -> int:
        """How many numbers a record needs on its way through; for choosing how many records go at once."""
        return sum(self.sizes)

    def layers(self, parameters: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(jobs, out, in) weights and (jobs, 1, out) biases, as views."""
        result, start, jobs = [], 0, len(parameters)
        for before, after in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            middle = start + before * after
            weight = parameters[:, start:middle].view(jobs, after, before)
            result.append((weight, parameters[:, middle : middle + after].unsqueeze(1)))
            start = middle + after
        return result

    def outputs(self, parameters: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """(jobs, b)."""
        return self.activations(parameters, x)[0]

    def activations(self, parameters: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The outputs, and what each layer was given."""
        layers = self.layers(parameters)
        given = [x]
        for weight, bias in layers[:-1]:
            given.append(torch.baddbmm(bias, given[-1], weight.transpose(1, 2)).relu_())
        weight, bias = layers[-1]
        # the last layer as (1, h)·(h, b): a third of the time of (b, h)·(h, 1)
        return torch.bmm(weight, given[-1].transpose(1, 2)).squeeze(1).add_(bias.squeeze(1)), given

    def forward(self, parameters: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, Backward]:
        """The outputs, and what turns derivatives in them into gradients."""
        outputs, given = self.activations(parameters, x)

        def backward(pull: torch.Tensor) -> torch.Tensor:
            return torch.cat(gradient_parts(self.layers(parameters), given, pull), dim=1)

        return outputs, backward


def gradient_parts(
    layers: list[tuple[torch.Tensor, torch.Tensor]], given: list[torch.Tensor], pull: torch.Tensor
) -> list[torch.Tensor]:
    """The gradients of all weights and biases in their order, each (jobs, …) flat."""
    jobs = len(pull)
    parts = [torch.bmm(pull.unsqueeze(1), given[-1]).view(jobs, -1), pull.sum(dim=1, keepdim=True)]
    delta: torch.Tensor | None = None
    for level in range(len(layers) - 1, 0, -1):
        weight = layers[level][0]
        arriving = pull.unsqueeze(2) * weight if delta is None else torch.bmm(delta, weight)
        delta = torch.ops.aten.threshold_backward(arriving, given[level], 0)
        parts = [outer_sums(delta, given[level - 1]), delta.sum(dim=1), *parts]
    return parts


def outer_sums(delta: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """(jobs, out·in): Σ over the records of δ aᵀ. Taken as (a δᵀ)ᵀ, which is four times as quick for tall matrices."""
    return torch.bmm(given.transpose(1, 2), delta).transpose(1, 2).reshape(len(delta), -1)


class Functional:
    """Any other module, by functional_call and vmap.

    A call puts the given parameters into the module while it computes, so every thread has a copy of its own.
    """

    def __init__(self, model: FlatModel) -> None:
        """Take the module for its form; its own parameters are not used."""
        self._form = deepcopy(model.module)
        self._copies = threading.local()
        trainable = {id(p) for p in model.trainable}
        named = [(name, p) for name, p in model.module.named_parameters() if id(p) in trainable]
        self._shapes = [(name, p.shape, p.numel()) for name, p in named]
        self._fixed = {n: p.detach() for n, p in model.module.named_parameters() if id(p) not in trainable}
        self.key: tuple[Any, ...] = ("module", id(model.module))

    @property
    def width(self) -> int:
        """As `Perceptron.width`, by a rule of thumb."""
        return 4 * max(n for _, _, n in self._shapes)

    def _one(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        parts = flat.split([n for _, _, n in self._shapes])
        named = {name: part.view(shape) for (name, shape, _), part in zip(self._shapes, parts, strict=True)}
        result: torch.Tensor = functional_call(self._module, {**self._fixed, **named}, (x,))
        return result.reshape(-1)

    @property
    def _module(self) -> nn.Module:
        """This thread's copy."""
        if not hasattr(self._copies, "module"):
            self._copies.module = deepcopy(self._form)
        module: nn.Module = self._copies.module
        return module

    def single(self, flat: torch.Tensor, record: torch.Tensor) -> torch.Tensor:
        """The output of one model for one record."""
        return self._one(flat, record[None])[0]

    def outputs(self, parameters: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """As `Perceptron.outputs`."""
        with torch.no_grad():
            result: torch.Tensor = vmap(self._one)(parameters, x)
        return result

    def forward(self, parameters: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, Backward]:
        """As `Perceptron.forward`."""
        leaf = parameters.detach().clone().requires_grad_()
        with torch.enable_grad():
            outputs: torch.Tensor = vmap(self._one)(leaf, x)
        return outputs.detach(), lambda pull: torch.autograd.grad(outputs, leaf, pull)[0]


Network = Perceptron | Functional  # how the models of a stack are computed; those with equal `key` can be stacked


class Networks:
    """The networks of several runs; those of one form are the same object."""

    def __init__(self) -> None:
        """None yet."""
        self._modules: dict[tuple[Any, ...], list[Functional]] = {}
        self._known: dict[int, tuple[FlatModel, Network | None]] = {}

    def of(self, model: FlatModel, features: int) -> Network | None:
        """How to stack this model; None if it can only be computed one by one."""
        if id(model) not in self._known:
            self._known[id(model)] = (model, self._new(model, features))
        return self._known[id(model)][1]

    def _new(self, model: FlatModel, features: int) -> Network | None:
        if model.widths is not None:
            return Perceptron(model.widths)
        form = (type(model.module), repr(model.module), tuple(p.shape for p in model.trainable))
        alike = self._modules.setdefault(form, [])
        for network in (*alike, Functional(model)):
            if _agrees(network, model, features):
                alike += [] if network in alike else [network]
                return network
        return None


def _agrees(network: Functional, model: FlatModel, features: int) -> bool:
    """Whether stacking gives the module's own outputs, the same in training as in use, without drawing numbers."""
    draws = torch.randn(5, features, generator=torch.Generator().manual_seed(0)).to(model.flat.dtype)
    state = torch.default_generator.get_state()
    was = model.module.training
    try:
        for training in (True, False):
            model.module.train(training)
            with torch.no_grad():
                alone = model.module(draws).reshape(-1)
            outputs, backward = network.forward(torch.stack([model.flat, model.flat]), torch.stack([draws, draws]))
            backward(torch.ones_like(outputs))
            if not torch.allclose(outputs[1], alone, rtol=1e-4, atol=1e-6):
                return False
            if not torch.equal(state, torch.default_generator.get_state()):
                return False
        return True
    except (RuntimeError, TypeError, ValueError, NotImplementedError):  # vmap's ways to say that it cannot
        return False
    finally:
        model.module.train(was)
        torch.default_generator.set_state(state)


# ---- Outputs of many models on records of many clients.


@dataclass(frozen=True)
class ForwardJob:
    """One model on some rows of its pool."""

    network: Network
    parameters: FloatArray
    pool: Pool
    index: NDArray[np.int64]


def outputs_of(jobs: Sequence[ForwardJob]) -> list[torch.Tensor]:
    """Each job's outputs, one per row."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, job in enumerate(jobs):
        groups.setdefault((job.network.key, id(job.pool)), []).append(number)
    results: list[torch.Tensor] = [torch.zeros(0)] * len(jobs)
    for members in groups.values():
        network, pool = jobs[members[0]].network, jobs[members[0]].pool
        members.sort(key=lambda n: -jobs[n].index.size)
        for part in cut(members, lambda n: max(1, jobs[n].index.size), rows_at_once(network.width)):
            index = np.zeros((len(part), max(1, jobs[part[0]].index.size)), dtype=np.int64)
            for row, n in zip(index, part, strict=True):
                row[: jobs[n].index.size] = jobs[n].index
            parameters = torch.from_numpy(np.stack([jobs[n].parameters for n in part]))
            outputs = network.outputs(parameters, pool.take(torch.from_numpy(index))[0])
            for row, n in zip(outputs, part, strict=True):
                results[n] = row[: jobs[n].index.size]
    return results
