from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from accountant.errors import InputError
from privfair.clients.training import require_private_model
from tests.clients.setting import FEATURES, perceptron


class Custom(nn.Module):
    """A layer with a parameter of its own, and perhaps something that goes wrong."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.factors = nn.Parameter(torch.ones(FEATURES))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x * self.factors
        return self.dropout(result) if self.fault == "dropout" else result


class Around(nn.Module):
    """A linear layer used in a way of which Opacus learns nothing."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.inner = nn.Linear(FEATURES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.fault:
            case "weight":
                return functional.linear(x, self.inner.weight)
            case "mean":
                return self.inner(x - x.mean(dim=0))
            case "detached mean":
                return self.inner(x - x.mean(dim=0).detach())
            case "dimension":
                return self.inner(x.unsqueeze(0))[0]
            case "squeeze":
                return self.inner(x).squeeze()
            case _:
                return torch.cat([self.inner(x), x], dim=1)


@pytest.mark.parametrize(
    "module",
    [
        perceptron(nn.LayerNorm(5), nn.Dropout(0.5)),
        nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 1)),
        nn.Sequential(Custom(), nn.Linear(FEATURES, 1)),
        nn.Linear(FEATURES, 1),
    ],
)
def test_accepted_and_left_as_it_was(module: nn.Module) -> None:
    module.eval()
    state = {name: p.clone() for name, p in module.state_dict().items()}
    random = torch.get_rng_state()
    require_private_model(module, FEATURES)
    assert not any(m.training or m._forward_hooks for m in module.modules())
    assert all(p.grad is None and not vars(p) for p in module.parameters())
    assert all(torch.equal(p, state[name]) for name, p in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


class OwnNorm(nn.BatchNorm1d):
    pass


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(5),
        nn.BatchNorm1d(5, track_running_stats=False),
        nn.BatchNorm1d(5, affine=False, track_running_stats=False),
        OwnNorm(5, track_running_stats=False),
    ],
)
def test_batch_norm_is_refused_in_opacus_words(norm: nn.Module) -> None:
    with pytest.raises(InputError) as error:
        require_private_model(perceptron(norm))
    text = str(error.value)
    assert text.startswith(
        f"model must be made of layers that can be trained privately; found '{type(norm).__name__} 1'. "
        "Opacus: BatchNorm cannot support training with differential privacy. The reason for it is that BatchNorm "
        "makes each sample's normalized value depend on its peers in a batch"
    )
    assert text.endswith("are all privacy-safe since they don't have this property.")


@pytest.mark.parametrize(("layer", "words"), [(nn.LSTM(FEATURES, 2), "DPLSTM"), (nn.GRU(FEATURES, 2), "GRU class")])
def test_recurrent_layers_are_refused_in_opacus_words(layer: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=f"found '{type(layer).__name__}'. Opacus: We do not support.*{words}"):
        require_private_model(layer)


def test_buffers_are_refused() -> None:
    module = Custom()
    module.register_buffer("seen", torch.zeros(1))
    with pytest.raises(InputError, match=r"found 'Custom'\. Opacus: A trainable layer with buffers is not supported\."):
        require_private_model(module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Around("mean"), "model must treat every record by itself; found 'an output that depends on the other rec"),
        (Around("detached mean"), "model must treat every record by itself; found 'an output that depends on the o"),
        (Around("weight"), "model must use its parameters through the layers that hold them; found"),
        (Around("dimension"), "layer Linear must see its input with one row per record, 3; found 1. Keep the rec"),
        (Around("squeeze"), "model must give one number for each record; found 'shape ()'."),
        (Around("wide"), "model must give one number for each record; found 'shape (1, 5)'."),
        (nn.Linear(3, 1), "model must take 4 features for each of 1 records; found 'mat1 and mat2 shapes cannot"),
        (
            nn.Sequential(Custom("dropout"), nn.Linear(FEATURES, 1)),
            "model must have gradients that Opacus can compute record by record; found",
        ),
    ],
)
def test_refused_after_a_trial(module: nn.Module, message: str) -> None:
    with pytest.raises(InputError) as error:
        require_private_model(module, FEATURES)
    assert str(error.value).startswith(message)
    assert not any(m._forward_hooks for m in module.modules())


def test_opacus_is_imported_only_when_needed_and_leaves_logging_alone() -> None:
    code = (
        "import logging, sys\n"
        "import privfair.clients.training, privfair.clients.training, privfair.clients.training\n"
        "assert 'opacus' not in sys.modules\n"
        "import privfair.clients.opacus_engine\n"
        "assert 'opacus' in sys.modules\n"
        "assert not logging.root.handlers\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
