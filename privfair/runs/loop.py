"""The run loop: begin, rounds, final evaluation, end; with hooks for history, checkpoints and reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from accountant.errors import InputError, Refused
from privfair.channels.evaluation import EVALUATION, tables
from privfair.config import Config
from privfair.engines.evaluation import Row
from privfair.federated.exchange import Backend, ExchangeLog, ServerState, answered
from privfair.federated.messages import Evaluation, Model, Parameters, Sealed
from privfair.federated.model_state import Replica
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Server, begin, run_round
from privfair.privacy.plan_report import plan_report
from privfair.runs.assembly import RunSpec, Simulation
from privfair.runs.folder import Checkpoint, RunDirectory
from privfair.util import one_thread

Report = Callable[[Row], None]  # called with each line of the history
Planned = Callable[[dict[str, Any]], None]  # called with the plan of a private run


class CountedBackend(Backend, Protocol):
    """A backend that counts the bytes of its messages."""

    bytes_up: int
    bytes_down: int


class Run:
    """One run, whoever carries it out. The loop is here; a simulation and a deployment's server fill in the hooks.

    A checkpoint is written before the first round, after every round and after the final evaluation; a run whose
    directory has one goes on from there.
    """

    def __init__(self, config: Config, server: Server, backend: CountedBackend, directory: RunDirectory | None) -> None:
        """Nothing is asked yet."""
        self.config, self.server, self.backend, self.directory = config, server, backend, directory
        self.history: list[Row] = []
        self.released: tuple[Evaluation, ...] | None = None  # noisy confusion counts of all clients, where asked for
        self._started, self._before = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, with what it took before it was resumed."""
        return self._before + time.perf_counter() - self._started

    def go(self) -> ServerState:
        """Run all rounds that a checkpoint has not seen yet; the final state."""
        state = self._start()
        self.on_plan(state)
        while state.round < self.config.federation.rounds:
            state = self.next_round(state)
            self.on_round(state)
            self.save(state)
            self.on_saved()
        if state.release_plan.evaluation is not None and self.released is None:
            state = self._evaluate(state)
            self.save(state)
            self.on_saved()
        return self.on_end(state)

    def _start(self) -> ServerState:
        checkpoint = self.read_checkpoint()
        if checkpoint is not None:
            state = state_of(checkpoint, self.restored(checkpoint))
            self.history, self.released = list(checkpoint.history), checkpoint.released
            self._before = checkpoint.seconds
            self.backend.restore_clients(checkpoint.client_state)
            self.backend.bytes_up += checkpoint.bytes_up
            self.backend.bytes_down += checkpoint.bytes_down
            self.server.agree(state.release_plan)
            self.on_terms(state)
            return state
        self.require_room(None)
        state = begin(self.server)
        self.require_room(state.release_plan)
        self.on_terms(state)
        self.on_round(state)
        self.save(state)  # the release plan is settled once
        return state

    def _evaluate(self, state: ServerState) -> ServerState:
        """Ask every client for its noisy confusion counts, once."""
        model = state.model if self.shown_model is None else Parameters(self.shown_model.result)
        planned = self.server.requests(EVALUATION, state.release_plan, None)
        requests, everyone = {k: replace(request, model=model) for k, request in planned.items()}, list(planned)
        exchange_log, sums = ExchangeLog(self.backend.exchange, None), self.server.sums
        noise = state.release_plan.evaluation
        together = noise is not None and noise.shares > 1
        if together:
            everyone = sums.ready(EVALUATION, None, everyone, exchange_log.ask)
        replies = answered(Evaluation, everyone, exchange_log.ask(everyone, requests.__getitem__))
        self.released = tuple(replies.values())
        if together and noise is not None:
            parts = {k: reply.contribution for k, reply in replies.items() if reply.contribution is not None}
            totals = sums.totals(EVALUATION, None, parts, exchange_log.ask) if parts else None
            found = None if totals is None else Evaluation(tables(noise.total(totals.values), self.server.groups))
            self.released = () if found is None else (found,)
        return replace(state, absent=(*state.absent, *exchange_log.absent, *sums.notes()))

    def save(self, state: ServerState) -> None:
        """Write a checkpoint, where the run is kept."""
        if self.directory is not None:
            self.directory.write_checkpoint(self.checkpoint(state))

    # ---- hooks

    @property
    def shown_model(self) -> Replica | None:
        """The model, where the server may see it."""
        raise NotImplementedError

    def restored(self, checkpoint: Checkpoint) -> Model:
        """The model of a checkpoint; raise if the run cannot go on from it."""
        raise NotImplementedError

    def read_checkpoint(self) -> Checkpoint | None:
        """Where the run stopped; None: it is new."""
        return None if self.directory is None else self.directory.read_checkpoint()

    def checkpoint(self, state: ServerState) -> Checkpoint:
        """All that the run needs to go on from this state."""
        return Checkpoint(
            identity="",
            round=state.round,
            release_plan=state.release_plan,
            algorithm=state.algorithm,
            replica={},
            client_state=dict(self.backend.client_state()),
            history=self.history,
            bytes_up=self.backend.bytes_up,
            bytes_down=self.backend.bytes_down,
            seconds=self.seconds,
            released=self.released,
            uncounted=state.uncounted,
            absent=state.absent,
        )

    def require_room(self, release_plan: ReleasePlan | None) -> None:
        """Raise if the run does not fit into a budget; called before counts are asked for, and with the plan."""

    def next_round(self, state: ServerState) -> ServerState:
        """The state after one round; where too few clients train, this decides what happens."""
        return run_round(state, self.server)

    def on_terms(self, state: ServerState) -> None:
        """Called when the terms are known, before anything is computed under them."""

    def on_plan(self, state: ServerState) -> None:
        """Called once, before the rounds."""

    def on_round(self, state: ServerState) -> None:
        """Called before the first round and after each."""

    def on_saved(self) -> None:
        """Called after each round, and after the final evaluation, when the checkpoint is written."""

    def on_end(self, state: ServerState) -> ServerState:
        """Called at the end; the final state."""
        return state


def state_of(checkpoint: Checkpoint, model: Model) -> ServerState:
    """The server's state at a checkpoint, with the model that was restored from it."""
    found = checkpoint
    return ServerState(found.round, model, found.release_plan, found.algorithm, found.uncounted, found.absent)


def report_of(spec: RunSpec, release_plan: ReleasePlan, *, budgeted: bool, counted: bool = True) -> dict[str, Any]:
    """The plan of a private run for people, as `plan_report` has it, with what was chosen for the user."""
    if spec.planner is None:
        raise ValueError("a run without privacy has no plan")
    report = plan_report(spec.config, release_plan, spec.planner, budgeted=budgeted, counted=counted)
    return {**report, "choices": [{**choice._asdict(), "text": choice.text} for choice in spec.choices]}


# ---- A run of a simulation.


@dataclass(frozen=True)
class RunOutcome:
    """Where a run ended."""

    simulation: Simulation
    state: ServerState
    history: list[Row]
    seconds: float
    released: tuple[Evaluation, ...] | None = None  # noisy confusion counts of all clients, where asked for


class SimulatedRun(Run):
    """A run in this process, whose figures are computed after every `run.evaluate_every` rounds."""

    def __init__(
        self,
        simulation: Simulation,
        directory: RunDirectory | None = None,
        report: Report | None = None,
        planned: Planned | None = None,
    ) -> None:
        """`report` gets each line of the history, `planned` the plan of a private run."""
        super().__init__(simulation.config, simulation.server, simulation.backend, directory)
        self.simulation, self._report, self._planned = simulation, report, planned

    def outcome(self) -> RunOutcome:
        """Run, and say where the run ended."""
        state = self.go()
        return RunOutcome(self.simulation, state, self.history, self.seconds, self.released)

    @property
    def shown_model(self) -> Replica | None:
        """The replica, without encryption."""
        return self.simulation.replica if self.config.scheme == "plain" else None

    def model(self) -> Model:
        """The present model as a message; with encryption it has been opened, so that its sum is not needed again."""
        replica = self.simulation.replica
        return replica.message() if self.config.scheme == "plain" else Sealed(replica.round, b"")

    def restored(self, checkpoint: Checkpoint) -> Model:
        """As it was, on the same data and with the same ledger."""
        simulation = self.simulation
        if checkpoint.identity != simulation.identity:
            remedy = "Resume with the data and the notion that the run was started with, or start a new run."
            raise InputError("resume", "must be on the same data and notion as before", "others", remedy)
        if simulation.gateway is not None and simulation.gateway.rows < checkpoint.ledger_rows:
            raise Refused(
                f"The ledger has {simulation.gateway.rows} rows of this run, and it had {checkpoint.ledger_rows} when "
                "the run was interrupted: it was replaced by an older copy. Put the newer one back."
            )
        simulation.replica.restore(checkpoint.replica)
        return self.model()

    def checkpoint(self, state: ServerState) -> Checkpoint:
        """With the opened model and the number of rows in the ledger."""
        simulation = self.simulation
        simulation.replica.at(state.model)  # opened, so that the sum itself need not be kept
        return replace(
            super().checkpoint(state),
            identity=simulation.identity,
            replica=simulation.replica.state(),
            ledger_rows=0 if simulation.gateway is None else simulation.gateway.rows,
        )

    def require_room(self, release_plan: ReleasePlan | None) -> None:
        """Raise if the whole run does not fit into the budget of its data; before counts, as far as it is known."""
        if self.simulation.gateway is not None:
            self.simulation.spec.require_room(self.simulation.run_ledger, self.simulation.gateway.prices, release_plan)

    def on_terms(self, state: ServerState) -> None:
        """Figures are computed on features that are scaled as the clients' are."""
        if self.simulation.evaluator is not None:
            self.simulation.evaluator.scale(state.release_plan.scaling)

    def on_plan(self, state: ServerState) -> None:
        """Report the plan of a private run."""
        if self._planned and self.simulation.spec.planner:
            self._planned(report_of(self.simulation.spec, state.release_plan, budgeted=self.simulation.budgeted))

    def on_round(self, state: ServerState) -> None:
        """Add a line to the history, where one is due, and report it."""
        last = state.round == self.config.federation.rounds
        if state.round % self.config.run.evaluate_every and not last:
            return
        simulation, row = self.simulation, Row(round=state.round)
        replica, evaluator = simulation.replica, simulation.evaluator
        replica.at(state.model)
        followed = {} if replica.controller is None else replica.controller.figures(state.round - 1)
        if evaluator is not None:  # None where exact figures are not allowed
            simulation.model.load(replica.result)
            evaluator.strength = followed.get("lambda") or evaluator.strength
            row = evaluator.row(state.round)
        row |= followed
        self.history.append(row)
        if self._report and state.round:
            self._report(row)

    def on_saved(self) -> None:
        """Answers have arrived: the ledger need not keep their messages."""
        if self.simulation.gateway is not None:
            self.simulation.gateway.delivered()

    def on_end(self, state: ServerState) -> ServerState:
        """Load the trained model."""
        self.simulation.replica.at(state.model)
        self.simulation.model.load(self.simulation.replica.result)
        return state


@one_thread()
def run(
    simulation: Simulation,
    directory: RunDirectory | None = None,
    report: Report | None = None,
    planned: Planned | None = None,
) -> RunOutcome:
    """The outcome of a run in one thread: the fastest for small models."""
    return SimulatedRun(simulation, directory, report, planned).outcome()


def absences(state: ServerState, names: Sequence[str]) -> list[dict[str, Any]]:
    """Clients that did not respond: in which round (None: before the first or after the last), to what, and why."""
    return [{**asdict(absence), "client": names[absence.client]} for absence in state.absent]
