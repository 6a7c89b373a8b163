"""The figure of an empirical audit: ε measured and claimed, and how often an attacker was right."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from accountant.errors import InputError
from privfair.cli.burn_down import COLOURS

if TYPE_CHECKING:
    from privfair.empirical.findings import Findings


def write_findings(found: Findings, path: Path) -> None:
    """Write the figure: left, what ε is at least of what is claimed; right, right guesses, of a coin and at most."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not found.findings:
        raise InputError("figure", "needs an attack to draw", "none", "Every channel was skipped.")
    figure = Figure(figsize=(10, 1.6 + 0.45 * len(found.findings)), layout="constrained")
    FigureCanvasAgg(figure)
    epsilon, right = figure.subplots(1, 2, sharey=True)
    for place, one in enumerate(found.findings):
        colour = COLOURS[1] if one.verdict == "violated" else COLOURS[0]
        if math.isfinite(one.upper):
            epsilon.barh(place, one.upper, color="0.88")
        epsilon.barh(place, one.lower, height=0.4, color=colour)
        right.barh(place, 100 * one.allowed_accuracy - 50, left=50, color="0.88")
        error = 200 * math.sqrt(one.accuracy * (1 - one.accuracy) / one.guesses)
        right.errorbar(100 * one.accuracy, place, xerr=error, fmt="o", color=colour, capsize=3)
    epsilon.set(title="ε at least, as measured (grey: claimed)", xlabel=f"ε at δ = {found.delta:g}")
    right.set(title="right guesses of 100", xlabel="grey: the claim allows; bars: ± 2 standard errors", xlim=(48, 101))
    epsilon.set_yticks(range(len(found.findings)), [f"{one.channel}, {one.adversary}" for one in found.findings])
    epsilon.invert_yaxis()
    for axes in (epsilon, right):
        axes.spines[["top", "right"]].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError("figure", "must be a file that can be written", str(path), str(error)) from None
