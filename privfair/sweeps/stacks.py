"""Runs as stacks of the batched engine: how many go at once, and in which process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.sweeps.pool import Batch, Late, Report, Rows, Told, in_processes
from privfair.sweeps.rows import failed_row, finished_row

# Runs of the stacked engine finish together, so a kill loses a stack: it has few runs at first, then as many as take
# about a minute. From some twenty runs on a core is busy, and more gain little.
LEAST_STACK, FIRST_STACK, LARGEST_STACK, STACK_SECONDS = 8, 16, 256, 60.0
# Between the compiled steps of a stack there is Python, which keeps one core busy and lets the others wait. So longer
# sweeps go on in a process for each core; to start them takes some seconds.
PROCESSES_PAY = 15.0
# What a run can fail with without being a mistake of the sweep: it is recorded, and the others go on.
FAILURES = (InputError, Refused, ArithmeticError, RuntimeError, ValueError, OSError, MemoryError)


class Stacks:
    """Cuts a sweep into stacks, as long as the last ones say."""

    def __init__(self, configs: Sequence[Config], workers: int) -> None:
        """`workers`: how many share what is left at the end."""
        self._configs, self._workers = configs, workers
        self._start, self._size, self._seconds = 0, FIRST_STACK, 0.0

    def __iter__(self) -> Iterator[Batch]:
        """Itself: who goes on with it gets the rest."""
        return self

    def __next__(self) -> Batch:
        """The next runs, no more than a worker's part of what is left."""
        left = len(self._configs) - self._start
        if not left:
            raise StopIteration
        start, size = self._start, min(self._size, max(LEAST_STACK, -(-left // self._workers)))
        self._start += min(size, left)
        return dict(enumerate(self._configs[start : self._start], start))

    def took(self, runs: int, seconds: float) -> None:
        """A stack of so many runs took so long."""
        self._size, self._seconds = next_stack(runs, seconds), seconds / runs

    @property
    def seconds_left(self) -> float:
        """What the rest takes at the pace of the last stack."""
        return (len(self._configs) - self._start) * self._seconds


def next_stack(size: int, seconds: float) -> int:
    """How many runs go next, when so many took so long: about as many as take a minute, at most twice as many."""
    return max(LEAST_STACK, min(LARGEST_STACK, 2 * size, int(size * STACK_SECONDS / max(seconds, 1e-3))))


def run_stacks(configs: Sequence[Config], workers: int, report: Report | None, late: Late) -> Iterator[Rows]:
    """The rows of each stack: the first in this process, on all cores, and the rest, if it is long, in one for each.

    The first stack compiles what is not compiled yet, for all of them, and shows how long a run takes.
    """
    stacks, told = Stacks(configs, workers), Told(report)
    for stack in stacks:
        if late():
            return
        began = time.perf_counter()
        rows = run_stack(stack, told.add, threads=workers)
        stacks.took(len(stack), time.perf_counter() - began)
        yield rows
        if workers > 1 and stacks.seconds_left > PROCESSES_PAY:
            break
    else:
        return
    for rows in in_processes(partial(run_stack, processes=workers), stacks, workers, told.add, late):
        stacks.took(len(rows), sum(row.get("seconds", 0.0) for row in rows.values()))
        yield rows


def run_stack(configs: Batch, report: Report, *, threads: int = 1, processes: int = 1) -> Rows:
    """The rows of runs that go as one batched program; the seconds of a run are its share of the stack's.

    processes: how many such programs there are, which share the memory.
    """
    from privfair.backends.stacked import run_stacked
    from privfair.backends.stacked.chunks import MEMORY_SHARE, free_numbers

    rows: Rows = {}
    settings = _built(configs, rows)
    numbers, told = list(settings), Told(report)
    began = time.perf_counter()
    try:
        errors: dict[int, Exception] = {}
        outcomes = run_stacked(
            list(settings.values()), failed=errors.__setitem__, progress=told.add, threads=threads,
            room=8 * free_numbers(MEMORY_SHARE / processes),
        )  # fmt: skip
        rows |= {numbers[position]: failed_row(error) for position, error in errors.items()}
        share = (time.perf_counter() - began) / max(len(numbers), 1)
        done = [number for position, number in enumerate(numbers) if position not in errors]
        for number, outcome in zip(done, outcomes, strict=True):
            rows[number] = {**finished_row(outcome), "seconds": share, "engine": "stacked"}
    finally:
        for setting in settings.values():
            if setting.private is not None:
                setting.private.close()
    told.up_to(len(configs))
    return rows


def _built(configs: Batch, rows: Rows) -> dict[int, Any]:
    """The settings of those runs that can be built, sharing their data; the others get their row."""
    from privfair.backends.stacked import build_stacked

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
