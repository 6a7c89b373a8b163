"""One communication round, top to bottom. Read this file first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from accountant.errors import InputError
from privfair.aggregation import ServerAggregator
from privfair.interfaces import Algorithm, Backend, FederatedOptimizer, ServerState, expect
from privfair.messages import (
    Counts,
    CountsRequest,
    LocalOptimizer,
    LocalWork,
    Model,
    Sealed,
    TrainRequest,
    Update,
)
from privfair.randomness import stream
from privfair.replica import Replica
from privfair.terms import Terms


@dataclass(frozen=True)
class Plan:
    """What is the same in every round; the server's, not the clients'."""

    seed: int
    epochs: int
    batch_size: int | None
    learning_rate: float
    learning_rate_decay: float  # per round
    clients_per_round: int | None  # None: all
    local_optimizer: LocalOptimizer = "sgd"

    def work(self, round_number: int, proximal: float) -> LocalWork:
        """What clients do in this round."""
        rate = self.learning_rate * self.learning_rate_decay**round_number
        return LocalWork(self.epochs, self.batch_size, rate, proximal, self.local_optimizer)

    def cohort(self, round_number: int, clients: int) -> list[int]:
        """Who trains in this round: a uniform draw without replacement."""
        if self.clients_per_round is None or self.clients_per_round >= clients:
            return list(range(clients))
        rng = stream(self.seed, "cohort", round_number)
        return sorted(int(k) for k in rng.choice(clients, self.clients_per_round, replace=False))


class Negotiator(Protocol):
    """Turns counts into terms."""

    @property
    def request(self) -> CountsRequest:
        """What is asked before the first round."""
        ...

    def settle(self, counts: list[Counts]) -> Terms:
        """The terms of the run, by a public rule."""
        ...


class ExactCounts:
    """No privacy: clients tell their counts as they are, and everybody takes part."""

    request = CountsRequest()

    def settle(self, counts: list[Counts]) -> Terms:
        """The counts."""
        return Terms(np.array([c.records for c in counts]), np.stack([c.cells for c in counts]))


class Keeper(Protocol):
    """Where the model is kept: at the server, or at the clients alone."""

    def first(self) -> Model:
        """The model before the first round, as a message."""
        ...

    def step(self, state: ServerState, total: bytes) -> Model:
        """The next model, from the sum of the weighted updates."""
        ...


@dataclass(frozen=True)
class KeptByServer:
    """The server opens the sum and takes the step."""

    replica: Replica

    def first(self) -> Model:
        """The parameters."""
        return self.replica.message()

    def step(self, state: ServerState, total: bytes) -> Model:
        """The new parameters."""
        self.replica.advance(total)
        return self.replica.message()


class KeptByClients:
    """The server passes the sum on, which it cannot open."""

    def first(self) -> Model:
        """Nothing: clients know the initial model."""
        return Sealed(0, b"")

    def step(self, state: ServerState, total: bytes) -> Model:
        """The sum, for the clients to open."""
        return Sealed(state.model.round + 1 if isinstance(state.model, Sealed) else 1, total)


@dataclass(frozen=True)
class Server:
    """All that the server works with."""

    backend: Backend
    algorithm: Algorithm
    optimizer: FederatedOptimizer
    plan: Plan
    adder: ServerAggregator
    keeper: Keeper
    negotiator: Negotiator


def begin(server: Server) -> ServerState:
    """The state before the first round: clients tell their counts, exact or noisy; from them follow the terms."""
    everyone = range(server.backend.clients)
    counts = expect(Counts, server.backend.exchange(everyone, lambda _: server.negotiator.request))
    terms = server.negotiator.settle(counts)
    if not terms.records.sum() > 0:
        raise InputError("data", "must have training records", 0, "Lower data.test_fraction, or bring more records.")
    return ServerState(0, server.keeper.first(), terms, server.algorithm.start(terms))


def run_round(state: ServerState, server: Server) -> ServerState:
    """One round: 1 share what fairness needs, 2 choose who trains, 3 train locally, 4 aggregate."""
    backend, algorithm, optimizer, terms = server.backend, server.algorithm, server.optimizer, state.terms
    ask = backend.exchange  # the one door between server and clients

    # 1 ---- share: all clients that take part, whether they train or not
    objective, memory = algorithm.objective(state, ask)

    # 2 ---- choose who trains; a cohort of S of K clients stands for all with weights K/S, which is unbiased
    cohort = server.plan.cohort(state.round, backend.clients)
    participation = len(cohort) / backend.clients
    weights = algorithm.weights(state, memory) / participation
    trainers = [k for k in cohort if terms.records[k] > 0]

    # 3 ---- train locally: a client contributes its weight times its change, so that the server need only add
    work = server.plan.work(state.round, optimizer.proximal)
    snapshot_at = algorithm.snapshot_at(state)

    def request(client: int) -> TrainRequest:
        return TrainRequest(
            round=state.round,
            model=state.model,
            objective=objective,
            work=terms.work(client, work),
            weight=float(weights[client]),
            participation=participation,
            correct=optimizer.uses_control,
            snapshot_at=snapshot_at,
        )

    updates = expect(Update, ask(trainers, request))

    # 4 ---- aggregate
    model = state.model
    if trainers:
        total = server.adder.add([u.contribution for u in updates], names=[f"client {k}" for k in trainers])
        model = server.keeper.step(state, total)
    memory = algorithm.after(state, memory, model, ask)
    return replace(state, round=state.round + 1, model=model, algorithm=memory)
