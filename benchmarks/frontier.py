"""Accuracy and unfairness over 20 seeds on the example configurations; takes about half an hour on two cores.

    python -m benchmarks frontier                   # all; writes docs/frontier.csv
    FRONTIER=compas python -m benchmarks frontier   # one dataset

Not part of `make bench`. Each figure is a mean over seeds 0–19 of the last round, on the pooled test records.
"""

from __future__ import annotations

import csv
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.measure import Result
from privfair.config import Config
from privfair.runs.assembly import build
from privfair.runs.loop import run as run_rounds

SEEDS = 20
EXAMPLES = Path(__file__).parent.parent / "examples"
TABLE = Path(__file__).parent.parent / "docs" / "frontier.csv"

Point = tuple[str, str, float, str]  # dataset, method, λ, drift correction
Target = tuple[float, float]  # accuracy at least, unfairness at most

SYNTHETIC = [
    *(("synthetic", "mmd_fedavg", lam, "none") for lam in (1e-3, 0.1, 1.0, 10.0)),
    *(("synthetic", "centralized", lam, "none") for lam in (1e-3, 10.0)),
]
SHOWN = [("synthetic", "local_fairness", 1.0, "none")]
COMPAS = [("compas", "mmd_fedavg", lam, "shared") for lam in (2.0, 3.0, 10.0)]
COMMUNITIES = [("communities", "mmd_fedavg", lam, "none") for lam in (4.0, 8.0)]
OTHERS = [
    *(("compas", method, 2.0, "none") for method in ("centralized", "local_fairness", "fairfed", "fedavg")),
    *(("communities", "centralized", lam, "none") for lam in (4.0, 8.0)),
]
POINTS: list[Point] = [*SYNTHETIC, *SHOWN, *COMPAS, *COMMUNITIES, *OTHERS]

# What must be reached; within one standard error.
TARGETS: dict[Point, Target] = {
    **dict.fromkeys(SYNTHETIC, (0.99, 0.01)),
    ("compas", "mmd_fedavg", 2.0, "shared"): (0.665, 0.08),
    ("compas", "mmd_fedavg", 3.0, "shared"): (0.660, 0.06),
    ("compas", "mmd_fedavg", 10.0, "shared"): (0.66, 0.08),
    ("communities", "mmd_fedavg", 4.0, "none"): (0.755, 0.12),
    ("communities", "mmd_fedavg", 8.0, "none"): (0.740, 0.08),
}


def run() -> list[Result]:
    chosen = os.environ.get("FRONTIER")
    points = [p for p in POINTS if chosen in (None, p[0])]
    results = []
    rows = []
    with ProcessPoolExecutor() as pool:
        for point in points:
            figures = np.array(list(pool.map(one_run, [(point, seed) for seed in range(SEEDS)])))
            mean, error = figures.mean(axis=0), figures.std(axis=0, ddof=1) / np.sqrt(SEEDS)
            rows.append([*point, *(f"{v:.4f}" for pair in zip(mean, error, strict=True) for v in pair)])
            print("   ", *rows[-1], flush=True)
            if point in TARGETS:
                name = f"{point[0]}, {point[1]}, λ = {point[2]:g}"
                accuracy, unfairness = TARGETS[point]
                results.append(Result(f"{name}: accuracy + 1 s.e.", mean[0] + error[0], accuracy, ""))
                results.append(
                    Result(f"{name}: unfairness − 1 s.e.", mean[1] - error[1], unfairness, "", at_least=False)
                )
    _write(rows)
    return results


def one_run(task: tuple[Point, int]) -> tuple[float, float]:
    """Accuracy and statistical-parity unfairness of one run."""
    (name, method, strength, drift), seed = task
    overrides = [
        f"federation.method={method}", f"fairness.lambda={strength}", f"federation.drift_correction={drift}",
        f"run.seed={seed}", "run.evaluate_every=1000000",
    ]  # fmt: skip
    if method == "centralized":  # the paper's: 1,000 full-gradient steps of 0.05
        overrides += ["federation.rounds=100", "federation.local_epochs=10", "federation.learning_rate=0.05"]
        overrides += ["federation.learning_rate_decay=1.0", "federation.batch_size=1000000"]
    last = run_rounds(build(Config.read(EXAMPLES / f"{name}.toml", overrides))).history[-1]
    return float(last["accuracy"] or 0.0), float(last["statistical_parity"] or 0.0)


def _write(rows: list[list[object]]) -> None:
    """Add the rows to the table, replacing those of the same points."""
    header = ["dataset", "method", "lambda", "drift", "accuracy", "accuracy_se", "unfairness", "unfairness_se"]
    kept: dict[tuple[str, ...], list[object]] = {}
    if TABLE.exists():
        with TABLE.open(newline="") as file:
            kept = {tuple(row[:4]): list(row) for row in list(csv.reader(file))[1:]}
    kept |= {tuple(str(v) for v in row[:4]): row for row in rows}
    with TABLE.open("w", newline="") as file:
        csv.writer(file).writerows([header, *kept.values()])
