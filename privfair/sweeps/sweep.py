"""A sweep: many runs on an engine, their rows written down as they finish, and continued after an interruption."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.datasets.registry import load_configured
from privfair.privacy.run_ledger import budget_at_hand, require_its_budget
from privfair.privacy.statement import total_epsilon, with_collusion
from privfair.runs.assembly import Simulation, build
from privfair.runs.loop import RunOutcome, run
from privfair.sweeps.jobs import Job, Key, drop_privacy
from privfair.sweeps.journal import NOTIONS, Ended, Journal, Row, failed_row
from privfair.sweeps.pool import Batch, Late, Report, Reporter, Rows, in_processes

# Runs of the stacked engine finish together, so a kill loses a stack: it has few runs at first, then as many as take
# about a minute. From some twenty runs on a core is busy, and more gain little.
LEAST_STACK, FIRST_STACK, LARGEST_STACK, STACK_SECONDS = 8, 16, 256, 60.0
# Between the compiled steps of a stack there is Python, which keeps one core busy while the others wait. So longer
# sweeps continue in one process per core, which takes some seconds to start.
PROCESSES_PAY = 15.0
# What a run can fail with without being a mistake of the sweep: it is recorded, and the others continue.
FAILURES = (InputError, Refused, ArithmeticError, RuntimeError, ValueError, OSError, MemoryError)
_NOT_COMPARED = ("seed", "out", "engine", "evaluate_every")  # of [run]: they do not change a figure

Started = Callable[[int, int], None]  # called with (runs that are there already, all runs)
Finished = Callable[[Job, Row], None]


@dataclass(frozen=True)
class Sweep(Ended):
    """The result of a sweep: one row per job that ended, failed ones too, in the order of the jobs."""

    jobs: tuple[Job, ...]
    rows: tuple[Row, ...]
    histories: Mapping[Key, list[Row]]
    continued: int  # runs that were there already
    out: Path
    earlier: tuple[Row, ...] = ()  # rows in the folder from earlier calls whose runs are no jobs of this call
    unasked: int = 0  # how many of those `counts` includes

    def whole(self) -> Sweep:
        """Everything in its folder: the jobs of this call, then the finished runs of earlier calls.

        A run that failed in an earlier call and was not tried again is only counted.
        """
        there = [row for row in self.earlier if row["status"] == "done"]
        continued = self.continued + len(there)
        rows = (*self.rows, *there)
        return replace(self, rows=rows, continued=continued, earlier=(), unasked=self.unasked + len(self.earlier))

    def counts(self) -> dict[str, Any]:
        """How many runs there are, ended and failed, and how long they computed."""
        return {
            "all": len(self.jobs) + self.unasked,
            "done": len(self.done),
            "failed": len(self.failed),
            "continued": self.continued,
            "seconds": sum(row["seconds"] or 0.0 for row in self.done),
        }


def run_sweep(
    jobs: Sequence[Job],
    out: Path,
    *,
    configuration: Mapping[str, Any],
    workers: int | None = None,
    minutes: float = math.inf,
    started: Started | None = None,
    finished: Finished | None = None,
    progress: Report | None = None,
) -> Sweep:
    """Run all jobs that `out` has no result of yet; every finished run is on the disk before the next is reported.

    `configuration` must be the same when the sweep is continued. Bad input raises before anything is written; a run
    that fails on its own is recorded with its reason. After so many `minutes` no more runs begin. `started`,
    `finished` and `progress` are called as the sweep proceeds. An interrupted sweep leaves no process behind.
    """
    engines = {job.config.run.engine for job in jobs}
    if len(engines) != 1:
        raise InputError("jobs", "must have one engine", sorted(engines))
    if len({job.key for job in jobs}) < len(jobs):
        raise InputError("jobs", "must differ in series, value, seed or ε", "two that do not")
    require_no_budget(jobs[0].config, len(jobs))
    fingerprint = _require_buildable(jobs)
    asked = {job.key for job in jobs}
    with Journal(out, {**configuration, "data fingerprint": fingerprint}, asked) as journal:
        there = journal.newest()
        rows = {key: row for key, row in there.items() if key in asked and row["status"] == "done"}
        earlier = tuple(row for key, row in there.items() if key not in asked)
        missing = [job for job in jobs if job.key not in rows]
        continued = len(jobs) - len(missing)
        if started:
            started(continued, len(jobs))
        configs = [job.config for job in missing]
        end = time.monotonic() + 60 * minutes

        def late() -> bool:
            return time.monotonic() >= end

        with closing(run_many(configs, engines.pop(), workers or default_workers(), progress, late)) as running:
            for index, row in running:
                job = missing[index]
                rows[job.key] = journal.add(job, row)
                if finished:
                    finished(job, rows[job.key])
        ended = tuple(rows[job.key] for job in jobs if job.key in rows)
        return Sweep(tuple(jobs), ended, journal.histories(), continued, out, earlier)


def default_workers() -> int:
    """One process for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def comparable(config: Config) -> dict[str, Any]:
    """The tables of a configuration without what may change between two calls of one sweep."""
    tables = config.as_tables()
    tables["run"] = {key: value for key, value in tables["run"].items() if key not in _NOT_COMPARED}
    return tables


def _require_buildable(jobs: Sequence[Job]) -> str:
    """The fingerprint of the first job's data. Raise the first method's error if no method can be built.

    Methods are built without privacy, which touches no ledger. If only some cannot be built, their own rows say so.
    """
    first = jobs[0].config
    federation = load_configured(first)
    error: InputError | None = None
    for config in {job.config.federation.method: job.config for job in jobs}.values():
        tables = config.as_tables()
        drop_privacy(tables)
        try:
            build(Config.build(tables), federation if config.data == first.data else load_configured(config))
            return federation.fingerprint()
        except InputError as wrong:
            error = error or wrong
    raise error if error is not None else InputError("jobs", "must be one or more", 0)


def require_no_budget(config: Config, runs: int) -> None:
    """Raise if the dataset has a lifetime budget in the ledger that this configuration names.

    A sweep compares the figures of its runs to choose among them. On data with a budget, all runs would have to be
    reserved before the first one, and their figures released with noise. The plan of a run depends on its released
    counts, so the total is not known before the first release: the sweep is refused, private or not.
    """
    where, name, budget = budget_at_hand(config, config.data.name)
    if budget is not None:
        raise Refused(
            f"Dataset {name!r} has a lifetime budget of ε = {budget.epsilon:g}, δ = {budget.delta:g} in {where}, and a "
            f"sweep of {runs} runs looks at the figures of every run to choose among them. All of it would have to be "
            "reserved before the first run, which is not possible: what a run costs is planned from counts that it "
            "releases itself. Sweep on public or simulated data, then `privfair train` once on these."
        )
    require_its_budget(config, name, where)


def run_many(
    configs: Sequence[Config],
    engine: str,
    workers: int,
    report: Report | None = None,
    late: Late = lambda: False,
) -> Generator[tuple[int, Row], None, None]:
    """Yield (index, row) of every run as it finishes; a failed run has status "failed" and its reason.

    engine: "local" runs one at a time, "stacked" many as one batched program. Several workers are as many processes,
    which end when the generator is closed. Once it is `late`, no more runs begin.
    """
    engines = {"local": _run_local, "stacked": _run_stacks}
    if engine not in engines:
        raise InputError("run.engine", "must be local or stacked for a sweep", engine)
    return (row for rows in engines[engine](configs, workers, report, late) for row in rows.items())


def run_one(config: Config) -> Row:
    """The row of one run on the sequential engine."""
    try:
        simulation = build(config)
        try:
            return finished_row(run(simulation))
        finally:
            simulation.close()
    except FAILURES as error:
        return failed_row(error)


def run_alone(configs: Batch, report: Report) -> Rows:
    """The rows of runs one after the other."""
    rows = {}
    for number, config in configs.items():
        rows[number] = run_one(config)
        report(1.0)
    return rows


def _run_local(configs: Sequence[Config], workers: int, report: Report | None, late: Late) -> Iterator[Rows]:
    singles = ({number: config} for number, config in enumerate(configs))
    if workers > 1 and len(configs) > 1:
        yield from in_processes(run_alone, singles, min(workers, len(configs)), report, late)
        return
    reporter = Reporter(report)
    for single in singles:
        if late():
            return
        yield run_alone(single, reporter.add)


class Stacks:
    """Cuts a sweep into stacks whose size follows from how long the last one took."""

    def __init__(self, configs: Sequence[Config], workers: int) -> None:
        """`workers` share what is left at the end."""
        self._configs, self._workers = configs, workers
        self._start, self._size, self._seconds = 0, FIRST_STACK, 0.0

    def __iter__(self) -> Iterator[Batch]:
        """The iterator itself: another loop over it gets the rest."""
        return self

    def __next__(self) -> Batch:
        """The next runs: at most one worker's part of what is left."""
        left = len(self._configs) - self._start
        if not left:
            raise StopIteration
        start, size = self._start, min(self._size, max(LEAST_STACK, -(-left // self._workers)))
        self._start += min(size, left)
        return dict(enumerate(self._configs[start : self._start], start))

    def took(self, runs: int, seconds: float) -> None:
        """Record how long a stack took."""
        self._size, self._seconds = next_stack(runs, seconds), seconds / runs

    @property
    def seconds_left(self) -> float:
        """How long the rest takes at the pace of the last stack."""
        return (len(self._configs) - self._start) * self._seconds


def next_stack(size: int, seconds: float) -> int:
    """The size of the next stack: about as many runs as take a minute, at most twice as many as the last."""
    return max(LEAST_STACK, min(LARGEST_STACK, 2 * size, int(size * STACK_SECONDS / max(seconds, 1e-3))))


def _run_stacks(configs: Sequence[Config], workers: int, report: Report | None, late: Late) -> Iterator[Rows]:
    """Yield the rows of each stack. The first runs in this process on all cores; a long rest in a process per core.

    The first stack compiles what is not compiled yet and shows how long a run takes.
    """
    stacks, reporter = Stacks(configs, workers), Reporter(report)
    for stack in stacks:
        if late():
            return
        began = time.perf_counter()
        rows = run_stack(stack, reporter.add, threads=workers)
        stacks.took(len(stack), time.perf_counter() - began)
        yield rows
        if workers > 1 and stacks.seconds_left > PROCESSES_PAY:
            break
    else:
        return
    for rows in in_processes(partial(run_stack, processes=workers), stacks, workers, reporter.add, late):
        stacks.took(len(rows), sum(row.get("seconds", 0.0) for row in rows.values()))
        yield rows


def run_stack(configs: Batch, report: Report, *, threads: int = 1, processes: int = 1) -> Rows:
    """The rows of runs in one batched program; each run gets an equal share of the stack's seconds.

    processes: how many such programs share the memory.
    """
    from privfair.engines.batched.networks import MEMORY_SHARE, free_numbers
    from privfair.runs.batched import run_stacked

    rows: Rows = {}
    simulations = _built(configs, rows)
    numbers, reporter = list(simulations), Reporter(report)
    began = time.perf_counter()
    try:
        errors: dict[int, Exception] = {}
        outcomes = run_stacked(
            list(simulations.values()), failed=errors.__setitem__, progress=reporter.add, threads=threads,
            room=8 * free_numbers(MEMORY_SHARE / processes),
        )  # fmt: skip
        rows |= {numbers[position]: failed_row(error) for position, error in errors.items()}
        share = (time.perf_counter() - began) / max(len(numbers), 1)
        done = [number for position, number in enumerate(numbers) if position not in errors]
        for number, outcome in zip(done, outcomes, strict=True):
            rows[number] = {**finished_row(outcome), "seconds": share, "engine": "stacked"}
    finally:
        for simulation in simulations.values():
            simulation.close()
    reporter.up_to(len(configs))
    return rows


def _built(configs: Batch, rows: Rows) -> dict[int, Simulation]:
    """The runs that can be built, sharing their data; the others get a row with the reason."""
    from privfair.runs.batched import build_stacked

    try:
        return dict(zip(configs, build_stacked(list(configs.values())), strict=True))
    except FAILURES:
        buildable = {}
        for number, config in configs.items():
            try:
                build_stacked([config])
                buildable[number] = config
            except FAILURES as error:
                rows[number] = failed_row(error)
        return dict(zip(buildable, build_stacked(list(buildable.values())), strict=True))


def finished_row(outcome: RunOutcome) -> Row:
    """The figures of a run, as in `privfair train --json`; `history` has its lines if the run kept several."""
    simulation, last = outcome.simulation, outcome.history[-1]
    row: Row = {
        "status": "done",
        "reason": "",
        "accuracy": last.get("accuracy"),
        "rmse": last.get("rmse"),
        "notion": simulation.notion,
        "unfairness": last.get(simulation.notion),
        **{f"unfairness_{name}": last.get(name) for name in NOTIONS},
        "mmd2": last.get("test_mmd2"),
        **{key: last.get(key) for key in ("train_loss", "train_mmd2", "train_objective", "test_loss")},
        "test_objective": last.get("test_objective"),
        **_baseline(outcome),
        **_spent(outcome),
        "rounds": outcome.state.round,
        "bytes_up": simulation.backend.bytes_up,
        "bytes_down": simulation.backend.bytes_down,
        "seconds": outcome.seconds,
        "engine": simulation.config.run.engine,
    }
    if simulation.config.run.evaluate_every < simulation.config.federation.rounds:
        row["history"] = [{**line, "unfairness": line.get(simulation.notion)} for line in outcome.history]
    return row


def _baseline(outcome: RunOutcome) -> Row:
    """What a constant answer reaches on the test records: frontiers are measured from there."""
    federation = outcome.simulation.federation
    if outcome.simulation.evaluator is None:
        return {}
    labels = federation.pooled_test().labels
    if not len(labels):
        return {}
    if federation.schema.task == "binary":
        positive = float(np.mean(labels == 1))
        return {"baseline_accuracy": max(positive, 1 - positive)}
    return {"baseline_rmse": float(np.std(labels))}


def _spent(outcome: RunOutcome) -> Row:
    """ε by both methods, from the ledger's rows; empty for a run without privacy."""
    simulation = outcome.simulation
    if simulation.run_ledger is None or simulation.gateway is None:
        return {}
    spends, plan, prices = simulation.run_ledger.spends(), simulation.server.plan, simulation.gateway.prices
    release_plan, planner = outcome.state.release_plan, simulation.spec.planner
    total = total_epsilon(simulation.config, release_plan, spends, plan=plan, prices=prices)
    epsilon = {"epsilon_rdp": total.rdp, "epsilon_pld": total.pld}
    if planner is not None and release_plan.cohort is not None and release_plan.noise_is_shared:
        pooled = with_collusion(release_plan, replace(planner, count_releases=release_plan.count_releases))
        epsilon["epsilon_beyond"] = pooled["pld"]
    claim = release_plan.claim
    delta = simulation.config.privacy.delta if claim is None else claim.delta
    return {**{name: value if math.isfinite(value) else None for name, value in epsilon.items()}, "delta": delta}
