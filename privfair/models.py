"""Models and what their outputs mean.

Outputs become probabilities with cross-entropy, or predictions in a range with squared error. Models are logistic
regression, multilayer perceptrons, or any `torch.nn.Module` of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from accountant.errors import InputError
from privfair.datasets.records import Schema
from privfair.mechanisms.entropy import stream
from privfair.mechanisms.moments import Scaling
from privfair.util import FloatArray, named_object, user_code


class _SigmoidAlone(torch.autograd.Function):
    """1/(1 + e⁻ᵒ), the same for a record wherever it stands: torch computes the end of a tensor by other code."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor) -> torch.Tensor:
        found = _sigmoids(outputs)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> torch.Tensor:
        (p,) = ctx.saved_tensors
        result: torch.Tensor = arriving[0] * (p * (1 - p))
        return result


class _CrossEntropyAlone(torch.autograd.Function):
    """The loss of a logit and a label, as `_SigmoidAlone`."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from privfair.per_record import cross_entropies

        ctx.save_for_backward(outputs, labels)
        return torch.from_numpy(cross_entropies(*(t.detach().contiguous().numpy() for t in (outputs, labels))))

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[torch.Tensor, None]:
        outputs, labels = ctx.saved_tensors
        return arriving[0] * (_sigmoids(outputs) - labels), None


def _sigmoids(outputs: torch.Tensor) -> torch.Tensor:
    from privfair.per_record import sigmoids

    return torch.from_numpy(sigmoids(outputs.detach().contiguous().numpy()))


@dataclass(frozen=True)
class TaskKind:
    """Binary classification or regression with a stated range."""

    task: Literal["binary", "regression"]
    low: float
    high: float
    alone: bool = False
    """Whether a record's numbers depend on that record alone, to the last bit: for private releases."""

    @staticmethod
    def of(schema: Schema) -> TaskKind:
        """The task of a dataset."""
        low, high = (0.0, 1.0) if schema.task == "binary" else schema.label_range
        return TaskKind(schema.task, low, high)

    @property
    def each_record_alone(self) -> TaskKind:
        """The same task, for private releases."""
        return replace(self, alone=True)

    def unit_predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Predictions in [0, 1]: a probability, or the place in the label's range (an output of 0 is its middle)."""
        if self.task == "regression":
            return (outputs + 0.5).clamp(0.0, 1.0)
        if not self.alone:
            return torch.sigmoid(outputs)
        alone: torch.Tensor = _SigmoidAlone.apply(outputs)  # type: ignore[no-untyped-call]
        return alone

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Probabilities, or predictions in units of the label."""
        return self.low + (self.high - self.low) * self.unit_predictions(outputs)

    def losses(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy, or the squared error in units of the range, for each record."""
        if self.task == "binary":
            if self.alone:
                alone: torch.Tensor = _CrossEntropyAlone.apply(outputs, labels)  # type: ignore[no-untyped-call]
                return alone
            return functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        return (outputs + 0.5 - (labels - self.low) / (self.high - self.low)).square()

    def scores(self, outputs: torch.Tensor, labels: torch.Tensor, kind: str) -> torch.Tensor:
        """The score that a notion compares: the prediction in [0, 1], or the loss."""
        return self.unit_predictions(outputs) if kind == "prediction" else self.losses(outputs, labels)

    @staticmethod
    def score_range(kind: str) -> tuple[float, float] | None:
        """The range of the scores; a loss has none."""
        return (0.0, 1.0) if kind == "prediction" else None


class Scaled(nn.Module):
    """A model on features as the encoder gives them, which are scaled as in training before the model sees them."""

    def __init__(self, module: nn.Module, scaling: Scaling) -> None:
        """`module`: takes scaled features."""
        super().__init__()
        self.module, self.matrices = module, {}
        for name in SCALING:
            values = getattr(scaling, name)
            if values is not None:
                self.matrices[name] = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of the model."""
        found = Scaling(**{name: values.numpy() for name, values in self.matrices.items()})
        features = found.apply(x.detach().numpy().astype(np.float32)).astype(np.float32)
        outputs: torch.Tensor = self.module(torch.from_numpy(features).to(x.dtype))
        return outputs


SCALING = ("centre", "scale", "shift", "matrix")
_OF_SCALING = "scaling."  # what their names in a file of weights begin with


def exported(module: nn.Module, scaling: Scaling | None) -> dict[str, torch.Tensor]:
    """The weights of a model, and what features are scaled by before it, as a file has them."""
    weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    if scaling is not None:
        weights |= {f"{_OF_SCALING}{name}": values for name, values in Scaled(module, scaling).matrices.items()}
    return weights


def imported(weights: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Scaling | None]:
    """What `exported` made: the weights of the model, and what features are scaled by."""
    own = {name: tensor for name, tensor in weights.items() if not name.startswith(_OF_SCALING)}
    rest = {name.removeprefix(_OF_SCALING): tensor for name, tensor in weights.items() if name not in own}
    if not rest:
        return own, None
    if not {"centre", "scale"} <= set(rest) <= set(SCALING) or ("shift" in rest) != ("matrix" in rest):
        raise InputError("model", "must have a whole scaling of features, or none", ", ".join(sorted(rest)))
    return own, Scaling(**{name: tensor.numpy() for name, tensor in rest.items()})


def with_scaling(module: nn.Module, scaling: Scaling | None) -> nn.Module:
    """The model on features as the encoder gives them."""
    return module if scaling is None else Scaled(module, scaling)


# ---- Models.

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
    """What a factory of the user's own makes; what it raises is reported as an error of the configuration."""
    factory = _factory(name)
    rule = "must name a factory that takes the number of features"
    with user_code("model.name", rule, name, f"It was called with {features}."):
        return factory(features)


def _try_out(module: nn.Module, features: int, dtype: torch.dtype) -> None:
    """Raise unless a module of the user's own takes records with this number of features."""
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


def _linear_alone(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _LinearAlone.apply(x, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return result


class _LinearAlone(torch.autograd.Function):
    """A linear layer in which each record's numbers depend on that record alone (see `per_record`).

    The gradients of weight and bias are not computed: Opacus' samplers make those of each record.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        from privfair.per_record import linear

        ctx.save_for_backward(weight)
        return torch.from_numpy(linear(*(t.detach().contiguous().numpy() for t in (weight, bias, x))))

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        from privfair.per_record import transposed_linear

        if not ctx.needs_input_grad[0]:
            return None, None, None
        (weight,) = ctx.saved_tensors
        leaving = transposed_linear(weight.detach().contiguous().numpy(), arriving[0].contiguous().numpy())
        return torch.from_numpy(leaving), None, None


def perceptron_widths(module: nn.Module, trainable: Sequence[nn.Parameter]) -> tuple[int, ...] | None:
    """The widths, if the module is linear layers with ReLU between them and one output, and all of it is trained."""
    parts = list(module) if type(module) is nn.Sequential else [module]
    linear = [m for m in parts[0::2] if type(m) is nn.Linear]
    between = [m for m in parts[1::2] if type(m) is nn.ReLU]
    plain = len(linear) == len(between) + 1 and len(linear) + len(between) == len(parts)
    if not plain or any(m.bias is None for m in linear):
        return None
    expected = [p for m in linear for p in (m.weight, m.bias)]
    if [id(p) for p in expected] != [id(p) for p in trainable] or linear[-1].out_features != 1:
        return None
    if any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in (module, *parts)):
        return None
    return (linear[0].in_features, *(m.out_features for m in linear))


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
        self.widths = perceptron_widths(module, self.trainable)  # None: any other module
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

    def evaluate_alone(self, x: torch.Tensor) -> torch.Tensor:
        """As `evaluate`, and a record's output depends on that record and the parameters alone, to the last bit."""
        from privfair.per_record import perceptron_outputs

        if self.widths is not None:
            found = perceptron_outputs(self.flat.numpy(), np.array(self.widths), x.contiguous().numpy())
            return torch.from_numpy(found)
        outputs = x.new_empty(len(x))
        for i, record in enumerate(self.one_at_a_time(x)):
            outputs[i] = self.evaluate(record)[0]
        return outputs

    @staticmethod
    def one_at_a_time(x: torch.Tensor) -> Iterator[torch.Tensor]:
        """Each record as a minibatch of one, always at the same place in memory: libraries look at alignment, too."""
        place = x.new_empty(1, *x.shape[1:])
        for row in x:
            yield place.copy_(row)

    @contextmanager
    def each_record_alone(self) -> Iterator[None]:
        """Within it, `outputs` of a perceptron are those of each record by itself, and so is what flows back."""
        layers = [m for m in self.module.modules() if type(m) is nn.Linear] if self.widths is not None else []
        for layer in layers:
            layer.forward = partial(_linear_alone, layer)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer in layers:
                del layer.forward

    def zero_gradient(self) -> None:
        """Before a backward pass."""
        self.gradient.zero_()
