"""Why data with a lifetime budget are not swept."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.datasets.registry import load as load_dataset
from privfair.privacy.run_ledger import budget_at_hand, require_its_budget
from privfair.runs.assembly import build
from privfair.runs.loop import run
from privfair.sweeps.jobs import Job, Key
from privfair.sweeps.journal import Ended, Journal, Row, failed_row, finished_row
from privfair.sweeps.pool import FAILURES, Batch, Late, Report, Rows, Told, in_processes, run_stacks

NOT_COVERED = "hyper-parameters chosen on this data: not covered by the ε of any single run"


def require_no_budget(config: Config, runs: int) -> None:
    """Nothing, unless the dataset has a lifetime budget in the ledger that this configuration names.

    A sweep looks at every run's figures to choose among them. On data with a budget all of its runs would have to be
    reserved before the first, and their figures released with noise. The plan of a run depends on its released counts,
    so that sum is not known before the first release: the sweep is refused, private or not.
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


# ---- Many runs: `run_many` hands them to an engine and gives their rows back as they finish.


def run_many(
    configs: Sequence[Config],
    engine: str,
    workers: int,
    report: Report | None = None,
    late: Late = lambda: False,
) -> Generator[tuple[int, Row], None, None]:
    """(index, row) of every run, in the order in which they finish; a failed run has status "failed" and its reason.

    engine: "local" runs each by itself, "stacked" many of them as one batched program; with several workers in as many
    processes, which end when it is closed. Once it is `late`, no more are begun.
    """
    if engine not in _ENGINES:
        raise InputError("run.engine", "must be local or stacked for a sweep", engine)
    return (row for rows in _ENGINES[engine](configs, workers, report, late) for row in rows.items())


def run_one(config: Config) -> Row:
    """The row of one run on the sequential engine."""
    try:
        simulation = build(config)
    except FAILURES as error:
        return failed_row(error)
    try:
        return finished_row(run(simulation))
    except FAILURES as error:
        return failed_row(error)
    finally:
        simulation.close()


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
    reported = Told(report)
    for single in singles:
        if late():
            return
        yield run_alone(single, reported.add)


_ENGINES = {"local": _run_local, "stacked": run_stacks}


# ---- A sweep from its jobs to its rows: checked, continued, written down as it goes.


Started = Callable[[int, int], None]  # called with (runs that are there already, all runs)
Finished = Callable[[Job, Row], None]
_NOT_COMPARED = ("seed", "out", "engine", "evaluate_every")  # of [run]: they do not change a figure


@dataclass(frozen=True)
class Sweep(Ended):
    """What a sweep gave: one row per job that ended, in the order of the jobs, failed ones too."""

    jobs: tuple[Job, ...]
    rows: tuple[Row, ...]
    histories: Mapping[Key, list[Row]]
    continued: int  # runs that were there already
    out: Path
    earlier: tuple[Row, ...] = ()  # lines of runs that the folder has from earlier calls, and that are no job of this
    unasked: int = 0  # how many of those are counted

    def whole(self) -> Sweep:
        """All that its folder has: with every finished run of earlier calls, after the jobs of this one.

        Failed are those of this call; a run that failed earlier and was not asked for again is counted, no more.
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


def carry_out(
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

    `configuration` is what must be the same when the sweep is continued. Bad input is an error before anything is
    written; a run that fails on its own is recorded with its reason. After so many `minutes` no more runs are begun.
    `started`, `finished` and `progress` are told what happens. Who interrupts it leaves no process behind.
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
    """The fingerprint of the first job's data. If no method at all can be built, the first one's error is raised.

    Built without privacy, which touches no ledger. A method that alone is wrong here fails later, in its own rows.
    """
    first = jobs[0].config
    federation = _load(first)
    error: InputError | None = None
    for config in {job.config.federation.method: job.config for job in jobs}.values():
        tables = config.as_tables()
        tables["privacy"], tables["run"]["reproducible_noise"] = {}, False
        try:
            build(Config.build(tables), federation if config.data == first.data else _load(config))
            return federation.fingerprint()
        except InputError as wrong:
            error = error or wrong
    raise error if error is not None else InputError("jobs", "must be one or more", 0)


def _load(config: Config) -> Federation:
    data = config.data
    return load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
