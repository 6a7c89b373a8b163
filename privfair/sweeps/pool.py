"""Runs as stacks of the batched engine: how many go at once, and in which process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.sweeps.journal import Row, failed_row, finished_row

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
    stacks, reported = Stacks(configs, workers), Told(report)
    for stack in stacks:
        if late():
            return
        began = time.perf_counter()
        rows = run_stack(stack, reported.add, threads=workers)
        stacks.took(len(stack), time.perf_counter() - began)
        yield rows
        if workers > 1 and stacks.seconds_left > PROCESSES_PAY:
            break
    else:
        return
    for rows in in_processes(partial(run_stack, processes=workers), stacks, workers, reported.add, late):
        stacks.took(len(rows), sum(row.get("seconds", 0.0) for row in rows.values()))
        yield rows


def run_stack(configs: Batch, report: Report, *, threads: int = 1, processes: int = 1) -> Rows:
    """The rows of runs that go as one batched program; the seconds of a run are its share of the stack's.

    processes: how many such programs there are, which share the memory.
    """
    from privfair.engines.batched.networks import MEMORY_SHARE, free_numbers
    from privfair.runs.batched import run_stacked

    rows: Rows = {}
    settings = _built(configs, rows)
    numbers, reported = list(settings), Told(report)
    began = time.perf_counter()
    try:
        errors: dict[int, Exception] = {}
        outcomes = run_stacked(
            list(settings.values()), failed=errors.__setitem__, progress=reported.add, threads=threads,
            room=8 * free_numbers(MEMORY_SHARE / processes),
        )  # fmt: skip
        rows |= {numbers[position]: failed_row(error) for position, error in errors.items()}
        share = (time.perf_counter() - began) / max(len(numbers), 1)
        done = [number for position, number in enumerate(numbers) if position not in errors]
        for number, outcome in zip(done, outcomes, strict=True):
            rows[number] = {**finished_row(outcome), "seconds": share, "engine": "stacked"}
    finally:
        for simulation in settings.values():
            simulation.close()
    reported.up_to(len(configs))
    return rows


def _built(configs: Batch, rows: Rows) -> dict[int, Any]:
    """The settings of those runs that can be built, sharing their data; the others get their row."""
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


# ---- A pool of processes that outlives the death of a worker and does not outlive its own.


Batch = dict[int, Config]  # runs by their numbers
Rows = dict[int, Row]
Report = Callable[[float], None]  # called with the work done since the last call, in runs
Late = Callable[[], bool]
Work = Callable[[Batch, Report], Rows]
DIED = "The process of this run died, twice: out of memory, or killed."
LOOK_SECONDS = 0.5  # between two looks at how far the workers are


def in_processes(
    work: Work, batches: Iterator[Batch], workers: int, report: Report | None = None, late: Late = lambda: False
) -> Generator[Rows, None, None]:
    """The rows of every batch as it finishes; a batch is taken when a worker is free, and none once it is `late`.

    When a process dies, all batches that ran then are suspects and tried again one at a time. One that dies alone, too,
    is halved, until the run that dies by itself gets a row that says so; those beside it get their own.
    """
    reported = Told(report)
    suspects: list[Batch] = []
    more, done = True, 0
    while more or suspects:
        alone = bool(suspects)
        source = iter([suspects.pop()]) if alone else batches
        before = done
        with _Pool(1 if alone else workers) as pool:
            try:
                while True:
                    while pool.free and not late() and (batch := next(source, None)) is not None:
                        suspects.append(batch)  # until it is handed over, which fails when a worker has just died
                        pool.begin(work, batch)
                        suspects.pop()
                    if not pool.running:
                        break
                    for rows in pool.finished():
                        done += len(rows)
                        yield rows
                    reported.up_to(before + pool.progress)
                more = more and alone
            except BrokenProcessPool:
                for batch, arrived in pool.remains():
                    if arrived is None and alone and len(batch) == 1:
                        arrived = dict.fromkeys(batch, failed_row(DIED))
                    if arrived is None:
                        suspects += _halves(batch) if alone else [batch]
                    else:
                        done += len(arrived)
                        yield arrived
        reported.up_to(done)
        if late():
            return


class Told:
    """Passes on how far the work is, in runs."""

    def __init__(self, report: Report | None) -> None:
        """Nothing is done yet."""
        self._report, self._sum = report, 0.0

    def add(self, runs: float) -> None:
        """So much more is done."""
        if self._report is not None and runs:
            self._report(runs)
        self._sum += runs

    def up_to(self, runs: float) -> None:
        """So much is done in all; less than was told if a process died in the middle."""
        self.add(runs - self._sum)


def _halves(batch: Batch) -> list[Batch]:
    items = list(batch.items())
    middle = (len(items) + 1) // 2
    return [dict(items[:middle]), dict(items[middle:])]


class _Pool:
    """Workers that are forked from a fresh process with everything imported: fast, and safe with torch's threads."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["privfair.sweeps.pool"])
        self._workers = workers
        self._progress = context.Value("d", 0.0)
        lifeline, self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start_worker, initargs=(lifeline, self._progress)
        )
        self.running: dict[Future[Rows], Batch] = {}

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.running or kind is not None:  # given up: nobody waits for what the workers do
            self._lifeline.close()
        self._pool.shutdown(cancel_futures=True)
        self._lifeline.close()

    @property
    def free(self) -> bool:
        """Whether a batch could begin at once. No more are handed over: what dies with the pool is known."""
        return len(self.running) < self._workers

    @property
    def progress(self) -> float:
        """Runs done; read without its lock, which a worker may have taken to its grave."""
        return float(self._progress.get_obj().value)

    def begin(self, work: Work, batch: Batch) -> None:
        self.running[self._pool.submit(_worked, work, batch)] = batch

    def finished(self) -> Iterator[Rows]:
        """What has finished since the last call, after a wait of at most a moment."""
        for future in wait(self.running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED).done:
            rows = future.result()
            del self.running[future]
            yield rows

    def remains(self) -> Iterator[tuple[Batch, Rows | None]]:
        """After a death: what was running, and its rows where they arrived in time."""
        for future, batch in self.running.items():
            yield batch, future.result() if future.done() and future.exception() is None else None
        self.running.clear()


_counter: Any = None  # in a worker: where it tells its progress


def _start_worker(lifeline: Connection, counter: Any) -> None:
    global _counter
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the whole group: the parent answers, and ends us
    threading.Thread(target=_follow, args=(lifeline,), daemon=True).start()


def _follow(lifeline: Connection) -> None:
    """End with the sweep: a worker whose parent died or gave up would otherwise go on, or wait for ever."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _worked(work: Work, batch: Batch) -> Rows:
    return work(batch, _tell)


def _tell(runs: float) -> None:
    with _counter.get_lock():
        _counter.value += runs
