"""How a dataset's budget was used up over time, as figures of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from accountant.audit import DatasetAudit
from accountant.burndown import Point
from accountant.neighbouring import Unit
from privfair.reports.figures import Figure, Trace, axis, line, plain
from privfair.reports.numbers import Cell, epsilon_cell, percent

MOMENT, HALF_A_DAY = timedelta(seconds=1), timedelta(hours=12)


def burn_down_figure(key: str, dataset: DatasetAudit) -> Figure | None:
    """ε spent by the worst record over time, with the budget; None where nothing was spent or no ε is claimed."""
    points = dataset.burn_down
    if not points:
        return None
    times = [point.at for point in points]
    epsilons = [point.epsilon if math.isfinite(point.epsilon) else None for point in points]
    name, budget = dataset.state.name, dataset.state.budget
    spent = line("ε spent so far (RDP)", times, epsilons, 0, hovertemplate="%{x}<br>ε = %{y:.4g}<extra></extra>")
    spent["line"]["shape"] = "hv"
    traces: list[Trace] = [spent]
    whole = dataset.state.neighbouring is not None and dataset.state.neighbouring.unit is Unit.CLIENT
    exposed = "data holder" if whole else "record"
    told = "" if budget is None else f" The budget is ε = {budget.epsilon:g}."
    window = time_window(times)
    shown = [times[0], times[-1]] if window is None else [moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in window]
    time: dict[str, Any] = {"type": "date", "nticks": 6} | ({} if window is None else {"range": shown})
    if budget is not None:
        traces.append({
            "type": "scatter", "mode": "lines", "name": f"budget, ε = {budget.epsilon:g}", "x": shown,
            "y": [budget.epsilon] * 2, "line": {"color": "var(--mark-2)", "width": 2, "dash": "dash"},
            "hoverinfo": "skip",
        })  # fmt: skip
    last = epsilons[-1]
    end = "∞ (a release was not private)" if last is None else f"{last:.4g}"
    return Figure(
        f"burn-down-{key}",
        f"What was spent on {name}, over time.",
        f"ε of the {exposed} that is exposed most, over all runs so far (by RDP, for plans fixed beforehand)." + told,
        f"Step chart of ε spent on {plain(name)} from {times[0][:16]} to {times[-1][:16]}: it ends at {end}.{told}",
        traces,
        {"xaxis": axis("", **time), "yaxis": axis("ε so far", rangemode="tozero")},
        ["time (UTC)", "ε so far (RDP)", "budget left"],
        _rows(points),
    )


def time_window(times: Sequence[str]) -> tuple[datetime, datetime] | None:
    """Half a day around the only moment that there is, for the axis of time; None where it follows from the points."""
    first, last = (datetime.fromisoformat(choice(times)) for choice in (min, max))
    return None if last - first >= MOMENT else (first - HALF_A_DAY, last + HALF_A_DAY)


def _rows(points: Sequence[Point]) -> list[list[str | Cell]]:
    """The points as a table, without rows that read like the one before."""
    rows: list[list[str | Cell]] = []
    read: list[str] = []
    for point in points:
        at, spent = point.at[:19].replace("T", " "), epsilon_cell(point.epsilon)
        left = Cell(percent(point.left), _finite(point.left))
        if read != (read := [at, spent.text, left.text]):
            rows.append([at, spent, left])
    return rows


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
