"""Ablation over the number of shared scores |Y|, on Communities & Crime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from privfair.sweeps.figures import frontier_figure
from privfair.sweeps.paper.claims import AreaClaim, Claim, Evidence, Experiment, average
from privfair.sweeps.paper.real_data import COMMON, OURS, QUICK

SIZES = (20, 50, 100, 200)


def _name(size: int) -> str:
    return f"|Y| = {size}"


def _draw(evidence: Evidence, out: Path) -> list[Path]:
    return frontier_figure(
        evidence.points, out / "frontier", quality="accuracy", notion="statistical_parity",
        title="Shared scores per group and round",
    )  # fmt: skip


SAMPLES = Experiment(
    name="samples",
    title="Performance for varying |Y0| and |Y1|",
    source="appendix, “Effect of |Y0| and |Y1|”",
    common={"data.name": "communities", **COMMON},
    lines=tuple(
        replace(OURS, series=_name(size), settings={**OURS.settings, "fairness.samples": size}) for size in SIZES
    ),
    quick=QUICK,
    claims=(
        AreaClaim("With 20 samples the high variance of the gradients results in subpar performance …",
                  _name(20), "below", _name(100), _name(100)),
        Claim("… especially for large λ: low accuracy",
              average("accuracy", _name(20), low=1), "below", average("accuracy", _name(100), low=1)),
        Claim("… and relatively high unfairness.",
              average("unfairness", _name(20), low=1), "above", average("unfairness", _name(100), low=1)),
        AreaClaim("50 samples are already enough.", _name(50), "not below", _name(200), _name(200), 0.1),
    ),
    draw=_draw,
    notes=(
        "The paper does not say which dataset; the paragraph after it goes on “again” with Communities & Crime. Sizes "
        "other than 20 and 50 are not named; 100 and 200 are in the authors' code.",
    ),
)  # fmt: skip
