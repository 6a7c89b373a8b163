"""Updates: did a record take part in DP-SGD? Did a client, if whole clients are protected?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln

from accountant.empirical import (
    TradeOff,
    many_runs_p_value,
    one_run_accuracy,
    one_run_curve_p_value,
    one_run_epsilon,
)
from privfair.audit.attack import (
    FEATURES,
    Claimed,
    Coins,
    SharedWorlds,
    Subject,
    Worlds,
    WorldsAttack,
    asked,
    backend_of,
    cells_of,
    claimed,
    first_client,
    in_the_open,
    only_trained,
    planned,
    remainder,
    twin,
    worlds,
)
from privfair.channels.updates import UPDATES
from privfair.clients.client import Client, build_losses
from privfair.clients.training import train_locally
from privfair.fairness.tracking import SharedFeatures, SharedScores
from privfair.federated.messages import (
    LocalWork,
    Objective,
    Parameters,
    PrivateWork,
    Request,
    Task,
    Tracked,
    Update,
)
from privfair.mechanisms.entropy import SystemEntropy, stream
from privfair.runs.assembly import Simulation
from privfair.util import FloatArray

FAR = 50.0
STEP = 2e-4  # how far a step moves the parameters, in units of a clipped gradient: too little to change the gradients
APPROXIMATE = 10.0  # times larger steps under a scheme whose sums are approximate
OTHERS = 15  # records in every minibatch beside the attacked one
STRENGTH = 1e4  # λ with which the penalty's gradient is far larger than the clip, and than the task's


def clipped_gradients(client: Client, values: FloatArray, objective: Objective, bound: float) -> FloatArray:
    """(records, parameters): each record's gradient under these parameters, by plain autograd, clipped to the bound."""
    model, data = client.model, client.data
    model.load(values)
    losses = build_losses(objective, data, model)
    rows = []
    for i in range(len(data.y)):
        at = torch.tensor([i])
        found = torch.autograd.grad(losses(at, model.outputs(data.x[at])).sum(), list(model.trainable))
        rows.append(torch.cat([g.reshape(-1) for g in found]).double().numpy())
    gradients = np.array(rows).reshape(len(rows), -1)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return np.asarray(gradients * np.minimum(1.0, bound / np.maximum(norms, 1e-12)))


def loud_parameters(client: Client, objective: Objective, bound: float) -> FloatArray:
    """Parameters under which the gradients of all the client's records are clipped with the most room to spare."""
    rng = stream(0, "audit", "parameters")
    start = client.model.parameters()
    tried = [np.zeros_like(start), start]
    tried += [
        (scale * rng.standard_normal(start.size)).astype(start.dtype) for scale in (0.01, 0.1, 1.0) for _ in range(8)
    ]
    loudness = [np.linalg.norm(clipped_gradients(client, v, objective, 1e9), axis=1).min() for v in tried]
    best = int(np.argmax(np.minimum(loudness, 20.0 * bound)))  # beyond that more is not better: the first stands
    return tried[best]


def beside(own: FloatArray, others: FloatArray) -> FloatArray:
    """The direction of `own` within what is orthogonal to all others."""
    _, sizes, rows = np.linalg.svd(others, full_matrices=False)
    span = rows[sizes > 1e-9 * max(1.0, float(sizes.max(initial=0.0)))]
    rest = own - span.T @ (span @ own)
    norm = float(np.linalg.norm(rest))
    return np.asarray(rest / norm if norm > 1e-12 else np.zeros_like(own))


def change(simulation: Simulation, reply: Update, number: int | None = None) -> FloatArray:
    """The weighted change of parameters in a client's update, opened; `number`: of its sum, by default the next one."""
    total = simulation.server.adder.add([reply.contribution], names=["client 0"])
    opened = simulation.replica.aggregator.open(total, number=number or simulation.replica.round + 1)
    return np.asarray(opened, dtype=np.float64)


@dataclass(frozen=True)
class Steps:
    """The sum of a round's steps along a record's direction, in units of its clipped gradient: k + noise.

    The record is in k of n steps, k ~ Binomial(n, q); the noise has variance n·z².
    """

    steps: int
    rate: float
    multiplier: float
    both_ways: bool  # replaced by a record of the opposite gradient, not left out

    @staticmethod
    def of(work: PrivateWork, replaces: bool, share: float = 1.0) -> Steps:
        """Of planned work; `share`: how much of its bounded gradient can be seen along the direction."""
        return Steps(work.steps, work.sampling_rate, work.noise_multiplier / max(share, 1e-9), replaces)

    def log_ratio(self, seen: float) -> float:
        """log P(seen | present) − log P(seen | absent)."""
        if not self.both_ways:
            return self._log(seen)
        return self._log(seen) - self._log(-seen)

    def _log(self, seen: float) -> float:
        """log Σ_k P(k) exp((2·seen·k − k²)/2nz²): against no record at all."""
        k = np.arange(self.steps + 1)
        if self.rate == 1.0:
            k, weights = k[-1:], np.zeros(1)
        else:
            choose = gammaln(self.steps + 1) - gammaln(k + 1) - gammaln(self.steps - k + 1)
            weights = choose + k * np.log(self.rate) + (self.steps - k) * np.log1p(-self.rate)
        logs = weights + (2.0 * seen * k - k * k) / (2.0 * self.steps * self.multiplier**2)
        top = float(logs.max())
        return top + float(np.log(np.sum(np.exp(logs - top))))


def private_training(subject: Subject, simulation: Simulation, step: float = STEP) -> tuple[Any, PrivateWork]:
    """The planned training and its DP-SGD, in steps of a size that the attacker chooses: sizes are not in the claim."""
    request = planned(subject, simulation, UPDATES)
    work = request.work
    if not isinstance(work, PrivateWork):
        raise TypeError("updates are not private")
    if subject.config.scheme == "ckks":  # its sums are approximate: their error must stay small beside a step
        step *= APPROXIMATE
    divisor = max(1.0, work.sampling_rate * float(subject.release_plan.records.max()))
    rate = step * divisor / work.max_grad_norm
    work = replace(work, divisor=divisor, learning_rate=rate, proximal=0.0, optimizer="sgd")
    gradient = request.gradient
    if gradient is not None:  # made-up records have features of their own
        gradient = replace(gradient, noise=replace(gradient.noise, count=simulation.model.parameters().size))
    return replace(request, work=work, weight=1.0, participation=1.0, correct=False, gradient=gradient), work


class UpdatesAttack(WorldsAttack):
    """A record whose gradient is as large as clipping allows, or no record at all (replaced: the opposite gradient).

    The attacker is the server: it chooses parameters and step size, and sees every client's own update of every round,
    as without encryption or with the key. It looks along the part of the record's gradient that is orthogonal to the
    gradients of the other records in the minibatches. Where masked sums of gradients have noise in shares, it is the
    server with other holders (`SharedWorlds`).
    """

    channel: ClassVar[str] = UPDATES
    about: ClassVar[str] = "the updates of every client in all rounds, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Updates without noise have no ε."""
        if subject.release_plan.client_updates is not None:
            return "whole clients are protected (clients)"
        return "sent without noise: no ε is claimed" if subject.release_plan.updates is None else None

    def __init__(self, subject: Subject) -> None:
        """The clients with and without the record, and the requests of all rounds."""
        rows = np.zeros((OTHERS + 1, FEATURES))
        rows[:OTHERS, 1], rows[OTHERS, 0] = FAR, FAR
        having = subject.records(rows)
        rows[OTHERS, 0] = -FAR
        lacking = subject.records(rows) if subject.replaces else having.take(np.arange(OTHERS))
        self._worlds = worlds(subject, UPDATES, only_trained(having), only_trained(lacking), name=self.channel)
        self._cells = cells_of(self._worlds.present)
        simulation = self._worlds.simulation
        request, work = private_training(subject, simulation)
        objective, bound = self._objective(subject), work.max_grad_norm
        probe = twin(simulation, having.take([OTHERS]))
        values = loud_parameters(probe, objective, bound)
        own, common = (
            clipped_gradients(twin(simulation, having.take([row])), values, objective, bound)[0] for row in (OTHERS, 0)
        )
        other = clipped_gradients(self._worlds.absent, values, objective, bound)[-1] if subject.replaces else -own
        self._direction = beside(own - other, common[None, :])
        share = float((own - other) @ self._direction) / (2 * bound)
        self._steps = [Steps.of(work, subject.replaces, share)]
        self._unit = work.learning_rate * bound * share / work.divisor
        if request.gradient is not None:
            one = replace(work, noise_multiplier=request.gradient.noise.alone.multiplier)
            self._steps.append(Steps.of(one, subject.replaces, share))
            self._unit = request.gradient.noise.steps * share
        request = replace(request, model=Parameters(values), objective=objective)
        self._requests = [replace(request, round=r) for r in range(subject.trainings)]

    def _objective(self, subject: Subject) -> Objective:
        return Task()

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Whoever sees every update of the clients; with noise in shares two adversaries."""
        return self._views("white-box", 5)

    def claim(self) -> Claimed:
        """Of all rounds."""
        return self._worlds.claim(self._requests, self._cells)

    def trial(self, present: Coins) -> FloatArray:
        """Log-likelihood ratio of all updates; their sum along the direction; size; length; less the bystander's.

        All of them for each adversary.
        """
        rows = np.zeros((len(present), len(self._steps), 5))
        for number, request in enumerate(self._requests):
            messages = self._seen(present, request, Update, self._opened)
            for row, message in zip(rows, messages, strict=True):
                for numbers, steps, vector in zip(row, self._steps, message.vectors, strict=True):
                    seen = self._along(vector)
                    numbers += [steps.log_ratio(seen), seen, float(vector @ vector), message.length, 0.0]
                    if number == 0:
                        numbers[4] = seen - (0.0 if message.beside is None else self._along(message.beside))
        return rows.reshape(len(present), -1)

    def _opened(self, reply: Update) -> FloatArray:
        return opened_update(self._worlds, reply)[: self._direction.size]

    def _along(self, moved: FloatArray) -> float:
        return -float(moved @ self._direction) / self._unit


def opened_update(both: Worlds, reply: Update) -> FloatArray:
    """The numbers in a client's update: its weighted change of parameters, or whole numbers with a share of noise."""
    return in_the_open(reply.contribution) if isinstance(both, SharedWorlds) else change(both.simulation, reply)


class TrackedAttack(UpdatesAttack):
    """The same with a fairness penalty so strong that its gradient dominates: it must be clipped, too.

    The server chooses what it broadcasts of all groups' scores: the record's group at one end, the others at the other.
    """

    channel: ClassVar[str] = "penalty"
    about: ClassVar[str] = (
        "the updates of every client under a very strong fairness penalty, with and without one record"
    )

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Only one method has such a penalty."""
        reason = UpdatesAttack.why_not(subject)
        if reason is None and subject.config.federation.method != "mmd_fedavg":
            return "the method has no penalty that follows shared scores"
        return reason

    def _objective(self, subject: Subject) -> Objective:
        client, cells = self._worlds.present, self._worlds.simulation.cells
        ones = np.ones(len(cells))
        own = np.isin(np.arange(len(cells)), self._cells)
        sharing = subject.release_plan.sharing
        low, high = (0.0, 1.0) if sharing is None else (sharing.noise.low, sharing.noise.high)
        if client.embedder is not None:
            plan = client.embedder.plan
            ends = plan.unit.values(np.array([plan.low, plan.high]))[:, : plan.unit.features.count]
            return Tracked(SharedFeatures(plan, STRENGTH, ends[own.astype(int)], ones, ones, float(len(cells))))
        scores = tuple(np.array([high if mine else low]) for mine in own)
        kernel = subject.config.fairness.kernel
        return Tracked(
            SharedScores(kernel, STRENGTH, scores, (np.ones(1),) * len(cells), ones, float(len(cells)), (low, high))
        )


class ClientsAttack(WorldsAttack):
    """All records of one client are exchanged, so that its clipped update is the opposite of what it was.

    The attacker is the server, which chooses the model; it sees every client's own update.
    """

    channel: ClassVar[str] = "clients"
    about: ClassVar[str] = "the whole updates of every client in all rounds, with its records or with others"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Only where whole clients are protected, each by all of its noise, or by shares under masks."""
        if subject.release_plan.client_updates is None:
            return "single records are protected (updates)"
        unmasked = subject.release_plan.noise_is_shared and subject.masks is None
        return "noise comes in shares of several clients" if unmasked else None

    def __init__(self, subject: Subject) -> None:
        """The clients with either set of records, and the requests of all rounds."""
        updates = subject.release_plan.client_updates
        if updates is None:
            raise ValueError("whole clients are not protected")
        end = np.zeros((4, FEATURES))
        end[:, 0] = FAR
        here, there = (only_trained(subject.records(rows)) for rows in (end, -end))
        self._worlds = worlds(subject, self.channel, here, there)
        values = loud_parameters(self._worlds.present, Task(), updates.max_norm)
        work = LocalWork(epochs=1, batch_size=None, learning_rate=100.0 * updates.max_norm)
        request = planned(subject, self._worlds.simulation, UPDATES)
        noise = replace(request.release.noise, count=values.size)  # made-up records have features of their own
        release = replace(request.release, portion=1.0, noise=noise)
        exact = {"work": work, "weight": 1.0, "participation": 1.0, "correct": False, "release": release}
        request = replace(request, model=Parameters(values), **exact)
        self._requests = [replace(request, round=r) for r in range(subject.trainings)]
        one, other = (
            release.whole(_trained(client, self._requests[0], values)).astype(np.float64)
            for client in (self._worlds.present, self._worlds.absent)
        )
        self._direction = (one - other) / np.linalg.norm(one - other)
        self._middle = 0.5 * float((one + other) @ self._direction)

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Whoever sees every update of the clients; with noise in shares two adversaries."""
        return self._views("white-box", 4)

    def claim(self) -> Claimed:
        """Of all rounds."""
        return self._worlds.claim(self._requests, [])

    def trial(self, present: Coins) -> FloatArray:
        """All updates along the direction in which the two differ; the first; their length; less the bystander's.

        All of them for each adversary.
        """
        rows = np.zeros((len(present), len(self.views), 4))
        for number, request in enumerate(self._requests):
            messages = self._seen(present, request, Update, lambda reply: opened_update(self._worlds, reply))
            for row, message in zip(rows, messages, strict=True):
                for numbers, vector in zip(row, message.vectors, strict=True):
                    seen = self._along(vector)
                    numbers += [seen, 0.0, message.length, 0.0]
                    if number == 0:
                        beside = 0.0 if message.beside is None else self._along(message.beside)
                        numbers[1], numbers[3] = seen, seen - beside
        return rows.reshape(len(present), -1)

    def _along(self, vector: FloatArray) -> float:
        return float(vector @ self._direction) - self._middle


def _trained(client: Client, request: Any, values: FloatArray) -> FloatArray:
    """What training without noise changes."""
    trained = train_locally(request, values, client.data, client.model, stream(0, "audit", "training"), None)
    return np.asarray(trained.parameters - values, dtype=np.float64)


# ---- One training run, many canaries: for each a coin decides whether it is in, and the attacker guesses the coins.

CANARIES = 128
CANARY_DISTANCE = 20.0
CANARY_STEP = 2e-3
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
        self._all = subject.records(CANARY_DISTANCE * np.eye(CANARIES))
        everyone, shares = only_trained(self._all), subject.shares(UPDATES)
        self._shared: SharedWorlds | None = None
        if shares > 1:
            one = replace(subject, clients=subject.clients[:1])
            self._shared = SharedWorlds(one, self.channel, everyone, everyone, shares)
            self._simulation = self._shared.simulation
        else:
            self._simulation = subject.simulation([everyone], self.channel)
        self._training, self._work = private_training(subject, self._simulation, CANARY_STEP)
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
