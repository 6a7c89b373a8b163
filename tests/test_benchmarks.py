"""How the benchmarks measure: every figure is of its own process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.__main__ import main
from benchmarks.measure import in_process

ROOT = Path(__file__).parent.parent
LARGE = 300_000_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_the_peak_memory_is_of_the_measured_process_alone() -> None:
    """A process that is started by a large one has ru_maxrss of the large one, before it did anything."""
    ballast = bytearray(LARGE)
    ballast[::4096] = b"x" * len(ballast[::4096])  # in memory, every page of it
    _, little = in_process("pass")
    assert little < LARGE / 2e9
    del ballast
    _, much = in_process(f"x = bytearray({LARGE})\nx[::4096] = b'x' * len(x[::4096])")
    assert LARGE / 1e9 <= much < LARGE / 1e9 + little + 0.1


def test_a_benchmark_that_ends_with_an_error_is_no_missed_target() -> None:
    for names in (["no_such_benchmark"], ["no_such_benchmark", "nor_this"]):
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks", *names], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 3
    assert "ended with an error: no_such_benchmark, nor_this" in ended.stdout


def test_ledgers_of_benchmarks_are_remembered_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIVFAIR_STATE", str(tmp_path))
    seen: list[str] = []

    def run() -> list[object]:
        seen.append(os.environ["PRIVFAIR_STATE"])
        return []

    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(run=run))
    assert main(["ledger"]) == 0
    assert seen != [str(tmp_path)]
    assert not Path(seen[0]).exists()
