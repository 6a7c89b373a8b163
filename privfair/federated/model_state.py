"""Federated optimisers: how the weighted mean Δ of the clients' updates moves the model.

Fairness tracking is a local objective, so it works with each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.fairness.tracking import Controller
from privfair.federated.exchange import FederatedOptimizer, Memory
from privfair.federated.messages import Model, Parameters
from privfair.secure_aggregation import ClientAggregator
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


# ---- The model as those who may see it hold it: sums of contributions in, the server's step taken, parameters out.
#
# Without encryption the server has one and sends its parameters. With encryption every client has one and the server
# none: it adds ciphertexts, every client opens the sum and takes the same deterministic step.


STRENGTHS = "controller.strengths"  # in the state of a replica: λ of the rounds so far


class Replica:
    """Parameters, what the federated optimiser remembers, and how many sums went in."""

    def __init__(
        self,
        parameters: FloatArray,
        optimizer: FederatedOptimizer,
        aggregator: ClientAggregator,
        *,
        snapshots: bool = False,
        average_after: int | None = None,
        least: int = 1,
        features: int = 0,
        controller: Controller | None = None,
    ) -> None:
        """The initial model. `snapshots`: contributions carry the change at a moment within the round as well.

        `average_after`: the mean of the models after so many rounds is the result (Polyak & Juditsky 1992). `least`: no
        sum of fewer contributions is opened. `features`: how many numbers stand behind every change for the next round
        (`TrainRequest.features`); the last sum of them is kept. `controller`: what λ is, where it follows a target;
        whoever opens sums of features tells it.
        """
        self.controller = controller
        self.round = 0
        self.parameters = parameters
        self.memory: Memory = optimizer.start(parameters)
        self.snapshot = parameters
        self._average_after = average_after
        self._mean: FloatArray = np.zeros(parameters.size)  # of the models so far that are averaged
        self.aggregator = aggregator
        self._optimizer = optimizer
        self._snapshots = snapshots
        self._least = least
        self._features = features
        self.features: FloatArray = np.zeros(features)  # behind the updates of the sum whose number is `round`

    @property
    def opened(self) -> dict[str, int]:
        """How many sums went in: of updates, and, where λ follows them, of features."""
        return {"sums": self.round, **({} if self.controller is None else {"features": self.controller.round})}

    @property
    def contribution_size(self) -> int:
        """How many numbers a contribution has."""
        return self._change_size + self._features

    @property
    def _change_size(self) -> int:
        return self.parameters.size * (1 + self._optimizer.uses_control + self._snapshots)

    def message(self) -> Parameters:
        """The model as the server sends it where it may see it."""
        control = self.memory["control"] if self._optimizer.uses_control else None
        return Parameters(self.parameters, control, self.snapshot if self._snapshots else None)

    def result_at(self, model: Model) -> FloatArray:
        """The parameters that a run which ends with this message delivers."""
        if isinstance(model, Parameters):
            return model.values
        self.at(model)
        return self.result

    @property
    def result(self) -> FloatArray:
        """The parameters that the run would deliver now: the last ones, or the mean of the last rounds'."""
        averaging = self._average_after is not None and self.round > self._average_after
        return self._mean.astype(self.parameters.dtype) if averaging else self.parameters

    def at(self, model: Model) -> Parameters:
        """What a message means; a new sum is opened and its step taken."""
        if isinstance(model, Parameters):
            return model
        if model.round == self.round + 1:
            self.advance(model.total, model.share, model.step)
        if model.round != self.round:
            raise InputError("model", f"must be of round {self.round} or the next", model.round)
        return self.message()

    def advance(self, total: bytes, share: float = 1.0, step: float = 1.0) -> None:
        """Take the step of one opened sum; if it cannot be opened or is not finite, nothing changes.

        `share`: how much of the asked-for weight arrived; the updates' mean is their sum over it. Control variates are
        not divided: c is the weighted sum of the clients' own, and those who were absent kept theirs. `step`: what 1 in
        the sum stands for.
        """
        if not 0 < share <= 1:
            raise InputError("share of the weights", "must be in (0, 1]", share)
        if not 0 < step < math.inf:
            raise InputError("step of the sum", "must be a number above 0", step)
        opened = self.aggregator.open(total, number=self.round + 1, least=self._least)
        if opened.size != self.contribution_size:
            raise InputError("sum of updates", f"must have {self.contribution_size} values", opened.size)
        if not np.all(np.isfinite(opened)):
            raise InputError("sum of updates", "must be finite", "nan or inf", "Try a smaller learning rate.")
        opened, self.features = opened[: self._change_size], opened[self._change_size :]
        if step != 1.0:
            opened = opened * step
        parts = np.split(opened, self._change_size // self.parameters.size)
        control = parts[1].astype(self.parameters.dtype) if self._optimizer.uses_control else None
        parts = [(part / share).astype(self.parameters.dtype) for part in parts]
        stepped, memory = self._optimizer.step(self.parameters, parts[0], control, self.memory)
        if self._snapshots:
            self.snapshot = self.parameters + parts[-1]
        self.parameters, self.memory, self.round = stepped, memory, self.round + 1
        if self._average_after is not None and self.round > self._average_after:
            self._mean = self._mean + (stepped - self._mean) / (self.round - self._average_after)

    def contribution(
        self,
        delta: FloatArray,
        control: FloatArray | None,
        snapshot: FloatArray | None,
        weight: float,
        *,
        client: int,
        round_number: int,
        features: FloatArray | None = None,
    ) -> bytes:
        """A client's change, with what else the method averages, weighted and encoded, for the next sum."""
        parts = [delta, *(p for p in (control, snapshot) if p is not None)]
        return self._contribute(np.concatenate(parts), weight, client, round_number, features)

    def noisy_contribution(
        self, message: NDArray[np.int64], *, client: int, round_number: int, features: FloatArray | None = None
    ) -> bytes:
        """What a client adds as whole numbers, with noise, encoded for the next sum; its weight is in them."""
        return self._contribute(message.astype(np.float64), 1.0, client, round_number, features)

    def _contribute(
        self, values: FloatArray, weight: float, client: int, round_number: int, features: FloatArray | None
    ) -> bytes:
        """`features`: the whole numbers behind the change; None: zeros, where messages have a place for them."""
        if self._features:
            behind = np.zeros(self._features) if features is None else features
            values = np.concatenate([values.astype(np.float64), behind])
        number = self.round + 1
        return self.aggregator.contribute(values, weight, client=client, number=number, round_number=round_number)

    def state(self) -> dict[str, FloatArray]:
        """All of it, for a checkpoint."""
        return {
            "round": np.array([self.round]),
            "parameters": self.parameters,
            "snapshot": self.snapshot,
            "mean": self._mean,
            **({"features": self.features} if self._features else {}),
            **({f"controller.{n}": v for n, v in self.controller.state().items()} if self.controller else {}),
            **{f"memory.{name}": values for name, values in self.memory.items()},
        }

    def restore(self, state: Memory) -> None:
        """Take `state` back."""
        self.round = int(state["round"][0])
        self.parameters, self.snapshot, self._mean = state["parameters"], state["snapshot"], state["mean"]
        self.features = state.get("features", self.features)
        self.memory = {n.removeprefix("memory."): v for n, v in state.items() if n.startswith("memory.")}
        if self.controller is not None:
            part = {n.removeprefix("controller."): v for n, v in state.items() if n.startswith("controller.")}
            self.controller.restore(part)
