"""The model as those who may see it hold it: sums of contributions in, the server's step taken, parameters out.

Without encryption the server has one and sends its parameters. With encryption every client has one and the server
none: it adds ciphertexts, every client opens the sum and takes the same deterministic step.
"""

from __future__ import annotations

import math

import numpy as np

from accountant.errors import InputError
from privfair.federated.exchange import FederatedOptimizer, Memory
from privfair.federated.messages import Model, Parameters
from privfair.mechanisms.entropy import Entropy
from privfair.mechanisms.vector_release import UpdateRelease
from privfair.secure_aggregation import ClientAggregator
from privfair.util import FloatArray


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
    ) -> None:
        """The initial model. `snapshots`: contributions carry the change at a moment within the round as well.

        `average_after`: the mean of the models after so many rounds is the result (Polyak & Juditsky 1992). `least`: no
        sum of fewer contributions is opened.
        """
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

    @property
    def contribution_size(self) -> int:
        """How many numbers a contribution has."""
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
        if step != 1.0:
            opened = opened * step
        parts = np.split(opened, self.contribution_size // self.parameters.size)
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
    ) -> bytes:
        """A client's change, with what else the method averages, weighted and encoded, for the next sum."""
        parts = [delta, *(p for p in (control, snapshot) if p is not None)]
        return self._contribute(np.concatenate(parts), weight, client, round_number)

    def noisy_contribution(
        self, delta: FloatArray, release: UpdateRelease, entropy: Entropy, *, client: int, round_number: int
    ) -> bytes:
        """A client's whole change as integers with noise; its weight is in them."""
        return self._contribute(release.message(delta, entropy).astype(np.float64), 1.0, client, round_number)

    def _contribute(self, values: FloatArray, weight: float, client: int, round_number: int) -> bytes:
        number = self.round + 1
        return self.aggregator.contribute(values, weight, client=client, number=number, round_number=round_number)

    def state(self) -> dict[str, FloatArray]:
        """All of it, for a checkpoint."""
        return {
            "round": np.array([self.round]),
            "parameters": self.parameters,
            "snapshot": self.snapshot,
            "mean": self._mean,
            **{f"memory.{name}": values for name, values in self.memory.items()},
        }

    def restore(self, state: Memory) -> None:
        """Take `state` back."""
        self.round = int(state["round"][0])
        self.parameters, self.snapshot, self._mean = state["parameters"], state["snapshot"], state["mean"]
        self.memory = {n.removeprefix("memory."): v for n, v in state.items() if n.startswith("memory.")}
