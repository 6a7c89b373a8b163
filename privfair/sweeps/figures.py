"""The figures of a sweep: frontiers with confidence regions, all runs, profiles over what is varied, privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privfair.sweeps.frontiers import Point, by_series, efficient, sign_of

# Okabe & Ito's palette, which colour-blind readers can tell apart, without its yellow, too pale on white. Markers and
# lines repeat what colours say.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
_BY_METHOD = {
    "mmd_fedavg": (BLUE, "o"),
    "centralized": (BLACK, "s"),
    "local_fairness": (RED, "^"),
    "fairfed": (GREEN, "D"),
    "fedfb": (PURPLE, "v"),
    "agnostic": (ORANGE, "P"),
    "fedavg": (SKY, "X"),
}
_IN_ORDER = ((BLUE, "o"), (RED, "^"), (GREEN, "D"), (BLACK, "s"), (PURPLE, "v"), (ORANGE, "P"), (SKY, "X"))
_LINES = ("-", "--", ":", "-.")
Z = 1.96  # bands are mean ± 1.96 standard errors, as in the paper
FRONTIER_NOTE = "filled marks: not beaten by another point of the line; shaded: their mean ± 1.96 standard errors"


@dataclass(frozen=True)
class Style:
    """Colour, marker and line of one series."""

    colour: str
    marker: str
    line: str
    place: int  # in the legend: the first is on top, later ones have larger marks, so that equal lines all show

    @property
    def size(self) -> float:
        """The diameter of its marks, in points."""
        return 4.5 + 1.2 * min(self.place, 4)

    @property
    def height(self) -> float:
        """Its z-order: higher is on top."""
        return 3.0 - 0.01 * self.place


Line = tuple[str, Style, list[Point]]


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
    """The style of every series, from the method of each.

    A method has the same colour in every figure; series of one method differ by their line. If all series are of one
    method, each has its own colour.
    """
    if len(set(methods.values())) == 1 and len(methods) > 1:
        return {
            name: Style(*_IN_ORDER[i % len(_IN_ORDER)], _LINES[i // len(_IN_ORDER) % len(_LINES)], i)
            for i, name in enumerate(methods)
        }
    seen: dict[str, int] = {}
    found: dict[str, Style] = {}
    for name, method in methods.items():
        number = seen.get(method, 0)
        seen[method] = number + 1
        found[name] = Style(*_BY_METHOD[method], _LINES[number % len(_LINES)], len(found))
    return found


def tidy(axis: Any, x: str, y: str, title: str = "") -> None:
    """Add labels and a pale grid behind the data; remove the frame on the sides without an axis."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if title:
        axis.set_title(title, fontsize=11, fontweight="bold")
    axis.grid(color="0.92", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def legend_below(figure: Any, axis: Any, note: str) -> None:
    """Add one legend below all panels, with a line that explains the marks."""
    handles, labels = axis.get_legend_handles_labels()
    columns = min(len(labels), 6 if figure.get_figwidth() > 12 else 4) or 1
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, title=note,
        title_fontproperties={"size": 8.5},
    )  # fmt: skip


def save(figure: Any, stem: Path) -> list[Path]:
    """Write the figure as PNG and SVG."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        # No date in the file: the same results give the same figure.
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=140, metadata=metadata)
    return paths


def new_figure(panels: int, *, width: float = 5.2, height: float = 4.6, rows: int = 1) -> tuple[Any, Sequence[Any]]:
    """(figure, axes): panels side by side; drawn by Agg, without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = -(-panels // rows)
    figure = Figure(figsize=(width * columns + (1.6 if columns == 1 else 0.4), height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def privacy_figure(points: Sequence[Point], stem: Path, *, quality: str, notion: str, free: str) -> list[Path]:
    """A panel for each ε, the largest first; colours by noise, dashed lines where it is taken off the kernel.

    `free`: the series without privacy, which is in every panel.
    """
    names = list(dict.fromkeys(p.series for p in points if p.series != free))
    noises = list(dict.fromkeys(name.partition(",")[0] for name in names))
    look = {free: Style(BLACK, "s", "-", 4)}
    for place, name in enumerate(names):
        number = noises.index(name.partition(",")[0])
        first = next(n for n in names if n.startswith(noises[number])) == name
        colour, mark = ((BLUE, "o"), (RED, "^"), (GREEN, "D"), (ORANGE, "v"))[number % 4]
        look[name] = Style(colour, mark, "-" if first else "--", place)
    epsilons = sorted({p.epsilon for p in points if math.isfinite(p.epsilon)}, reverse=True)
    panels = {
        f"ε = {epsilon:g}": [
            (name, look[name], [p for p in points if p.series == name and p.epsilon in (epsilon, math.inf)])
            for name in (free, *names)
        ]
        for epsilon in epsilons
    }
    return _figure(panels, points, stem, quality, notion, rows=1)


def mechanism_figure(points: Sequence[Point], stem: Path, *, quality: str, notion: str, free: str) -> list[Path]:
    """A panel for each mechanism; colours by ε, black without privacy."""
    names = list(dict.fromkeys(p.series for p in points if p.series != free))
    epsilons = sorted({p.epsilon for p in points}, reverse=True)
    marks = ((BLACK, "s"), (BLUE, "o"), (ORANGE, "D"), (RED, "^"), (GREEN, "v"))
    look = {e: Style(*marks[i % len(marks)], "-", len(epsilons) - i) for i, e in enumerate(epsilons)}
    panels = {
        name: [
            (
                free if math.isinf(epsilon) else f"ε = {epsilon:g}",
                look[epsilon],
                [p for p in points if p.epsilon == epsilon and p.series in (name, free)],
            )
            for epsilon in epsilons
        ]
        for name in names
    }
    return _figure(panels, points, stem, quality, notion, rows=-(-len(names) // 2))


def frontier_figure(points: Sequence[Point], stem: Path, *, quality: str, notion: str, title: str = "") -> list[Path]:
    """Quality over unfairness: one line per series through its means, in the order of what is varied."""
    look = _styles(points)
    panels = {
        name or title: [(series, look[series], of) for series, of in by_series(inside).items()]
        for name, inside in _panels(points).items()
    }
    outside = means_outside(points, sign_of(quality))
    note = f"\n{outside} of {len(points)} means lie outside; the scatter shows all" if outside else ""
    common = title if len(panels) > 1 else ""
    return _figure(panels, points, stem, quality, notion, rows=1, height=4.6, title=common, note=note)


def _figure(
    panels: Mapping[str, list[Line]],
    points: Sequence[Point],
    stem: Path,
    quality: str,
    notion: str,
    *,
    rows: int,
    height: float = 4.2,
    title: str = "",
    note: str = "",
) -> list[Path]:
    """Frontiers in panels with the same limits."""
    sign = sign_of(quality)
    left, right, bottom, top = limits_of(points, sign)
    figure, axes = new_figure(len(panels), rows=rows, height=height)
    for axis, (name, lines) in zip(axes, panels.items(), strict=False):  # an odd number leaves a place empty
        for series, style, of in lines:
            if of:
                draw_frontier(axis, of, style, series, sign)
        tidy(axis, unfairness_label(notion), quality, name)
        axis.set_xlim(left, right)
        axis.set_ylim(bottom, top)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    if panels:
        legend_below(figure, _fullest(axes), FRONTIER_NOTE + note)
    if title:
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
            values = sign_of(quality) * np.concatenate([point.quality for point in of])
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
        sign = sign_of(quality) if column == 0 else 1.0
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
    """Draw a line through the means of a series, with regions around efficient points; others' can have any size."""
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
    """Draw the confidence ellipse of a mean, 1.96 standard errors along its principal axes."""
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

    Those are the efficient points of each series and its first: a diverged run would otherwise squeeze all frontiers
    into a corner.
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


def means_outside(points: Sequence[Point], sign: float) -> int:
    """How many means lie outside `limits_of` the points."""
    left, right, bottom, top = limits_of(points, sign)
    return sum(not (left <= p.mean[1] <= right and bottom <= sign * p.mean[0] <= top) for p in points)


def _fullest(axes: Sequence[Any]) -> Any:
    return max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))


def unfairness_label(notion: str) -> str:
    """The label of the axis of unfairness."""
    return f"unfairness ({notion.replace('_', ' ')})"
