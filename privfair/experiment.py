"""A whole run: rounds, history, checkpoints, resume, result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from accountant.errors import InputError, Refused
from privfair.attendance import Roll
from privfair.evaluation import Row
from privfair.interfaces import ServerState, answered
from privfair.messages import EvaluateRequest, Evaluation, Parameters, Sealed
from privfair.privacy.forecast import count_spends, planned_spends
from privfair.privacy.plan_report import plan_report
from privfair.round import begin, run_round
from privfair.run_directory import Checkpoint, RunDirectory
from privfair.setting import Setting
from privfair.threads import one_thread

Report = Callable[[Row], None]  # called with each line of the history
Planned = Callable[[dict[str, Any]], None]  # called with the plan of a private run


@dataclass(frozen=True)
class RunOutcome:
    """Where a run ended."""

    setting: Setting
    state: ServerState
    history: list[Row]
    seconds: float
    released: tuple[Evaluation, ...] | None = None  # noisy confusion counts of all clients, where asked for


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
    if planned and setting.private:
        planned(plan_report(config, state.terms, setting.private.planner, budgeted=setting.private.books.budgeted))
    while state.round < config.federation.rounds:
        state = run_round(state, server)
        due = state.round % config.run.evaluate_every == 0 or state.round == config.federation.rounds
        history += [_evaluate(setting, state)] if due else []
        if report and due:
            report(history[-1])
        if directory:
            elapsed = before + time.perf_counter() - started
            directory.write_checkpoint(_checkpoint(setting, state, history, elapsed))
        if setting.private:
            setting.private.desk.delivered()
    if state.terms.evaluation is not None and released is None:
        model = Parameters(setting.replica.result) if config.scheme == "plain" else state.model
        request, everyone = EvaluateRequest(model, state.terms.evaluation), range(state.clients)
        roll = Roll(setting.backend.exchange, None)
        released = tuple(answered(Evaluation, everyone, roll.ask(everyone, lambda _: request)).values())
        state = replace(state, absent=(*state.absent, *roll.absent))
        if directory:
            elapsed = before + time.perf_counter() - started
            directory.write_checkpoint(replace(_checkpoint(setting, state, history, elapsed), released=released))
    setting.replica.at(state.model)
    setting.model.load(setting.replica.result)
    return RunOutcome(setting, state, history, before + time.perf_counter() - started, released)


@one_thread()
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
        require_room(setting, None)
        state = begin(setting.server)
        require_room(setting, state)
        history = [_evaluate(setting, state)]
        if directory:  # the terms are settled once
            directory.write_checkpoint(_checkpoint(setting, state, history, 0.0))
        return state, history, 0.0, None
    if checkpoint.identity != setting.identity:
        remedy = "Resume with the data and the notion that the run was started with, or start a new run."
        raise InputError("resume", "must be on the same data and notion as before", "others", remedy)
    if setting.private is not None:
        rows = setting.private.desk.rows
        if rows < checkpoint.ledger_rows:
            raise Refused(
                f"The ledger has {rows} rows of this run, and it had {checkpoint.ledger_rows} when the run was "
                "interrupted: it was replaced by an older copy. Put the newer one back."
            )
    setting.replica.restore(checkpoint.replica)
    setting.backend.restore(checkpoint.client_state, checkpoint.bytes_up, checkpoint.bytes_down)
    model = setting.replica.message() if setting.config.scheme == "plain" else Sealed(setting.replica.round, b"")
    known = checkpoint
    state = ServerState(known.round, model, known.terms, known.algorithm, known.uncounted, known.absent)
    return state, list(checkpoint.history), checkpoint.seconds, checkpoint.released


def require_room(setting: Setting, state: ServerState | None) -> None:
    """Nothing, if the whole run fits into its data's budget; before counts (no state yet) as far as it is known."""
    if setting.private is None or not setting.private.books.budgeted:
        return
    desk, planner = setting.private.desk, setting.private.planner
    plan, rounds = setting.server.plan, setting.config.federation.rounds
    if state is None:
        terms = planner.terms_beforehand(setting.backend.clients)
        spends = count_spends(terms, desk.prices)
        state = ServerState(0, setting.server.keeper.first(), terms, {})
    else:
        spends = []
    setting.private.books.ledger.require_room([*spends, *planned_spends(state, plan, rounds, desk.prices)])


def _evaluate(setting: Setting, state: ServerState) -> Row:
    setting.replica.at(state.model)
    return evaluated(setting, state.round)


def evaluated(setting: Setting, round_number: int) -> Row:
    """One line of the history, for the replica's present model; only the round where exact figures are not allowed."""
    if setting.evaluator is None:
        return {"round": round_number}
    setting.model.load(setting.replica.result)
    return setting.evaluator.row(round_number)


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
        history=history,
        bytes_up=backend.bytes_up,
        bytes_down=backend.bytes_down,
        seconds=seconds,
        ledger_rows=setting.private.desk.rows if setting.private else 0,
        uncounted=state.uncounted,
        absent=state.absent,
    )
