"""Frontiers compared by the area they dominate, with bootstrap intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privfair.arrays import FloatArray
from privfair.sweeps.jobs import WITHOUT_LAMBDA
from privfair.sweeps.pareto import hypervolumes
from privfair.sweeps.points import Point, baseline_of, by_series, points_of
from privfair.sweeps.rows import Row

RESAMPLES = 2000
LEVEL = 0.95
Interval = tuple[float, float]


@dataclass(frozen=True)
class Reference:
    """The corner that areas are measured from, and where it comes from, in words."""

    quality: float
    unfairness: float
    origin: str


@dataclass(frozen=True)
class Area:
    """The hypervolume of one series, with its interval over seeds; and its difference to the first series."""

    series: str
    value: float
    interval: Interval | None
    difference: float
    difference_interval: Interval | None


def reference_of(rows: Sequence[Row]) -> Reference | None:
    """Quality of a constant answer and unfairness without a penalty, means over runs.

    The latter is that of λ = 0 or of fedavg where the sweep has them, otherwise the largest mean at a smallest λ.
    """
    baselines = [b for row in rows if row["status"] == "done" and (b := baseline_of(row)) is not None]
    points = points_of(rows)
    if not baselines or not points:
        return None
    quality = float(np.mean(baselines))
    constant = "a constant answer"
    free = [p for p in points if p.value == 0 and p.method not in WITHOUT_LAMBDA] or [
        p for p in points if p.method == "fedavg"
    ]
    if free:
        unfairness = max(p.mean[1] for p in free)
        return Reference(quality, unfairness, f"quality of {constant}, unfairness without a penalty")
    firsts = [of[0] for of in by_series(points).values()]
    worst = max(firsts, key=lambda p: p.mean[1])
    where = worst.name if worst.value is None else f"{worst.name} at its smallest value, {worst.value:g}"
    return Reference(quality, worst.mean[1], f"quality of {constant}, unfairness of {where} (no λ = 0 in the sweep)")


def compare(
    points: Sequence[Point], reference: Reference, rng: np.random.Generator, resamples: int = RESAMPLES
) -> list[Area]:
    """The area of every series, and how it differs from the first one's.

    Seeds are drawn with replacement, the same draw for every series (runs of one seed share their data and split), and
    the means and areas are computed anew; intervals are percentiles. A frontier of noisy means is a little too large
    (the best of many is picked), the more so the more values a series has.
    """
    series = by_series(points)
    corner = reference.quality, reference.unfairness
    seeds = sorted({seed for point in points for seed in point.seeds})
    values = {name: _area(_means(of, seeds, np.ones((1, len(seeds)))), corner)[0] for name, of in series.items()}
    draws: dict[str, FloatArray] = {}
    if len(seeds) > 1:
        chosen = rng.integers(0, len(seeds), size=(resamples, len(seeds)))
        weights = np.stack([np.bincount(draw, minlength=len(seeds)) for draw in chosen]).astype(float)
        draws = {name: _area(_means(of, seeds, weights), corner) for name, of in series.items()}
    first = next(iter(series), "")
    return [
        Area(
            name,
            float(values[name]),
            _interval(draws.get(name)),
            float(values[name] - values[first]),
            _interval(draws[name] - draws[first]) if name in draws and name != first else None,
        )
        for name in series
    ]


def areas_of(points: Sequence[Point], rows: Sequence[Row], quality: str) -> dict[str, Any]:
    """The reference and the area of every series as plain values."""
    reference = reference_of(rows)
    if reference is None:
        return {"reference": None, "series": []}
    sign = 1.0 if quality == "accuracy" else -1.0
    corner = {quality: sign * reference.quality, "unfairness": reference.unfairness, "origin": reference.origin}
    series = [
        {
            "series": area.series,
            "value": area.value,
            "interval": area.interval,
            "difference_to_first": area.difference,
            "difference_interval": area.difference_interval,
        }
        for area in compare(points, reference, np.random.default_rng(0))
    ]
    return {"reference": corner, "series": series}


def _means(of: Sequence[Point], seeds: Sequence[int], weights: FloatArray) -> FloatArray:
    """(draws, points, 2): means of quality and unfairness with every seed as often as drawn; NaN where none was."""
    means = np.full((len(weights), len(of), 2), np.nan)
    for number, point in enumerate(of):
        mine = weights[:, [seeds.index(seed) for seed in point.seeds]]
        total = mine.sum(axis=1)
        for column, figures in enumerate((point.quality, point.unfairness)):
            np.divide(mine @ figures, total, out=means[:, number, column], where=total > 0)
    return means


def _area(means: FloatArray, corner: tuple[float, float]) -> FloatArray:
    """The hypervolume of every draw; points without a mean add nothing."""
    return hypervolumes(means[:, :, 0], means[:, :, 1], corner)


def _interval(draws: FloatArray | None) -> Interval | None:
    if draws is None:
        return None
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return (float(low), float(high)) if math.isfinite(low) else None
