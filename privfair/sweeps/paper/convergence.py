"""Loss over communication rounds on Communities & Crime at λ = 0.5, whole and in its two parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privfair.sweeps.figures import BLUE, RED, rounds_figure
from privfair.sweeps.paper.claims import Claim, Evidence, Experiment, at_round
from privfair.sweeps.paper.real_data import CENTRALIZED, COMMON, OURS, QUICK

WHOLE = {"train loss": "train_objective", "test loss": "test_objective"}
PARTS = {
    "train cross-entropy": "train_loss",
    "train MMD": "train_mmd2",
    "test cross-entropy": "test_loss",
    "test MMD": "test_mmd2",
}


def _curve(evidence: Evidence, column: str) -> tuple[Any, Any, Any]:
    runs = list(evidence.rounds("ours", column).values())
    values = np.array([[value for _, value in run] for run in runs])
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return np.array([number for number, _ in runs[0]]), values.mean(axis=0), deviation


def _draw(evidence: Evidence, out: Path) -> list[Path]:
    colours = {name: BLUE if name.startswith("train") else RED for name in (*WHOLE, *PARTS)}
    whole = {name: _curve(evidence, column) for name, column in WHOLE.items()}
    parts = {name: _curve(evidence, column) for name, column in PARTS.items()}
    return [
        *rounds_figure(whole, out / "loss", rows=1, colours=colours, label="cross-entropy + λ·MMD²"),
        *rounds_figure(parts, out / "parts", rows=2, colours=colours, label=""),
    ]


CONVERGENCE = Experiment(
    name="convergence",
    title="Train and test loss over communication rounds",
    source="appendix, “Convergence Rate”",
    common={"data.name": "communities", **COMMON, "run.evaluate_every": 1},
    lines=(
        replace(OURS, values=(0.5,), quick_values=(0.5,)),
        replace(CENTRALIZED, values=(0.5,), quick_values=(0.5,)),
    ),
    quick=QUICK,
    claims=(
        Claim("Algorithm 1 minimizes the objective: the training objective falls.",
              at_round("ours", "train_objective", last=True), "below", at_round("ours", "train_objective", last=False),
              0.1),
        Claim("… to what centralized training reaches.",
              at_round("ours", "train_objective", last=True), "not above",
              at_round("centralized", "train_objective", last=True), 0.05),
        Claim("The test objective falls, too.",
              at_round("ours", "test_objective", last=True), "below", at_round("ours", "test_objective", last=False),
              0.1),
    ),
    draw=_draw,
    notes=(
        "MMD is squared, as in the objective; its test value is on the test records. The centralized runs are not in "
        "the paper's figure; they are what the second claim is decided by.",
    ),
)  # fmt: skip
