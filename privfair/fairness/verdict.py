"""Whether a model meets a target for the gap between groups, from counts of its decisions, with noise or without.

K positive decisions of N records of a group are released, K and N − K each with noise of variance v (0: exact counts).
At the true rate p of the group, K − pN = (1 − p)·K − p·(N − K) has mean 0 and variance N·p(1 − p) + v((1 − p)² + p²),
so that the rates p which the counts do not contradict are those with

    (K − pN)² ≤ z²·(N·p(1 − p) + v·((1 − p)² + p²)).

At v = 0 these are Wilson's limits (1927). The limits (l, u) of two groups make those of their difference by Newcombe's
square-and-add (1998, method 10):  p₁ − p₂ + √((u₁ − p₁)² + (p₂ − l₂)²)  is the upper one.

The gap is the largest |difference| over pairs of groups, conditioning sets and attributes. That it is at most a target
is claimed if EVERY one-sided 96% limit is (an intersection of claims: a wrong one is wrong about the pair with the true
gap, so nothing is corrected for). That it is more is claimed if SOME lower limit is, at 2% shared among all pairs.
The claim is about the people that the test records were drawn from, not about the test records. Counts are whole
numbers, so that no limits have their nominal level everywhere: by enumeration and simulation (groups of 50 to 2,000,
rates from .05 on) the interval holds the gap at least 95.5% of the time, the bound at least 94.4%.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

Floats = NDArray[np.float64]
Answer = Literal["met", "not met", "cannot tell"]

MET = 0.04  # how often a gap above the target may be called "met", at most
TAIL = 0.02  # either side of the interval
RATE = 0.05  # both sides of the interval of one rate
MOST_TERMS = 400  # a sum of more Laplace variables has the normal law's quantiles to three digits
MOST_TIMES = 1e9  # times as many records; beyond that, nothing would decide
PLANNED_RATE = 0.2  # the share of positive decisions that a plan assumes where nothing is known of it


@dataclass(frozen=True, eq=False)
class Decisions:
    """Released counts of the decisions on one conditioning set, for each group of one attribute.

    Noisy counts may be negative or more than the total. variance: of the noise of `positives`, and of that of
    `totals − positives`; the two are independent. laplace: of how many Laplace variables that noise is the sum; 0 for
    Gaussian noise or none.
    """

    attribute: str
    condition: str
    groups: tuple[str, ...]
    positives: Floats
    totals: Floats
    variance: float = 0.0
    laplace: int = 0

    def __post_init__(self) -> None:
        """Counts as numbers."""
        for name in ("positives", "totals"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))

    @property
    def pairs(self) -> int:
        """Unordered pairs of groups."""
        return math.comb(len(self.groups), 2)

    @property
    def known(self) -> NDArray[np.bool_]:
        """The groups of which there are more records than noise alone could show (two standard errors)."""
        return self.totals > 2 * math.sqrt(2 * self.variance)

    def scaled(self, records: float = 1.0, variance: float = 1.0) -> Decisions:
        """As many times the records with the same rates, and as many times the variance of the noise."""
        return replace(
            self,
            positives=self.positives * records,
            totals=self.totals * records,
            variance=self.variance * variance,
        )


@dataclass(frozen=True)
class Needed:
    """What would decide where these test records do not, if the rates stay what they are."""

    records: int | None  # test records in all, with the same noise; None: no number of them would
    noise: float | None  # this share of the noise's standard deviation, with the same records; None: not even none


@dataclass(frozen=True)
class Verdict:
    """What the counts say of the gap. `answer` is None without a target."""

    answer: Answer | None
    target: float | None
    gap: float | None  # the largest |difference| between the estimated rates; None where no two groups are known
    interval: tuple[float, float]  # of the true gap, 96%
    upper: float  # the true gap is at most that, 96%
    between: tuple[str, str] | None = None  # the two groups with the largest difference, in their declared order
    difference: float | None = None  # signed: the first's rate minus the second's. |gap| is never below 0, this may be
    attribute: str | None = None
    condition: str | None = None
    unknown: tuple[str, ...] = ()  # groups with too few test records to say anything
    needed: Needed | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values, as in metrics.json."""
        return {
            "answer": self.answer,
            "target": self.target,
            "gap": self.gap,
            "interval": list(self.interval),
            "upper": self.upper,
            "between": None if self.between is None else list(self.between),
            "difference": self.difference,
            "attribute": self.attribute,
            "condition": self.condition,
            "unknown_groups": list(self.unknown),
            "needed_records": None if self.needed is None else self.needed.records,
            "needed_noise": None if self.needed is None else self.needed.noise,
            "reason": self.reason,
        }


# ---- Limits of one rate, and of the largest difference between several; over arrays, the last axis is the groups.


def limits(positives: ArrayLike, totals: ArrayLike, variance: ArrayLike, z: float) -> tuple[Floats, Floats]:
    """(lower, upper) limits of each rate; 0 and 1 where the counts say nothing about it.

    The condition above is a·p² + b·p + c ≤ 0 with a = N² + z²(N − 2v), b = −2KN − z²(N − 2v), c = K² − z²v. Counts
    outside 0 … N, which only noise makes, are moved to the nearer end: that only widens what follows from them. For
    a ≤ 0 (few records for the noise) the set is no interval, and everything from 0 to 1 is taken.
    """
    total = np.asarray(totals, dtype=np.float64)
    count = np.clip(np.asarray(positives, dtype=np.float64), 0.0, np.maximum(total, 0.0))
    noise, square = np.asarray(variance, dtype=np.float64), z * z
    slack = square * (total - 2 * noise)
    a, b, c = total**2 + slack, -2 * count * total - slack, count**2 - square * noise
    root = np.sqrt(np.maximum(b * b - 4 * a * c, 0.0))
    sound = (total > 0) & (a > 0)
    twice = np.where(sound, 2 * a, 1.0)
    rate = np.where(sound, count / np.where(total > 0, total, 1.0), 0.5)
    low = np.where(sound, np.clip((-b - root) / twice, 0.0, rate), 0.0)
    high = np.where(sound, np.clip((-b + root) / twice, rate, 1.0), 1.0)
    return low, high


def rates(positives: ArrayLike, totals: ArrayLike) -> Floats:
    """K/N, cut at 0 and 1; ½ where there are no records."""
    total = np.asarray(totals, dtype=np.float64)
    share = np.asarray(positives, dtype=np.float64) / np.where(total > 0, total, 1.0)
    return np.where(total > 0, np.clip(share, 0.0, 1.0), 0.5)


def upper_limit(positives: ArrayLike, totals: ArrayLike, variance: float, z: float) -> Floats:
    """The largest upper limit of a difference between two groups; at most 1."""
    rate, (low, high) = rates(positives, totals), limits(positives, totals, variance, z)
    above, below = (high - rate) ** 2, (rate - low) ** 2
    found = [
        rate[..., i] - rate[..., j] + np.sqrt(above[..., i] + below[..., j])
        for i, j in permutations(range(rate.shape[-1]), 2)
    ]
    largest: Floats = np.clip(np.max(found, axis=0), 0.0, 1.0)
    return largest


def lower_limit(positives: ArrayLike, totals: ArrayLike, variance: float, z: float) -> Floats:
    """The largest lower limit of a difference between two groups; at least 0."""
    rate, (low, high) = rates(positives, totals), limits(positives, totals, variance, z)
    above, below = (high - rate) ** 2, (rate - low) ** 2
    found = [
        rate[..., i] - rate[..., j] - np.sqrt(below[..., i] + above[..., j])
        for i, j in permutations(range(rate.shape[-1]), 2)
    ]
    largest: Floats = np.clip(np.max(found, axis=0), 0.0, 1.0)
    return largest


@lru_cache(maxsize=1024)
def quantile(tail: float, laplace: int = 0) -> float:
    """How many standard deviations are exceeded with probability `tail`, on one side.

    Normal; where the noise is a sum of m Laplace variables, the larger of that and the sum's own, which has heavier
    tails. Σ of m Laplace variables of scale 1 exceeds t with probability Σⱼ C(m+j−1, j)·2^−(m+j)·Q(m−j, t), j < m,
    Q the regularised upper incomplete gamma function (a difference of two gamma variables).
    """
    normal = float(stats.norm.isf(tail))
    if not 0 < laplace <= MOST_TERMS:
        return normal
    j = np.arange(laplace)
    log_weights = (
        special.gammaln(laplace + j) - special.gammaln(j + 1) - special.gammaln(laplace) - (laplace + j) * math.log(2)
    )

    def excess(t: float) -> float:
        return float(np.exp(log_weights) @ special.gammaincc(laplace - j, t)) - tail

    reach = 20.0 * math.sqrt(laplace) + 10.0 - math.log(tail)
    return max(normal, float(optimize.brentq(excess, 0.0, reach)) / math.sqrt(2 * laplace))


# ---- The bounds of several comparisons, and the answer.


def upper_bound(decisions: Sequence[Decisions], tail: float = MET) -> float:
    """The true gap is at most that, but for a probability of `tail`: the largest one-sided limit, uncorrected."""
    return max(float(upper_limit(d.positives, d.totals, d.variance, quantile(tail, d.laplace))) for d in decisions)


def interval(decisions: Sequence[Decisions], tail: float = TAIL) -> tuple[float, float]:
    """The true gap is in it, but for a probability of `tail` on either side."""
    pairs = sum(d.pairs for d in decisions)
    low = max(
        float(lower_limit(d.positives, d.totals, d.variance, quantile(tail / pairs, d.laplace))) for d in decisions
    )
    return low, upper_bound(decisions, tail)


def rate_interval(positives: float, total: float, variance: float = 0.0, laplace: int = 0) -> tuple[float, float]:
    """Of one rate, 95%."""
    low, high = limits(positives, total, variance, quantile(RATE / 2, laplace))
    return float(low), float(high)


def verdict(decisions: Sequence[Decisions], target: float | None) -> Verdict:
    """The answer for a target, or without one what is known of the gap. `decisions`: one for each attribute and set."""
    compared = [d for d in decisions if d.pairs]
    if not compared:
        return impossible(target, "there are no two groups to compare")
    low, high = interval(compared)
    upper = upper_bound(compared)
    widest = _widest(compared)
    unknown = tuple(
        f"{d.attribute}={group}, {d.condition}"
        for d in compared
        for group, seen in zip(d.groups, d.known, strict=True)
        if not seen
    )
    answer: Answer | None = None
    reason, missing = "", None
    if target is not None:
        answer = "met" if upper <= target else "not met" if low > target else "cannot tell"
        if answer == "cannot tell":
            missing = needed(compared, target)
            reason = _why(unknown, compared)
    found = Verdict(answer, target, None, (low, high), upper, unknown=unknown, needed=missing, reason=reason)
    return found if widest is None else widest.within(found)


def impossible(target: float | None, reason: str) -> Verdict:
    """What is said where nothing is released that a verdict could rest on."""
    return Verdict(None if target is None else "cannot tell", target, None, (0.0, 1.0), 1.0, reason=reason)


def unsound(found: Verdict, reason: str) -> Verdict:
    """The verdict of a model that says the same to everybody, or diverged: no gap of such a model is fairness."""
    return replace(found, answer=None if found.answer is None else "cannot tell", needed=None, reason=reason)


def needed(decisions: Sequence[Decisions], target: float) -> Needed:
    """The least number of test records, or the largest noise, that would decide at the estimated rates.

    Records of every group grow in the same proportion. None where that does not help: at a gap of just the target, or
    where nothing is known of a group.
    """
    compared = [d for d in decisions if d.pairs]

    def decides(records: float, variance: float) -> bool:
        scaled = [d.scaled(records, variance) for d in compared]
        return upper_bound(scaled) <= target or interval(scaled)[0] > target

    total = max(float(np.maximum(_of_attribute(compared, d.attribute), 0).sum()) for d in compared)
    times = _first(lambda scale: decides(scale, 1.0), MOST_TIMES)
    records = None if times is None else math.ceil(total * times)
    if not any(d.variance for d in compared):
        return Needed(records, None)
    shrink = _first(lambda scale: decides(1.0, scale**-2), 1e3)
    noise = 1 / shrink if shrink is not None else 0.0 if decides(1.0, 0.0) else None
    return Needed(records, noise)


def standard_error(totals: ArrayLike, rate: float, variance: float = 0.0) -> float:
    """The planned standard error of the largest difference between two groups of an attribute on one set.

    √ of the sum of the two largest variances r(1 − r)/N + v((1 − r)² + r²)/N² over the groups. totals: test records of
    each group; variance: v, of the noise of one summed count. Infinite where a group has no records.
    """
    sizes = np.atleast_1d(np.asarray(totals, dtype=np.float64))
    if not (sizes > 0).all():
        return math.inf
    each = rate * (1 - rate) / sizes + variance * ((1 - rate) ** 2 + rate**2) / sizes**2
    return float(math.sqrt(np.sort(each)[-2:].sum()))


def least_target(totals: ArrayLike, rate: float = PLANNED_RATE, variance: float = 0.0, laplace: int = 0) -> float:
    """The least target that can be "met" with such test records: the upper bound at an estimated gap of 0."""
    sizes = np.atleast_1d(np.asarray(totals, dtype=np.float64))
    return float(upper_limit(rate * sizes, sizes, variance, quantile(MET, laplace)))


def records_for(target: float, rate: float = PLANNED_RATE, variance: float = 0.0, laplace: int = 0) -> int | None:
    """Test records of each of two groups from which on the target can be "met" at an estimated gap of 0."""
    found = _first(lambda size: least_target((size, size), rate, variance, laplace) <= target, MOST_TIMES)
    return None if found is None else math.ceil(found)


def _of_attribute(decisions: Sequence[Decisions], attribute: str) -> Floats:
    """Records of each conditioning set of an attribute."""
    return np.array([d.totals.sum() for d in decisions if d.attribute == attribute])


class _Widest(NamedTuple):
    """The two groups with the largest estimated difference."""

    decisions: Decisions
    first: int
    second: int
    difference: float

    def within(self, found: Verdict) -> Verdict:
        """The verdict with what it is about."""
        d = self.decisions
        return replace(
            found,
            gap=abs(self.difference),
            between=(d.groups[self.first], d.groups[self.second]),
            difference=self.difference,
            attribute=d.attribute,
            condition=d.condition,
        )


def _widest(decisions: Sequence[Decisions]) -> _Widest | None:
    """None where no two groups of an attribute are known."""
    pairs = []
    for d in decisions:
        rate = rates(d.positives, d.totals)
        for i, j in combinations([int(g) for g in np.flatnonzero(d.known)], 2):
            pairs.append(_Widest(d, i, j, float(rate[i] - rate[j])))
    return max(pairs, key=lambda pair: abs(pair.difference), default=None)


def _why(unknown: Sequence[str], decisions: Sequence[Decisions]) -> str:
    """Why the records do not decide, in one sentence."""
    noisy = any(d.variance for d in decisions)
    if unknown:
        what = "more than their noise" if noisy else "any test records"
        return f"there are not {what} of {'; '.join(unknown)}"
    return f"the test records are too few{' for their noise' if noisy else ''}"


def _first(decides: Callable[[float], bool], most: float) -> float | None:
    """The least scale of at least 1 from which on it decides, to a thousandth; None where none up to `most` does."""
    high = 1.0
    while not decides(high):
        high *= 2
        if high > most:
            return None
    low = high / 2
    while high - low > 1e-3 * high and high > 1.0:
        middle = (low + high) / 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
