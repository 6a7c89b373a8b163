"""Models: logistic regression, multilayer perceptrons, and any `torch.nn.Module` of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.randomness import stream
from privfair.user_code import named_object, user_code

MOST_PARAMETERS = 10**8  # 400 MB as float32, of which every client and round makes copies


@contextmanager
def torch_seeded(seed: int, *labels: str | int) -> Iterator[None]:
    """Lend torch's global generator the stream of these labels, and give it back as it was.

    Modules draw from it when they are made and, with dropout, while they train. (torch.manual_seed would do the
    same a hundred times slower: it also queues a seeding of devices that are not there.)
    """
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int(stream(seed, *labels).integers(2**63)))
    try:
        yield
    finally:
        generator.set_state(before)


def torch_type(name: str) -> torch.dtype:
    """The torch type of a configured name."""
    return torch.float64 if name == "float64" else torch.float32


def build_module(name: str, features: int, hidden: Sequence[int], seed: int, dtype: torch.dtype) -> nn.Module:
    """A fresh module with one output per record, initialised from the seed alone.

    `logistic`, `mlp` (ReLU between the hidden layers), or "package.module:factory", called with the number of features.
    """
    own = name not in ("logistic", "mlp")
    with torch_seeded(seed, "model"):
        if name == "logistic":
            module: nn.Module = nn.Linear(features, 1)
        elif name == "mlp":
            module = _perceptron(features, hidden)
        else:
            module = _made(name, features)
    if not isinstance(module, nn.Module):
        raise InputError("model.name", "must name a factory that returns a torch.nn.Module", type(module).__name__)
    module = module.to(dtype)
    if own:
        with torch_seeded(seed, "model"):
            _try_out(module, features, dtype)
    return module


def _perceptron(features: int, hidden: Sequence[int]) -> nn.Module:
    sizes = [features, *hidden]
    count = sum((before + 1) * after for before, after in pairwise([*sizes, 1]))
    if count > MOST_PARAMETERS:  # before memory is asked for them
        rule = f"must be a model of at most {MOST_PARAMETERS:,} parameters"
        remedy = f"These layers on {features:,} features have {count:,}."
        raise InputError("model.hidden", rule, f"layers of {list(hidden)}", remedy)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))


def _made(name: str, features: int) -> Any:
    """What a factory of the user's own makes; what it raises is told as an error of the configuration."""
    factory = _factory(name)
    rule = "must name a factory that takes the number of features"
    with user_code("model.name", rule, name, f"It was called with {features}."):
        return factory(features)


def _try_out(module: nn.Module, features: int, dtype: torch.dtype) -> None:
    """Nothing, if a module of the user's own takes records of so many features; what it raises is told."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    with torch.no_grad(), user_code("model", f"must take {features} features for each of 2 records"):
        result = module(torch.zeros(2, features, dtype=dtype))
    for part, training in modes:
        part.training = training
    if not isinstance(result, torch.Tensor):
        raise InputError("model", "must give one number for each record", type(result).__name__)


def _factory(name: str) -> Callable[[int], Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InputError("model.name", "must be logistic, mlp or package.module:factory", name)
    factory: Callable[[int], Any] = named_object("model.name", name, "a factory")
    return factory


class FlatModel:
    """A module whose parameters and gradients are each one flat tensor: a step is two operations, a message one."""

    def __init__(self, module: nn.Module) -> None:
        """Move the module's trainable parameters into one tensor."""
        self.module = module
        buffers = [name for name, _ in module.named_buffers()]
        if buffers:
            raise InputError(
                "model",
                "must keep nothing but parameters, which are averaged (BatchNorm keeps running statistics)",
                buffers[0],
                "Use GroupNorm or LayerNorm.",
            )
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters:
            raise InputError("model", "must have trainable parameters", "none")
        self.trainable = tuple(parameters)  # in the order in which they lie in the flat tensor
        self.flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self.flat)
        offset = 0
        for p in parameters:
            end = offset + p.numel()
            p.data = self.flat[offset:end].view_as(p)
            p.grad = self.gradient[offset:end].view_as(p)
            offset = end

    def load(self, parameters: FloatArray) -> None:
        """Set all parameters."""
        self.flat.copy_(torch.from_numpy(np.asarray(parameters)))

    def parameters(self) -> FloatArray:
        """A copy of all parameters."""
        return self.flat.numpy().copy()

    def evaluate(self, x: torch.Tensor) -> torch.Tensor:
        """As `outputs`, without dropout and without a graph."""
        was_training = self.module.training
        self.module.eval()
        with torch.no_grad():
            result = self.outputs(x)
        self.module.train(was_training)
        return result

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """The module's output for each record: a logit, or for regression a place in the label's range minus ½."""
        result: torch.Tensor = self.module(x)
        if result.shape not in ((len(x), 1), (len(x),)):
            raise InputError("model", "must give one number for each record", f"shape {tuple(result.shape)}")
        return result.reshape(-1)

    def zero_gradient(self) -> None:
        """Before a backward pass."""
        self.gradient.zero_()
