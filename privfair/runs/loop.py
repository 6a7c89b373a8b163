"""A whole run: rounds, history, checkpoints, resume, result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from accountant.errors import InputError, Refused
from privfair.channels.evaluation import EVALUATION
from privfair.engines.evaluation import Row
from privfair.federated.exchange import ExchangeLog
from privfair.federated.interfaces import ServerState, answered
from privfair.federated.messages import Evaluation, Parameters, Sealed
from privfair.federated.round import begin, run_round
from privfair.privacy.forecast import count_spends, planned_spends
from privfair.privacy.plan_report import plan_report
from privfair.runs.assembly import Simulation
from privfair.runs.folder import Checkpoint, RunDirectory
from privfair.util import one_thread

Report = Callable[[Row], None]  # called with each line of the history
Planned = Callable[[dict[str, Any]], None]  # called with the plan of a private run


@dataclass(frozen=True)
class RunOutcome:
    """Where a run ended."""

    simulation: Simulation
    state: ServerState
    history: list[Row]
    seconds: float
    released: tuple[Evaluation, ...] | None = None  # noisy confusion counts of all clients, where asked for


def run_rounds(
    simulation: Simulation,
    directory: RunDirectory | None = None,
    report: Report | None = None,
    planned: Planned | None = None,
) -> RunOutcome:
    """Run all rounds, or those that a checkpoint in the directory has not seen yet."""
    started = time.perf_counter()
    config, server = simulation.config, simulation.server
    state, history, before, released = _start(simulation, directory)
    if planned and simulation.private:
        planned(
            plan_report(
                config, state.release_plan, simulation.private.planner, budgeted=simulation.private.run_ledger.budgeted
            )
        )
    while state.round < config.federation.rounds:
        state = run_round(state, server)
        due = state.round % config.run.evaluate_every == 0 or state.round == config.federation.rounds
        history += [_evaluate(simulation, state)] if due else []
        if report and due:
            report(history[-1])
        if directory:
            elapsed = before + time.perf_counter() - started
            directory.write_checkpoint(_checkpoint(simulation, state, history, elapsed))
        if simulation.private:
            simulation.private.gateway.delivered()
    if state.release_plan.evaluation is not None and released is None:
        model = Parameters(simulation.replica.result) if config.scheme == "plain" else state.model
        asked = server.requests(EVALUATION, state.release_plan, None)
        requests, everyone = {k: replace(request, model=model) for k, request in asked.items()}, list(asked)
        exchange_log = ExchangeLog(simulation.backend.exchange, None)
        released = tuple(answered(Evaluation, everyone, exchange_log.ask(everyone, requests.__getitem__)).values())
        state = replace(state, absent=(*state.absent, *exchange_log.absent))
        if directory:
            elapsed = before + time.perf_counter() - started
            directory.write_checkpoint(replace(_checkpoint(simulation, state, history, elapsed), released=released))
    simulation.replica.at(state.model)
    simulation.model.load(simulation.replica.result)
    return RunOutcome(simulation, state, history, before + time.perf_counter() - started, released)


@one_thread()
def run(
    simulation: Simulation,
    directory: RunDirectory | None = None,
    report: Report | None = None,
    planned: Planned | None = None,
) -> RunOutcome:
    """As `run_rounds`, in one thread: the fastest for small models."""
    return run_rounds(simulation, directory, report, planned)


Start = tuple[ServerState, list[Row], float, tuple[Evaluation, ...] | None]


def _start(simulation: Simulation, directory: RunDirectory | None) -> Start:
    """(state, history, seconds so far, final evaluation): of a checkpoint, or of a new run."""
    checkpoint = directory.read_checkpoint() if directory else None
    if checkpoint is None:
        require_room(simulation, None)
        state = begin(simulation.server)
        require_room(simulation, state)
        history = [_evaluate(simulation, state)]
        if directory:  # the terms are settled once
            directory.write_checkpoint(_checkpoint(simulation, state, history, 0.0))
        return state, history, 0.0, None
    if checkpoint.identity != simulation.identity:
        remedy = "Resume with the data and the notion that the run was started with, or start a new run."
        raise InputError("resume", "must be on the same data and notion as before", "others", remedy)
    if simulation.private is not None:
        rows = simulation.private.gateway.rows
        if rows < checkpoint.ledger_rows:
            raise Refused(
                f"The ledger has {rows} rows of this run, and it had {checkpoint.ledger_rows} when the run was "
                "interrupted: it was replaced by an older copy. Put the newer one back."
            )
    simulation.replica.restore(checkpoint.replica)
    simulation.backend.restore(checkpoint.client_state, checkpoint.bytes_up, checkpoint.bytes_down)
    model = (
        simulation.replica.message() if simulation.config.scheme == "plain" else Sealed(simulation.replica.round, b"")
    )
    known = checkpoint
    state = ServerState(known.round, model, known.release_plan, known.algorithm, known.uncounted, known.absent)
    return state, list(checkpoint.history), checkpoint.seconds, checkpoint.released


def require_room(simulation: Simulation, state: ServerState | None) -> None:
    """Nothing, if the whole run fits into its data's budget; before counts (no state yet) as far as it is known."""
    if simulation.private is None or not simulation.private.run_ledger.budgeted:
        return
    gateway, planner = simulation.private.gateway, simulation.private.planner
    plan, rounds = simulation.server.plan, simulation.config.federation.rounds
    if state is None:
        release_plan = planner.terms_beforehand(simulation.backend.clients)
        spends, begun = count_spends(release_plan, plan, gateway.prices), 0
    else:
        release_plan, spends, begun = state.release_plan, [], state.round
    spends += planned_spends(release_plan, plan, range(begun, rounds), gateway.prices)
    simulation.private.run_ledger.ledger.require_room(spends)


def _evaluate(simulation: Simulation, state: ServerState) -> Row:
    simulation.replica.at(state.model)
    return evaluated(simulation, state.round)


def evaluated(simulation: Simulation, round_number: int) -> Row:
    """One line of the history, for the replica's present model; only the round where exact figures are not allowed."""
    if simulation.evaluator is None:
        return {"round": round_number}
    simulation.model.load(simulation.replica.result)
    return simulation.evaluator.row(round_number)


def _checkpoint(simulation: Simulation, state: ServerState, history: list[Row], seconds: float) -> Checkpoint:
    backend = simulation.backend
    simulation.replica.at(state.model)  # opened, so that the sum itself need not be kept
    return Checkpoint(
        identity=simulation.identity,
        round=state.round,
        release_plan=state.release_plan,
        algorithm=state.algorithm,
        replica=simulation.replica.state(),
        client_state=dict(backend.client_state()),
        history=history,
        bytes_up=backend.bytes_up,
        bytes_down=backend.bytes_down,
        seconds=seconds,
        ledger_rows=simulation.private.gateway.rows if simulation.private else 0,
        uncounted=state.uncounted,
        absent=state.absent,
    )
