"""Child processes that end with this one: by the end of a `with`, by Ctrl-C, and when this process is killed.

Run as a file, with the standard library alone, and the seconds between asking and killing, this ends process groups
when the program that started them is gone. It reads "+ GROUP" and "- GROUP" lines; when its input ends, whatever ended
the program at the other side, it ends every group still listed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


def end_groups(groups: set[int], grace: float) -> None:
    """Ask every group to end; kill what is left after the grace time."""
    asked = {group for group in groups if send(group, signal.SIGTERM)}
    limit = time.monotonic() + grace
    while asked and time.monotonic() < limit:
        time.sleep(0.1)
        asked = {group for group in asked if send(group, 0)}
    for group in asked:
        send(group, signal.SIGKILL)


def send(group: int, number: int) -> bool:
    """Whether there was such a group to get the signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main() -> None:
    """Read until the input ends, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        sign, group = line.split()
        if sign == "+":
            groups.add(int(group))
        else:
            groups.discard(int(group))
    end_groups(groups, float(sys.argv[1]))


GRACE = 8.0  # seconds between asking and killing: Flower's own processes force their exit after 5
REAPER = Path(__file__)  # run as a file: it imports the standard library alone
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds; Flower's own default is 1
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # no module comes from the current folder because it has the name of a package
}


def environment(home: Path, *path: Path) -> dict[str, str]:
    """This process's environment for one of Flower's programs, with a home of its own.

    The programs start one another by name: the folder of this interpreter comes first in the search path, after `path`.
    """
    folders = [*map(str, path), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return os.environ | QUIET | {"FLWR_HOME": str(home), "PATH": os.pathsep.join(folders)}


class Processes:
    """The children of a trial, each with its own log file and its own process group."""

    def __init__(self, logs: Path, grace: float = GRACE) -> None:
        """A folder for their logs, and the seconds between asking a child to end and killing it."""
        self.logs = logs
        self.grace = grace
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        """Start the one that ends the others should this process be killed."""
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", str(REAPER), str(self.grace)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them all."""
        try:
            self.end(*self.running.values())
        finally:
            self._reaper.communicate()  # its input ends, and so does it, with whatever is still listed

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """A new child; what it prints is appended to NAME.log."""
        with open(self.logs / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )
        self.running[process.pid] = process
        self._note("+", process.pid)
        return process

    def end(self, *processes: subprocess.Popen[bytes]) -> None:
        """Ask children, and everything they started, to end; kill what is left after the grace time."""
        for process in processes:
            send(process.pid, signal.SIGTERM)
        limit = time.monotonic() + self.grace
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, limit - time.monotonic()))
        self.kill(*processes)

    def kill(self, *processes: subprocess.Popen[bytes]) -> None:
        """End children, and everything they started, at once."""
        for process in processes:
            send(process.pid, signal.SIGKILL)
            process.wait()
            del self.running[process.pid]
            self._note("-", process.pid)

    def _note(self, sign: str, group: int) -> None:
        assert self._reaper.stdin is not None
        self._reaper.stdin.write(f"{sign} {group}\n")
        self._reaper.stdin.flush()


if __name__ == "__main__":
    main()
