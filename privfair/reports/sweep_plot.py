"""The frontier of a sweep as a figure of a page: means of all series, with regions of their errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privfair.reports.figures import COLOURS, DASHES, SYMBOLS, Figure, Trace, axis, plain
from privfair.reports.numbers import Cell
from privfair.reports.sweep_figures import Z, limits_of, unfairness_label
from privfair.sweeps.points import Point, by_series, efficient


def frontier_plot(points: Sequence[Point], *, quality: str, notion: str, varied: str = "λ") -> Figure:
    """Quality over unfairness, a line for each series in the order of what is varied; hover tells λ, method, seeds."""
    sign = 1.0 if quality == "accuracy" else -1.0
    left, right, bottom, top = limits_of(points, sign)
    traces: list[Trace] = []
    told = []
    for number, (name, of) in enumerate(by_series(points).items()):
        colour = COLOURS[number % len(COLOURS)]
        best = efficient(of)
        traces += [
            _region(point, f"{colour}/0.16", name, sign)
            for point, unbeaten in zip(of, best, strict=True)
            if unbeaten and len(point.seeds) > 1
        ]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": plain(name), "legendgroup": plain(name),
                "x": [p.mean[1] for p in of], "y": [sign * p.mean[0] for p in of],
                "line": {"color": colour, "width": 1.6, "dash": DASHES[number // len(COLOURS) % len(DASHES)]},
                "marker": {
                    "color": [colour if unbeaten else "var(--card)" for unbeaten in best], "size": 9,
                    "symbol": SYMBOLS[number % len(SYMBOLS)], "line": {"color": colour, "width": 1.6},
                },
                "text": [plain(_hover(p, varied)) for p in of],
                "hovertemplate": f"%{{text}}<br>{quality} %{{y:.4f}}<br>unfairness %{{x:.4f}}"
                                 f"<extra>{plain(name)}</extra>",
            }
        )  # fmt: skip
        fairest = min(of, key=lambda p: p.mean[1])
        told.append(
            f"{name} is fairest at unfairness {fairest.mean[1]:.3f} with {quality} {sign * fairest.mean[0]:.3f}"
        )
    outside = sum(not (left <= p.mean[1] <= right and bottom <= sign * p.mean[0] <= top) for p in points)
    more = f" {outside} of {len(points)} means lie outside; double-click shows all." if outside else ""
    return Figure(
        "frontier",
        "The trade-off.",
        f"Filled marks: not beaten by another point of their series. Shaded: their mean ± {Z} standard errors.{more}",
        f"Scatter chart of {quality} over {unfairness_label(notion)}: {'; '.join(told)}.",
        traces,
        {"xaxis": axis(unfairness_label(notion), range=[left, right]), "yaxis": axis(quality, range=[bottom, top])},
        ["series", varied, quality, "unfairness", "runs"],
        [
            [p.name, "–" if p.value is None else f"{p.value:.4g}", Cell(f"{sign * p.mean[0]:.4f}", sign * p.mean[0]),
             Cell(f"{p.mean[1]:.4f}", p.mean[1]), str(len(p.seeds))]
            for p in points
        ],
    )  # fmt: skip


def _hover(point: Point, varied: str) -> str:
    value = "" if point.value is None else f"{varied} = {point.value:.4g}, "
    privacy = "" if math.isinf(point.epsilon) else f", ε = {point.epsilon:g}"
    return f"{point.method}: {value}seeds {', '.join(map(str, point.seeds))}{privacy}"


def _region(point: Point, colour: str, name: str, sign: float) -> Trace:
    """The ellipse of a mean: it reaches so many standard errors along each axis, and leans as the runs do."""
    covariance = np.cov(np.stack([point.unfairness, sign * point.quality])) / len(point.seeds)
    sizes, directions = np.linalg.eigh(covariance)
    angle = np.linspace(0, 2 * np.pi, 41)
    circle = np.stack([np.cos(angle), np.sin(angle)]) * Z * np.sqrt(np.maximum(sizes, 0.0))[:, None]
    x, y = directions @ circle + np.array([[point.mean[1]], [sign * point.mean[0]]])
    return {
        "type": "scatter", "mode": "lines", "x": np.round(x, 6).tolist(), "y": np.round(y, 6).tolist(),
        "fill": "toself", "fillcolor": colour, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
        "legendgroup": plain(name),
    }  # fmt: skip
