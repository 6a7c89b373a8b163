"""How many jobs go at once: enough to pay for a step's Python, few enough for the cache and the memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

CACHE_NUMBERS = 1 << 19  # activations of one step: more gain nothing (measured) and leave the cache
LEAST_ROWS = 1 << 11  # fewer records a step and its Python takes longer than its arithmetic
MEMORY_SHARE = 0.25  # of the memory that is free

T = TypeVar("T")


def free_numbers(share: float = MEMORY_SHARE) -> int:
    """How many 8-byte numbers the engine may hold at once."""
    return int(share * _available_bytes()) // 8


def _available_bytes() -> int:
    """Memory that can be had without swapping; half of all of it where the system does not tell."""
    told = Path("/proc/meminfo")
    if told.exists():
        for line in told.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def rows_at_once(width: int, rows: int | None = None, threads: int = 1) -> int:
    """Records in one batched step, for a model with so many numbers a record.

    `rows`: how many there are in all; with several threads each gets a few parts, so that none waits long for another.
    """
    most = CACHE_NUMBERS // max(width, 1)
    if rows is not None and threads > 1:
        most = min(most, rows // (3 * threads))
    return max(LEAST_ROWS, most)


def cut(items: Sequence[T], cost: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Parts of the list whose largest cost times length is at most `most`; one item at least."""
    part: list[T] = []
    largest = 0
    for item in items:
        grown = max(largest, cost(item))
        if part and grown * (len(part) + 1) > most:
            yield part
            part, grown = [], cost(item)
        part.append(item)
        largest = grown
    if part:
        yield part
