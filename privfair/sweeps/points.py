"""Means over seeds: the points that tables, figures and frontiers are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privfair.arrays import FloatArray
from privfair.fairness.degenerate import row_warnings
from privfair.sweeps.pareto import is_efficient
from privfair.sweeps.rows import Row


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
    """What is compared with unfairness: "accuracy", or "rmse" where there are no decisions."""
    found = [row["accuracy"] is not None for row in rows]
    return "rmse" if found and not any(found) else "accuracy"


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
    """The names that the points of `as_table` have, also where there is none."""
    names = ["series", "method", "epsilon", "value", "runs", quality, f"{quality}_se", "unfairness", "unfairness_se"]
    return [*names, "pareto", "pareto_of_series", "same_answer", "diverged"]


def as_table(points: Sequence[Point], quality: str) -> list[dict[str, Any]]:
    """The points as plain values; None for what one seed cannot tell."""
    sign = 1.0 if quality == "accuracy" else -1.0
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
    """Which points have runs whose model is of no use: a constant answer looks fair, and is none."""
    found = []
    for point in points:
        where = point.name if point.value is None else f"{point.name} at {point.value:.4g}"
        for number, what in ((point.same_answer, "give everybody the same answer"), (point.diverged, "diverged")):
            if number:
                found.append(f"{where}: {number} of {len(point.seeds)} runs {what}")
    return found
