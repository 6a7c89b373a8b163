"""Frontiers with privacy: a panel for each ε with lines by mechanism, or for each mechanism with lines by ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from privfair.reports.sweep_figures import FRONTIER_NOTE, draw_frontier, limits_of, unfairness_label
from privfair.reports.sweep_style import BLACK, BLUE, GREEN, ORANGE, RED, Style, legend_below, new_figure, save, tidy
from privfair.sweeps.points import Point

Line = tuple[str, Style, list[Point]]


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


def _figure(
    panels: Mapping[str, list[Line]], points: Sequence[Point], stem: Path, quality: str, notion: str, *, rows: int
) -> list[Path]:
    sign = 1.0 if quality == "accuracy" else -1.0
    left, right, bottom, top = limits_of(points, sign)
    figure, axes = new_figure(len(panels), rows=rows, height=4.2)
    for axis, (title, lines) in zip(axes, panels.items(), strict=False):  # an odd number leaves a place empty
        for name, style, of in lines:
            if of:
                draw_frontier(axis, of, style, name, sign)
        tidy(axis, unfairness_label(notion), quality, title)
        axis.set_xlim(left, right)
        axis.set_ylim(bottom, top)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    if panels:
        legend_below(figure, axes[0], FRONTIER_NOTE)
    return save(figure, stem)
