"""Many runs: `run_many` hands them to an engine and gives their rows back as they finish."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from accountant.errors import InputError
from privfair.config import Config
from privfair.experiment import run
from privfair.setting import build
from privfair.sweeps.pool import Batch, Late, Report, Rows, Told, in_processes
from privfair.sweeps.rows import Row, failed_row, finished_row
from privfair.sweeps.stacks import FAILURES, run_stacks


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
        setting = build(config)
    except FAILURES as error:
        return failed_row(error)
    try:
        return finished_row(run(setting))
    except FAILURES as error:
        return failed_row(error)
    finally:
        if setting.private is not None:
            setting.private.close()


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
    told = Told(report)
    for single in singles:
        if late():
            return
        yield run_alone(single, told.add)


_ENGINES = {"local": _run_local, "stacked": run_stacks}
