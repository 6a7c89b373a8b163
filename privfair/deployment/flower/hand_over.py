"""Hands a command line to the process that has imported everything; if there is none, starts the program itself.

Run as a file, with the standard library alone: SOCKET, MODULE, then the words of the command line.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main(path: str, module: str, *words: str) -> None:
    """Return when the words have been taken over."""
    try:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
            caller.sendall(json.dumps(words).encode())
            caller.shutdown(socket.SHUT_WR)
            caller.recv(1)  # ends when they were read
    except OSError:
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *words])


if __name__ == "__main__":
    main(*sys.argv[1:])
