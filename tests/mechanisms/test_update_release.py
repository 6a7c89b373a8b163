"""Whole updates: how they are cut, what one client can move, what that costs, and that sums never wrap."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import chi2

from accountant.bounds import by_pld
from accountant.errors import InputError
from accountant.events import Adjacency, Repeated, Unit
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.vector_release import GRIDS, UpdatePlan, UpdateRelease, VectorNoise

REPLACE = Adjacency.REPLACE_ONE
ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)
PORTIONS = st.floats(1e-3, 1.0)


def release(count: int, *, max_norm: float = 1.0, portion: float = 1.0, steps: int = 64) -> UpdateRelease:
    return UpdateRelease(max_norm, portion, VectorNoise(1.0, count, steps=steps))


def moved(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm((one - other).astype(float)))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.data(), PORTIONS, st.floats(1e-6, 1e6))
def test_exchanging_a_client_moves_the_sum_by_at_most_the_sensitivity(
    count: int, data: st.DataObject, portion: float, max_norm: float
) -> None:
    """Whatever training made of its records: any numbers, and what is none."""
    made = release(count, max_norm=max_norm, portion=portion)
    one, other = (made.whole(data.draw(arrays.arrays(np.float64, count, elements=ANY))) for _ in range(2))
    assert moved(one, other) <= made.noise.sensitivity(REPLACE)


@pytest.mark.parametrize("count", [1, 9, 400])
def test_the_sensitivity_is_nearly_reached(count: int) -> None:
    """Opposite updates whose coordinates all lie just past the middle between two steps: both are rounded outwards."""
    made = release(count, steps=64)
    each = (math.floor(64 / math.sqrt(count) - 0.5) + 0.500001) / 64
    delta = np.full(count, each)
    assert np.linalg.norm(delta) <= 1
    far = moved(made.whole(delta), made.whole(-delta))
    assert far > 2 * 64 * np.linalg.norm(delta) + 0.99 * math.sqrt(count)
    assert 0.7 * made.noise.sensitivity(REPLACE) < far <= made.noise.sensitivity(REPLACE)


def test_cutting_is_the_closed_form() -> None:
    delta = np.array([3.0, -4.0, 0.0])
    np.testing.assert_array_equal(release(3, max_norm=10.0, steps=1024).whole(delta), [307, -410, 0])
    np.testing.assert_array_equal(release(3, max_norm=2.5, steps=1000).whole(delta), [600, -800, 0])
    np.testing.assert_array_equal(release(3, max_norm=2.5, portion=0.25, steps=1000).whole(delta), [150, -200, 0])
    np.testing.assert_array_equal(release(3, steps=1000).whole(np.zeros(3)), [0, 0, 0])


def test_what_is_no_number_is_nothing_before_it_is_cut() -> None:
    made = release(4, steps=1000)
    np.testing.assert_array_equal(made.whole(np.array([np.nan, np.inf, -np.inf, 0.5])), [0, 0, 0, 500])
    assert np.abs(made.whole(np.full(4, 1e308))).max() == 500


@pytest.mark.parametrize(("ratio", "rounds"), [(2.0, 10), (0.7, 1), (30.0, 400)])
def test_the_price_is_that_of_gaussian_noise_by_its_exact_profile(ratio: float, rounds: int) -> None:
    """T releases of ratio r are one of ratio r/√T, whose δ(ε) is known (Balle & Wang 2018, Theorem 8)."""
    noise = UpdatePlan(1.0, 50, 10**8).calibrated(ratio)
    event = noise.event(REPLACE, Unit.CLIENT)
    assert event.noise_scale / event.sensitivity == pytest.approx(ratio, rel=1e-6)
    assert event.unit is Unit.CLIENT
    found = by_pld(Repeated(event, rounds), 1e-5)
    with mpmath.workdps(40):
        h = mpmath.sqrt(rounds) / mpmath.mpf(event.noise_scale) * mpmath.mpf(event.sensitivity)

        def excess(eps: mpmath.mpf) -> mpmath.mpf:
            return mpmath.ncdf(h / 2 - eps / h) - mpmath.exp(eps) * mpmath.ncdf(-h / 2 - eps / h) - 1e-5

        exact = float(mpmath.findroot(excess, found))
    assert exact <= found <= exact * 1.003 + 1e-3


def test_shares_add_up_to_the_noise_that_is_paid_for() -> None:
    """The variance of a sum of as many shares as stand for the whole: χ² with 6,000 degrees, two-sided at 1e-6."""
    plan = UpdatePlan(1.0, 2000, 10**7, shares=8)
    noise = plan.noise(1.5)
    assert noise.shares == 8
    rng = np.random.default_rng(11)
    made = UpdateRelease(1.0, 0.5, noise)
    delta = np.linspace(-1, 1, 2000)
    squares = 0.0
    for _ in range(3):
        total = sum(made.message(delta, SeededEntropy(rng)) for _ in range(noise.shares))
        squares += float((((total - noise.shares * made.whole(delta)) / noise.grid_scale) ** 2).sum())
    low, high = chi2.ppf([5e-7, 1 - 5e-7], 3 * 2000)
    assert low < squares < high


@settings(max_examples=100, deadline=None)
@given(st.floats(0.05, 500.0), st.integers(1, 10**6), st.integers(10**4, 2**30), st.sampled_from([1, 3, 50, 1000]))
def test_the_grid_is_the_finest_that_fits_and_follows_from_the_noise_alone(
    ratio: float, count: int, most: int, cohort: int
) -> None:
    plan = UpdatePlan(1.0, count, most, max(1, cohort - 1))
    coarsest = VectorNoise(16 * math.sqrt(plan.shares) * 1.001 / 16, count, 2.0, 16, plan.shares)
    least = coarsest.with_event_scale(ratio * coarsest.sensitivity(REPLACE))
    if least.steps + 12 * least.share_scale > most:
        with pytest.raises(InputError, match="must fit into sums of whole numbers"):
            plan.calibrated(ratio)
        return
    found = plan.calibrated(ratio)
    assert found.steps + 12 * found.share_scale <= most
    assert plan.noise(found.multiplier) == found
    event = found.event(REPLACE, Unit.CLIENT)
    assert event.noise_scale >= ratio * event.sensitivity * (1 - 1e-12)
    if found.steps < GRIDS[0]:
        finer = VectorNoise(found.multiplier, count, 2.0, 2 * found.steps, plan.shares)
        assert finer.steps + 12 * finer.share_scale > most


def test_what_does_not_fit_is_refused_with_a_remedy() -> None:
    words = (
        "noise multiplier of updates must fit into sums of whole numbers, in which a client may add 1000 to a value; "
        "found 9.0. Let fewer clients train in a round, ask for less noise, or add it in shares."
    )
    with pytest.raises(InputError, match=words):
        UpdatePlan(1.0, 10, 1000).noise(9.0)
    with pytest.raises(InputError, match="must fit into sums of whole numbers"):
        UpdatePlan(1.0, 10, 1000).calibrated(9.0)
    with pytest.raises(InputError, match="model must have between 1 and 16777216 parameters for client-level privacy"):
        UpdatePlan(1.0, 2**25, 1000)
    with pytest.raises(InputError, match=r"portion must be in \(0, 1\], or 0 with noise in shares; found 1.5"):
        release(3, portion=1.5)
    with pytest.raises(InputError, match="max_update_norm must be"):
        release(3, max_norm=0.0)
    with pytest.raises(InputError, match="update must have 3 values; found 4"):
        release(3).whole(np.zeros(4))
