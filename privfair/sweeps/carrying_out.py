"""A sweep from its jobs to its rows: checked, continued, written down as it goes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.datasets.registry import load as load_dataset
from privfair.setting import build
from privfair.sweeps.budgets import require_no_budget
from privfair.sweeps.jobs import Job, Key
from privfair.sweeps.journal import Journal
from privfair.sweeps.pool import Report
from privfair.sweeps.rows import Ended, Row
from privfair.sweeps.runner import run_many

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
