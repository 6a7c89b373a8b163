"""A pool of processes that outlives the death of a worker and does not outlive its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from privfair.sweeps.rows import Row, failed_row

Task = TypeVar("Task")
DIED = "The process of this run died, twice: out of memory, or killed."


def in_processes(
    work: Callable[[Task], Row], tasks: Sequence[Task], workers: int, late: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, Row]]:
    """(index, row) of every task as they finish; once it is `late`, no more are begun.

    When a process dies, all that ran then are suspects and tried again one at a time: the one that dies alone, too,
    gets a row that says so, and those that were only beside it get their own.
    """
    waiting = list(range(len(tasks)))[::-1]
    suspects: list[int] = []
    while waiting or suspects:
        alone = bool(suspects)
        queue, suspects = (suspects, []) if alone else (waiting, [])
        width = 1 if alone else workers
        pool = _pool(min(width, len(queue)))
        running: dict[Future[Row], int] = {}
        try:
            while queue or running:
                if late():
                    queue.clear()
                while queue and len(running) < width:  # no more than that: what dies with the pool is known
                    index = queue.pop()
                    running[pool.submit(work, tasks[index])] = index
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    row = future.result()
                    yield running.pop(future), row
        except BrokenProcessPool:
            for future, index in running.items():
                if future.done() and future.exception() is None:
                    yield index, future.result()
                elif alone:
                    yield index, failed_row(DIED)
                else:
                    suspects.append(index)
            suspects += queue if alone else []
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _pool(workers: int) -> ProcessPoolExecutor:
    """Workers that are forked from a fresh process with everything imported: fast, and safe with torch's threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["privfair.sweeps.runner"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)


def _start_worker() -> None:
    """End with the sweep: a worker whose parent was killed would otherwise wait for its next task for ever."""
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
