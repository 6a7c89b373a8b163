"""A federation on this machine: a SuperLink, a SuperNode for every data holder, and one run of the app on them.

Real processes with TLS and node authentication on the loopback address, with certificates and keys made on the spot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from accountant.errors import InputError, Refused
from privfair.attendance import Unfinished
from privfair.backends.flower.federation import Federation, Node

__all__ = ["Federation", "Node", "run_federation"]

POLL = 0.5  # seconds


def run_federation(
    server_config: Path, out: Path, nodes: Sequence[Node], *, logs: Path, watch: Callable[[], None] = lambda: None
) -> None:
    """Return when the run has ended well; `InputError` or `Refused` in plain words otherwise.

    `watch` is called about twice a second while it runs. All processes are ended whatever happens.
    """
    with Federation(logs) as federation:
        for node in nodes:
            federation.admit(node)
        run = federation.submit(server_config, out)
        wait(federation, run, out, watch)


def wait(federation: Federation, run: str, out: Path, watch: Callable[[], None] = lambda: None) -> None:
    """Return when the run has ended well; otherwise raise what the server said, or what Flower says."""
    follower = federation.follow(run)
    while True:
        time.sleep(POLL)
        watch()
        federation.check()
        if follower.poll() is None:
            continue
        status, details = federation.status(run)
        if status == "finished:completed":
            return
        if status.startswith("finished"):
            raise failure(out, f"{status}: {details}", federation.logs)
        follower = federation.follow(run)  # the SuperLink was away for a moment


def failure(out: Path, status: str, logs: Path) -> Exception:
    """The error the server wrote into its folder, else one with Flower's words."""
    try:
        told = json.loads((out / "error.json").read_text())
    except FileNotFoundError:
        return Refused(f"The run ended early ({status}). What the processes said is in {logs}.")
    if told["kind"] == "input":
        return InputError(told["name"], told["rule"], told["found"], told["remedy"])
    return Unfinished(told["message"]) if told["kind"] == "unfinished" else Refused(told["message"])
