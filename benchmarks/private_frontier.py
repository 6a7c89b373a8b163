"""Private training over 20 seeds on the example configurations; takes about ten minutes on two cores.

    python -m benchmarks private_frontier                  # both; writes docs/private.csv
    FRONTIER=compas python -m benchmarks private_frontier  # one dataset

Not part of `make bench`. A seed is another split, initialisation and noise, which is not seeded: figures vary a little.
"""

from __future__ import annotations

import csv
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import privfair
from benchmarks.measure import Result
from privfair.config import Config

SEEDS = 20
EXAMPLES = Path(__file__).parent.parent / "examples"
TABLE = Path(__file__).parent.parent / "docs" / "private.csv"
TARGETS = {"compas": (0.655, 0.10), "adult": (0.80, 0.05)}  # accuracy at least, unfairness at most


def run() -> list[Result]:
    chosen = os.environ.get("FRONTIER", "")
    names = [name for name in TARGETS if name.startswith(chosen)]
    tasks = [(name, seed) for name in names for seed in range(SEEDS)]
    with ProcessPoolExecutor(2) as pool:
        figures = dict(zip(tasks, pool.map(_one, tasks), strict=True))
    results, rows = [], []
    for name in names:
        accuracy, gap, epsilon = np.array([figures[name, seed] for seed in range(SEEDS)]).T
        means, errors = (accuracy.mean(), gap.mean()), (_error(accuracy), _error(gap))
        least, most = TARGETS[name]
        label = f"{name}, ε = {epsilon.max():.3f} by PLD, {means[0]:.4f} / {means[1]:.4f}"
        results.append(Result(f"{label}: accuracy + 1 s.e.", means[0] + errors[0], least, ""))
        results.append(Result(f"{label}: unfairness − 1 s.e.", means[1] - errors[1], most, "", at_least=False))
        figures_of = (epsilon.max(), means[0], errors[0], means[1], errors[1])
        rows.append([name, SEEDS, *(f"{x:.4f}" for x in figures_of)])
    if not chosen:
        with TABLE.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["data", "seeds", "largest_epsilon", "accuracy", "error", "unfairness", "error"])
            writer.writerows(rows)
    return results


def _one(task: tuple[str, int]) -> tuple[float, float, float]:
    """(accuracy, unfairness, ε by PLD) of one run; its ledger is forgotten."""
    name, seed = task
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"run.seed={seed}", f"run.ledger=sqlite:///{folder}/ledger.sqlite", "run.evaluate_every=1000"]
        result = privfair.train(Config.read(EXAMPLES / f"{name}_private.toml", overrides))
    gap = result.unfairness["statistical_parity"]
    return float(result.accuracy or 0.0), float(1.0 if gap is None else gap), float(result.privacy["epsilon"]["pld"])


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))
