"""Noise on sums of vectors: its bound by Gaussian noise, what one record can move, and what is drawn."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import norm

from accountant.errors import InputError
from accountant.events import Adjacency, Gaussian
from privfair.mechanisms.entropy import SeededEntropy, SystemEntropy
from privfair.mechanisms.vector_release import VectorNoise, grid_sum
from tests.mechanisms.laws import mass

ADD, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)


def rounded_at_random(sigma: float, s: float) -> np.ndarray:
    """The masses at 0 … 5 of a N(0, σ² − s²) draw that is rounded to j with probability ∝ exp(−(j − y)²/2s²).

    The integrand is smooth and falls off on both sides: the trapezoidal rule is exact to rounding.
    """
    wide, y = math.sqrt(sigma**2 - s**2), np.arange(-40.0, 40.0, 1 / 64)
    rounding = np.exp(-((np.arange(-60, 61)[:, None] - y) ** 2) / (2 * s**2))
    rounding /= rounding.sum(axis=0)
    return np.asarray(rounding[60:66] @ norm.pdf(y, 0, wide) / 64)


@pytest.mark.parametrize("s", [0.3, 0.5, 0.7])
def test_discrete_gaussian_noise_is_rounded_gaussian_noise_up_to_the_stated_factor(s: float) -> None:
    """Where the factor is large enough to be seen; it falls as exp(−2π²s²), to 1e-34 at the s = 2 in use."""
    sigma = 1.7
    exact = np.exp(-(np.arange(6) ** 2) / (2 * sigma**2)) / p_norm(sigma)
    ratio = rounded_at_random(sigma, s) / exact
    eta = sum(2 * math.exp(-2 * math.pi**2 * s**2 * m**2) for m in range(1, 6))
    most = (1 + eta) / (1 - eta)
    assert (1 - 1e-9) / most <= ratio.min()
    assert ratio.max() <= most * (1 + 1e-9)
    assert 2 * math.exp(-8 * math.pi**2) < 1.1e-34


def test_poisson_summation_says_how_constant_theta_is() -> None:
    with mpmath.workdps(60):
        s = mpmath.mpf(2)
        at = [
            mpmath.fsum(mpmath.exp(-((k - y) ** 2) / (2 * s**2)) for k in range(-60, 61))
            for y in (mpmath.mpf(0), mpmath.mpf("0.5"))
        ]
        whole = s * mpmath.sqrt(2 * mpmath.pi)
        assert abs(at[0] / whole - 1) < 1.1e-34
        assert abs(at[1] / whole - 1) < 1.1e-34
        assert abs(at[0] / whole - 1) > 0.9e-34  # and not less


@pytest.mark.parametrize("shift", [(15, 0), (9, 12), (-10, 11)])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_the_event_bounds_the_exact_delta_of_two_coordinates(shift: tuple[int, int], epsilon: float) -> None:
    """Σ (p − e^ε q)₊ over all pairs of integers, against the Gaussian profile of the event's scale."""
    sigma = 16.0
    k, p = mass("gaussian", sigma, reach=12.0)
    joint, moved = np.multiply.outer(p, p), 1.0
    for axis, step in enumerate(shift):
        q = np.exp(-((k - step) ** 2) / (2 * sigma**2))
        moved = np.multiply.outer(moved, q / p_norm(sigma)) if axis else q / p_norm(sigma)
    exact = float(np.maximum(joint - math.exp(epsilon) * moved, 0).sum())
    noise = VectorNoise(1.0, 2, 2.0, 16)
    mu = math.hypot(*shift) / noise.event().noise_scale
    bound = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert noise.grid_scale == sigma
    assert exact <= bound * (1 + 1e-9)
    assert exact >= 0.85 * bound - 1e-12  # √(16² − 4) instead of 16: the bound is not far above


def p_norm(sigma: float) -> float:
    k = np.arange(-400, 401)
    return float(np.exp(-(k**2) / (2 * sigma**2)).sum())


@pytest.mark.parametrize("order", [1.5, 2.0, 16.0])
def test_the_event_bounds_the_exact_renyi_divergence(order: float) -> None:
    """Of J coordinates it is the sum of each one's: at most α·‖shift‖²/2σ² (Canonne, Kamath & Steinke 2020)."""
    sigma, rng = 20.0, np.random.default_rng(0)
    k, p = mass("gaussian", sigma, reach=14.0)
    event = VectorNoise(1.0, 8, 2.0, 20).event()
    for _ in range(10):
        shift = rng.integers(-12, 13, 8)
        total = 0.0
        for step in shift:
            log = order * np.log(p) + (1 - order) * (-((k - step) ** 2) / (2 * sigma**2) - math.log(p_norm(sigma)))
            total += float(np.logaddexp.reduce(log)) / (order - 1)
        assert total <= order * float(shift @ shift) / (2 * event.noise_scale**2) * (1 + 1e-9)


def test_the_sensitivity_includes_rounding_and_the_event_says_it() -> None:
    noise = VectorNoise(20.0, 9, 1.8, 1024)
    assert noise.sensitivity(ADD) == pytest.approx(1024 + 1.5, rel=1e-9)
    assert noise.sensitivity(REPLACE) == pytest.approx(1.8 * 1024 + 3, rel=1e-9)
    assert VectorNoise(20.0, 9, 2.0, 1024).sensitivity(REPLACE) == pytest.approx(2 * (1024 + 1.5), rel=1e-9)
    event = noise.event(REPLACE)
    assert isinstance(event, Gaussian)
    assert event.adjacency is REPLACE
    assert event.sensitivity == noise.sensitivity(REPLACE)
    assert event.noise_scale <= math.sqrt((20 * 1024) ** 2 - 4)
    assert event.noise_scale == pytest.approx(20 * 1024, rel=1e-6)


@settings(max_examples=80, deadline=None)
@given(
    records=arrays.arrays(np.float64, st.tuples(st.integers(0, 6), st.just(5)), elements=ANY),
    more=arrays.arrays(np.float64, (1, 5), elements=ANY),
    other=arrays.arrays(np.float64, (1, 5), elements=ANY),
    steps=st.sampled_from([16, 64, 1024]),
)
def test_one_record_whatever_its_vector_moves_the_sum_no_further(
    records: np.ndarray, more: np.ndarray, other: np.ndarray, steps: int
) -> None:
    noise = VectorNoise(10.0, 5, 2.0, steps)
    without = grid_sum(records, steps)
    with_one, with_other = (grid_sum(np.concatenate([records, r]), steps) for r in (more, other))
    assert np.linalg.norm(with_one - without) <= noise.sensitivity(ADD)
    assert np.linalg.norm(with_one - with_other) <= noise.sensitivity(REPLACE)


def test_vectors_inside_the_ball_are_only_rounded() -> None:
    inside = np.array([[0.6, -0.8], [0.1, 0.2]])
    np.testing.assert_array_equal(grid_sum(inside, 100), [70, -60])
    np.testing.assert_array_equal(grid_sum(2 * inside[:1], 100), [60, -80])
    np.testing.assert_array_equal(grid_sum(np.zeros((0, 2)), 100), [0, 0])


def test_the_noise_that_is_drawn_has_the_scale_of_the_event() -> None:
    noise = VectorNoise(3.0, 4, 2.0, 64)
    for entropy in (SeededEntropy(np.random.default_rng(1)), SystemEntropy()):
        drawn = noise.release(np.full((500, 4), 7, dtype=np.int64), entropy) - 7
        assert drawn.dtype == np.int64
        sigma = noise.grid_scale
        # mean and variance of 2,000 draws within five standard errors: false alarms in one of a million runs
        assert abs(drawn.mean()) < 5 * sigma / math.sqrt(2000)
        assert abs(drawn.var() / sigma**2 - 1) < 5 * math.sqrt(2 / 2000)


@settings(max_examples=80, deadline=None)
@given(scale=st.floats(1.0, 1e7), steps=st.sampled_from([16, 1000, 1024]))
def test_a_calibrated_scale_is_never_rounded_down(scale: float, steps: int) -> None:
    found = VectorNoise(2.0, 8, 2.0, steps).with_event_scale(scale)
    assert found.event().noise_scale >= scale
    assert found.grid_scale < 16.001 or found.event().noise_scale <= scale * (1 + 1e-12)


def test_what_is_no_noise_is_refused() -> None:
    with pytest.raises(InputError, match=r"noise multiplier must be between 0.015625 and 1.07374e\+09; found 0.01"):
        VectorNoise(0.01, 8)
    with pytest.raises(InputError, match="Sums without noise are not private"):
        VectorNoise(0.0, 8)
    with pytest.raises(InputError, match=r"spread must be at most 2, the width of the unit ball; found 2.1"):
        VectorNoise(1.0, 8, 2.1)
    with pytest.raises(InputError, match="count must be a whole number between 1 and 16777216; found 0"):
        VectorNoise(1.0, 0)


# ---- shares


@pytest.mark.parametrize(("first", "second"), [(0.5, 0.6), (0.7, 1.2), (16.0, 16.0), (16.0, 40.0)])
def test_shares_add_up_to_the_same_law_up_to_the_stated_factor(first: float, second: float) -> None:
    """Exact convolution of the masses; from 16 steps on the factor is 1 to the last bit."""
    whole = math.hypot(first, second)
    reach = math.ceil(9 * whole)
    k = np.arange(-2 * reach, 2 * reach + 1)

    def masses(sigma: float) -> np.ndarray:
        weights = np.exp(-(k**2) / (2 * sigma**2))
        return np.asarray(weights / weights.sum())

    added = np.convolve(masses(first), masses(second), mode="same")
    s2 = 1 / (1 / first**2 + 1 / second**2)
    near = np.abs(k) <= 5 * whole
    apart = np.abs(added[near] / masses(whole)[near] - 1).max()
    assert apart <= 4 * math.exp(-2 * math.pi**2 * s2) * 1.01 + 1e-10
    if first < 1:
        assert apart > 0.1 * math.exp(-2 * math.pi**2 * s2)  # the statement is not idle


@settings(max_examples=60, deadline=None)
@given(multiplier=st.floats(3.0, 300.0), shares=st.integers(1, 60))
def test_all_shares_together_are_at_least_the_whole_noise(multiplier: float, shares: int) -> None:
    noise = VectorNoise(multiplier, 8, 2.0, 1024, shares)
    assert shares * noise.share_scale**2 >= noise.grid_scale**2 * (1 - 1e-15)
    assert noise.share_scale == pytest.approx(noise.grid_scale / math.sqrt(shares), rel=1e-9)
    assert noise.event() == VectorNoise(multiplier, 8, 2.0, 1024).event()  # what is priced is the sum
    assert noise.alone.grid_scale <= noise.share_scale
    assert noise.alone.event().noise_scale == pytest.approx(noise.event().noise_scale / math.sqrt(shares), rel=1e-2)


def test_a_client_draws_its_share_only() -> None:
    noise, entropy = VectorNoise(30.0, 4, 2.0, 64, shares=9), SeededEntropy(np.random.default_rng(4))
    drawn = noise.release(np.zeros((800, 4), dtype=np.int64), entropy)
    # variance of 3,200 draws within five standard errors
    assert abs(drawn.var() / (10 * 64) ** 2 - 1) < 5 * math.sqrt(2 / 3200)


def test_shares_below_the_grid_are_refused() -> None:
    with pytest.raises(InputError, match=r"noise multiplier must be between 0.15625 and"):
        VectorNoise(0.15, 8, 2.0, 1024, shares=100)
    assert VectorNoise(1.0, 8, 2.0, 1024, shares=100).with_event_scale(1.0).share_scale >= 16
