"""One communication round, top to bottom. Read this file first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.interfaces import Algorithm, Ask, Backend, FederatedOptimizer, ServerState, expect
from privfair.messages import Counts, CountsRequest, LocalWork, Reply, Request, TrainRequest, Update
from privfair.randomness import stream


@dataclass(frozen=True)
class Plan:
    """What is the same in every round; the server's, not the clients'."""

    seed: int
    epochs: int
    batch_size: int | None
    learning_rate: float
    learning_rate_decay: float  # per round
    clients_per_round: int | None  # None: all

    def work(self, round_number: int, proximal: float) -> LocalWork:
        """What clients do in this round."""
        rate = self.learning_rate * self.learning_rate_decay**round_number
        return LocalWork(self.epochs, self.batch_size, rate, proximal)

    def cohort(self, round_number: int, clients: int) -> list[int]:
        """Who trains in this round: a uniform draw without replacement."""
        if self.clients_per_round is None or self.clients_per_round >= clients:
            return list(range(clients))
        rng = stream(self.seed, "cohort", round_number)
        return sorted(int(k) for k in rng.choice(clients, self.clients_per_round, replace=False))


def exchange(backend: Backend) -> Ask:
    """The one door between server and clients: requests go out, replies come back; updates must be finite."""

    def ask(clients: Sequence[int], request: Callable[[int], Request]) -> list[Reply]:
        replies = backend.exchange(clients, request)
        for client, reply in zip(clients, replies, strict=True):
            if isinstance(reply, Update) and not np.all(np.isfinite(reply.delta)):
                raise InputError(
                    f"update of client {client}", "must be finite", "nan or inf", "Try a smaller learning rate."
                )
        return replies

    return ask


def begin(backend: Backend, algorithm: Algorithm, optimizer: FederatedOptimizer, parameters: FloatArray) -> ServerState:
    """The state before the first round: clients tell their counts."""
    counts = expect(Counts, exchange(backend)(range(backend.clients), lambda _: CountsRequest()))
    records = np.array([c.records for c in counts])
    cells = np.stack([c.cells for c in counts])
    if not records.sum():
        raise InputError("data", "must have training records", 0, "Lower data.test_fraction, or bring more records.")
    return ServerState(0, parameters, records, cells, algorithm.start(records), optimizer.start(parameters))


def run_round(
    state: ServerState, backend: Backend, algorithm: Algorithm, optimizer: FederatedOptimizer, plan: Plan
) -> ServerState:
    """One round: 1 share what fairness needs, 2 choose who trains, 3 train locally, 4 aggregate."""
    ask = exchange(backend)

    # 1 ---- share: all clients, whether they train or not
    objective, memory = algorithm.objective(state, ask)

    # 2 ---- choose who trains
    cohort = plan.cohort(state.round, backend.clients)

    # 3 ---- train locally
    request = TrainRequest(
        round=state.round,
        parameters=state.parameters,
        objective=objective,
        work=plan.work(state.round, optimizer.proximal),
        correction=state.optimizer["control"] if optimizer.uses_control else None,
        snapshot_at=algorithm.snapshot_at(state),
    )
    updates = dict(zip(cohort, expect(Update, ask(cohort, lambda _: request)), strict=True))

    # 4 ---- aggregate: a cohort of S of K clients stands for all with weights K/S, which is unbiased
    weights = algorithm.weights(state, memory)
    blow_up = backend.clients / len(cohort)
    delta = sum((blow_up * weights[k] * update.delta for k, update in updates.items()), np.zeros_like(state.parameters))
    control = None
    if optimizer.uses_control:  # the server's control variate is Σ_k w_k c_k; only those who trained changed theirs
        changes = [weights[k] * u.control_delta for k, u in updates.items() if u.control_delta is not None]
        control = sum(changes, np.zeros_like(state.parameters))
    parameters, optimizer_memory = optimizer.step(state.parameters, delta, control, state.optimizer)
    memory = algorithm.after(state, memory, parameters, updates, ask)
    return replace(state, round=state.round + 1, parameters=parameters, algorithm=memory, optimizer=optimizer_memory)
