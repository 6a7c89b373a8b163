"""A process that has imported everything and splits off a copy of itself for every message of a SuperNode.

A SuperNode starts a program for every message, and importing torch takes that program far longer than its work. Only
modules are loaded before the copies are made: no records, no keys, and no random numbers drawn, so a copy is what a
fresh process would be. (All private noise comes from the system's generator, which knows of no copies.)
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback

from privfair.deployment.flower import guard

# What an answer needs, also where it is imported late.
MODULES = (
    "privfair.deployment.flower.client_app",
    "privfair.secure_aggregation.keys",
    "privfair.secure_aggregation.tenseal",
    "privfair.clients.opacus_engine",
    "privfair.privacy.planner",
    "flwr.supernode.cli",
)


def serve(listener: socket.socket) -> None:
    """Answer requests at a socket until the standard input ends: each is the command line of a copy."""
    for module in MODULES:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that ended are not waited for
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:  # only ever its end: the program that started this one is gone
            return
        caller, _ = listener.accept()
        with caller:
            words = json.load(caller.makefile("rb"))
            if os.fork() == 0:
                listener.close()
                _run(words)


def _run(words: list[str]) -> None:
    """Be the program that a SuperNode would have started; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.argv = [guard.CLIENT, *words]
        guard.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the last place where anybody could hear of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
