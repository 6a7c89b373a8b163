"""A whole run: rounds, history, checkpoints, resume, result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from accountant.errors import InputError
from privfair.algorithms.registry import build_algorithm
from privfair.arrays import FloatArray
from privfair.backends.in_process import InProcess
from privfair.clients.client import Client
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation
from privfair.datasets.registry import load as load_dataset
from privfair.evaluation import Evaluator, Row
from privfair.fairness.cells import Cells
from privfair.fairness.notions import Notion, notion_by_name
from privfair.interfaces import Algorithm, FederatedOptimizer, ServerState
from privfair.kernels.parse import parse_kernel
from privfair.metering import Metered
from privfair.models import FlatModel, build_module, torch_type
from privfair.optimizers import optimizer_by_name
from privfair.round import Plan, begin, run_round
from privfair.run_directory import Checkpoint, RunDirectory

Report = Callable[[Row], None]  # called with each line of the history


@dataclass(frozen=True)
class Setting:
    """Everything a run needs, built from its configuration."""

    config: Config
    federation: Federation
    model: FlatModel
    backend: Metered
    algorithm: Algorithm
    optimizer: FederatedOptimizer
    plan: Plan
    evaluator: Evaluator
    initial: FloatArray
    notion: str
    identity: str  # of data and cells: a checkpoint continues only with the same


def build(config: Config, federation: Federation | None = None, notion: Notion | None = None) -> Setting:
    """Load the data, make model, clients and algorithm. `federation` and `notion` override the configured ones."""
    if federation is None:
        data = config.data
        federation = load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
    schema, seed = federation.schema, config.run.seed
    cells = Cells.of(notion or notion_by_name(config.fairness.notion, schema), schema)
    kernel = parse_kernel(config.fairness.kernel)
    dtype = torch_type(config.run.dtype)
    model = FlatModel(build_module(config.model.name, len(schema.features), config.model.hidden, seed, dtype))
    centralized = config.federation.method == "centralized"
    holders = _pooled(federation) if centralized else federation.clients
    clients = [Client(k, c.train, schema, cells, model, seed=seed) for k, c in enumerate(holders)]
    f = config.federation
    return Setting(
        config=config,
        federation=federation,
        model=model,
        backend=Metered(InProcess(clients)),
        algorithm=build_algorithm(config, schema, cells),
        optimizer=optimizer_by_name(f.optimizer, f.server_learning_rate, f.proximal),
        plan=Plan(
            seed=seed,
            epochs=f.local_epochs,
            batch_size=None if centralized else f.batch_size,
            learning_rate=f.learning_rate,
            learning_rate_decay=f.learning_rate_decay,
            clients_per_round=f.clients_per_round,
        ),
        evaluator=Evaluator(federation, cells, kernel, config.fairness.strength, model),
        initial=model.parameters(),
        notion=cells.notion.name,
        identity=f"{federation.fingerprint()} {'; '.join(cells.names)}",
    )


def _pooled(federation: Federation) -> tuple[ClientData, ...]:
    """One client with the records of all."""
    return (ClientData("all", federation.pooled_train(), federation.pooled_test()),)


@dataclass(frozen=True)
class RunOutcome:
    """Where a run ended."""

    setting: Setting
    state: ServerState
    history: list[Row]
    seconds: float


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors are faster without threads, which would wait for each other in every operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_one_thread()
def run(setting: Setting, directory: RunDirectory | None = None, report: Report | None = None) -> RunOutcome:
    """Run all rounds, or those that a checkpoint in the directory has not seen yet."""
    started = time.perf_counter()
    config, backend = setting.config, setting.backend
    checkpoint = directory.read_checkpoint() if directory else None
    if checkpoint is None:
        state = begin(backend, setting.algorithm, setting.optimizer, setting.initial)
        history, before = [_evaluate(setting, state)], 0.0
    else:
        if checkpoint.identity != setting.identity:
            remedy = "Resume with the data and the notion that the run was started with, or start a new run."
            raise InputError("resume", "must be on the same data and notion as before", "others", remedy)
        state, history, before = checkpoint.state, list(checkpoint.history), checkpoint.seconds
        backend.restore(checkpoint.client_state, checkpoint.bytes_up, checkpoint.bytes_down)
    while state.round < config.federation.rounds:
        state = run_round(state, backend, setting.algorithm, setting.optimizer, setting.plan)
        if state.round % config.run.evaluate_every == 0 or state.round == config.federation.rounds:
            history.append(_evaluate(setting, state))
            if report:
                report(history[-1])
        if directory:
            elapsed = before + time.perf_counter() - started
            directory.write_checkpoint(_checkpoint(setting, state, history, elapsed))
    setting.model.load(state.parameters)
    return RunOutcome(setting, state, history, before + time.perf_counter() - started)


def _evaluate(setting: Setting, state: ServerState) -> Row:
    setting.model.load(state.parameters)
    return setting.evaluator.row(state.round)


def _checkpoint(setting: Setting, state: ServerState, history: list[Row], seconds: float) -> Checkpoint:
    backend = setting.backend
    return Checkpoint(
        identity=setting.identity,
        state=state,
        client_state=dict(backend.client_state()),
        history=tuple(history),
        bytes_up=backend.bytes_up,
        bytes_down=backend.bytes_down,
        seconds=seconds,
    )
