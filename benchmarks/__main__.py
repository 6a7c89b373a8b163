"""Run all benchmarks, or those named on the command line, and print each figure beside its target."""

from __future__ import annotations

import importlib
import sys

ALL = ["kernels", "accounting", "ledger", "training", "private_step", "aggregation", "stacked", "flower", "wide_tables"]


def main() -> int:
    missed = 0
    for name in sys.argv[1:] or ALL:
        print(f"\n{name}", flush=True)
        for result in importlib.import_module(f"benchmarks.{name}").run():
            print(f"  {result}", flush=True)
            missed += not result.ok
    print(f"\n{missed} missed" if missed else "\nall targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
