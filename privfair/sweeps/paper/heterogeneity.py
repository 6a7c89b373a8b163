"""Ablation over the heterogeneity α of the clients at λ = 50: ten equal clients, and six of different sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from privfair.sweeps.figures import profile_figure
from privfair.sweeps.paper.claims import Claim, Evidence, Experiment, Line, at_end, average, level
from privfair.sweeps.paper.synthetic import ALTERNATING, COMMON, METHODS, QUICK

ALPHAS = tuple(float(alpha) for alpha in np.round(np.linspace(0.5, 1.0, 11), 2))
QUICK_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SIZES = [50, 150, 250, 100, 50, 100]


def _draw(evidence: Evidence, out: Path) -> list[Path]:
    return profile_figure(
        evidence.points, out / "profiles", quality="accuracy", notion="statistical_parity", x="heterogeneity α",
        log=False, titles=("accuracy", "fairness"),
    )  # fmt: skip


def _experiment(name: str, title: str, data: dict[str, Any], source: str) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        source=source,
        common={**COMMON, "fairness.lambda": 50.0, **data},
        lines=tuple(
            Line(series, method, "data.alpha", ALPHAS, QUICK_ALPHAS,
                 {**settings, **({"federation.fairfed_beta": 0.5} if method == "fairfed" else {})})
            for series, (method, settings) in METHODS.items()
        ),
        quick=QUICK,
        claims=(
            Claim("Our method continues to perform well as client heterogeneity increases: accuracy",
                  at_end("accuracy", "ours", last=True), "not below", at_end("accuracy", "ours", last=False), 0.05),
            Claim("… and fairness.", average("unfairness", "ours"), "not above", level(0.1)),
            Claim("Local group fairness suffers in performance.",
                  at_end("accuracy", "local group fairness", last=True), "below",
                  at_end("accuracy", "local group fairness", last=False), 0.05),
            Claim("FairFed suffers in performance.",
                  at_end("accuracy", "FairFed", last=True), "below", at_end("accuracy", "FairFed", last=False), 0.05),
            Claim("At full heterogeneity our method is more accurate than local group fairness.",
                  at_end("accuracy", "ours", last=True), "above",
                  at_end("accuracy", "local group fairness", last=True), 0.05),
        ),
        draw=_draw,
        notes=(
            "α in eleven steps from 0.5 to 1, as in the authors' code; the paper names the ends. FairFed's β: 0.5.",
            "Batch, decay and |Y| as in `synthetic`.",
            ALTERNATING,
        ),
    )  # fmt: skip


HETEROGENEITY = _experiment(
    "heterogeneity", "Heterogeneity ablation", {}, "appendix, “Heterogeneity Ablation”, first experiment"
)
HETEROGENEITY_SIZES = _experiment(
    "heterogeneity-sizes", "Heterogeneity ablation with differently weighted clients", {"data.sizes": SIZES},
    "appendix, “Heterogeneity Ablation”, second experiment",
)  # fmt: skip
