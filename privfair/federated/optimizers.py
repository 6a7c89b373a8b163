"""Federated optimisers: how the weighted mean Δ of the clients' updates moves the model.

Fairness tracking is a local objective, so it works with each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accountant.errors import InputError
from privfair.federated.exchange import FederatedOptimizer, Memory
from privfair.util import FloatArray


@dataclass(frozen=True)
class FedAvg:
    """θ ← θ + η_g·Δ (McMahan et al. 2017). With `proximal` μ > 0 clients are pulled to θᵗ: FedProx (Li et al. 2020)."""

    server_learning_rate: float = 1.0
    proximal: float = 0.0
    uses_control: bool = False

    def start(self, parameters: FloatArray) -> Memory:
        """Nothing, or SCAFFOLD's control variate c = 0."""
        return {"control": np.zeros_like(parameters)} if self.uses_control else {}

    def step(
        self, parameters: FloatArray, delta: FloatArray, control_delta: FloatArray | None, memory: Memory
    ) -> tuple[FloatArray, Memory]:
        """The plain step. SCAFFOLD (Karimireddy et al. 2020, algorithm 1) also moves c by the clients' mean change."""
        if control_delta is not None:
            memory = {"control": memory["control"] + control_delta}
        return _typed(parameters + self.server_learning_rate * delta, parameters), memory


@dataclass(frozen=True)
class FedAvgM:
    """m ← βm + Δ, θ ← θ + η_g·m (Hsu, Qi & Brown 2019, arXiv 1909.06335v1)."""

    server_learning_rate: float = 1.0
    momentum: float = 0.9
    proximal: float = 0.0
    uses_control: bool = False

    def start(self, parameters: FloatArray) -> Memory:
        """m = 0."""
        return {"momentum": np.zeros_like(parameters)}

    def step(
        self, parameters: FloatArray, delta: FloatArray, control_delta: FloatArray | None, memory: Memory
    ) -> tuple[FloatArray, Memory]:
        """See the class."""
        m = _typed(self.momentum * memory["momentum"] + delta, parameters)
        return _typed(parameters + self.server_learning_rate * m, parameters), {"momentum": m}


@dataclass(frozen=True)
class FedAdam:
    """m ← β₁m + (1−β₁)Δ, v ← β₂v + (1−β₂)Δ², θ ← θ + η_g·m/(√v + τ).

    Reddi et al. 2021, arXiv 2003.00295v5, algorithm 2. v starts at τ²; there is no bias correction, as in the paper.
    """

    server_learning_rate: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    proximal: float = 0.0
    uses_control: bool = False

    def start(self, parameters: FloatArray) -> Memory:
        """m = 0, v = τ²."""
        return {"momentum": np.zeros_like(parameters), "variance": np.full_like(parameters, self.tau**2)}

    def step(
        self, parameters: FloatArray, delta: FloatArray, control_delta: FloatArray | None, memory: Memory
    ) -> tuple[FloatArray, Memory]:
        """See the class."""
        m = _typed(self.beta1 * memory["momentum"] + (1 - self.beta1) * delta, parameters)
        v = _typed(self.beta2 * memory["variance"] + (1 - self.beta2) * np.square(delta), parameters)
        step = self.server_learning_rate * m / (np.sqrt(v) + self.tau)
        return _typed(parameters + step, parameters), {"momentum": m, "variance": v}


NAMES = ("fedavg", "fedprox", "scaffold", "fedadam", "fedavgm")


def optimizer_by_name(name: str, server_learning_rate: float | None, proximal: float) -> FederatedOptimizer:
    """The optimiser of this name; without a server learning rate each has its own default."""
    match name:
        case "fedavg":
            return FedAvg(server_learning_rate or 1.0)
        case "fedprox":
            return FedAvg(server_learning_rate or 1.0, proximal=proximal)
        case "scaffold":
            return FedAvg(server_learning_rate or 1.0, uses_control=True)
        case "fedavgm":
            return FedAvgM(server_learning_rate or 1.0)
        case "fedadam":
            return FedAdam(server_learning_rate or 0.03)
    raise InputError("federation.optimizer", f"must be one of {', '.join(NAMES)}", name)


def _typed(values: FloatArray, like: FloatArray) -> FloatArray:
    """In the type of the parameters, whatever numpy's promotion made of it."""
    return values.astype(like.dtype, copy=False)
