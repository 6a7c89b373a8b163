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

Late = Callable[[], bool]
Report = Callable[[float], None]  # called with the work done since the last call, in runs
# Runs of the stacked engine finish together, so a kill loses a stack: it has few runs at first, then as many as take
# about a minute. From some twenty runs on the cores are busy, and more gain little.
LEAST_STACK, FIRST_STACK, LARGEST_STACK, STACK_SECONDS = 8, 16, 256, 60.0
# What a run can fail with without being a mistake of the sweep: it is recorded, and the others go on.
FAILURES = (InputError, Refused, ArithmeticError, RuntimeError, ValueError, OSError, MemoryError)


def run_many(
    configs: Sequence[Config],
    engine: str,
    workers: int,
    report: Report | None = None,
    late: Late = lambda: False,
) -> Iterator[tuple[int, Row]]:
    """(index, row) of every run, in the order in which they finish; a failed run has status "failed" and its reason.

    engine: "local" runs each in a process of a pool (with one worker: in this process, one after the other),
    "stacked" many of them as one batched program, on as many threads. Once it is `late`, no more are begun.
    """
    if engine == "local":
        return _local(configs, workers, report, late)
    if engine == "stacked":
        return _stacked(configs, workers, report, late)
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


def _local(configs: Sequence[Config], workers: int, report: Report | None, late: Late) -> Iterator[tuple[int, Row]]:
    if workers > 1 and len(configs) > 1:
        rows = in_processes(run_one, configs, min(workers, len(configs)), late)
    else:
        rows = ((index, run_one(config)) for index, config in enumerate(configs) if not late())
    for index, row in rows:
        if report:
            report(1.0)
        yield index, row


def _stacked(configs: Sequence[Config], threads: int, report: Report | None, late: Late) -> Iterator[tuple[int, Row]]:
    """Stacks of runs on the batched engine; the seconds of a run are its share of its stack's."""
    engine = _stacked_engine()
    start, size = 0, FIRST_STACK
    while start < len(configs) and not late():
        stack = dict(enumerate(configs[start : start + size], start))
        told = _Told(report)
        rows: dict[int, Row] = {}
        settings = _built(engine, stack, rows)
        numbers = list(settings)
        began = time.perf_counter()
        try:
            errors: dict[int, Exception] = {}
            outcomes = engine.run_stacked(
                list(settings.values()), failed=errors.__setitem__, progress=told.add, threads=threads
            )
            rows |= {numbers[position]: failed_row(error) for position, error in errors.items()}
            share = (time.perf_counter() - began) / max(len(numbers), 1)
            done = [number for position, number in enumerate(numbers) if position not in errors]
            for number, outcome in zip(done, outcomes, strict=True):
                rows[number] = {**finished_row(outcome), "seconds": share, "engine": "stacked"}
        finally:
            for setting in settings.values():
                if setting.private is not None:
                    setting.private.close()
        told.up_to(len(stack))
        start += size
        size = next_stack(size, time.perf_counter() - began)
        yield from rows.items()


def next_stack(size: int, seconds: float) -> int:
    """How many runs go next, when so many took so long: about as many as take a minute, at most twice as many."""
    return max(LEAST_STACK, min(LARGEST_STACK, 2 * size, int(size * STACK_SECONDS / max(seconds, 1e-3))))


class _Told:
    """Passes on how far a stack is, in runs; what a failed run did not do is told at the end."""

    def __init__(self, report: Report | None) -> None:
        self._report, self._sum = report, 0.0

    def add(self, runs: float) -> None:
        if self._report is not None and runs:
            self._report(runs)
        self._sum += runs

    def up_to(self, runs: int) -> None:
        self.add(runs - self._sum)


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
