"""Hundreds of runs at once need no more memory than was planned for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# ru_maxrss is in KiB on Linux and in bytes on macOS
SCRIPT = """
import json, resource, sys
from privfair.backends.stacked import build_stacked, run_stacked
from privfair.backends.stacked.runs import planned_numbers
from privfair.config import Config

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def config(number):
    return Config.build({
        "data": {"name": sys.argv[1]}, "model": {"name": "mlp", "hidden": [16]},
        "fairness": {"lambda": 0.01 * (1 + number // 10)},
        "federation": {"rounds": 2, "local_epochs": 10, "batch_size": 100},
        "run": {"seed": number % 10, "evaluate_every": 2},
    })

run_stacked(build_stacked([config(n) for n in range(10)]))  # libraries, compiled code, every seed's records
before = peak()
settings = build_stacked([config(n) for n in range(int(sys.argv[2]))])
outcomes = run_stacked(settings)
print(json.dumps({"grown": peak() - before, "planned": 8 * sum(map(planned_numbers, settings)), "runs": len(outcomes)}))
"""


def measured(runs: int) -> dict[str, int]:
    data = "compas" if os.environ.get("PRIVFAIR_DATA") else "synthetic"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, data, str(runs)], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_the_peak_of_500_runs_is_within_the_plan() -> None:
    measured(10)  # compiles, which takes more memory than the runs and would hide theirs
    found = measured(500)
    assert found["runs"] == 500
    assert 0 < found["grown"] <= found["planned"]
