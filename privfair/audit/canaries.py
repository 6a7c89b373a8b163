"""One training run, many canaries: for each a coin decides whether it is in, and the attacker guesses the coins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.empirical import (
    TradeOff,
    many_runs_p_value,
    one_run_accuracy,
    one_run_curve_p_value,
    one_run_epsilon,
)
from privfair.audit.attack import (
    Claimed,
    SharedWorlds,
    Subject,
    asked,
    backend_of,
    claimed,
    first_client,
    in_the_open,
    only_trained,
    remainder,
    twin,
)
from privfair.audit.updates import change, clipped_gradients, loud_parameters, private_training
from privfair.channels.updates import UPDATES
from privfair.federated.messages import Parameters, Request, Task, Update
from privfair.mechanisms.entropy import SystemEntropy
from privfair.util import FloatArray

CANARIES = 128
FAR = 20.0
STEP = 2e-3
SHARES = (1.0, 0.5, 0.25, 0.125)  # of the canaries that are guessed; the attacker abstains on the others


@dataclass(frozen=True)
class Guessed:
    """One run: which canaries were in, and a score of how much each seems to be."""

    coins: NDArray[np.bool_]
    white: FloatArray
    black: FloatArray

    def right(self, scores: FloatArray, guesses: int) -> int:
        """How many guesses are right if the higher half of them are said to be in and the lower half out."""
        order = np.argsort(scores, kind="stable")
        half = guesses // 2
        return int(np.sum(~self.coins[order[:half]]) + np.sum(self.coins[order[len(order) - half :]]))


VIEWS = {"white": "white-box", "black": "black-box"}


@dataclass(frozen=True)
class OneRunResult:
    """The ε that the guesses of all counted runs refute, and whether the trade-off curve allows them."""

    canaries: int
    guesses: int
    epsilon: float
    p_value: float
    """How likely so many right guesses are at most under the claim's trade-off curve, of all tests together."""


class CanariesAttack:
    """Canaries with features of their own, so that their gradients are nearly orthogonal.

    Where masked sums of gradients have noise in shares, a round's step is on the sum of the client's gradients and the
    honest holders' noise (`SharedWorlds`).
    """

    channel: ClassVar[str] = "canaries"
    about: ClassVar[str] = f"{CANARIES} canaries in one training run of one client, each in or out by a coin"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Updates without noise have no ε; and coins decide between in and out, not between two records."""
        if subject.release_plan.client_updates is not None:
            return "whole clients are protected (clients)"
        if subject.release_plan.updates is None:
            return "sent without noise: no ε is claimed"
        return "counts are public: neighbours have a record replaced, not left out" if subject.replaces else None

    def __init__(self, subject: Subject) -> None:
        """The client with all canaries."""
        self._all = subject.records(FAR * np.eye(CANARIES))
        everyone, shares = only_trained(self._all), subject.shares(UPDATES)
        self._shared: SharedWorlds | None = None
        if shares > 1:
            one = replace(subject, clients=subject.clients[:1])
            self._shared = SharedWorlds(one, self.channel, everyone, everyone, shares)
            self._simulation = self._shared.simulation
        else:
            self._simulation = subject.simulation([everyone], self.channel)
        self._training, self._work = private_training(subject, self._simulation, STEP)
        self._everyone = first_client(self._simulation)
        self._rounds = subject.trainings
        start = self._everyone.model.parameters()
        some = twin(self._simulation, self._all.take(np.arange(16)))
        self._start = loud_parameters(some, Task(), self._work.max_grad_norm).astype(start.dtype)
        self._cells = [int(c) for c in np.flatnonzero(self._everyone.data.membership[0])]

    def _request(self, number: int, values: FloatArray) -> Request:
        request: Request = replace(self._training, round=number, model=Parameters(values))
        return request

    def claim(self) -> Claimed:
        """Of one run."""
        asked(self._simulation, [self._request(r, self._start) for r in range(self._rounds)])
        return claimed(self._simulation, self._cells)

    def run(self) -> Guessed:
        """One training run with fresh coins: every round starts where the one before ended."""
        coins = SystemEntropy().poisson_mask(CANARIES, 0.5)
        there, honest = [twin(self._simulation, self._all.take(coins))], self._shared
        backend = backend_of(self._simulation, there if honest is None else [*there, *honest.others(0)])
        values, white = self._start, np.zeros(CANARIES)
        gradients = clipped_gradients(self._everyone, values, Task(), self._work.max_grad_norm)
        for number in range(self._rounds):
            request = self._request(number, values)
            moved = self._moved(backend.exchange(range(backend.clients), lambda _, one=request: one))  # type: ignore[misc]
            white -= gradients @ moved
            values = (values + moved).astype(values.dtype)
        return Guessed(coins, white, -(self._losses(values) - self._losses(self._start)))

    def _moved(self, replies: Sequence[object]) -> FloatArray:
        """How far a round's update moves the parameters."""
        updates = [reply for reply in replies if isinstance(reply, Update)]
        if self._shared is None:
            return change(self._simulation, updates[0])
        total = remainder(np.asarray(sum(in_the_open(reply.contribution) for reply in updates)))
        step = self._work.learning_rate * self._work.max_grad_norm / self._work.divisor
        return np.asarray(total * step / self._training.gradient.noise.steps)

    def _losses(self, values: FloatArray) -> FloatArray:
        model, data = self._everyone.model, self._everyone.data
        model.load(values)
        with torch.no_grad():
            return np.asarray(data.task.losses(model.evaluate(data.x), data.y).double().numpy())

    def close(self) -> None:
        """Close the ledger."""
        self._simulation.close()


def one_run_result(runs: list[Guessed], view: str, claim: TradeOff, delta: float, level: float) -> OneRunResult:
    """What the guesses of all runs show.

    ε: how many to guess is chosen on the first third of the runs, and the others are counted. The trade-off curve is
    tested on all runs, for every number of guesses: as one run with many canaries, and as many runs.
    """
    tests = 3  # ε, one run, many runs
    spare = len(runs) // 3
    numbers = [2 * round(share * CANARIES / 2) for share in SHARES]
    rights = {guesses: [run.right(getattr(run, view), guesses) for run in runs] for guesses in numbers}

    def refuted(guesses: int, some: slice) -> float:
        seen = rights[guesses][some]
        return one_run_epsilon(CANARIES * len(seen), guesses * len(seen), sum(seen), delta, level / tests)

    guesses = max(numbers, key=lambda g: refuted(g, slice(spare))) if spare else numbers[1]
    counted = len(runs) - spare
    together = min(
        one_run_curve_p_value(CANARIES * len(runs), g * len(runs), sum(rights[g]), claim) for g in numbers
    ) * len(numbers)
    each = many_runs_p_value([(np.array(rights[g]) / g, one_run_accuracy(CANARIES, g, claim)) for g in numbers])
    return OneRunResult(
        canaries=CANARIES * counted,
        guesses=guesses * counted,
        epsilon=refuted(guesses, slice(spare, None)),
        p_value=min(1.0, tests * min(together, each)),
    )
