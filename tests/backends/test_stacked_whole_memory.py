"""Hundreds of runs at once need no more memory than was planned for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from pathlib import Path
from privfair.runs.batched import build_stacked, run_stacked
from privfair.runs.batched import planned_numbers
from privfair.config import Config

def memory(name):
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return 1024 * int(line.split()[1])

def config(number):
    return Config.build({
        "data": {"name": sys.argv[1]}, "model": {"name": "mlp", "hidden": [16]},
        "fairness": {"lambda": 0.01 * (1 + number // 10)},
        "federation": {"rounds": 2, "local_epochs": 10, "batch_size": 100},
        "run": {"seed": number % 10, "evaluate_every": 2},
    })

run_stacked(build_stacked([config(n) for n in range(10)]))  # libraries, compiled code, every seed's records
Path("/proc/self/clear_refs").write_text("5")  # the peak so far, compiling and all, is forgotten
before = memory("VmRSS")
settings = build_stacked([config(n) for n in range(int(sys.argv[2]))])
outcomes = run_stacked(settings)
grown, planned = memory("VmHWM") - before, 8 * sum(map(planned_numbers, settings))
print(json.dumps({"grown": grown, "planned": planned, "runs": len(outcomes)}))
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
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="only Linux forgets a process's peak memory")
def test_the_peak_of_500_runs_is_within_the_plan() -> None:
    found = measured(500)
    assert found["runs"] == 500
    assert 0 < found["grown"] <= found["planned"]
