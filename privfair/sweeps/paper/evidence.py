"""What claims are decided from: points, rows and histories of an experiment, and figures taken from them by seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privfair.sweeps.carrying_out import Sweep
from privfair.sweeps.pareto import best_quality
from privfair.sweeps.points import Point, points_of

BySeed = dict[int, float]


class Missing(LookupError):
    """There are no runs to decide from, for a reason that is told."""


class Unreached(Missing):
    """There are runs, and none of them is fair enough."""


@dataclass(frozen=True)
class Evidence:
    """The results of an experiment."""

    sweep: Sweep
    points: tuple[Point, ...]

    @staticmethod
    def of(sweep: Sweep) -> Evidence:
        """From the rows of a sweep; without points whose runs have not all ended: their seeds are not the others'."""
        planned = Counter((job.series, job.value, job.epsilon) for job in sweep.jobs)
        ended = Counter((row["series"], row["value"], row["epsilon_target"]) for row in sweep.rows)
        points = points_of(sweep.rows)
        return Evidence(sweep, tuple(p for p in points if ended[key := (p.series, p.value, p.epsilon)] >= planned[key]))

    def series(self, *names: str) -> list[Point]:
        """The points of these series; a name stands for every series that begins with it ("FairFed": all β).

        With its ε it stands for that one only ("Laplace, convolved, ε = 3").
        """
        found = [p for p in self.points if any(n in (p.series, p.name) or p.series.startswith(f"{n},") for n in names)]
        if not found:
            raise Missing(f"no finished runs of {', '.join(names)}")
        return found

    def rounds(self, series: str, column: str) -> Mapping[int, Sequence[tuple[int, float]]]:
        """(round, figure) of every run of a series, by seed."""
        found = {
            key.seed: [(int(line["round"]), float(line[column])) for line in lines]
            for key, lines in self.sweep.histories.items()
            if key.series == series and key in {job.key for job in self.sweep.jobs}
        }
        if not found:
            raise Missing(f"no history of {series}")
        return found


@dataclass(frozen=True)
class Figure:
    """A figure that every seed has one of, with its name in words."""

    name: str
    take: Callable[[Evidence], BySeed]

    def reached(self, evidence: Evidence) -> bool:
        """Whether there are runs that it can be taken from."""
        try:
            self.take(evidence)
        except Missing:
            return False
        return True


def average(what: str, series: str, low: float = -math.inf, high: float = math.inf) -> Figure:
    """Mean accuracy or unfairness of a series over its values in [low, high]."""

    def take(evidence: Evidence) -> BySeed:
        points = [p for p in evidence.series(series) if p.value is None or low <= p.value <= high]
        if not points:
            raise Missing(f"no runs of {series} between {low:g} and {high:g}")
        found: dict[int, list[float]] = {}
        for point in points:
            for seed, value in zip(point.seeds, point.quality if what == "accuracy" else point.unfairness, strict=True):
                found.setdefault(seed, []).append(float(value))
        return {seed: float(np.mean(values)) for seed, values in found.items()}

    return Figure(f"{what} of {series}{_range(low, high)}", take)


def at_end(what: str, series: str, *, last: bool) -> Figure:
    """Accuracy or unfairness of a series at the largest value, or at the smallest."""

    def take(evidence: Evidence) -> BySeed:
        points = sorted(evidence.series(series), key=lambda p: -math.inf if p.value is None else p.value)
        point = points[-1 if last else 0]
        return dict(
            zip(point.seeds, map(float, point.quality if what == "accuracy" else point.unfairness), strict=True)
        )

    return Figure(f"{what} of {series} at its {'largest' if last else 'smallest'} value", take)


def best_accuracy(series: str, most: float = math.inf) -> Figure:
    """Accuracy of the best point of a series whose mean unfairness is at most `most`; chosen by means, not by seed."""

    def take(evidence: Evidence) -> BySeed:
        points = evidence.series(series)
        means = np.array([point.mean for point in points])
        best = best_quality(means[:, 0], means[:, 1], most)
        if best is None:
            raise Unreached(
                f"no point of {series} has an unfairness of {most:g} or less (least: {means[:, 1].min():.3f})"
            )
        return dict(zip(points[best].seeds, map(float, points[best].quality), strict=True))

    limit = "" if math.isinf(most) else f" with unfairness ≤ {most:g}"
    return Figure(f"best accuracy of {series}{limit}", take)


def at_round(series: str, column: str, *, last: bool) -> Figure:
    """A figure of the history at the last evaluated round, or at the first."""

    def take(evidence: Evidence) -> BySeed:
        return {s: of[-1 if last else 0][1] for s, of in evidence.rounds(series, column).items()}

    return Figure(f"{column.replace('_', ' ')} of {series} {'at the end' if last else 'before training'}", take)


def level(value: float) -> Figure:
    """A number to compare with."""
    return Figure(f"{value:g}", lambda evidence: dict.fromkeys((int(r["seed"]) for r in evidence.sweep.rows), value))


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f" over values ≥ {low:g}"
    return f" over values ≤ {high:g}" if math.isinf(low) else f" over values {low:g} to {high:g}"
