"""A pool of processes that outlives the death of a worker and does not outlive its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

from privfair.config import Config
from privfair.sweeps.rows import Row, failed_row

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
    told = Told(report)
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
                    told.up_to(before + pool.progress)
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
        told.up_to(done)
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
        context.set_forkserver_preload(["privfair.sweeps.stacks"])
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
