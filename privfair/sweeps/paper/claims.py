"""An experiment as a description, and its claims: comparisons of figures by seed that a run confirms or does not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accountant.errors import InputError
from privfair.config import Config
from privfair.sweeps.frontiers import Point, best_quality, compare, points_of, reference_of
from privfair.sweeps.jobs import Job, Key
from privfair.sweeps.journal import Row
from privfair.util import FloatArray

BySeed = dict[int, float]
Outcome = Literal["confirmed", "not confirmed", "undecided"]
Relation = Literal["not below", "below", "not above", "above", "within"]
Settings = Mapping[str, Any]  # by dotted key: {"federation.rounds": 100}
LEVEL = 0.95
LAMBDA = "fairness.lambda"
FULL_BATCH = 1_000_000  # more than any client has: every step is a full gradient, one an epoch


class Missing(LookupError):
    """There are no runs to decide from; the message says why."""


class Unreached(Missing):
    """There are runs, but none of them is fair enough."""


@dataclass(frozen=True)
class Evidence:
    """The results of an experiment; `points` are only those whose runs have all ended, so that they share seeds."""

    jobs: Sequence[Job]
    rows: Sequence[Row]
    histories: Mapping[Key, Sequence[Row]]

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Means over seeds, without points that miss a run."""
        planned = Counter((job.series, job.value, job.epsilon) for job in self.jobs)
        ended = Counter((row["series"], row["value"], row["epsilon_target"]) for row in self.rows)
        points = points_of(self.rows)
        return tuple(p for p in points if ended[key := (p.series, p.value, p.epsilon)] >= planned[key])

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
        asked = {job.key for job in self.jobs}
        found = {
            key.seed: [(int(line["round"]), float(line[column])) for line in lines]
            for key, lines in self.histories.items()
            if key.series == series and key in asked
        }
        if not found:
            raise Missing(f"no history of {series}")
        return found


@dataclass(frozen=True)
class Figure:
    """A figure with one value per seed, and its name in words."""

    name: str
    take: Callable[[Evidence], BySeed]

    def reached(self, evidence: Evidence) -> bool:
        """Whether there are runs to take it from."""
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


def mean_of(column: str, series: str, name: str) -> Figure:
    """A column of the results, as it is there for every run of a series."""

    def take(evidence: Evidence) -> BySeed:
        done = (row for row in evidence.rows if row["series"] == series and row["status"] == "done")
        found = {int(row["seed"]): float(row[column]) for row in done if row[column] is not None}
        if not found:
            raise Missing(f"no {name} of {series}")
        return found

    return Figure(f"{name} of {series}", take)


def level(value: float) -> Figure:
    """A number to compare with."""
    return Figure(f"{value:g}", lambda evidence: dict.fromkeys((int(r["seed"]) for r in evidence.rows), value))


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f" over values ≥ {low:g}"
    return f" over values ≤ {high:g}" if math.isinf(low) else f" over values {low:g} to {high:g}"


@dataclass(frozen=True)
class Verdict:
    """What a run says about a claim, with numbers."""

    outcome: Outcome
    numbers: str


@dataclass(frozen=True)
class Claim:
    """`left` is in a relation to `right`, up to a margin: a sentence of the paper made decidable.

    Decided by the mean difference left − right over seeds (paired) with its 95% t interval [low, high]:
    "not below": difference > −margin; "below": difference < −margin; "not above": difference < margin; "above":
    difference > margin; "within": both "not below" and "not above". Confirmed if the whole interval agrees, not
    confirmed if none of it does, undecided otherwise. If only the left side never reaches the unfairness asked for,
    the claim "not below" is not confirmed.
    """

    text: str
    left: Figure
    relation: Relation
    right: Figure
    margin: float = 0.0

    @property
    def how(self) -> str:
        """The rule in words."""
        return f"{self.left.name}, minus {self.right.name}: {_rule(self.relation, f'{self.margin:g}', self.margin)}"

    def decide(self, evidence: Evidence) -> Verdict:
        """Compare over the seeds that both have."""
        try:
            left, right = self.left.take(evidence), self.right.take(evidence)
        except Unreached as missing:
            behind = self.relation == "not below" and self.right.reached(evidence)
            return Verdict("not confirmed" if behind else "undecided", str(missing))
        except Missing as missing:
            return Verdict("undecided", str(missing))
        seeds = sorted(left.keys() & right.keys())
        if not seeds:
            return Verdict("undecided", "no seed has both")
        a, b = np.array([left[s] for s in seeds]), np.array([right[s] for s in seeds])
        interval = t_interval(a - b)
        return Verdict(
            judge(self.relation, self.margin, interval),
            f"{a.mean():.4f} and {b.mean():.4f}; {_difference(float(np.mean(a - b)), interval, len(seeds))}",
        )


@dataclass(frozen=True)
class AreaClaim:
    """The same for the areas that two frontiers dominate; the margin is a share of the area of `unit`.

    Decided by the bootstrap interval over seeds of the difference of hypervolumes.
    """

    text: str
    left: str
    relation: Relation
    right: str
    unit: str
    margin: float = 0.0

    @property
    def how(self) -> str:
        """The rule in words."""
        rule = _rule(self.relation, f"{self.margin:.0%}", self.margin)
        unit = f" of area ({self.unit})" if self.margin else ""
        return f"area ({self.left}) minus area ({self.right}): {rule}{unit}"

    def decide(self, evidence: Evidence) -> Verdict:
        """Compare the areas; the reference point is that of the whole experiment."""
        reference = reference_of(evidence.rows)
        try:
            first, second, unit = (evidence.series(name) for name in (self.right, self.left, self.unit))
        except Missing as missing:
            return Verdict("undecided", str(missing))
        if reference is None:
            return Verdict("undecided", "no reference point")
        rng = np.random.default_rng(0)
        base, other = compare([*_as_one(first, self.right), *_as_one(second, self.left)], reference, rng)
        size = compare(_as_one(unit, self.unit), reference, rng)[0].value
        if not size > 0:
            return Verdict("undecided", f"the frontier of {self.unit} dominates no area")
        interval = other.difference_interval or (-math.inf, math.inf)
        seeds = len({seed for point in first for seed in point.seeds})
        areas = f"areas {other.value:.5f} and {base.value:.5f} ({self.unit}: {size:.5f})"
        difference = _difference(other.difference, interval, seeds, digits=5)
        return Verdict(judge(self.relation, self.margin * size, interval), f"{areas}; {difference}")


AnyClaim = Claim | AreaClaim


def judge(relation: Relation, margin: float, interval: tuple[float, float]) -> Outcome:
    """Whether a difference in that interval has the relation: all of it, none of it, or some."""
    allowed = {
        "not below": (-margin, math.inf),
        "below": (-math.inf, -margin),
        "not above": (-math.inf, margin),
        "above": (margin, math.inf),
        "within": (-margin, margin),
    }[relation]
    low, high = interval
    if allowed[0] <= low and high <= allowed[1]:
        return "confirmed"
    return "not confirmed" if high < allowed[0] or low > allowed[1] else "undecided"


def t_interval(differences: FloatArray) -> tuple[float, float]:
    """The 95% interval of the mean; without bounds for one seed, a point where all differences are equal."""
    from scipy.stats import t

    count = differences.size
    if count < 2:
        return -math.inf, math.inf
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(count)
    reach = float(t.ppf((1 + LEVEL) / 2, count - 1)) * error
    return mean - reach, mean + reach


def _as_one(points: Sequence[Point], name: str) -> list[Point]:
    """The points as one frontier: FairFed's is over all of its β."""
    return [replace(point, series=name) for point in points]


def _difference(difference: float, interval: tuple[float, float], seeds: int, digits: int = 4) -> str:
    if math.isinf(interval[0]):
        return f"difference {difference:+.{digits}f}, one seed: no interval"
    low, high = (f"{bound:+.{digits}f}" for bound in interval)
    return f"difference {difference:+.{digits}f}, 95% interval {low} … {high} over {seeds} seeds"


def _rule(relation: Relation, margin: str, size: float) -> str:
    words = {
        "not below": f"above −{margin}" if size else "not below 0",
        "below": f"below −{margin}" if size else "below 0",
        "not above": f"below {margin}" if size else "not above 0",
        "above": f"above {margin}" if size else "above 0",
        "within": f"between −{margin} and {margin}",
    }
    return words[relation]


@dataclass(frozen=True)
class Line:
    """One line of a figure: a method, and the key that is varied along it. No key: a single point."""

    series: str
    method: str
    varied: str | None
    values: tuple[float, ...] = ()
    quick_values: tuple[float, ...] = ()
    settings: Settings = field(default_factory=dict)
    quick: Settings | None = field(default_factory=dict)  # None: left out of a quick run
    epsilon: float = math.inf  # the target, where its settings have one


@dataclass(frozen=True)
class Experiment:
    """One experiment, of the paper or beyond it (then its claims are what was expected).

    A run's settings are `common`, then the line's own; a quick run adds `quick` and the line's `quick`. Runs use the
    stacked engine unless the settings name another. `notes` say what the paper leaves open and what was chosen.
    """

    name: str
    title: str
    source: str  # where in the paper
    common: Settings
    lines: tuple[Line, ...]
    quick: Settings
    claims: tuple[AnyClaim, ...]
    draw: Callable[[Evidence, Path], list[Path]]
    notes: tuple[str, ...] = ()
    seeds: int = 10
    quick_seeds: int = 3
    first_seed: int = 0
    paper: bool = True
    areas: bool = False  # report the area of every frontier

    @property
    def private(self) -> bool:
        """Whether some of its runs have noise, and so a ledger."""
        return any(math.isfinite(line.epsilon) for line in self.lines)

    def jobs(self, *, quick: bool, overrides: Sequence[str] = ()) -> list[Job]:
        """All runs; `overrides` (section.key=value) apply to every one.

        Both ends of every line come first, then the middles of its gaps: a sweep that stops early has a thinner line,
        not a shorter one.
        """
        seeds = range(self.first_seed, self.first_seed + (self.quick_seeds if quick else self.seeds))
        placed = []
        for number, line in enumerate(self.lines):
            if quick and line.quick is None:
                continue
            values = (line.quick_values if quick else line.values) or (None,)
            for place, value in enumerate(values):
                turn = halvings(place, len(values) - 1)
                placed += [((turn, seed, number, place), (line, value, seed)) for seed in seeds]
        placed.sort(key=lambda pair: pair[0])
        return [self._job(*what, quick, overrides) for _, what in placed]

    def _job(self, line: Line, value: float | None, seed: int, quick: bool, overrides: Sequence[str]) -> Job:
        settings = {**self.common, **line.settings}
        if quick:
            settings |= {**self.quick, **(line.quick or {})}
        settings |= {"federation.method": line.method, "run.seed": seed}
        if line.varied is not None:
            settings[line.varied] = value
        settings.setdefault("run.engine", "stacked")
        settings.setdefault("run.evaluate_every", settings["federation.rounds"])
        for override in overrides:
            key = override.partition("=")[0].strip()
            if key in (line.varied, "federation.method", "run.seed"):
                raise InputError("--set", f"must not be {key}, which {self.name} varies itself", override)
        parameter = "" if line.varied is None else line.varied.partition(".")[2]
        return Job(line.series, parameter, value, line.epsilon, Config.build(nested(settings), overrides))


def nested(settings: Settings) -> dict[str, dict[str, Any]]:
    """Tables from dotted keys."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    return tables


def log_steps(low: float, high: float, steps: int = 50) -> tuple[float, ...]:
    """Logarithmically spaced strengths, as in the appendix; rounded to 6 digits, so that files stay readable."""
    return tuple(float(f"{value:.6g}") for value in np.geomspace(low, high, steps))


def halvings(place: int, last: int) -> int:
    """How often 0 … last must be halved until `place` is a middle; 0 for both ends."""
    low, high, count = 0, last, 0
    while place not in (low, high):
        middle = (low + high) // 2
        low, high = (middle, high) if place >= middle else (low, middle)
        count += 1
    return count
