"""Telling two neighbouring datasets apart: many fresh releases of each, one test, and what its success says about ε.

The attack hands over one or several numbers for every release. On the first third of the releases the test is chosen:
which number, which side of which threshold. On the others, which had no part in that, it is counted how often it is
right; limits on those counts need no correction for the choice.

Three figures are judged, each with a third of the probability of being wrong: ε without assumption, the pair of rates
against the claim's trade-off curve, and the number of right guesses against the most that the curve allows. The last
two are exact tests (`rates_p_value`, `accuracy_p_value`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from accountant.empirical.intervals import Array, at_least, at_most, require_level
from accountant.empirical.rates import Rates, epsilon_from_rates, gaussian_separation
from accountant.empirical.tradeoff import TradeOff, implied_factor, scaled_epsilon
from accountant.errors import InputError
from accountant.events import Event

FEWEST = 40  # releases of each dataset: fewer show nothing
JUDGED = 3  # figures that share the probability of being wrong
SHARE = 2  # how many times larger the part is on which the test is counted, than that on which it is chosen
# Few thresholds in the middle, where a poor choice costs little, and some in the tails, where rare leaks are.
QUANTILES = np.unique([*np.linspace(0, 1, 33), *(x for t in (1e-3, 3e-3, 0.01, 0.02) for x in (t, 1 - t))])


@dataclass(frozen=True)
class Rule:
    """Says "the record is there" where sign·(number in the column) > threshold."""

    column: int
    sign: float
    threshold: float

    def count(self, absent: Array, present: Array) -> Rates:
        """How often it does."""
        said = [int(np.sum(self.sign * rows[:, self.column] > self.threshold)) for rows in (present, absent)]
        return Rates(said[0], len(present), said[1], len(absent))


@dataclass(frozen=True)
class Distinguished:
    """What releases of two neighbouring datasets show about ε at δ; all of it, but for probability `level`."""

    without_assumption: float
    """ε is at least this, whatever the mechanism is."""
    if_as_stated: float
    """ε is at least this if the noise is of the stated law and only its scale is in doubt."""
    noise_factor: float
    """The noise is at most so many times the stated one; below 1 the claim is refuted whatever the law."""
    separation: float
    """Standard deviations by which Gaussian releases would have to be apart, at least."""
    accuracy: float
    """How often a guess was right, of releases half of which had the record; an estimate."""
    allowed_accuracy: float
    """How often the claim allows it to be right at most."""
    p_value: float
    """How likely such rates, and so many right guesses, are at most if the claim holds: the smaller, tripled."""
    level: float
    releases: int
    counted: int
    """Releases on which the tests were counted."""
    tests: tuple[Rule, Rule, Rule]
    """Those of the three figures: without assumption, as stated, accuracy."""

    @property
    def refutes(self) -> bool:
        """Whether no release within the claim's curve allows what was seen, but for probability `level`."""
        return self.p_value < self.level

    @property
    def lower(self) -> float:
        """The larger of the two bounds on ε."""
        return max(self.without_assumption, self.if_as_stated)


def distinguish(absent: ArrayLike, present: ArrayLike, claim: Event, delta: float, level: float) -> Distinguished:
    """The measured bounds, from (releases, numbers) without and with the record, against what was claimed for them."""
    require_level(level)
    rows = [np.atleast_2d(np.asarray(part, dtype=np.float64).T).T for part in (absent, present)]
    for name, part in zip(("absent", "present"), rows, strict=True):
        if len(part) < FEWEST or not np.isfinite(part).all():
            raise InputError(name, f"must be at least {FEWEST} rows of finite numbers", f"shape {part.shape}")
    first = [part[: len(part) // (1 + SHARE)] for part in rows]
    second = [part[len(part) // (1 + SHARE) :] for part in rows]
    trade_off, each = TradeOff.of(claim), level / JUDGED
    chosen = _choose(first[0], first[1], trade_off, delta, each)
    free, tight, guess = (test.count(second[0], second[1]) for test in chosen)
    hit, alarm = tight.limits(each)
    factor = implied_factor(claim, hit, alarm)
    most = trade_off.most_accuracy
    p_value = min(rates_p_value(tight, trade_off), accuracy_p_value(guess, most))
    return Distinguished(
        without_assumption=float(epsilon_from_rates(*free.limits(each), delta)),
        if_as_stated=scaled_epsilon(claim, factor, delta),
        noise_factor=factor,
        separation=gaussian_separation(hit, alarm) if hit > alarm else 0.0,
        accuracy=guess.accuracy,
        allowed_accuracy=most,
        p_value=min(1.0, JUDGED * p_value),
        level=level,
        releases=len(rows[0]) + len(rows[1]),
        counted=len(second[0]) + len(second[1]),
        tests=chosen,
    )


def accuracy_p_value(seen: Rates, most: float) -> float:
    """How likely so many right guesses are at most, if the mean of the two rates of right guesses is at most `most`.

    The number of right guesses is a sum of independent trials of two kinds. Among all such sums with the same mean,
    that of equal trials has the heaviest tail from one above the mean on (Hoeffding 1956, theorem 5), and the tail
    grows with the mean. Where there are as many releases of either kind the mean is at most `most` times all of them.
    """
    from scipy.stats import binom

    if seen.present != seen.absent:
        raise InputError("releases", "must be as many with the record as without", (seen.present, seen.absent))
    right, trials = seen.hits + seen.absent - seen.alarms, seen.present + seen.absent
    return float(binom.sf(right - 1, trials, most)) if right >= trials * most + 1 else 1.0


def rates_p_value(seen: Rates, claim: TradeOff) -> float:
    """How likely such rates are at most, if the hit rate is at most what the claim allows at the false-alarm rate.

    At a true false-alarm rate a, so few alarms have the probability A(a) and so many hits at most B(a); each is below
    p/2 with probability at most p/2. The largest smaller one of both over all a, doubled, is the answer: A falls and B
    grows with a. Releases of several clients may have rates of their own: the curve is concave, so it bounds the means
    of their rates, too, and as in `accuracy_p_value` equal rates have the heaviest tails.
    """
    from scipy.stats import binom

    def few(alarm: float) -> float:
        below = seen.alarms <= seen.absent * alarm - 1
        return float(binom.cdf(seen.alarms, seen.absent, alarm)) if below else 1.0

    def many(alarm: float) -> float:
        hit = float(claim.most_hits(alarm))
        return float(binom.sf(seen.hits - 1, seen.present, hit)) if seen.hits >= seen.present * hit + 1 else 1.0

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if few(middle) > many(middle) else (low, middle)
    return float(min(1.0, 2.0 * max(min(few(a), many(a)) for a in (low, high))))


def _choose(absent: Array, present: Array, claim: TradeOff, delta: float, level: float) -> tuple[Rule, Rule, Rule]:
    """The tests that did best: in ε without assumption, against the claim's profile, and in plain guessing."""
    best: list[tuple[float, Rule]] = [(-math.inf, Rule(0, 1.0, math.inf))] * 3
    for column in range(absent.shape[1]):
        for sign in (1.0, -1.0):
            a, p = np.sort(sign * absent[:, column]), np.sort(sign * present[:, column])
            thresholds = np.unique(np.quantile(np.concatenate([a, p]), QUANTILES, method="lower"))
            hits = len(p) - np.searchsorted(p, thresholds, side="right")
            alarms = len(a) - np.searchsorted(a, thresholds, side="right")
            # the limits that the same rates would have on the other part
            hit = at_least(SHARE * hits, SHARE * len(p), level / 2)
            alarm = at_most(SHARE * alarms, SHARE * len(a), level / 2)
            with np.errstate(invalid="ignore"):
                beyond = _smoothed(ndtri(hit) - ndtri(claim.most_hits(alarm)))
            for place, merit in enumerate(
                (epsilon_from_rates(hit, alarm, delta), beyond, hits / len(p) - alarms / len(a))
            ):
                at = int(np.argmax(merit))
                if merit[at] > best[place][0]:
                    best[place] = (float(merit[at]), Rule(column, sign, float(thresholds[at])))
    return best[0][1], best[1][1], best[2][1]


def _smoothed(merit: Array) -> Array:
    """Half the merit of each threshold, half that of its neighbourhood: luck alone does not decide."""
    bounded = np.clip(np.nan_to_num(merit, nan=-3.0), -3.0, 3.0)
    padded = np.pad(bounded, 2, mode="edge")
    return np.asarray(0.5 * bounded + 0.5 * np.convolve(padded, np.full(5, 0.2), mode="valid"))
