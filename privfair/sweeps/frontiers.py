"""Frontiers of quality (more is better) against unfairness (less is better): means over seeds, efficiency, areas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfair.fairness.metrics import row_warnings
from privfair.sweeps.jobs import WITHOUT_LAMBDA
from privfair.sweeps.journal import Row
from privfair.util import FloatArray

RESAMPLES = 2000
LEVEL = 0.95
Interval = tuple[float, float]


def is_efficient(quality: FloatArray, unfairness: FloatArray) -> NDArray[np.bool_]:
    """For each point whether no other is at least as good in both and better in one; of equal points all count."""
    q, u = np.asarray(quality, dtype=float), np.asarray(unfairness, dtype=float)
    as_good = (q[None, :] >= q[:, None]) & (u[None, :] <= u[:, None])
    better = (q[None, :] > q[:, None]) | (u[None, :] < u[:, None])
    dominated: NDArray[np.bool_] = np.any(as_good & better, axis=1)
    return np.logical_not(dominated)


def hypervolume(quality: FloatArray, unfairness: FloatArray, reference: tuple[float, float]) -> float:
    """The area that the points dominate: ∪ [q₀, q] × [u, u₀] with reference (q₀, u₀).

    Zitzler & Thiele 1998. Points that are not better than the reference in both figures add nothing. Sorted by
    unfairness, the best quality so far is a staircase, whose steps are added up.
    """
    q, u = np.asarray(quality, dtype=float), np.asarray(unfairness, dtype=float)
    return float(hypervolumes(q[None], u[None], reference)[0])


def hypervolumes(quality: FloatArray, unfairness: FloatArray, reference: tuple[float, float]) -> FloatArray:
    """(draws,): the same for every row of (draws, points); a point that is NaN adds nothing."""
    low, high = reference
    inside = (quality > low) & (unfairness < high)
    q, u = np.where(inside, quality, low), np.where(inside, unfairness, high)
    order = np.argsort(u, axis=1, kind="stable")
    edges = np.pad(np.take_along_axis(u, order, axis=1), ((0, 0), (0, 1)), constant_values=high)
    best_so_far = np.maximum.accumulate(np.take_along_axis(q, order, axis=1), axis=1)
    areas: FloatArray = np.sum(np.diff(edges, axis=1) * (best_so_far - low), axis=1)
    return areas


def best_quality(quality: FloatArray, unfairness: FloatArray, most: float) -> int | None:
    """The point of the best quality among those whose unfairness is at most `most`; None where there is none."""
    allowed = np.flatnonzero(np.asarray(unfairness) <= most)
    if not allowed.size:
        return None
    return int(allowed[np.argmax(np.asarray(quality)[allowed])])


@dataclass(frozen=True)
class Point:
    """The runs of one series at one value, over seeds. quality: accuracy, or minus the rmse for regression."""

    series: str
    method: str
    epsilon: float
    value: float | None
    seeds: tuple[int, ...]
    quality: FloatArray  # by seed
    unfairness: FloatArray
    same_answer: int = 0  # how many runs give everybody the same answer
    diverged: int = 0

    @property
    def mean(self) -> tuple[float, float]:
        """(quality, unfairness)."""
        return float(self.quality.mean()), float(self.unfairness.mean())

    @property
    def standard_error(self) -> tuple[float, float]:
        """Of both means; NaN for one seed."""
        return standard_error(self.quality), standard_error(self.unfairness)

    @property
    def name(self) -> str:
        """Series and ε, as a legend shows it."""
        return series_name(self.series, self.epsilon)


def series_name(series: str, epsilon: float) -> str:
    """The series with its ε, where there is privacy."""
    return series if math.isinf(epsilon) else f"{series}, ε = {epsilon:g}"


def standard_error(values: FloatArray) -> float:
    """Of the mean; NaN for one value."""
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan


def quality_name(rows: Iterable[Row]) -> str:
    """What is compared with unfairness: "accuracy", or "rmse" without decisions."""
    found = [row["accuracy"] is not None for row in rows]
    return "rmse" if found and not any(found) else "accuracy"


def sign_of(quality: str) -> float:
    """1, or −1 for the rmse: points hold minus the rmse, so that more is better, and people read the rmse."""
    return 1.0 if quality == "accuracy" else -1.0


def quality_of(row: Row) -> float | None:
    """Accuracy, or minus the rmse."""
    if row["accuracy"] is not None:
        return float(row["accuracy"])
    return None if row["rmse"] is None else -float(row["rmse"])


def baseline_of(row: Row) -> float | None:
    """The quality of a constant answer."""
    if row["baseline_accuracy"] is not None:
        return float(row["baseline_accuracy"])
    return None if row["baseline_rmse"] is None else -float(row["baseline_rmse"])


def points_of(rows: Sequence[Row]) -> list[Point]:
    """One point per series, ε and value, in the order in which they first appear; values ascending within a series."""
    groups: dict[tuple[str, float], dict[float | None, list[Row]]] = {}
    for row in rows:
        if row["status"] == "done" and quality_of(row) is not None and row["unfairness"] is not None:
            by_value = groups.setdefault((row["series"], row["epsilon_target"]), {})
            by_value.setdefault(row["value"], []).append(row)
    return [
        _point(by_value[value])
        for by_value in groups.values()
        for value in sorted(by_value, key=lambda v: -math.inf if v is None else v)
    ]


def _point(rows: list[Row]) -> Point:
    rows = sorted(rows, key=lambda row: int(row["seed"]))
    warnings = [row_warnings(row) for row in rows]
    return Point(
        series=rows[0]["series"],
        method=rows[0]["method"],
        epsilon=rows[0]["epsilon_target"],
        value=rows[0]["value"],
        seeds=tuple(row["seed"] for row in rows),
        quality=np.array([quality_of(row) for row in rows], dtype=float),
        unfairness=np.array([row["unfairness"] for row in rows], dtype=float),
        same_answer=sum(warned["same_answer"] for warned in warnings),
        diverged=sum(warned["diverged"] for warned in warnings),
    )


def by_series(points: Iterable[Point]) -> dict[str, list[Point]]:
    """The points by their name in the legend."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.name, []).append(point)
    return found


def efficient(points: Sequence[Point]) -> list[bool]:
    """For each point whether no other mean is better in one figure and as good in the other."""
    if not points:
        return []
    means = np.array([point.mean for point in points])
    return [bool(found) for found in is_efficient(means[:, 0], means[:, 1])]


def table_columns(quality: str) -> list[str]:
    """The column names of `as_table`."""
    names = ["series", "method", "epsilon", "value", "runs", quality, f"{quality}_se", "unfairness", "unfairness_se"]
    return [*names, "pareto", "pareto_of_series", "same_answer", "diverged"]


def as_table(points: Sequence[Point], quality: str) -> list[dict[str, Any]]:
    """The points as plain values; None for standard errors of one seed."""
    sign = sign_of(quality)
    overall = efficient(points)
    own = {id(p): e for of in by_series(points).values() for p, e in zip(of, efficient(of), strict=True)}
    table = []
    for point, best in zip(points, overall, strict=True):
        (q, u), (q_error, u_error) = point.mean, point.standard_error
        table.append(
            {
                "series": point.series,
                "method": point.method,
                "epsilon": None if math.isinf(point.epsilon) else point.epsilon,
                "value": point.value,
                "runs": len(point.seeds),
                quality: sign * q,
                f"{quality}_se": None if math.isnan(q_error) else q_error,
                "unfairness": u,
                "unfairness_se": None if math.isnan(u_error) else u_error,
                "pareto": best,
                "pareto_of_series": own[id(point)],
                "same_answer": point.same_answer,
                "diverged": point.diverged,
            }
        )
    return table


def warnings_of(points: Iterable[Point]) -> list[str]:
    """The points with useless models: a constant answer looks fair and is not."""
    found = []
    for point in points:
        where = point.name if point.value is None else f"{point.name} at {point.value:.4g}"
        for number, what in ((point.same_answer, "give everybody the same answer"), (point.diverged, "diverged")):
            if number:
                found.append(f"{where}: {number} of {len(point.seeds)} runs {what}")
    return found


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
    sign = sign_of(quality)
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
