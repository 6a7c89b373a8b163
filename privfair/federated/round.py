"""One communication round, top to bottom. Read this file first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, Refused
from privfair.fairness.tracking import step_share
from privfair.federated.exchange import (
    Absence,
    Algorithm,
    Ask,
    Backend,
    ExchangeLog,
    FederatedOptimizer,
    Requests,
    ServerState,
    Unfinished,
    answered,
    ask_together,
)
from privfair.federated.messages import (
    BundleReply,
    Counts,
    CountsRequest,
    LocalOptimizer,
    LocalWork,
    MaskingReply,
    Missing,
    Model,
    Moments,
    MomentsRequest,
    Products,
    ProductsRequest,
    Reply,
    Sealed,
    TrainRequest,
    Update,
)
from privfair.federated.model_state import Replica
from privfair.federated.release_plan import ReleasePlan, feature_moments, terms_digest
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import stream
from privfair.mechanisms.moments import MomentsPlan
from privfair.secure_aggregation import ServerAggregator, Sums
from privfair.util import FloatArray


@dataclass(frozen=True)
class Schedule:
    """What is asked of clients in every round, as far as it follows from the configuration: public, and agreed on."""

    seed: int
    epochs: int
    batch_size: int | None
    learning_rate: float
    learning_rate_decay: float  # per round
    clients_per_round: int | None  # None: all
    local_optimizer: LocalOptimizer = "sgd"
    proximal: float = 0.0  # FedProx: μ
    correct: bool = False  # SCAFFOLD: clients correct their steps by control variates
    exact: Literal["nothing", "scores", "features"] = "nothing"  # what is shared for fairness without noise
    samples: int = 0  # exact scores per cell and round, over all clients
    quotas: Literal["random", "largest_remainder"] = "random"
    measures: tuple[str, ...] = ()  # exact local figures that the algorithm may ask for
    # so many of the first rounds' updates have the features for the next round behind them, in one vector
    rounds_with_features: int = 0
    damped: int = 0  # the steps of so many rounds become shorter towards the end (`step_share`); 0: they do not

    def work(self, round_number: int) -> LocalWork:
        """What clients do in this round."""
        rate = self.learning_rate * self.learning_rate_decay**round_number
        rate *= step_share(round_number, self.damped) if self.damped else 1.0
        return LocalWork(self.epochs, self.batch_size, rate, self.proximal, self.local_optimizer)

    def cohort(self, round_number: int, clients: int) -> list[int]:
        """Who trains in this round: a uniform draw without replacement."""
        if self._everybody(clients):
            return list(range(clients))
        return sorted(_drawn(self.seed, round_number, clients, self.cohort_size(clients)))

    def cohort_size(self, clients: int) -> int:
        """How many train in a round."""
        return clients if self.clients_per_round is None else min(clients, self.clients_per_round)

    def trains(self, client: int, round_number: int, clients: int) -> bool:
        """Whether a client is in the cohort, without listing it: with many clients each of them asks this."""
        drawn = self._everybody(clients) or client in _drawn(
            self.seed, round_number, clients, self.cohort_size(clients)
        )
        return 0 <= client < clients and drawn

    def _everybody(self, clients: int) -> bool:
        return self.cohort_size(clients) == clients


@lru_cache(maxsize=1024)
def _drawn(seed: int, round_number: int, clients: int, some: int) -> frozenset[int]:
    return frozenset(int(k) for k in stream(seed, "cohort", round_number).choice(clients, some, replace=False))


def before_counts(clients: int, noise: CountNoise | None) -> ReleasePlan:
    """The release plan as far as it is known before counts: their noise, and no records."""
    return ReleasePlan(np.zeros(clients, dtype=np.int64), np.zeros((clients, 0), dtype=np.int64), counting=noise)


class Negotiator(Protocol):
    """Turns counts into terms."""

    @property
    def count_noise(self) -> CountNoise | None:
        """The noise of the counts, which are asked for before the first round."""
        ...

    @property
    def admits_later(self) -> bool:
        """Whether a client may tell its counts after the first round, without a change of anybody's noise or rates."""
        ...

    def settle(self, counts: list[Counts]) -> ReleasePlan:
        """The terms of the run, by a public rule."""
        ...

    def divided(self, total: NDArray[np.int64], members: int, clients: int) -> list[Counts]:
        """The totals of `members` clients' counts as counts of every client, each with an even part."""
        ...

    def ended(self, error: InputError) -> Exception:
        """What to raise where the run cannot go on with the counts that it got."""
        ...


@dataclass(frozen=True)
class ExactCounts:
    """No privacy: clients tell their counts as they are, and everybody takes part; `moments`: by which to scale."""

    moments: MomentsPlan | None = None
    count_noise: None = None

    @property
    def admits_later(self) -> bool:
        """Unless the grid of masked sums follows from the counts."""
        return self.moments is None or not self.moments.masked

    def settle(self, counts: list[Counts]) -> ReleasePlan:
        """The counts."""
        records = np.array([c.records for c in counts])
        sums = None if self.moments is None else feature_moments(self.moments, int(records.sum()), None)
        return ReleasePlan(records, np.stack([c.cells for c in counts]), moments=sums)

    def divided(self, total: NDArray[np.int64], members: int, clients: int) -> list[Counts]:
        """Exact counts are never totals."""
        raise TypeError("exact counts are not added up")

    def ended(self, error: InputError) -> Exception:
        """The error: counts have cost nothing."""
        return error


class ModelHolder(Protocol):
    """Where the model is kept: at the server, or at the clients alone."""

    def first(self) -> Model:
        """The model before the first round, as a message."""
        ...

    def step(self, state: ServerState, total: bytes, share: float) -> Model:
        """The next model, from the sum of the weighted updates, which holds a share of the asked-for weight."""
        ...


@dataclass(frozen=True)
class HeldByServer:
    """The server opens the sum and takes the step."""

    replica: Replica

    def first(self) -> Model:
        """The parameters."""
        return self.replica.message()

    def step(self, state: ServerState, total: bytes, share: float) -> Model:
        """The new parameters."""
        self.replica.advance(total, share, state.release_plan.sum_step(state.round))
        return self.replica.message()


class HeldByClients:
    """The server passes the sum on, which it cannot open."""

    def first(self) -> Model:
        """Nothing: clients know the initial model."""
        return Sealed(0, b"")

    def step(self, state: ServerState, total: bytes, share: float) -> Model:
        """The sum, for the clients to open."""
        number = state.model.round + 1 if isinstance(state.model, Sealed) else 1
        return Sealed(number, total, share, state.release_plan.sum_step(state.round))


class TooFewTrained(Unfinished):
    """Too few clients trained in a round: no step was taken, and the round can be tried again from `state`."""

    def __init__(self, state: ServerState, arrived: int, needed: int, absent: Sequence[Absence]) -> None:
        """`state`: that of the round's beginning, with the clients that were admitted in it."""
        reasons = "; ".join(sorted({f"client {a.client}: {a.reason}" for a in absent}))
        super().__init__(f"Round {state.round + 1} had {arrived} of at least {needed} clients train. {reasons}".strip())
        self.state = state


@dataclass(frozen=True)
class Server:
    """All that the server works with.

    `least_trained`: so many of those who are asked to train must do so, or the round does not count; 0 where a round
    without training passes, as in a simulation.
    """

    backend: Backend
    algorithm: Algorithm
    optimizer: FederatedOptimizer
    plan: Schedule
    sums: Sums
    model_holder: ModelHolder
    negotiator: Negotiator
    requests: Requests
    least_trained: int = 0
    groups: tuple[int, ...] = ()  # how many groups each sensitive attribute has

    def agree(self, release_plan: ReleasePlan) -> None:
        """From here on requests and sums are made under these terms, which clients get to see."""
        if self.sums.masked:
            self.sums.terms = terms_digest(release_plan)
        self.backend.agreed(release_plan)

    @property
    def totals(self) -> bool:
        """Whether counts are asked for as parts of their total over all clients."""
        noise = self.negotiator.count_noise
        return noise is not None and noise.shares > 1

    @property
    def adder(self) -> ServerAggregator:
        """What adds updates."""
        return self.sums.adders[TrainRequest.channel]

    def count_requests(self) -> Mapping[int, Any]:
        """What every client is asked before the first round."""
        plan = before_counts(self.backend.clients, self.negotiator.count_noise)
        return self.requests("counts", plan, None)


def begin(server: Server) -> ServerState:
    """The state before the first round: clients tell their counts, exact or noisy; from them follow the terms.

    Who does not answer counts as having no records: it takes no part, until it tells its counts later.
    """
    everyone = range(server.backend.clients)
    exchange_log = ExchangeLog(server.backend.exchange, None)
    clients = server.sums.ready(CountsRequest.channel, None, everyone, exchange_log.ask) if server.totals else everyone
    counts = answered(Counts, clients, exchange_log.ask(clients, server.count_requests().__getitem__))
    if not counts:
        remedy = "; ".join(sorted({absence.reason for absence in exchange_log.absent}))
        raise InputError("clients", "must answer, at least one", "none", remedy)
    try:
        if server.totals:
            counts = _divided(counts, server, exchange_log)
        nothing = Counts(0, np.zeros_like(next(iter(counts.values())).cells))
        release_plan = server.negotiator.settle([counts.get(k, nothing) for k in everyone])
        _require_enough(release_plan, server.sums.smallest)
        memory = server.algorithm.start(release_plan)
    except InputError as error:
        raise server.negotiator.ended(error) from None
    server.agree(release_plan)
    try:
        release_plan = _with_moments(release_plan, server, exchange_log)
    except InputError as error:
        text = "The run ended before its first round; what was released until then is in the ledger (privfair audit)."
        raise Refused(f"{text} {error}") from None
    uncounted = tuple(k for k in everyone if k not in counts)
    absent = (*exchange_log.absent, *server.sums.notes())
    return ServerState(0, server.model_holder.first(), release_plan, memory, uncounted, absent)


def _divided(replies: Mapping[int, Counts], server: Server, log: ExchangeLog) -> dict[int, Counts]:
    """The totals of all counts, divided evenly among all clients: who was absent counts as average."""
    parts = {k: reply.contribution for k, reply in replies.items() if reply.contribution is not None}
    totals = server.sums.totals(CountsRequest.channel, None, parts, log.ask)
    if totals is None:
        rule = f"must send {server.sums.smallest} parts of the totals of counts or more, and open their sum"
        raise InputError("clients", rule, len(parts), "; ".join(sorted({note.reason for note in server.sums.notes()})))
    everyone = server.backend.clients
    return dict(enumerate(server.negotiator.divided(totals.values, len(totals.members), everyone)))


def _with_moments(release_plan: ReleasePlan, server: Server, log: ExchangeLog) -> ReleasePlan:
    """The terms with the totals by which features are scaled: each is asked for once, under the terms so far."""
    for name, kind in ((MomentsRequest.channel, Moments), (ProductsRequest.channel, Products)):
        planned, sums = server.requests(name, release_plan, None), release_plan.moments
        if sums is None or not planned:
            continue
        masked, who = sums.first.masked, list(planned)
        if masked:
            who = server.sums.ready(name, None, who, log.ask)
        replies: Mapping[int, Any] = answered(kind, who, log.ask(who, planned.__getitem__))
        if masked:
            parts = {k: reply.contribution for k, reply in replies.items() if reply.contribution is not None}
            opened = server.sums.totals(name, None, parts, log.ask) if parts else None
            total = None if opened is None else opened.values
            there = 0.0 if opened is None else len(opened.members) / server.backend.clients
        else:
            total = sum((reply.total for reply in replies.values()), start=np.zeros(1, dtype=np.int64))
            there = float(release_plan.records[list(replies)].sum() / release_plan.records.sum())
        if total is None or not there > 0 or total.size != planned[who[0]].release.count:
            rule = "must be released by enough clients, for features to be scaled by them"
            raise InputError(name, rule, len(replies), "; ".join(sorted({note.reason for note in server.sums.notes()})))
        whole = total if there == 1.0 else np.rint(total / there).astype(np.int64)  # as if nobody was absent
        found: Any = {name: whole, "records": int(release_plan.records.sum())}
        release_plan = replace(release_plan, moments=replace(sums, **found))
        server.agree(release_plan)
    return release_plan


def _require_enough(release_plan: ReleasePlan, smallest_sum: int) -> None:
    """Raise if there is nothing to train on, or if too few clients are there for noise that comes in shares."""
    if not release_plan.records.sum() > 0:
        raise InputError("data", "must have training records", 0, "Lower data.test_fraction, or bring more records.")
    # without noise somebody who is known to have no records hides nobody
    hidden = release_plan.records > 0 if release_plan.claim is None else release_plan.trains
    takes_part = int(np.count_nonzero(hidden))
    if takes_part < smallest_sum:
        rule = f"must be at most the number of clients that take part, {takes_part}"
        raise InputError("aggregation.smallest_cohort", rule, smallest_sum, "No sum would open.")
    takes_part = int(np.count_nonzero(release_plan.records))
    if takes_part < release_plan.least_updates:
        rule = f"must be at most the number of clients that take part, {takes_part}"
        raise InputError(
            "privacy.smallest_cohort", rule, release_plan.least_updates, "Too small a share of noise is left."
        )


def admit(state: ServerState, server: Server, ask: Ask) -> ServerState:
    """The state with those who tell their counts only now, where the plan has room for latecomers.

    Where rates and noise were planned from the others' counts there is none, and nobody is asked.
    """
    if not state.uncounted or not server.negotiator.admits_later:
        return state
    counts = answered(Counts, state.uncounted, ask(state.uncounted, server.count_requests().__getitem__))
    if not counts:
        return state
    release_plan = state.release_plan
    known = [Counts(int(n), cells) for n, cells in zip(release_plan.records, release_plan.cells, strict=True)]
    settled = server.negotiator.settle([counts.get(k, known[k]) for k in range(state.clients)])
    settled = replace(settled, moments=release_plan.moments)  # they are released once
    left = tuple(k for k in state.uncounted if k not in counts)
    try:
        memory = server.algorithm.joined(state.algorithm, settled)
    except InputError:  # those who are there do not end for somebody who comes late
        return replace(state, uncounted=left)
    if settled.claim != release_plan.claim:  # δ and noise follow from the number of records, and are settled once
        return replace(state, uncounted=left)
    server.agree(settled)
    return replace(state, release_plan=settled, uncounted=left, algorithm=memory)


def run_round(state: ServerState, server: Server) -> ServerState:
    """One round: 1 share what fairness needs, 2 choose who trains, 3 train locally, 4 aggregate.

    Who does not answer is left out, its absence is written down, and the round goes on with the others.
    """
    backend, algorithm = server.backend, server.algorithm
    exchange_log = ExchangeLog(backend.exchange, state.round)
    ask = exchange_log.ask  # the one door between server and clients
    state = admit(state, server, ask)
    release_plan = state.release_plan

    # 1 ---- share: all clients that take part, whether they train or not
    state = replace(state, shared={name: _shared(name, state, server, ask) for name in server.requests.every_round})
    objective, memory = algorithm.objective(state, ask)

    # 2 ---- choose who trains; a cohort of S of K clients stands for all with weights K/S, which is unbiased
    participation = server.plan.cohort_size(backend.clients) / backend.clients
    weights = algorithm.weights(state, memory) / participation
    planned = server.requests("updates", release_plan, state.round)
    asked = list(planned)
    trainers = server.sums.ready(TrainRequest.channel, state.round, asked, ask)
    if len(trainers) < release_plan.least_updates:  # their sum could not be opened: nobody is asked for a share of it
        trainers = []

    # 3 ---- train locally: a client contributes its weight times its change, so that the server need only add
    filled = {"model": state.model, "objective": objective, "snapshot_at": algorithm.snapshot_at(state)}
    requests = {k: replace(planned[k], weight=float(weights[k]), **filled) for k in trainers}
    trained, reported = ask_together(ask, requests, algorithm.beside(state))
    updates = answered(Update, list(trained), list(trained.values()))

    # 4 ---- aggregate: the mean over those who answered, by their weights; of too few, whose noise is too little, none
    settled = server.sums.named(TrainRequest.channel, state.round)
    needed = max(server.least_trained, release_plan.least_updates, server.sums.smallest)
    needed = needed if _waited_for(server, state, trainers, asked) else min(len(trainers), needed)
    if server.least_trained and len(updates) < needed and not settled:  # asked again, who answered answers the same
        raise TooFewTrained(state, len(updates), needed, (*exchange_log.absent, *server.sums.notes()))
    model, summed, stepped = state.model, None, tuple[int, ...]()
    enough = share_of(weights, asked, list(updates)) > 0 and len(updates) >= release_plan.least_updates
    if enough or settled:
        contributions = {k: update.contribution for k, update in updates.items()}
        summed = server.sums.add(TrainRequest.channel, state.round, contributions, ask)
    if summed is not None and (share := share_of(weights, asked, list(summed.members))) > 0:
        model, stepped = server.model_holder.step(state, summed.total, share), summed.members
    memory = algorithm.received(replace(state, model=model), memory, reported, stepped, ask)
    memory = algorithm.after(state, memory, model, ask)
    absent = (*state.absent, *exchange_log.absent, *server.sums.notes())
    return replace(state, round=state.round + 1, model=model, algorithm=memory, absent=absent)


def _waited_for(server: Server, state: ServerState, trainers: list[int], asked: list[int]) -> bool:
    """Whether a round of which nobody was asked waits for those who are away: not where its sum is lost for good."""
    masked = server.sums.masked and bool(asked) and not trainers
    return masked and not server.sums.lost(TrainRequest.channel, state.round)


def _shared(name: str, state: ServerState, server: Server, ask: Ask) -> Mapping[int, Reply]:
    """The replies of a channel that every round asks for, whatever the algorithm; by client."""
    planned = server.requests(name, state.release_plan, state.round)
    under = {"model": state.model} if any(hasattr(request, "model") for request in planned.values()) else {}
    requests = {k: replace(request, **under) for k, request in planned.items()}
    replies = zip(requests, ask(list(requests), requests.__getitem__), strict=True)
    return {k: reply for k, reply in replies if not isinstance(reply, Missing | BundleReply | MaskingReply)}


def share_of(weights: FloatArray, asked: list[int], arrived: list[int]) -> float:
    """How much of the asked-for weight arrived: exactly 1 where everybody did, 0 where nothing did."""
    if arrived == asked:
        return 1.0 if asked else 0.0
    whole = float(weights[asked].sum())
    return min(1.0, float(weights[arrived].sum()) / whole) if arrived and whole > 0 else 0.0
