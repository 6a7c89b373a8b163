"""Children end with their parent, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from privfair.deployment.flower.processes import Processes, environment

# A child that starts one of its own, both deaf to a polite request; they print their numbers.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "inner"])
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = """
import sys, time
from pathlib import Path
from privfair.deployment.flower import processes
with processes.Processes(Path(sys.argv[1]), grace=0.5) as children:
    children.start("child", [sys.executable, sys.argv[2]], processes.environment(Path(sys.argv[1])))
    time.sleep(600)
"""


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def eventually(holds: Callable[[], bool], limit: float = 60) -> bool:
    end = time.monotonic() + limit
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def numbers(log: Path) -> list[int]:
    return [int(word) for word in log.read_text().split()] if log.exists() else []


@pytest.fixture
def stubborn(tmp_path: Path) -> Path:
    program = tmp_path / "stubborn.py"
    program.write_text(STUBBORN)
    return program


def test_the_end_of_the_block_ends_children_and_what_they_started(tmp_path: Path, stubborn: Path) -> None:
    with Processes(tmp_path, grace=0.5) as children:
        children.start("child", [sys.executable, str(stubborn)], environment(tmp_path))
        assert eventually(lambda: len(numbers(tmp_path / "child.log")) == 2)
        started = numbers(tmp_path / "child.log")
        assert all(alive(process) for process in started)
    assert eventually(lambda: not any(alive(process) for process in started))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_whatever_ends_the_parent_ends_the_children(tmp_path: Path, stubborn: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), str(stubborn)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the background of a shell is deaf to it
    )
    try:
        assert eventually(lambda: len(numbers(tmp_path / "child.log")) == 2)
    finally:
        os.kill(parent.pid, number)
        parent.wait()
    started = numbers(tmp_path / "child.log")
    assert eventually(lambda: not any(alive(process) for process in started))


def test_a_killed_child_takes_its_own_children_along_and_the_others_stay(tmp_path: Path, stubborn: Path) -> None:
    with Processes(tmp_path, grace=0.5) as children:
        killed = children.start("killed", [sys.executable, str(stubborn)], environment(tmp_path))
        kept = children.start("kept", [sys.executable, "-c", "import time; time.sleep(600)"], environment(tmp_path))
        assert eventually(lambda: len(numbers(tmp_path / "killed.log")) == 2)
        children.kill(killed)
        assert eventually(lambda: not any(alive(process) for process in numbers(tmp_path / "killed.log")))
        assert kept.poll() is None


def test_flowers_programs_find_this_interpreter_first_and_send_nothing_home(tmp_path: Path) -> None:
    env = environment(tmp_path, tmp_path / "first")
    assert env["PATH"].split(os.pathsep)[:2] == [str(tmp_path / "first"), str(Path(sys.executable).parent)]
    assert (env["FLWR_TELEMETRY_ENABLED"], env["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
