"""Lower bounds on ε that are measured: statistics for attacks on a mechanism, without any attack in them.

An upper bound is proved, a lower bound is shown: whoever distinguishes two neighbouring datasets too well has refuted
the upper bound, whatever was proved. Nothing here depends on torch or privfair; an attack hands over numbers.

Telling two neighbouring datasets apart (`distinguish`): many fresh releases of each, one test, and what its success
says about ε.

The attack hands over one or several numbers for every release. On the first third of the releases the test is chosen:
which number, which side of which threshold. On the others, which had no part in that, it is counted how often it is
right; limits on those counts need no correction for the choice.

A claim is more than one pair (ε, δ): its events have a whole profile δ(ε), and a test that breaks any of it has
refuted the claim (`TradeOff`). Where all noise is Gaussian that is the μ-GDP test; sampled and discrete noise have
profiles of their own.

Three figures are judged, each with a third of the probability of being wrong: ε without assumption, the pair of rates
against the claim's trade-off curve, and the number of right guesses against the most that the curve allows. The last
two are exact tests (`rates_p_value`, `accuracy_p_value`).

One training run with many canaries (`one_run_…`) refutes a pair (ε, δ), or a whole trade-off curve.

m canaries are each put in by a fair coin. The attacker sees the outcome and guesses r of the coins, abstaining on the
others; v guesses are right. Several independent runs with canaries of their own are one run with all of them:
neighbours differ in one canary of one run. How many guesses are made must not depend on the coins.

A pair (ε, δ) (Steinke, Nasr & Jagielski 2023, arXiv 2305.08846v1, Theorem 5.2). The number of right guesses is hardly
larger than that of randomised response, W ~ Binomial(r, q) with q = e^ε/(1 + e^ε):

    P[right ≥ v] ≤ P[W ≥ v] + 2 m δ · max over i = 1 … m of P[v − i ≤ W < v]/i.

A trade-off curve (after Mahloujifar, Melis & Chaudhuri 2024, arXiv 2410.22235v1, Theorem 3.2 and algorithm 3). Let F(α)
be the largest hit rate that the claim allows at the false-alarm rate α, in both directions: concave and increasing. Let
p_j = P[right = j] and, for a threshold i,

    R_i = Σ_{j ≥ i} j·p_j,   H_i = Σ_{j ≥ i} (r − j)·p_j,   S_i = P[right ≥ i],   so that R_i + H_i = r·S_i.

Theorem: R_i/m ≤ F(H_{i−1}/m). Proof: fix all coins but that of canary k, and let E be the set of outcomes at which the
guess of k is right and at least i − 1 other guesses are. If the coin of k falls the other way, E is where the guess of
k is wrong and at least i − 1 guesses are right. So P[E] ≤ F(P[E with the other coin]). Take the mean over all coins and
all k: by Jensen's inequality it goes into F, and the means are R_i/m (a canary is one of the j right guesses with
probability j/m) and H_{i−1}/m.

Hence H_{i−1} ≥ m·G(R_i/m), where G is the inverse of F. Given (S_i, R_i), p_{i−1} must be so large that this holds; let
it be exactly so large, and S_0 is the least that it can be. For let R* − R ≥ i·(S* − S) ≥ 0 for two states at level i.
The least S at level i − 1 is max(S, (m·G(R/m) + R − (i−1)·S)/(r − i + 1)), which grows from one state to the other, as
R* − R ≥ (i−1)·(S* − S); and the order holds again one level down, since R grows there by i − 1 times what S does. A
larger p_{i−1} than necessary, a larger S_v, and right guesses beyond v are all larger states. As S_0 = 1, P[right ≥ v]
= S_v is at most the t for which the chain that begins with S_v = t, R_v = v·t ends in S_0 = 1.

That is all that one run can show: a mechanism that is silent with probability 1 − t and answers each coin by randomised
response otherwise keeps the curve as long as t·q ≤ F(t·(1 − q)), and has t·P[W ≥ v]. Many runs show more, for they are
independent. With i = 0 the theorem says that the share of right guesses X of a run has a mean of at most a, the largest
number with a·r/m ≤ F((1 − a)·r/m). So the product of 1 + λ(X − a) over all runs, 0 ≤ λ ≤ 1/a, has a mean of at most 1,
and exceeds 1/p with probability at most p (Markov's inequality; Waudby-Smith & Ramdas 2024, arXiv 2010.09686v8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from accountant.calibration import scale_noise
from accountant.conversion import delta_from_rdp, epsilon_from_rdp, gaussian_epsilon
from accountant.errors import InputError
from accountant.events import Event, Gaussian, PoissonSampled, count_parts
from accountant.rdp import DEFAULT_ORDERS, rdp

Array = np.ndarray[Any, np.dtype[np.float64]]

LARGEST = 18.0  # ε beyond this would need false-alarm rates below 1e-7 to be seen
POINTS = 721
COARSE = 4e-3  # grid of the losses: on the claim's side, and fine enough to lose less than sampling does
FARTHEST = 16.0  # noise is looked for between this fraction and this multiple of what is claimed
FEW_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)  # for a rough size, quickly
_GRID: Array = np.linspace(0.0, LARGEST, POINTS)
FEWEST = 40  # releases of each dataset: fewer show nothing
JUDGED = 3  # figures that share the probability of being wrong
SHARE = 2  # how many times larger the part is on which the test is counted, than that on which it is chosen
# Few thresholds in the middle, where a poor choice costs little, and some in the tails, where rare leaks are.
QUANTILES = np.unique([*np.linspace(0, 1, 33), *(x for t in (1e-3, 3e-3, 0.01, 0.02) for x in (t, 1 - t))])
_HALVINGS = 60  # of the logarithm of a p-value, which is at least 1e-300
_SMALLEST = 1e-300
_STAKES = (0.25, 0.5, 0.75, 0.99)  # λ·a


def at_least(successes: ArrayLike, trials: int, level: float) -> Array:
    """What the probability of a success is at least, wrong with probability at most `level` (Clopper & Pearson 1934).

    As scipy.stats.binomtest(…).proportion_ci, which takes one count only: the choice of a test needs hundreds at once.
    """
    from scipy.stats import beta

    require_level(level)
    k = np.asarray(successes, dtype=np.float64)
    if trials < 1 or (k.size and (k.min() < 0 or k.max() > trials)):
        raise InputError("successes", f"must be between 0 and the number of trials, {trials}", successes)
    found: Array = np.where(k > 0, beta.ppf(level, np.maximum(k, 1), trials - k + 1), 0.0)
    return found


def at_most(successes: ArrayLike, trials: int, level: float) -> Array:
    """What the probability of a success is at most, wrong with probability at most `level`."""
    found: Array = 1.0 - at_least(trials - np.asarray(successes), trials, level)
    return found


def require_level(level: float) -> float:
    """The probability of being wrong, if it is one that says anything; otherwise `InputError`."""
    if not 0 < level < 0.5:
        raise InputError("level", "must be in (0, 0.5)", level, "0.05 stands for 95% confidence.")
    return float(level)


@dataclass(frozen=True)
class Rates:
    """How often a test said "the record is there": of `present` trials with it and of `absent` ones without it."""

    hits: int
    present: int
    alarms: int
    absent: int

    @property
    def accuracy(self) -> float:
        """The share of right answers where both cases are equally likely."""
        return 0.5 * (self.hits / self.present + 1.0 - self.alarms / self.absent)

    def limits(self, level: float) -> tuple[float, float]:
        """(what the hit rate is at least, what the false-alarm rate is at most): both, but for probability `level`."""
        hit = float(at_least(self.hits, self.present, level / 2))
        return hit, float(at_most(self.alarms, self.absent, level / 2))


def epsilon_from_rates(hit: ArrayLike, alarm: ArrayLike, delta: float) -> Array:
    """The ε that these rates need at least: (ε, δ) allows hit ≤ e^ε·alarm + δ and 1 − alarm ≤ e^ε·(1 − hit) + δ.

    (Kairouz, Oh & Viswanath 2015, arXiv 1311.0776v4, Theorem 2.1.) At least 0.
    """
    tpr, fpr = np.asarray(hit, dtype=np.float64), np.asarray(alarm, dtype=np.float64)
    first = _log_ratio(tpr - delta, fpr)
    second = _log_ratio(1.0 - fpr - delta, 1.0 - tpr)
    found: Array = np.maximum(np.maximum(first, second), 0.0)
    return found


def gaussian_separation(hit: float, alarm: float) -> float:
    """μ = Φ⁻¹(hit) − Φ⁻¹(alarm): how far apart two normal laws of variance 1 must be for a test to have these rates.

    No μ-GDP mechanism allows rates with a larger one (Dong, Roth & Su 2022, arXiv 1905.02383v3, definition 2.6).
    """
    return float(ndtri(hit) - ndtri(alarm))


def _log_ratio(above: Array, below: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.maximum(above, 0.0)) - np.log(below)
    return np.where(above > 0, ratio, -math.inf)


@dataclass(frozen=True, eq=False)
class TradeOff:
    """δ at every ε of a grid; larger ones are never claimed than hold between its points."""

    epsilons: Array
    deltas: Array

    @staticmethod
    def of(event: Event) -> TradeOff:
        """Of everything that an event says was released."""
        return _trade_off(event)

    def most_hits(self, alarm: ArrayLike) -> Array:
        """The largest hit rate that the claim allows at a false-alarm rate."""
        rate = np.asarray(alarm, dtype=np.float64)[..., None]
        first = np.exp(self.epsilons) * rate + self.deltas
        second = 1.0 - np.exp(-self.epsilons) * (1.0 - rate - self.deltas)
        found: Array = np.clip(np.minimum(first, second).min(axis=-1), 0.0, 1.0)
        return found

    def least_alarms(self, hit: float) -> float:
        """The smallest false-alarm rate at which the claim allows this hit rate: the inverse of `most_hits`.

        The curve is that of both directions, so its inverse is its mirror image.
        """
        return max(0.0, 1.0 - float(self.most_hits(1.0 - hit)))

    @property
    def most_accuracy(self) -> float:
        """How often at most somebody guesses right whether the record is there, where a coin is right half the time."""
        return min(1.0, 0.5 * (1.0 + float(self.deltas[0])))


@lru_cache(maxsize=256)
def _trade_off(event: Event) -> TradeOff:
    bound = float(epsilon_from_rdp(FEW_ORDERS, rdp(event, FEW_ORDERS), 1e-5)[0])
    if bound == 0:
        return TradeOff(_GRID, np.zeros_like(_GRID))
    if math.isinf(bound):
        return TradeOff(_GRID, np.ones_like(_GRID))
    composed = composed_losses(event, bound)
    if composed is None:
        curve = rdp(event, DEFAULT_ORDERS)
        deltas = np.array([delta_from_rdp(DEFAULT_ORDERS, curve, float(epsilon)) for epsilon in _GRID])
    else:
        deltas = np.asarray(composed.get_delta_for_epsilon(_GRID), dtype=np.float64)
    return TradeOff(_GRID, np.clip(deltas, 0.0, 1.0))


def composed_losses(event: Event, bound: float) -> Any | None:
    """The distribution of an event's privacy loss, on a grid that suits an ε of about `bound`; None if it cannot be."""
    from accountant.pld import compose
    from accountant.pld_profiles import TooFine

    try:
        return compose(event, COARSE * max(1.0, bound / 20.0))
    except TooFine:
        return None


def scaled_epsilon(event: Event, factor: float, delta: float) -> float:
    """ε at δ of an event with its noise multiplied, to about a thousandth of itself. Infinite noise: 0."""
    if math.isinf(factor):
        return 0.0
    gaussian = gaussian_multiplier(event)
    if gaussian is not None:
        return gaussian_epsilon(1.0 / (gaussian * factor), delta)
    scaled = scale_noise(event, factor)
    bound = float(epsilon_from_rdp(FEW_ORDERS, rdp(scaled, FEW_ORDERS), delta)[0])
    composed = None if bound == 0 or math.isinf(bound) else composed_losses(scaled, bound)
    return bound if composed is None else min(bound, float(composed.get_epsilon_for_delta(delta)))


def implied_factor(event: Event, hit: float, alarm: float) -> float:
    """How many times the claimed noise there is at most, if a test has these rates and the noise is of the stated law.

    Below 1 the claim is refuted, with no assumption at all: no release within its profile allows such a test. The size
    of the factor rests on the law; it is found to within 0.3%, rounded up. Infinite where such a test could be had for
    nothing.
    """

    def allowed(factor: float) -> bool:
        return bool(TradeOff.of(scale_noise(event, factor)).most_hits(alarm) >= hit)

    if hit <= alarm:
        return math.inf
    gaussian = gaussian_multiplier(event)
    if gaussian is not None:  # the same question, in closed form
        return 1.0 / (gaussian * gaussian_separation(hit, alarm))
    low = high = 1.0
    if allowed(1.0):
        while allowed(high):
            low, high = high, 2.0 * high
            if high > FARTHEST:
                return math.inf
    else:
        while not allowed(low):
            low, high = 0.5 * low, low
            if low < 1.0 / FARTHEST:
                return high
    while high / low > 1.003:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return high


def gaussian_multiplier(event: Event) -> float | None:
    """The noise multiplier of all releases together, if every one is Gaussian in the reals and takes every record."""
    precision = 0.0
    for part, count in count_parts(event).items():
        one = part.event if isinstance(part, PoissonSampled) and part.rate == 1.0 else part
        if not isinstance(one, Gaussian):
            return None
        precision += count / one.noise_multiplier**2
    return 1.0 / math.sqrt(precision) if precision else None


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


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float = 0.0) -> float:
    """How likely so many right guesses are at most, if (ε, δ) holds."""
    from scipy.stats import binom

    _require_guesses(canaries, guesses, right)
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise InputError("(ε, δ)", "must be ε at least 0 and δ in [0, 1]", (epsilon, delta))
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, accuracy))
    if not delta or not right:
        return min(1.0, tail)
    steps = np.arange(1, right + 1)  # beyond i = v the sum stays and the divisor grows
    below = np.cumsum(binom.pmf(right - steps, guesses, accuracy))
    return min(1.0, tail + 2.0 * canaries * delta * float(np.max(below / steps)))


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float = 0.0, level: float = 0.05) -> float:
    """The largest ε that so many right guesses refute; 0 if they refute none. Wrong with probability at most `level`.

    The p-value grows with ε as far as it is small: the search stops at the first ε that is not refuted.
    """
    require_level(level)

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) < level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 0.25
    while refuted(high):  # in small steps, so that no ε below the answer goes untested by much
        low, high = high, high + 0.25
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def one_run_curve_p_value(canaries: int, guesses: int, right: int, claim: TradeOff) -> float:
    """How likely so many right guesses are at most, if the claim's whole trade-off curve holds."""
    _require_guesses(canaries, guesses, right)
    if _least_mass(canaries, guesses, right, claim, _SMALLEST) > 1.0:
        return _SMALLEST
    low, high = math.log(_SMALLEST), 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        possible = _least_mass(canaries, guesses, right, claim, math.exp(middle)) <= 1.0
        low, high = (middle, high) if possible else (low, middle)
    return min(1.0, math.exp(high))


def one_run_accuracy(canaries: int, guesses: int, claim: TradeOff) -> float:
    """a: the share of right guesses that the claim allows in the mean; never below what is true."""
    _require_guesses(canaries, guesses, 0)
    if not guesses:
        return 1.0
    low, high = 0.5, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        allowed = middle * guesses / canaries <= float(claim.most_hits((1.0 - middle) * guesses / canaries))
        low, high = (middle, high) if allowed else (low, middle)
    return high


def many_runs_p_value(seen: Sequence[tuple[ArrayLike, float]]) -> float:
    """How likely such shares of right guesses of independent runs are at most, if their means are as allowed.

    `seen`: for each rule of guessing the shares of all runs, and the mean that is allowed. The products of several
    rules and several λ are averaged: the mean of that is at most 1 as well, and nothing need be chosen.
    """
    products = []
    for shares, allowed in seen:
        rows = np.asarray(shares, dtype=np.float64)
        if not 0 < allowed <= 1:
            raise InputError("allowed share", "must be in (0, 1]", allowed)
        if rows.size and not (rows.min() >= 0 and rows.max() <= 1):
            raise InputError("shares of right guesses", "must be in [0, 1]", "others")
        products += [float(np.log1p(stake / allowed * (rows - allowed)).sum()) for stake in _STAKES]
    return float(min(1.0, math.exp(math.log(len(products)) - float(np.logaddexp.reduce(products)))))


def _least_mass(canaries: int, guesses: int, right: int, claim: TradeOff, tail: float) -> float:
    """S_0 of the chain that begins with P[right ≥ v] = tail: above 1, the tail is impossible."""
    mass, sums = tail, right * tail
    for i in range(right - 1, -1, -1):
        needed = canaries * claim.least_alarms(min(1.0, sums / canaries))  # of H_i
        more = (needed - (guesses * mass - sums)) / (guesses - i)
        if more <= 0:  # so it is at all lower levels, where nothing has changed
            return mass
        mass, sums = mass + more, sums + i * more
        if mass > 1.0:
            return mass
    return mass


def _require_guesses(canaries: int, guesses: int, right: int) -> None:
    if not 0 <= right <= guesses <= canaries:
        raise InputError("right", "must be at most the guesses, and these at most the canaries", right)
