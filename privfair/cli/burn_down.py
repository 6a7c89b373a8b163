"""The burn-down figure: ε spent over time, and what is left of each budget."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accountant.errors import InputError
from privfair.reports.burn_down_figure import time_window

if TYPE_CHECKING:
    from accountant.audit import AuditReport, DatasetAudit

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe, Ito


def write_burn_down(report: AuditReport, path: Path) -> None:
    """Write the figure: left, ε spent (dashed: the budget); right, the share of the budget that is left."""
    import matplotlib.dates
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    claimed = [dataset for dataset in report.datasets if dataset.burn_down]
    if not claimed:
        raise InputError("figure", "needs spending to draw", "none", "Simulations claim no ε and have no burn-down.")
    dates: Any = matplotlib.dates  # it has no types
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    spent, left = figure.subplots(1, 2)
    for dataset, colour in zip(claimed, COLOURS * len(claimed), strict=False):
        _draw(spent, left, dataset, colour)
    spent.set(title="Privacy spent by the worst record or client", ylabel="ε so far (RDP)", ylim=(0, None))
    left.set(title="Budget left", ylabel="share of the budget", ylim=(min(0.0, left.get_ylim()[0]), 1.05))
    left.axhline(0, color="0.3", linewidth=0.8)
    left.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    window = time_window([point.at for dataset in claimed for point in dataset.burn_down])
    for axes in (spent, left):
        if window is not None:
            axes.set_xlim(*window)
        locator = dates.AutoDateLocator(minticks=3)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if any(dataset.state.budget for dataset in claimed):
        left.legend(frameon=False, loc="best")
    else:
        left.text(0.5, 0.5, "no dataset has a budget", ha="center", va="center", transform=left.transAxes)
    spent.legend(frameon=False, loc="best")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError("figure", "must be a file that can be written", str(path), str(error)) from None


def _draw(spent: Any, left: Any, dataset: DatasetAudit, colour: str) -> None:
    times = [datetime.fromisoformat(point.at) for point in dataset.burn_down]
    epsilons = [point.epsilon if math.isfinite(point.epsilon) else math.nan for point in dataset.burn_down]
    name = dataset.state.name
    infinite = any(math.isinf(point.epsilon) for point in dataset.burn_down)
    label = f"{name} (∞: a release was not private)" if infinite else name
    spent.step(times, epsilons, where="post", color=colour, label=label, marker="o", markersize=2.5)
    budget = dataset.state.budget
    if budget is None:
        return
    spent.axhline(budget.epsilon, color=colour, linestyle="--", linewidth=1, label=f"budget, ε = {budget.epsilon:g}")
    shares = [(at, point.left) for at, point in zip(times, dataset.burn_down, strict=True) if point.left is not None]
    drawn = [(at, share) for at, share in shares if math.isfinite(share)]
    times_left, finite = [at for at, _ in drawn], [share for _, share in drawn]
    gone = name if drawn else f"{name} (nothing: a release was not private)"
    left.step(times_left, finite, where="post", color=colour, label=gone, marker="o", markersize=2.5)
