"""Bounds from telling two datasets apart: exact limits, true trade-offs, coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from accountant import spent
from accountant.conversion import gaussian_epsilon
from accountant.empirical import (
    Rates,
    TradeOff,
    accuracy_p_value,
    at_least,
    at_most,
    distinguish,
    epsilon_from_rates,
    gaussian_separation,
    implied_factor,
    rates_p_value,
)
from accountant.errors import InputError
from accountant.events import (
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    NotPrivate,
    PoissonSampled,
    Repeated,
)

DELTA = 1e-5


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0.001, 0.2))
def test_limits_are_exact(trials: int, share: float, level: float) -> None:
    """At the lower limit so many successes, or more, have probability `level`."""
    k = round(share * trials)
    low, high = float(at_least(k, trials, level)), float(at_most(k, trials, level))
    assert 0 <= low <= k / trials <= high <= 1
    if k > 0:
        assert binom.sf(k - 1, trials, low) == pytest.approx(level, rel=1e-6)
    if k < trials:
        assert binom.cdf(k, trials, high) == pytest.approx(level, rel=1e-6)


@pytest.mark.parametrize("mechanism", [Laplace(1.0), Gaussian(1.0), Gaussian(0.4)])
def test_no_threshold_of_an_honest_mechanism_needs_more_than_its_epsilon(mechanism: Laplace | Gaussian) -> None:
    law = norm if isinstance(mechanism, Gaussian) else __import__("scipy.stats", fromlist=["laplace"]).laplace
    t = np.linspace(-6, 8, 400)
    scale = mechanism.noise_scale
    hit, alarm = law.sf(t, 1.0, scale), law.sf(t, 0.0, scale)
    needed = epsilon_from_rates(hit, alarm, DELTA)
    epsilon = spent(mechanism, DELTA, "pld").epsilon
    assert needed.max() <= epsilon * (1 + 1e-6)
    assert needed.max() > 0.99 * epsilon


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0])
def test_the_trade_off_of_gaussian_noise_is_the_known_one(multiplier: float) -> None:
    """f(α) = Φ(Φ⁻¹(1 − α) − μ): Dong, Roth & Su 2022."""
    alarm = np.array([1e-4, 0.01, 0.2, 0.5, 0.9])
    most = TradeOff.of(Gaussian(multiplier)).most_hits(alarm)
    exact = norm.cdf(norm.ppf(alarm) + 1 / multiplier)
    assert np.all(most >= exact - 1e-9)  # a claim never allows less than the mechanism does
    assert np.allclose(most, exact, atol=2e-3)


def test_the_trade_off_of_a_sampled_composition_is_never_below_that_of_real_draws() -> None:
    event = Repeated(PoissonSampled(0.3, Gaussian(0.8)), 5)
    rng, n = np.random.default_rng(0), 200_000
    taken = rng.random((n, 5)) < 0.3
    present, absent = taken + 0.8 * rng.standard_normal((n, 5)), 0.8 * rng.standard_normal((n, 5))

    def ratio(y: np.ndarray) -> np.ndarray:
        return np.log(0.7 + 0.3 * np.exp((y - 0.5) / 0.64)).sum(axis=1)

    p, a = ratio(present), ratio(absent)
    for t in np.quantile(a, [0.2, 0.5, 0.9, 0.99]):
        hit, alarm = np.mean(p > t), np.mean(a > t)
        most = float(TradeOff.of(event).most_hits(alarm))
        error = 5 * math.sqrt(hit * (1 - hit) / n) + 5 * math.sqrt(alarm * (1 - alarm) / n) * hit / alarm
        assert hit <= most + error
        assert hit >= most - error - 0.03  # the bound holds for both directions, the draws for one


def test_the_implied_noise_is_that_of_the_rates() -> None:
    """In closed form for Gaussian noise, and the same by the profile of its discrete twin."""
    for true in (0.5, 1.0, 2.0):
        hit, alarm = float(norm.cdf(0.5 / true)), float(norm.cdf(-0.5 / true))
        assert implied_factor(Gaussian(1.0), hit, alarm) == pytest.approx(true, rel=1e-6)
        assert implied_factor(DiscreteGaussian(256.0, 256), hit, alarm) == pytest.approx(true, rel=0.01)
    assert implied_factor(Gaussian(1.0), 0.3, 0.3) == math.inf
    assert implied_factor(DiscreteLaplace(2.0, 1), 0.501, 0.5) == math.inf


def test_gaussian_epsilon_is_that_of_the_accountant_from_below() -> None:
    for mu in (0.1, 1.0, 3.0):
        exact = spent(Gaussian(1 / mu), DELTA, "pld").epsilon
        assert exact * 0.999 - 1e-4 <= gaussian_epsilon(mu, DELTA) <= exact
    assert gaussian_epsilon(0.0, DELTA) == 0.0
    assert gaussian_separation(float(norm.cdf(1.0)), float(norm.cdf(-1.0))) == pytest.approx(2.0)


def test_bounds_near_the_truth_and_seldom_above_it() -> None:
    """Gaussian releases one standard deviation apart: ε ≥ 0.8 of the truth, and false alarms at most as stated."""
    rng, level, repetitions, claim = np.random.default_rng(2), 0.05, 100, Gaussian(1.0)
    truth = spent(claim, DELTA, "pld").epsilon
    large = distinguish(rng.standard_normal(3000), 1.0 + rng.standard_normal(3000), claim, DELTA, level)
    assert 0.8 * truth < large.if_as_stated <= truth
    assert 0 < large.without_assumption <= truth
    assert abs(large.accuracy - norm.cdf(0.5)) < 5 * 0.5 / math.sqrt(4000)
    assert large.allowed_accuracy == pytest.approx(norm.cdf(0.5), abs=1e-4)
    alarms = 0
    for _ in range(repetitions):
        found = distinguish(rng.standard_normal(150), 1.0 + rng.standard_normal(150), claim, DELTA, level)
        alarms += found.lower > truth
    assert alarms <= binom.isf(1e-6, repetitions, level)


def test_the_choice_among_many_useless_numbers_alarms_no_more_often() -> None:
    """Eight columns of noise, none of which says anything: the best of them on one part is nothing on the other."""
    rng, level, repetitions, claim = np.random.default_rng(3), 0.05, 60, Gaussian(50.0)
    alarms = sum(
        distinguish(rng.random((120, 8)), rng.random((120, 8)), claim, DELTA, level).noise_factor < 1
        for _ in range(repetitions)
    )
    assert alarms <= binom.isf(1e-6, repetitions, level)


def test_half_the_noise_is_seen_and_an_inverted_number_is_used_the_right_way_round() -> None:
    rng = np.random.default_rng(4)
    absent, present = rng.standard_normal((600, 1)), 2.0 + rng.standard_normal((600, 1))
    for sign in (1.0, -1.0):
        found = distinguish(sign * absent, sign * present, Gaussian(1.0), DELTA, 0.05)
        assert found.noise_factor < 0.7
        assert found.if_as_stated > spent(Gaussian(1.0), DELTA, "pld").epsilon
        assert {rule.sign for rule in found.tests} == {sign}


def test_nothing_contradicts_an_infinite_claim() -> None:
    found = distinguish(np.zeros(100), np.ones(100), Composed((NotPrivate(),)), DELTA, 0.05)
    assert found.noise_factor == math.inf
    assert found.allowed_accuracy == 1.0


def test_wrong_input_is_explained() -> None:
    with pytest.raises(InputError, match="absent must be at least 40 rows of finite numbers"):
        distinguish(np.zeros(10), np.zeros(100), Gaussian(1.0), DELTA, 0.05)
    with pytest.raises(InputError, match="present must be at least 40 rows of finite numbers"):
        distinguish(np.zeros(100), np.full(100, np.nan), Gaussian(1.0), DELTA, 0.05)
    with pytest.raises(InputError, match=r"level must be in \(0, 0.5\); found 0.95. 0.05 stands for 95% confidence"):
        distinguish(np.zeros(100), np.zeros(100), Gaussian(1.0), DELTA, 0.95)
    with pytest.raises(InputError, match="successes must be between 0 and the number of trials, 5"):
        at_least(6, 5, 0.05)
    assert Rates(9, 10, 2, 10).accuracy == pytest.approx(0.85)


@pytest.mark.parametrize("claim", [Gaussian(1.0), Laplace(2.0), Repeated(PoissonSampled(0.3, Gaussian(0.8)), 4)])
def test_p_values_are_exact_for_every_test_that_the_claim_allows(claim: Gaussian | Laplace | Repeated) -> None:
    """All outcomes of twelve and twelve releases, at false-alarm rates all over: P[p ≤ x] ≤ x."""
    curve, n = TradeOff.of(claim), 12
    outcomes = [Rates(hits, n, alarms, n) for hits in range(n + 1) for alarms in range(n + 1)]
    values = {
        "accuracy": np.array([accuracy_p_value(one, curve.most_accuracy) for one in outcomes]),
        "rates": np.array([rates_p_value(one, curve) for one in outcomes]),
    }
    for alarm in (0.0, 0.02, 0.2, 0.31, 0.5, 0.8):
        hit = float(curve.most_hits(alarm))
        mass = np.array([binom.pmf(o.hits, n, hit) * binom.pmf(o.alarms, n, alarm) for o in outcomes])
        for p in values.values():
            for x in np.unique(p):
                assert mass[p <= x].sum() <= x + 1e-9


def test_what_was_once_passed_is_refuted() -> None:
    """Right in 108 of 108 cases where 92% are allowed; right in 96 of 100 where 69 are."""
    assert accuracy_p_value(Rates(54, 54, 0, 54), 0.92) == pytest.approx(0.92**108)
    assert accuracy_p_value(Rates(48, 50, 2, 50), 0.6915) < 1e-9
    assert rates_p_value(Rates(48, 50, 2, 50), TradeOff.of(Gaussian(1.0))) < 1e-4
    assert accuracy_p_value(Rates(35, 50, 15, 50), 0.6915) == 1.0  # 70 of 100: chance
    with pytest.raises(InputError, match="must be as many with the record as without"):
        accuracy_p_value(Rates(5, 10, 5, 11), 0.7)


def test_clients_with_rates_of_their_own_do_not_make_false_alarms() -> None:
    """Ten clients, of which some show much and some nothing, each within the claim: pooled, no more is refuted."""
    rng, level, repetitions, claim = np.random.default_rng(7), 0.05, 60, Gaussian(1.0)
    shown = np.repeat([0.0, 0.5, 1.0, 1.0, 1.0], 2)[None, :]
    refuted = sum(
        distinguish(
            rng.standard_normal((40, 10)).reshape(-1), (shown + rng.standard_normal((40, 10))).reshape(-1), claim,
            DELTA, level,
        ).refutes
        for _ in range(repetitions)
    )  # fmt: skip
    assert refuted <= binom.isf(1e-6, repetitions, level)
