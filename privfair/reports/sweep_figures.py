"""The figures of a sweep: frontiers with confidence bands, all runs, and profiles over what is varied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privfair.reports.sweep_style import Style, legend_below, new_figure, save, styles, tidy
from privfair.sweeps.points import Point, by_series, efficient

Z = 1.96  # bands are mean ± 1.96 standard errors, as in the paper
FRONTIER_NOTE = "filled marks: not beaten by another point of the line; shaded: their mean ± 1.96 standard errors"


def frontier_figure(points: Sequence[Point], stem: Path, *, quality: str, notion: str, title: str = "") -> list[Path]:
    """Quality over unfairness: one line per series through its means, in the order of what is varied."""
    panels = _panels(points)
    figure, axes = new_figure(len(panels))
    look, (left, right, bottom, top) = _styles(points), limits_of(points, _sign(quality))
    cut = [p for p in points if not (left <= p.mean[1] <= right and bottom <= _sign(quality) * p.mean[0] <= top)]
    for axis, (name, inside) in zip(axes, panels.items(), strict=True):
        for series, of in by_series(inside).items():
            draw_frontier(axis, of, look[series], series, _sign(quality))
        tidy(axis, unfairness_label(notion), quality, name or title)
        axis.set_xlim(left, right)
        axis.set_ylim(bottom, top)
    outside = len(cut)
    note = FRONTIER_NOTE + (f"\n{outside} of {len(points)} means lie outside; the scatter shows all" if outside else "")
    legend_below(figure, _fullest(axes), note)
    if title and len(panels) > 1:
        figure.suptitle(title, fontweight="bold")
    return save(figure, stem)


def scatter_figure(points: Sequence[Point], stem: Path, *, quality: str, notion: str, title: str = "") -> list[Path]:
    """Every run of every series, also those far from the frontier."""
    panels = _panels(points)
    figure, axes = new_figure(len(panels))
    look = _styles(points)
    for axis, (name, inside) in zip(axes, panels.items(), strict=True):
        for series, of in by_series(inside).items():
            style = look[series]
            unfairness = np.concatenate([point.unfairness for point in of])
            values = _sign(quality) * np.concatenate([point.quality for point in of])
            filled = {} if style.line == "-" else {"facecolors": "none"}  # series of one method differ by that
            axis.scatter(
                unfairness, values, s=22, alpha=0.65, marker=style.marker, color=style.colour, label=series,
                linewidths=0.9, zorder=style.height, **filled,
            )  # fmt: skip
        tidy(axis, unfairness_label(notion), quality, name or title)
    _share(axes)
    legend_below(figure, _fullest(axes), "one mark per run")
    if title and len(panels) > 1:
        figure.suptitle(title, fontweight="bold")
    return save(figure, stem)


def profile_figure(
    points: Sequence[Point], stem: Path, *, quality: str, notion: str, x: str, log: bool, titles: tuple[str, str]
) -> list[Path]:
    """Two panels over what is varied: quality, and unfairness, with bands."""
    figure, axes = new_figure(2)
    look = _styles(points)
    for column, (axis, label) in enumerate(zip(axes, (quality, unfairness_label(notion)), strict=True)):
        sign = _sign(quality) if column == 0 else 1.0
        for series, of in by_series(points).items():
            varied = [point for point in of if point.value is not None]
            if varied:
                _draw_profile(axis, varied, column, sign, look[series], series)
            else:
                axis.axhline(sign * of[0].mean[column], color=look[series].colour, linestyle=":", label=series)
        if log:
            axis.set_xscale("log")
        tidy(axis, x, label, titles[column])
    legend_below(figure, axes[0], "shaded: mean ± 1.96 standard errors over seeds")
    return save(figure, stem)


def rounds_figure(
    curves: Mapping[str, tuple[Any, Any, Any]], stem: Path, *, rows: int, colours: Mapping[str, str], label: str
) -> list[Path]:
    """One panel per curve (rounds, means, deviations): mean ± standard deviation over runs."""
    figure, axes = new_figure(len(curves), rows=rows, height=3.6)
    for axis, (name, (rounds, mean, deviation)) in zip(axes, curves.items(), strict=True):
        axis.fill_between(rounds, mean - deviation, mean + deviation, color=colours[name], alpha=0.2, linewidth=0)
        axis.plot(rounds, mean, color=colours[name])
        tidy(axis, "communication round", label, name)
    figure.supxlabel("shaded: mean ± standard deviation over runs", fontsize=8.5)
    return save(figure, stem)


def draw_frontier(axis: Any, of: Sequence[Point], style: Style, name: str, sign: float) -> None:
    """One line through the means of a series, with bands where nothing beats them: others can be of any size."""
    means = np.array([point.mean for point in of])
    unfairness, values = means[:, 1], sign * means[:, 0]
    best = np.array(efficient(of))
    for point in (p for p, unbeaten in zip(of, best, strict=True) if unbeaten):
        _draw_region(axis, point, style.colour, sign)
    axis.plot(unfairness, values, color=style.colour, linestyle=style.line, linewidth=1.3, zorder=style.height)
    size = (style.size if len(of) <= 12 else 4.0) ** 2
    common = {"marker": style.marker, "s": size, "edgecolors": style.colour, "linewidths": 1.0, "zorder": style.height}
    axis.scatter(unfairness[~best], values[~best], facecolors="white", **common)
    axis.scatter(unfairness[best], values[best], facecolors=style.colour, **common)
    axis.plot([], [], color=style.colour, linestyle=style.line, marker=style.marker, markersize=5, label=name)


def _draw_region(axis: Any, point: Point, colour: str, sign: float) -> None:
    """The ellipse of the mean: it reaches 1.96 standard errors along each axis, and leans as the runs do."""
    from matplotlib.patches import Ellipse

    if len(point.seeds) < 2:
        return
    covariance = np.cov(np.stack([point.unfairness, sign * point.quality])) / len(point.seeds)
    sizes, directions = np.linalg.eigh(covariance)
    widths = 2 * Z * np.sqrt(np.maximum(sizes, 0.0))
    angle = math.degrees(math.atan2(directions[1, 1], directions[0, 1]))
    centre = (point.mean[1], sign * point.mean[0])
    patch = Ellipse(centre, widths[1], max(widths[0], 1e-9), angle=angle, color=colour, alpha=0.13, linewidth=0)
    axis.add_patch(patch)


def _draw_profile(axis: Any, of: Sequence[Point], column: int, sign: float, style: Style, name: str) -> None:
    x = np.array([point.value for point in of], dtype=float)
    mean = sign * np.array([point.mean[column] for point in of])
    error = Z * np.nan_to_num([point.standard_error[column] for point in of])
    low, high = np.maximum(mean - error, 0.0), mean + error  # no figure here is below 0
    if sign > 0:
        high = np.minimum(high, 1.0)
    axis.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
    every = max(1, len(of) // 12)
    axis.plot(
        x, mean, color=style.colour, linestyle=style.line, marker=style.marker, markersize=style.size, label=name,
        zorder=style.height, markevery=every,
    )  # fmt: skip


def _panels(points: Sequence[Point]) -> dict[str, list[Point]]:
    """One panel per ε where several methods are compared at several ε; otherwise one."""
    epsilons = list(dict.fromkeys(point.epsilon for point in points))
    if len(epsilons) < 2 or len({point.series for point in points}) < 2:
        return {"": list(points)}
    return {
        "without privacy" if math.isinf(epsilon) else f"ε = {epsilon:g}": [p for p in points if p.epsilon == epsilon]
        for epsilon in sorted(epsilons, reverse=True)
    }


def _styles(points: Sequence[Point]) -> dict[str, Style]:
    """By legend name; the same series looks alike in every panel."""
    if len(_panels(points)) == 1:
        return styles({point.name: point.method for point in points})
    by_name = styles({point.series: point.method for point in points})
    return {point.name: by_name[point.series] for point in points}


def _share(axes: Sequence[Any]) -> None:
    """The same limits in every panel."""
    for read, write in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
        limits = [getattr(axis, read)() for axis in axes]
        for axis in axes:
            getattr(axis, write)(min(low for low, _ in limits), max(high for _, high in limits))


def limits_of(points: Sequence[Point], sign: float) -> tuple[float, float, float, float]:
    """(left, right, bottom, top) around the points that matter, with their bands.

    Those are the ones that nothing of their series beats, and each series' first: a diverged run would otherwise
    squeeze all frontiers into a corner.
    """
    shown = [p for of in by_series(points).values() for p, best in zip(of, efficient(of), strict=True) if best]
    shown += [of[0] for of in by_series(points).values()]
    errors = Z * np.nan_to_num([point.standard_error for point in shown])
    centres = np.array([point.mean for point in shown]) * (sign, 1.0)
    values, unfairness = np.concatenate([centres - errors, centres + errors]).T
    reach_x = max(0.08 * float(np.ptp(unfairness)), 0.005)
    reach_y = max(0.10 * float(np.ptp(values)), 0.005 * max(1.0, float(np.abs(values).max())))
    left, right = max(float(unfairness.min()) - reach_x, -reach_x), float(unfairness.max()) + reach_x
    return left, right, float(values.min()) - reach_y, float(values.max()) + reach_y


def _fullest(axes: Sequence[Any]) -> Any:
    return max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))


def _sign(quality: str) -> float:
    """Points hold minus the rmse, so that more is better; people read the rmse."""
    return 1.0 if quality == "accuracy" else -1.0


def unfairness_label(notion: str) -> str:
    """What stands at the axis of unfairness."""
    return f"unfairness ({notion.replace('_', ' ')})"
