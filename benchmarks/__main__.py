"""Run all benchmarks, or those named on the command line, and print each figure beside its target.

Several run one after the other, each in a process of its own: the memory, threads and compiled code of one are not in
the figures of the next. Exit code 1: a target was missed. 3: a benchmark ended with an error.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from typing import Any

ALL = ["kernels", "accounting", "ledger", "training", "private_step", "aggregation", "secure_sums", "stacked"]
ALL += ["checkpoints", "wide_tables", "flower"]


def main(names: list[str]) -> int:
    """The exit code. Ledgers of benchmarks are not remembered in the user's own state folder."""
    with tempfile.TemporaryDirectory(prefix="privfair-state-") as folder:
        os.environ["PRIVFAIR_STATE"] = folder
        return _one(names[0]) if len(names) == 1 else _each(names)


def _one(name: str) -> int:
    """Run a benchmark here."""
    print(f"\n{name}", flush=True)
    missed = 0
    for result in importlib.import_module(f"benchmarks.{name}").run():
        print(f"  {result}", flush=True)
        missed += not result.ok
    return 1 if missed else 0


def _each(names: list[str]) -> int:
    """Run every benchmark in its own process, and name those that missed a target."""
    codes = {name: subprocess.run([sys.executable, "-m", "benchmarks", name], check=False).returncode for name in names}
    missed = [name for name, code in codes.items() if code == 1]
    broken = [name for name, code in codes.items() if code not in (0, 1)]
    print(f"\ntargets missed: {', '.join(missed)}" if missed else "\nno target missed")
    if broken:
        print(f"ended with an error: {', '.join(broken)}")
    return 3 if broken else 1 if missed else 0


def _tell_a_fault(*error: Any) -> None:
    """As Python does, with the exit code of a fault: its own is that of a missed target."""
    sys.__excepthook__(*error)
    sys.stdout.flush()
    os._exit(3)


if __name__ == "__main__":
    sys.excepthook = _tell_a_fault
    sys.exit(main(sys.argv[1:] or ALL))
