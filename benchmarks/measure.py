"""Timing and reporting shared by the benchmarks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One measured figure beside its target."""

    name: str
    measured: float
    target: float
    unit: str
    at_least: bool = True  # the target is a lower bound; otherwise an upper one

    @property
    def ok(self) -> bool:
        """Whether the target is met."""
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    def __str__(self) -> str:
        """One line for a person."""
        sign = "≥" if self.at_least else "≤"
        return (
            f"{'ok  ' if self.ok else 'MISS'}  {self.measured:9.3g} {self.unit:4} ({sign} {self.target:g})  {self.name}"
        )


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """The shortest of several runs: the one least disturbed by others."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def in_process(code: str) -> tuple[float, float]:
    """Seconds and peak memory in GB of a Python program run in a process of its own.

    The peak is VmHWM, which begins anew with the program. ru_maxrss begins at the peak of the process that started it,
    and would report what an earlier benchmark needed.
    """
    program = (
        "import time\n_start = time.perf_counter()\n"
        + code
        + "\n_seconds = time.perf_counter() - _start\n"
        + "with open('/proc/self/status') as _status:\n"
        + "    _peak = next(int(line.split()[1]) for line in _status if line.startswith('VmHWM:'))\n"
        + "print(_seconds, _peak * 1024 / 1e9)"
    )
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    elapsed, memory = output.split()[-2:]
    return float(elapsed), float(memory)
