"""The one-run bounds against mechanisms that meet them, against brute force, and against chance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq, linprog
from scipy.stats import binom

from accountant.empirical import (
    TradeOff,
    many_runs_p_value,
    one_run_accuracy,
    one_run_curve_p_value,
    one_run_epsilon,
    one_run_p_value,
)
from accountant.errors import InputError
from accountant.events import Event, Gaussian, Laplace, PoissonSampled, Repeated

CLAIMS: list[Event] = [Gaussian(1.0), Gaussian(0.5), Laplace(1.0), Repeated(PoissonSampled(0.3, Gaussian(0.8)), 4)]


def brute_force(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 by going through all outcomes of r guesses, each right with probability e^ε/(1 + e^ε)."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [0.0] * (r + 1)
    for outcome in itertools.product((0, 1), repeat=r):
        mass[sum(outcome)] += math.prod(q if right else 1 - q for right in outcome)
    tail = sum(mass[v:])
    steepest = max(sum(mass[w] for w in range(r + 1) if v > w >= v - i) / i for i in range(1, m + 1))
    return min(1.0, tail + 2 * m * delta * steepest)


@pytest.mark.parametrize(("m", "r"), [(1, 1), (5, 5), (8, 6), (9, 3)])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_the_p_value_is_that_of_the_theorem(m: int, r: int, epsilon: float, delta: float) -> None:
    for v in range(r + 1):
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(
            brute_force(m, r, v, epsilon, delta), abs=1e-12
        )


@pytest.mark.parametrize("m", [3, 20, 200])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.01), (1.0, 1e-3), (2.0, 0.05)])
def test_mechanisms_with_delta_do_not_exceed_it(m: int, epsilon: float, delta: float) -> None:
    """Randomised response that tells everything with probability δ: all at once, or each canary by itself."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    for v in range(m + 1):
        p = one_run_p_value(m, m, v, epsilon, delta)
        assert p >= delta + (1 - delta) * binom.sf(v - 1, m, q) - 1e-12 or p == 1.0
        assert p >= binom.sf(v - 1, m, delta + (1 - delta) * q) - 1e-12


def test_randomised_response_is_bounded_from_below_and_nearly_met() -> None:
    """At 95% confidence a bound above the truth is allowed in 1 of 20 repetitions; the tolerance is for 1e-6."""
    epsilon, m, repetitions, level = 1.0, 4000, 400, 0.05
    rng = np.random.default_rng(1)
    right = rng.binomial(m, math.exp(epsilon) / (1 + math.exp(epsilon)), repetitions)
    bounds = {int(v): one_run_epsilon(m, m, int(v), 0.0, level) for v in set(right)}
    found = np.array([bounds[int(v)] for v in right])
    assert np.sum(found > epsilon) <= binom.isf(1e-6, repetitions, level)
    assert np.sum(found > epsilon) >= binom.ppf(1e-6, repetitions, level) - 1  # exact, but for whole numbers
    assert np.median(found) > 0.9 * epsilon


def test_delta_and_abstaining_only_lower_the_bound() -> None:
    assert one_run_epsilon(1000, 200, 180, 0.0) > one_run_epsilon(1000, 200, 180, 1e-4) > 0
    assert one_run_epsilon(1000, 200, 180, 1e-5) < one_run_epsilon(200, 200, 180, 1e-5)
    assert one_run_epsilon(100, 100, 50, 1e-5) == 0.0
    assert one_run_epsilon(100, 100, 100, 0.0) == pytest.approx(-math.log(0.05 ** (-1 / 100) - 1), rel=1e-6)


def test_more_right_guesses_than_guesses_are_refused() -> None:
    with pytest.raises(InputError, match="right must be at most the guesses, and these at most the canaries; found 11"):
        one_run_p_value(20, 10, 11, 1.0)
    with pytest.raises(InputError, match=r"\(ε, δ\) must be ε at least 0"):
        one_run_p_value(20, 10, 5, -1.0)


def largest_tail(m: int, r: int, v: int, claim: TradeOff) -> float:
    """P[right ≥ v] at most, of all laws p_0 … p_r with R_i/m ≤ F(H_{i−1}/m) for every i: a linear program."""
    j = np.arange(r + 1)
    rows, bounds = [], []
    for i in range(1, r + 1):
        right, wrong = np.where(j >= i, j, 0) / m, np.where(j >= i - 1, r - j, 0) / m
        for e, delta in zip(claim.epsilons[::6], claim.deltas[::6], strict=True):
            rows += [right - math.exp(e) * wrong, right - math.exp(-e) * wrong]
            bounds += [delta, 1.0 - math.exp(-e) * (1.0 - delta)]
    found = linprog(-(j >= v).astype(float), np.array(rows), np.array(bounds), np.ones((1, r + 1)), [1.0], (0, 1))
    return float(-found.fun)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize(("m", "r"), [(6, 6), (9, 4)])
def test_the_chain_finds_the_largest_tail_that_the_theorem_allows(claim: Event, m: int, r: int) -> None:
    curve = TradeOff.of(claim)
    coarse = TradeOff(curve.epsilons[::6], curve.deltas[::6])
    for v in range(1, r + 1):
        assert one_run_curve_p_value(m, r, v, coarse) == pytest.approx(largest_tail(m, r, v, curve), abs=1e-6)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("t", [1.0, 0.3, 0.01, 1e-4])
def test_mechanisms_within_the_curve_do_not_exceed_it(claim: Event, t: float) -> None:
    """Silent but for probability t, then randomised response as good as the curve allows: t·q ≤ F(t·(1 − q))."""
    curve, m = TradeOff.of(claim), 40
    q = brentq(lambda q: t * q - float(curve.most_hits(t * (1 - q))), 0.5, 1.0)
    for v in range(m + 1):
        assert one_run_curve_p_value(m, m, v, curve) >= t * binom.sf(v - 1, m, q) - 1e-9
    assert one_run_accuracy(m, m, curve) == pytest.approx(curve.most_accuracy, abs=1e-9)


def guessed(rng: np.random.Generator, scale: float, runs: int, guesses: tuple[int, ...]) -> dict[int, np.ndarray]:
    """Right guesses of runs with 128 canaries under Gaussian noise; the highest are said to be in, the lowest out."""
    coins = rng.random((runs, 128)) < 0.5
    order = np.argsort(coins + scale * rng.standard_normal(coins.shape), axis=1)
    sorted_coins = np.take_along_axis(coins, order, axis=1)
    return {g: (~sorted_coins[:, : g // 2]).sum(axis=1) + sorted_coins[:, 128 - g // 2 :].sum(axis=1) for g in guesses}


def p_values(rng: np.random.Generator, scale: float, runs: int) -> tuple[float, float]:
    """Of one run with all canaries, and of many runs, against unit Gaussian noise."""
    curve, guesses = TradeOff.of(Gaussian(1.0)), (128, 64, 16)
    right = guessed(rng, scale, runs, guesses)
    together = min(one_run_curve_p_value(128 * runs, g * runs, int(right[g].sum()), curve) for g in guesses)
    each = many_runs_p_value([(right[g] / g, one_run_accuracy(128, g, curve)) for g in guesses])
    return min(1.0, len(guesses) * together), each


def test_honest_noise_is_accused_no_more_often_than_stated_and_half_of_it_is_refuted() -> None:
    rng, level, repetitions = np.random.default_rng(5), 0.05, 60
    honest = np.array([p_values(rng, 1.0, 30) for _ in range(repetitions)])
    assert (np.sum(honest < level, axis=0) <= binom.isf(1e-6, repetitions, level)).all()
    assert p_values(rng, 0.5, 60)[1] < 1e-3
    assert p_values(rng, 0.25, 40)[1] < 1e-3
    assert p_values(rng, 0.1, 1)[0] < 0.05  # one run alone
    # 96 right of 100 where 69 are allowed, in fifty runs
    allowed = one_run_accuracy(128, 128, TradeOff.of(Gaussian(1.0)))
    assert many_runs_p_value([(np.full(50, 0.96), allowed)]) < 1e-5


def test_wagers_on_shares_have_a_mean_of_at_most_one() -> None:
    """All or nothing is the worst case: P[p ≤ x] ≤ x by counting all outcomes."""
    allowed, runs = 0.7, 12
    p = np.array([many_runs_p_value([(np.r_[np.ones(k), np.zeros(runs - k)], allowed)]) for k in range(runs + 1)])
    mass = binom.pmf(np.arange(runs + 1), runs, allowed)
    for x in p:
        assert mass[p <= x].sum() <= x + 1e-12
    with pytest.raises(InputError, match=r"shares of right guesses must be in \[0, 1\]"):
        many_runs_p_value([([1.2], 0.7)])
