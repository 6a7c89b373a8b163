"""Many runs at once: every run keeps its own server, and only the clients' arithmetic is batched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from accountant.errors import InputError
from privfair.clients.client import Client
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.datasets.registry import load_configured
from privfair.engines.batched.backend import Exchange, Stacked
from privfair.engines.batched.engine import Engine
from privfair.engines.batched.evaluation import Evaluate, StackedEvaluator, evaluate
from privfair.engines.batched.lockstep import Ended, Failed, Seat, in_lockstep
from privfair.engines.batched.networks import free_numbers
from privfair.engines.evaluation import Evaluator, Row
from privfair.fairness.notions import Notion
from privfair.federated.exchange import Metered
from privfair.privacy.ledger_gateway import settle
from privfair.runs.assembly import Simulation, build
from privfair.runs.defaults import with_keys
from privfair.runs.loop import RunOutcome, SimulatedRun
from privfair.util import one_thread

StackReport = Callable[[int, Row], None]  # (number of the run, line of its history)
Finished = Callable[[int, RunOutcome], None]
RunFailed = Callable[[int, Exception], None]
Progress = Callable[[float], None]  # rounds done since the last call, as parts of whole runs

MOST_RUNS = 512  # threads that wait; more gain nothing, the cores are busy long before


def build_stacked(
    configs: Sequence[Config], federation: Federation | None = None, notion: Notion | None = None
) -> list[Simulation]:
    """The simulation of each configuration; runs on the same data share one copy, loaded once."""
    loaded: dict[str, Federation] = {}
    shared: dict[tuple[Any, ...], Any] = {}
    simulations = []
    for config in configs:
        name = f"{config.data.model_dump_json()} {config.run.seed}"
        if federation is None and name not in loaded:
            loaded[name] = load_configured(config)
        # masked sums are added up in the open here, whatever engine is configured, and their statement says so
        open_sums = with_keys(config, {"run.engine": "stacked"}) if config.privacy.enabled else config
        simulation = build(open_sums, federation or loaded[name], notion)
        for client in simulation.clients:
            share_tensors(client, shared)
        simulation.close()  # its ledger is opened again where needed
        simulations.append(simulation)
    return simulations


def share_tensors(client: Client, known: dict[tuple[Any, ...], Any]) -> None:
    """Let the client use the tensors of an earlier one with the same records."""
    for name in ("data", "test_data"):
        own = getattr(client, name)
        key = (id(own.records), own.x.dtype)
        like = known.setdefault(key, own)
        setattr(client, name, replace(own, x=like.x, y=like.y))


def run_stacked(
    simulations: Sequence[Simulation],
    *,
    report: StackReport | None = None,
    finished: Finished | None = None,
    failed: RunFailed | None = None,
    progress: Progress | None = None,
    threads: int = 2,
    runs_at_once: int | None = None,
    room: int | None = None,
) -> list[RunOutcome]:
    """The outcome of every run, in order; the same as each alone would have, but for rounding.

    `report` gets every line of every history, `finished` every outcome as soon as it is known, `progress` the rounds
    as they end. A run that fails does not stop the others: its error goes to `failed`, and its outcome is missing from
    the list; without `failed` the first error is raised when all others are done. `runs_at_once` run together, by
    default as many as fit into `room` bytes, a quarter of the free memory.
    """
    if threads < 1:
        raise InputError("threads", "must be 1 or more", threads)
    if runs_at_once is not None and runs_at_once < 1:
        raise InputError("runs_at_once", "must be 1 or more", runs_at_once)
    outcomes: dict[int, RunOutcome] = {}
    errors: dict[int, Exception] = {}
    with one_thread():
        start = 0
        while start < len(simulations):
            count = runs_at_once or fitting(simulations[start:], free_numbers() if room is None else room // 8)
            numbers = range(start, min(start + count, len(simulations)))
            _together(simulations, numbers, threads, outcomes, errors, report, finished, progress)
            start += count
    for number, error in errors.items():
        if failed is None:
            raise error
        failed(number, error)
    return [outcomes[n] for n in sorted(outcomes)]


def _together(
    simulations: Sequence[Simulation],
    numbers: range,
    threads: int,
    outcomes: dict[int, RunOutcome],
    errors: dict[int, Exception],
    report: StackReport | None,
    finished: Finished | None,
    progress: Progress | None,
) -> None:
    engine = Engine([c for n in numbers for c in simulations[n].clients], threads=threads)
    pooled: dict[tuple[int, torch.dtype], Evaluator] = {}
    part_of_a_run = {
        id(c): 1 / simulations[n].config.federation.rounds for n in numbers for c in simulations[n].clients
    }

    def program(number: int) -> Callable[[Seat[RunOutcome]], RunOutcome]:
        def whole_run(seat: Seat[RunOutcome]) -> RunOutcome:
            line = None if report is None else lambda row: report(number, row)
            return SimulatedRun(_seated(simulations[number], seat, pooled), report=line).outcome()

        return whole_run

    def ended(position: int, end: Ended[RunOutcome]) -> None:
        if end.error is not None:
            errors[numbers[position]] = end.error
        elif end.result is not None:
            outcomes[numbers[position]] = end.result
            if finished is not None:
                finished(numbers[position], end.result)

    def answered(questions: list[Any]) -> list[Any]:
        answers = _answers(questions, engine)
        if progress is not None:
            trained = [q for q in questions if isinstance(q, Exchange) and q.trains]
            progress(sum(part_of_a_run[id(q.asked[0][0])] for q in trained))
        return answers

    try:
        in_lockstep([program(n) for n in numbers], answered, ended)
    finally:
        engine.close()


def _answers(questions: list[Any], engine: Engine) -> list[Any]:
    """The answers to the questions of all runs: requests to clients, paid for before, and lines of histories."""
    exchanges = [q for q in questions if isinstance(q, Exchange)]
    billed = [q for q in exchanges if q.bill is not None]
    errors = settle([q.bill for q in billed if q.bill is not None])
    unpaid = {id(billed[number]): Failed(error) for number, error in errors.items()}
    asked = [pair for q in exchanges if id(q) not in unpaid for pair in q.asked]
    replies = iter(engine.replies(asked) if asked else [])
    evaluations = [q for q in questions if isinstance(q, Evaluate)]
    rows = iter(evaluate(evaluations, engine.networks, engine.map) if evaluations else [])
    return [
        next(rows) if isinstance(q, Evaluate) else unpaid.get(id(q)) or [next(replies) for _ in q.asked]
        for q in questions
    ]


def _seated(
    simulation: Simulation, seat: Seat[RunOutcome], pooled: dict[tuple[int, torch.dtype], Evaluator]
) -> Simulation:
    """The simulation with a backend and an evaluator whose requests are batched with those of the other runs."""
    inner: Any = simulation.backend.inner
    # on data with a budget each run pays by itself: one that exceeds it must not fail the others
    settles = simulation.gateway is not None and not simulation.budgeted
    metered = Metered(Stacked(inner.members, inner.check, inner.gateway, seat.ask, settles=settles))
    e = simulation.evaluator
    if e is not None:
        e = StackedEvaluator(simulation.federation, e.cells, e.kernel, e.strength, e.model, seat.ask, pooled)
    return simulation.on(metered, e)


def fitting(simulations: Sequence[Simulation], room: int) -> int:
    """How many of the next runs fit into `room` numbers at once, one at least."""
    count = 0
    for simulation in simulations[:MOST_RUNS]:
        room -= planned_numbers(simulation)
        if room < 0 and count:
            break
        count += 1
    return count


def planned_numbers(simulation: Simulation) -> int:
    """Room that one run of a stack needs: the minibatches of a round, the outputs, and copies of the model."""
    records = sum(len(c.data.y) for c in simulation.clients)
    return records * (simulation.config.federation.local_epochs + 16) + 64 * simulation.model.flat.numel()
