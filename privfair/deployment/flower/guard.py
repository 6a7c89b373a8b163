"""What runs at a data holder when its SuperNode has a message: the installed privfair, never code from elsewhere.

A SuperLink sends an app's code with its first message, and a SuperNode runs it: whoever controls the SuperLink could
send code that reads the holder's records. A SuperNode starts the programs that run apps by name. `write_guard` makes a
folder with programs of those names, to stand first in the search path: the one for clients loads this package's app in
place of the code that was sent, the others refuse.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from accountant.errors import Refused

CLIENT = "flwr-clientapp"
HAND_OVER = Path(__file__).with_name("hand_over.py")
LOADER = "get_load_client_app_fn"


def write_guard(folder: Path, door: Path) -> Path:
    """The folder, with a program for every name a SuperNode may start; `door`: the socket of `warm.serve`."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    folder.mkdir(parents=True, exist_ok=True)
    answer = "exec " + shlex.join([sys.executable, "-I", str(HAND_OVER), str(door), __name__]) + ' "$@"'
    for name in TASK_TYPE_TO_COMMAND.values():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{answer if name == CLIENT else _refusal(name)}\n")
        program.chmod(0o755)
    return folder


def _refusal(name: str) -> str:
    return f"echo 'privfair: {name} is not run at a data holder' >&2\nexit 1"


def main() -> None:
    """Answer one message with the installed app."""
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    if not hasattr(run_clientapp, LOADER):  # then the code that was sent would run
        raise Refused("This version of Flower loads apps in another way than the guard knows; use the pinned flwr.")
    setattr(run_clientapp, LOADER, _installed)
    flwr_clientapp()


def _installed(**_: object) -> object:
    """A loader that returns the installed app whatever it is asked for."""
    from privfair.deployment.flower.client_app import app

    return lambda *_: app


if __name__ == "__main__":
    main()
