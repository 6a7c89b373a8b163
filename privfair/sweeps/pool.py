"""Runs in worker processes: a pool that survives the death of a worker and leaves no process behind."""

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
from privfair.sweeps.journal import Row, failed_row

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
    """Yield the rows of every batch as it finishes. A batch begins when a worker is free, and none once it is `late`.

    When a process dies, all batches that were running are suspects and are tried again one at a time. A batch that
    dies again is halved, until the run that kills its process is alone; it gets a row that says so.
    """
    reporter = Reporter(report)
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
                    reporter.up_to(before + pool.progress)
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
        reporter.up_to(done)
        if late():
            return


class Reporter:
    """Reports progress in runs, and takes back what a dead process had reported."""

    def __init__(self, report: Report | None) -> None:
        """Start at zero; without `report` nobody is called."""
        self._report, self._sum = report, 0.0

    def add(self, runs: float) -> None:
        """Report that so many more runs are done."""
        if self._report is not None and runs:
            self._report(runs)
        self._sum += runs

    def up_to(self, runs: float) -> None:
        """Report that so many runs are done in all: fewer than before if a process died in the middle."""
        self.add(runs - self._sum)


def _halves(batch: Batch) -> list[Batch]:
    items = list(batch.items())
    middle = (len(items) + 1) // 2
    return [dict(items[:middle]), dict(items[middle:])]


class _Pool:
    """Workers forked from a fresh process that has imported everything: a fast start, and safe with torch's threads."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["privfair.sweeps.sweep"])
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
        if self.running or kind is not None:  # the sweep gave up, and nobody waits for the workers
            self._lifeline.close()
        self._pool.shutdown(cancel_futures=True)
        self._lifeline.close()

    @property
    def free(self) -> bool:
        """Whether a batch can begin at once. No others are submitted, so that we know what died with the pool."""
        return len(self.running) < self._workers

    @property
    def progress(self) -> float:
        """Runs done. It is read without its lock, which a dead worker may still hold."""
        return float(self._progress.get_obj().value)

    def begin(self, work: Work, batch: Batch) -> None:
        self.running[self._pool.submit(_work, work, batch)] = batch

    def finished(self) -> Iterator[Rows]:
        """The rows of batches that finished since the last call; waits half a second at most."""
        for future in wait(self.running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED).done:
            rows = future.result()
            del self.running[future]
            yield rows

    def remains(self) -> Iterator[tuple[Batch, Rows | None]]:
        """After a death: every batch that was running, with its rows if they arrived in time."""
        for future, batch in self.running.items():
            yield batch, future.result() if future.done() and future.exception() is None else None
        self.running.clear()


_counter: Any = None  # in a worker: where it reports its progress


def _start_worker(lifeline: Connection, counter: Any) -> None:
    global _counter
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent handles it and ends us
    threading.Thread(target=_follow, args=(lifeline,), daemon=True).start()


def _follow(lifeline: Connection) -> None:
    """End with the sweep: a worker whose parent died or gave up would otherwise continue or wait for ever."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _work(work: Work, batch: Batch) -> Rows:
    return work(batch, _report)


def _report(runs: float) -> None:
    with _counter.get_lock():
        _counter.value += runs
