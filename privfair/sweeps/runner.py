"""Many runs: `run_many` hands them to an engine and gives their rows back as they finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.experiment import run
from privfair.setting import build
from privfair.sweeps.pool import in_processes
from privfair.sweeps.rows import Row, failed_row, finished_row

Report = Callable[[float], None]  # called with the work done since the last call, in runs
STACK = 128  # runs of the stacked engine that finish together: what a kill can lose
# What a run can fail with without being a mistake of the sweep: it is recorded, and the others go on.
FAILURES = (InputError, Refused, ArithmeticError, RuntimeError, ValueError, OSError, MemoryError)


def run_many(
    configs: Sequence[Config], engine: str, workers: int, report: Report | None = None
) -> Iterator[tuple[int, Row]]:
    """(index, row) of every run, in the order in which they finish; a failed run has status "failed" and its reason.

    engine: "local" runs each in a process of a pool (with one worker: in this process, one after the other),
    "stacked" all of them as one batched program.
    """
    if engine == "local":
        return _local(configs, workers, report)
    if engine == "stacked":
        return _stacked(configs, report)
    raise InputError("run.engine", "must be local or stacked for a sweep", engine)


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


def _local(configs: Sequence[Config], workers: int, report: Report | None) -> Iterator[tuple[int, Row]]:
    if workers > 1 and len(configs) > 1:
        rows = in_processes(run_one, configs, min(workers, len(configs)))
    else:
        rows = ((index, run_one(config)) for index, config in enumerate(configs))
    for index, row in rows:
        if report:
            report(1.0)
        yield index, row


def _stacked(configs: Sequence[Config], report: Report | None) -> Iterator[tuple[int, Row]]:
    """Stacks of runs on the batched engine; the seconds of a run are its share of its stack's."""
    engine = _stacked_engine()
    for start in range(0, len(configs), STACK):
        rows: dict[int, Row] = {}
        settings = _built(engine, dict(enumerate(configs[start : start + STACK], start)), rows)
        numbers = list(settings)
        began = time.perf_counter()
        try:
            errors: dict[int, Exception] = {}
            outcomes = engine.run_stacked(list(settings.values()), failed=errors.__setitem__)
            rows |= {numbers[position]: failed_row(error) for position, error in errors.items()}
            share = (time.perf_counter() - began) / max(len(numbers), 1)
            done = [number for position, number in enumerate(numbers) if position not in errors]
            for number, outcome in zip(done, outcomes, strict=True):
                rows[number] = {**finished_row(outcome), "seconds": share, "engine": "stacked"}
        finally:
            for setting in settings.values():
                if setting.private is not None:
                    setting.private.close()
        for number, row in rows.items():
            if report:
                report(1.0)
            yield number, row


def _built(engine: Any, configs: dict[int, Config], rows: dict[int, Row]) -> dict[int, Any]:
    """The settings of those runs that can be built, sharing their data; the others get their row."""
    try:
        return dict(zip(configs, engine.build_stacked(list(configs.values())), strict=True))
    except FAILURES:
        buildable = {}
        for number, config in configs.items():
            try:
                engine.build_stacked([config])
                buildable[number] = config
            except FAILURES as error:
                rows[number] = failed_row(error)
        return dict(zip(buildable, engine.build_stacked(list(buildable.values())), strict=True))


def _stacked_engine() -> Any:
    """The module of the batched engine, where this installation has it."""
    try:
        return import_module("privfair.backends.stacked")
    except ImportError:
        raise InputError("run.engine", "must be an engine of this installation", "stacked", "Use local.") from None
