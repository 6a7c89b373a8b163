"""A whole run: rounds, history, checkpoints, resume, result."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accountant.errors import InputError, Refused
from privfair.aggregation import MODULI, FixedPoint, KeyPair, aggregators, load_client, load_server, new_keys
from privfair.algorithms.registry import build_algorithm
from privfair.backends.in_process import InProcess
from privfair.clients.client import Client
from privfair.clients.private_model import require_private_model
from privfair.clients.task import TaskKind
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Schema
from privfair.datasets.registry import load as load_dataset
from privfair.evaluation import Evaluator, Row
from privfair.fairness.cells import Cells
from privfair.fairness.notions import Notion, notion_by_name
from privfair.interfaces import Backend, ServerState, expect
from privfair.kernels.parse import parse_kernel
from privfair.messages import EvaluateRequest, Evaluation, Parameters, Sealed
from privfair.metering import Metered
from privfair.models import FlatModel, build_module, torch_type
from privfair.optimizers import optimizer_by_name
from privfair.privacy.books import Books, definition, entropy_of, require_no_budget
from privfair.privacy.desk import Desk
from privfair.privacy.forecast import count_spends, planned_spends
from privfair.privacy.negotiation import PrivateCounts
from privfair.privacy.plan_report import plan_report
from privfair.privacy.planning import Planner, Workload
from privfair.privacy.refusals import require_decided, require_private, require_separate
from privfair.replica import Replica
from privfair.replies import ReplyCheck
from privfair.round import ExactCounts, Keeper, KeptByClients, KeptByServer, Negotiator, Plan, Server, begin, run_round
from privfair.run_directory import Checkpoint, RunDirectory

Report = Callable[[Row], None]  # called with each line of the history
Planned = Callable[[dict[str, Any]], None]  # called with the plan of a private run


@dataclass(frozen=True)
class Credentials:
    """What a run is known by: its name in the ledger, and its keys where it has its own."""

    run: str
    keys: KeyPair | None
    ledger_id: str | None = None  # of the ledger in which it was begun

    @staticmethod
    def new(config: Config, schema: Schema, notion: Notion | None) -> Credentials:
        """For a new run, of a notion of one's own or of a known one."""
        run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}-{definition(config, schema, notion)}"
        own = config.scheme != "plain" and config.aggregation.keys is None
        return Credentials(run, new_keys(config.scheme) if own else None)


@dataclass(frozen=True)
class Setting:
    """Everything a run needs, built from its configuration."""

    config: Config
    federation: Federation
    model: FlatModel
    replica: Replica  # the model as those hold it who may see it; a simulation may, for its figures
    backend: Metered
    server: Server
    evaluator: Evaluator | None  # None where exact figures are not allowed
    cells: Cells
    identity: str  # of data and cells: a checkpoint continues only with the same
    credentials: Credentials
    books: Books | None = None  # of a private run
    desk: Desk | None = None
    planner: Planner | None = None

    @property
    def notion(self) -> str:
        """The name of the fairness notion."""
        return self.cells.notion.name


def build(
    config: Config,
    federation: Federation | None = None,
    notion: Notion | None = None,
    credentials: Credentials | None = None,
) -> Setting:
    """Load the data, make model, clients and algorithm. `federation` and `notion` override the configured ones."""
    require_decided(config)
    if federation is None:
        data = config.data
        federation = load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
    credentials = credentials or Credentials.new(config, federation.schema, notion)
    schema, seed, f = federation.schema, config.run.seed, config.federation
    cells = Cells.of(notion or notion_by_name(config.fairness.notion, schema), schema)
    dtype = torch_type(config.run.dtype)
    features = len(schema.features)
    module = build_module(config.model.name, features, config.model.hidden, seed, dtype)
    if config.privacy.enabled and config.privacy.updates == "dp_sgd":
        require_private_model(module, features)
    model = FlatModel(module)
    centralized = f.method == "centralized"
    holders = _pooled(federation) if centralized else federation.clients
    algorithm = build_algorithm(config, schema, cells)
    optimizer = optimizer_by_name(f.optimizer, f.server_learning_rate, f.proximal)
    plan = Plan(
        seed=seed,
        epochs=f.local_epochs,
        batch_size=None if centralized else f.batch_size,
        learning_rate=f.learning_rate,
        learning_rate_decay=f.learning_rate_decay,
        clients_per_round=f.clients_per_round,
        local_optimizer=f.local_optimizer,
    )
    client_side, adder = aggregators(
        config.scheme, _keys(config, credentials), fixed_point=_fixed_point(config, plan, len(holders))
    )
    replica = Replica(
        model.parameters(),
        optimizer,
        client_side,
        snapshots=algorithm.snapshots,
        average_after=math.floor(f.rounds * (1 - f.average_last)) if f.average_last else None,
    )
    clients = [
        Client(k, holder, schema, cells, model, replica, seed=seed, entropy=entropy_of(config, k))
        for k, holder in enumerate(holders)
    ]
    keeper: Keeper = KeptByServer(replica) if config.scheme == "plain" else KeptByClients()
    books = desk = planner = None
    negotiator: Negotiator = ExactCounts()
    if not config.privacy.enabled:
        require_no_budget(config, federation)
    else:
        require_private(config, algorithm, schema.task)
        require_separate(cells.notion, federation)
        planner = _planner(config, plan, cells, schema, len(holders))
        planner.require_plannable()
        books = Books.open(config, federation, credentials.run, ledger_id=credentials.ledger_id)
        credentials = replace(credentials, ledger_id=books.ledger.ledger_id)
        desk = books.desk(clients, cells, schema, planner.adjacency, config)
        negotiator = PrivateCounts(planner, desk.releases_of_counts)
    check = ReplyCheck(adder, cells=len(cells), contribution_size=replica.contribution_size)
    backend = Metered(_backend(config, clients, check, desk))
    exact = books is None or not books.budgeted
    kernel, strength = parse_kernel(config.fairness.kernel), config.fairness.strength
    return Setting(
        config=config,
        federation=federation,
        model=model,
        replica=replica,
        backend=backend,
        server=Server(backend, algorithm, optimizer, plan, adder, keeper, negotiator),
        evaluator=Evaluator(federation, cells, kernel, strength, model) if exact else None,
        cells=cells,
        # A digest of the records would let anyone who knows all but one of them test the last. Data with a budget
        # are known to the ledger, by name and keyed fingerprint.
        identity=f"{federation.fingerprint() if exact else 'budgeted'} {'; '.join(cells.names)}",
        credentials=credentials,
        books=books,
        desk=desk,
        planner=planner,
    )


def _backend(config: Config, clients: Sequence[Client], check: ReplyCheck, desk: Desk | None) -> Backend:
    """Where the clients live."""
    if config.run.engine == "stacked":
        from privfair.backends.stacked.backend import Stacked

        return Stacked(clients, check, desk)
    return InProcess(clients, check, desk)


def _pooled(federation: Federation) -> tuple[ClientData, ...]:
    """One client with the records of all."""
    return (ClientData("all", federation.pooled_train(), federation.pooled_test()),)


def _keys(config: Config, credentials: Credentials) -> KeyPair | None:
    """The run's own keys, or those of the folder that the configuration names."""
    folder = config.aggregation.keys
    if config.scheme == "plain" or folder is None:
        return credentials.keys
    return KeyPair(load_client(Path(folder)), load_server(Path(folder)))


def _fixed_point(config: Config, plan: Plan, clients: int) -> FixedPoint | None:
    """How updates become integers: for all schemes but plain floats. Weights sum to at most clients/cohort."""
    scheme, aggregation = config.scheme, config.aggregation
    if scheme == "plain" and not aggregation.quantise:
        return None
    cohort = min(plan.clients_per_round or clients, clients)
    return FixedPoint(aggregation.range, clients / cohort, cohort, MODULI[scheme])


def _planner(config: Config, plan: Plan, cells: Cells, schema: Schema, clients: int) -> Planner:
    """The planner of a private run."""
    f = config.federation
    trainings = np.zeros(clients, dtype=np.int64)
    for number in range(f.rounds):
        trainings[plan.cohort(number, clients)] += 1
    kind = cells.notion.score
    work = Workload(
        rounds=f.rounds,
        epochs=f.local_epochs,
        batch_size=f.batch_size,
        samples=config.fairness.samples,
        shares_scores=f.method == "mmd_fedavg",
        most_trainings=int(trainings.max()),
        score_range=TaskKind.of(schema).score_range(kind) or config.privacy.score_range,
        kernel=config.fairness.kernel,
    )
    return Planner(config.privacy, work, cells)


@dataclass(frozen=True)
class RunOutcome:
    """Where a run ended."""

    setting: Setting
    state: ServerState
    history: list[Row]
    seconds: float
    released: tuple[Evaluation, ...] | None = None  # noisy confusion counts of all clients, where asked for


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors are faster without threads, which would wait for each other in every operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_rounds(
    setting: Setting,
    directory: RunDirectory | None = None,
    report: Report | None = None,
    planned: Planned | None = None,
) -> RunOutcome:
    """Run all rounds, or those that a checkpoint in the directory has not seen yet."""
    started = time.perf_counter()
    config, server = setting.config, setting.server
    state, history, before, released = _start(setting, directory)
    if planned and setting.planner is not None:
        planned(plan_report(config, state.terms, setting.planner))
    while state.round < config.federation.rounds:
        state = run_round(state, server)
        due = state.round % config.run.evaluate_every == 0 or state.round == config.federation.rounds
        history += [_evaluate(setting, state)] if due else []
        if report and due:
            report(history[-1])
        if directory:
            elapsed = before + time.perf_counter() - started
            directory.write_checkpoint(_checkpoint(setting, state, history, elapsed))
        if setting.desk:
            setting.desk.delivered()
    if state.terms.evaluation is not None and released is None:
        model = Parameters(setting.replica.result) if config.scheme == "plain" else state.model
        request = EvaluateRequest(model, state.terms.evaluation)
        released = tuple(expect(Evaluation, setting.backend.exchange(range(state.clients), lambda _: request)))
        if directory:
            elapsed = before + time.perf_counter() - started
            directory.write_checkpoint(replace(_checkpoint(setting, state, history, elapsed), released=released))
    setting.replica.at(state.model)
    setting.model.load(setting.replica.result)
    return RunOutcome(setting, state, history, before + time.perf_counter() - started, released)


@_one_thread()
def run(
    setting: Setting,
    directory: RunDirectory | None = None,
    report: Report | None = None,
    planned: Planned | None = None,
) -> RunOutcome:
    """As `run_rounds`, in one thread: the fastest for small models."""
    return run_rounds(setting, directory, report, planned)


Start = tuple[ServerState, list[Row], float, tuple[Evaluation, ...] | None]


def _start(setting: Setting, directory: RunDirectory | None) -> Start:
    """(state, history, seconds so far, final evaluation): of a checkpoint, or of a new run."""
    checkpoint = directory.read_checkpoint() if directory else None
    if checkpoint is None:
        _require_room(setting, None)
        state = begin(setting.server)
        _require_room(setting, state)
        history = [_evaluate(setting, state)]
        if directory:  # the terms are settled once
            directory.write_checkpoint(_checkpoint(setting, state, history, 0.0))
        return state, history, 0.0, None
    if checkpoint.identity != setting.identity:
        remedy = "Resume with the data and the notion that the run was started with, or start a new run."
        raise InputError("resume", "must be on the same data and notion as before", "others", remedy)
    if setting.books is not None:
        rows = len(setting.books.ledger.spends(run=setting.books.run))
        if rows < checkpoint.ledger_rows:
            raise Refused(
                f"The ledger has {rows} rows of this run, and it had {checkpoint.ledger_rows} when the run was "
                "interrupted: it was replaced by an older copy. Put the newer one back."
            )
    setting.replica.restore(checkpoint.replica)
    setting.backend.restore(checkpoint.client_state, checkpoint.bytes_up, checkpoint.bytes_down)
    model = setting.replica.message() if setting.config.scheme == "plain" else Sealed(setting.replica.round, b"")
    state = ServerState(checkpoint.round, model, checkpoint.terms, checkpoint.algorithm)
    return state, list(checkpoint.history), checkpoint.seconds, checkpoint.released


def _require_room(setting: Setting, state: ServerState | None) -> None:
    """Nothing, if the whole run fits into its data's budget; before counts (no state yet) as far as it is known."""
    books, desk, planner = setting.books, setting.desk, setting.planner
    if books is None or desk is None or planner is None or not books.budgeted:
        return
    plan, rounds = setting.server.plan, setting.config.federation.rounds
    if state is None:
        terms = planner.terms_beforehand(setting.backend.clients)
        spends = count_spends(terms, desk.prices)
        state = ServerState(0, setting.server.keeper.first(), terms, {})
    else:
        spends = []
    books.ledger.require_room([*spends, *planned_spends(state, plan, rounds, desk.prices)])


def _evaluate(setting: Setting, state: ServerState) -> Row:
    """One line of the history; only the round where exact figures are not allowed."""
    setting.replica.at(state.model)
    if setting.evaluator is None:
        return {"round": state.round}
    setting.model.load(setting.replica.result)
    return setting.evaluator.row(state.round)


def _checkpoint(setting: Setting, state: ServerState, history: list[Row], seconds: float) -> Checkpoint:
    backend = setting.backend
    setting.replica.at(state.model)  # opened, so that the sum itself need not be kept
    return Checkpoint(
        identity=setting.identity,
        round=state.round,
        terms=state.terms,
        algorithm=state.algorithm,
        replica=setting.replica.state(),
        client_state=dict(backend.client_state()),
        history=tuple(history),
        bytes_up=backend.bytes_up,
        bytes_down=backend.bytes_down,
        seconds=seconds,
        ledger_rows=0 if setting.desk is None else setting.desk.rows,
    )
