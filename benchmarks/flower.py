"""Flower: our in-process engine against Flower's own simulation (Ray) of the same app, and the bytes of a round.

The paper's network (16 hidden units) on the synthetic federation with 10 and 50 clients, 20 rounds. Both times are
those of the rounds alone, the shorter of two runs: the start of Ray and the loading of data are left out. The bytes are
those of the messages that the app hands to Flower, over all rounds and with everything before and after them, against
the least that could carry a round: the model down (4 bytes a parameter), its change up (8), every score up once and
down to every client (8); or, with encryption, a ciphertext for 4096 parameters each way: two polynomials of 4096
coefficients of 54 bits.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.measure import Result

ROUNDS = 20
SAMPLES = 100
GROUPS = 2
CIPHERTEXT = 2 * 4096 * 54 / 8  # bytes
PARAMETERS = 10 * 16 + 16 + 16 + 1

PROGRAM = """
import json, sys
from privfair.config import Config
from privfair.datasets.registry import load
from privfair.runs.assembly import build
tables = json.loads(sys.argv[1])
config = Config.build(tables)
federation = load("synthetic", clients=tables["data"]["clients"])
if config.run.engine == "local":
    from privfair.runs.loop import run
else:
    from privfair.deployment.flower.trial import run_trial as run
setting = build(config, federation)
outcome = run(setting)
print(json.dumps([outcome.seconds, setting.backend.bytes_up, setting.backend.bytes_down]))
"""


def run() -> list[Result]:
    results = []
    for clients in (10, 50):
        ours, _, _ = measured(clients, engine="local")
        theirs, up, down = measured(clients, engine="flower-simulation")
        results.append(Result(f"{clients} clients: times faster than Flower's Ray simulation", theirs / ours, 7, "×"))
        results += against_least(f"{clients} clients, plain", clients, up, down, least(clients))
    _, up, down = measured(10, engine="flower-simulation", scheme="bfv", repeats=1)
    return results + against_least("10 clients, BFV", 10, up, down, least(10, CIPHERTEXT, CIPHERTEXT))


def against_least(name: str, clients: int, up: int, down: int, least: tuple[float, float]) -> list[Result]:
    reported = f"{up / ROUNDS / clients:,.0f} B up and {down / ROUNDS / clients:,.0f} B down for a client in a round"
    print(f"  {name}: {reported}", flush=True)
    return [
        Result(f"{name}: bytes up, of the least", up / ROUNDS / least[0], 1.5, "×", at_least=False),
        Result(f"{name}: bytes down, of the least", down / ROUNDS / least[1], 2.5, "×", at_least=False),
    ]


def measured(clients: int, *, engine: str, scheme: str = "plain", repeats: int = 2) -> tuple[float, int, int]:
    """Seconds of all rounds, and bytes up and down, of the shortest of several runs in processes of their own."""
    tables = {
        "data": {"name": "synthetic", "clients": clients},
        "model": {"name": "mlp", "hidden": [16]},
        "fairness": {"samples": SAMPLES},
        "federation": {"rounds": ROUNDS},
        "aggregation": {"scheme": scheme},
        "run": {"engine": engine, "evaluate_every": ROUNDS},
    }
    words = [sys.executable, "-c", PROGRAM, json.dumps(tables)]
    runs = []
    for _ in range(repeats):
        output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        runs.append(tuple(json.loads(output.strip().splitlines()[-1])))
    return min(runs)


def least(clients: int, change: float = 8 * PARAMETERS, model: float = 4 * PARAMETERS) -> tuple[float, float]:
    """The fewest bytes up and down in a round."""
    scores = 8 * SAMPLES * GROUPS
    return clients * change + scores, clients * (model + scores)
