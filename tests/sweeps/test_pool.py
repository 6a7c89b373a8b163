"""Processes that die, and a sweep that is given up: nothing is lost, and nobody is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from privfair.sweeps.pool import Report, in_processes

Numbers = dict[int, Any]  # what stands for runs here


def _dies_on_three(batch: Numbers, report: Report) -> Numbers:
    for number in batch:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        report(1.0)
    return {number: {"number": number} for number in batch}


def _batches(count: int, size: int) -> Iterator[Numbers]:
    for start in range(0, count, size):
        yield dict.fromkeys(range(start, min(start + size, count)))


@pytest.mark.parametrize("size", [1, 5, 16])
def test_a_worker_that_is_killed_costs_its_own_run_only(size: int) -> None:
    reported: list[float] = []
    rows: Numbers = {}
    for found in in_processes(_dies_on_three, _batches(12, size), 2, reported.append):
        rows |= found
    assert {i: row.get("number") for i, row in rows.items()} == {i: None if i == 3 else i for i in range(12)}
    assert rows[3] == {"status": "failed", "reason": "The process of this run died, twice: out of memory, or killed."}
    assert sum(reported) == pytest.approx(12)  # what a dead process had told is taken back


def _slow(folder: Path, batch: Numbers, report: Report) -> Numbers:
    (folder / f"{next(iter(batch))}").write_text(str(os.getpid()))
    while 0 not in batch or not (folder / "1").exists():  # the first ends when the second has begun, which never ends
        time.sleep(0.01)
    return {number: {"number": number} for number in batch}


def test_who_gives_up_does_not_wait_for_the_workers(tmp_path: Path) -> None:
    found = in_processes(partial(_slow, tmp_path), _batches(4, 1), 2)
    assert next(found) == {0: {"number": 0}}
    found.close()
    pids = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(pids) >= 2
    assert not multiprocessing.active_children()
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def test_batches_are_taken_when_a_worker_is_free() -> None:
    taken: list[int] = []

    def counted() -> Iterator[Numbers]:
        for batch in _batches(9, 1):
            if batch.keys() == {3}:
                continue
            taken.extend(batch)
            yield batch

    most = 0
    for done, _ in enumerate(in_processes(_dies_on_three, counted(), 2)):
        most = max(most, len(taken) - done)
    assert taken == [0, 1, 2, 4, 5, 6, 7, 8]
    assert most <= 4


def test_once_it_is_late_no_batch_is_taken() -> None:
    late = [False]
    rows: Numbers = {}
    for found in in_processes(_dies_on_three, _batches(9, 1), 2, None, lambda: late[0]):
        rows |= found
        late[0] = True
    assert 1 <= len(rows) <= 3
