"""Claims of the paper as comparisons of figures, and whether a run confirms them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from privfair.arrays import FloatArray
from privfair.sweeps.frontiers import compare, reference_of
from privfair.sweeps.paper.evidence import Evidence, Figure, Missing, Unreached
from privfair.sweeps.points import Point

Outcome = Literal["confirmed", "not confirmed", "undecided"]
Relation = Literal["not below", "below", "not above", "above", "within"]
LEVEL = 0.95


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
    confirmed if none of it does, undecided otherwise. A left side that is never as fair as it asks for does not keep
    up with a right side that is.
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
            f"{a.mean():.4f} and {b.mean():.4f}; {_told(float(np.mean(a - b)), interval, len(seeds))}",
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
        reference = reference_of(evidence.sweep.rows)
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
        told = _told(other.difference, interval, seeds, digits=5)
        return Verdict(judge(self.relation, self.margin * size, interval), f"{areas}; {told}")


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


def _told(difference: float, interval: tuple[float, float], seeds: int, digits: int = 4) -> str:
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
