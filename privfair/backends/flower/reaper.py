"""Ends a list of process groups when the program that started them is gone.

Run as a file, with the standard library alone, and the seconds between asking and killing. It reads "+ GROUP" and
"- GROUP" lines; when its input ends, whatever ended the program at the other side, it ends every group still listed.
"""

from __future__ import annotations

import os
import signal
import sys
import time


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


if __name__ == "__main__":
    main()
