"""Many models at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from privfair.engines.batched.networks import Functional, Network, Networks, Perceptron
from privfair.models import FlatModel, build_module
from tests.backends import modules


def flat(module: nn.Module) -> FlatModel:
    return FlatModel(module.double())


PERCEPTRONS = [
    nn.Linear(4, 1),
    nn.Sequential(nn.Linear(4, 1)),
    nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)),
    nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1)),
]


@pytest.mark.parametrize("module", [*PERCEPTRONS, modules.tanh(4), modules.Gated(4)], ids=str)
def test_outputs_and_gradients_are_those_of_each_module_alone(module: nn.Module) -> None:
    model = flat(module)
    network = Networks().of(model, 4)
    assert isinstance(network, Perceptron if module in PERCEPTRONS else Functional)
    torch.manual_seed(0)
    parameters = torch.randn(3, model.flat.numel(), dtype=torch.float64)
    x, pull = torch.randn(3, 7, 4, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    outputs, backward = network.forward(parameters, x)
    gradient = backward(pull)
    assert torch.equal(outputs, network.outputs(parameters, x))
    for j in range(3):
        model.load(parameters[j].numpy())
        model.zero_gradient()
        alone = model.outputs(x[j])
        (alone * pull[j]).sum().backward()
        assert torch.allclose(outputs[j], alone, atol=1e-12)
        assert torch.allclose(gradient[j], model.gradient, atol=1e-12)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)),
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1, bias=False)),
        nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1)),
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1), nn.ReLU()),
    ],
    ids=str,
)
def test_what_only_looks_like_a_perceptron_is_none(module: nn.Module) -> None:
    network = Networks().of(flat(module), 4)
    assert isinstance(network, Functional)


@pytest.mark.parametrize("module", [modules.dropout(4), modules.Branching(4)], ids=str)
def test_what_cannot_be_stacked_is_left_alone(module: nn.Module) -> None:
    state = torch.default_generator.get_state()
    assert Networks().of(flat(module), 4) is None
    assert torch.equal(state, torch.default_generator.get_state())


def test_modules_of_one_form_share_a_network_and_others_do_not() -> None:
    networks = Networks()

    def of(name: str, seed: int) -> Network | None:
        module = build_module(f"tests.backends.modules:{name}", 4, (), seed, torch.float64)
        return networks.of(FlatModel(module), 4)

    assert of("tanh", 0) is of("tanh", 1)
    assert of("Gated", 0) is not of("Gated", 1)  # their untrained parameters differ


def test_threads_do_not_get_into_each_others_parameters() -> None:
    """functional_call puts parameters into the module it is given: two threads with one module would mix theirs."""
    model = flat(modules.tanh(4))
    network = Networks().of(model, 4)
    assert isinstance(network, Functional)
    torch.manual_seed(0)
    work = [(torch.randn(2, model.flat.numel()).double(), torch.randn(2, 5, 4).double()) for _ in range(400)]
    alone = [network.outputs(*one) for one in work]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda one: network.outputs(*one), work))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
