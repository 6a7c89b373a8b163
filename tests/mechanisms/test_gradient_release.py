"""Gradients in whole numbers: what one record moves is exact, sums are clamped before noise, and shares add up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from accountant.bounds import by_pld
from accountant.errors import InputError
from accountant.events import Adjacency, PoissonSampled
from privfair import per_record
from privfair.mechanisms.entropy import Entropy, SeededEntropy, SystemEntropy
from privfair.mechanisms.vector_release import GradientRelease, VectorNoise
from privfair.per_record import grid_of, inward, whole_sum
from tests.mechanisms.laws import NoNoise, fits, hockey_stick, mass

ADD, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
ODD = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1.7e308, 1e154, 5e-324, -1e-310, 1e-160, 0.0, -0.0, 0.5, 1.0]
ANY = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.sampled_from(ODD) | st.floats(-2, 2)
BOUNDS = st.floats(1e-6, 1e6) | st.sampled_from([5e-324, 1e-310, 1e-300, 1e300, 1.7e308])
STEPS = st.sampled_from([16, 17, 64, 1000, 2**14, 2**20])
Ints = NDArray[np.int64]


def release(count: int, *, steps: int = 64, room: int = 10**6, multiplier: float = 1.0, **more: Any) -> GradientRelease:
    return GradientRelease(1.0, room, VectorNoise(multiplier, count, steps=steps, inward=True, **more))


def square(whole: Any) -> int:
    """Σ v² in Python's integers."""
    return sum(int(v) ** 2 for v in np.asarray(whole).ravel())


def seeded(seed: int = 0) -> SeededEntropy:
    return SeededEntropy(np.random.default_rng(seed))


# ---- what one record can move


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 40), BOUNDS, STEPS, st.data())
def test_no_vector_is_longer_than_the_steps(count: int, bound: float, steps: int, data: st.DataObject) -> None:
    row = data.draw(arrays.arrays(np.float64, count, elements=ANY))
    with np.errstate(all="ignore"):
        assert square(whole_sum(row[None], bound, steps)) <= steps**2


def too_long(vector: Callable[[np.ndarray, float, int], Any], count: int, steps: int) -> bool:
    """Whether some vector is: of numbers just past the middle between two whole ones, or of random ones."""
    rng = np.random.default_rng(count)
    each = (math.floor(steps / math.sqrt(count) - 0.5) + 0.500001) / steps
    rows = [np.full(count, each), -np.full(count, each), *(rng.normal(size=count) * 10.0**k for k in range(-4, 5))]
    return any(square(vector(row, bound, steps)) > steps**2 for row in rows for bound in (1e-3, 1.0, 50.0))


def nearest_only(row: np.ndarray, bound: float, steps: int) -> np.ndarray:
    """The planted bug, which is what `grid_sum` does: its sensitivity has √d/2 more."""
    return np.rint(row / max(bound, float(np.linalg.norm(row))) * steps)


@pytest.mark.parametrize("count", [7, 1000, 100_003])
@pytest.mark.parametrize("steps", [16, 1000, 2**20])
def test_no_long_vector_is_longer_than_the_steps(count: int, steps: int) -> None:
    assert not too_long(lambda row, bound, s: whole_sum(row[None], bound, s), count, steps)
    if steps > math.sqrt(count) / 2:  # below, a long vector's numbers are all rounded to 0
        assert too_long(nearest_only, count, steps)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 20), ANY, STEPS, st.data())
def test_the_length_is_held_whatever_the_scale_is(count: int, scale: float, steps: int, data: st.DataObject) -> None:
    """Also for a scale that clips nothing: the guarantee rests on the comparison in whole numbers alone."""
    row, whole = data.draw(arrays.arrays(np.float64, count, elements=ANY)), np.zeros(count)
    with np.errstate(all="ignore"):
        inward(row, scale, float(steps), whole)
    assert np.all(whole == np.trunc(whole))
    assert square(whole) <= steps**2


@settings(max_examples=200, deadline=None)
@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 6), st.just(5)), elements=ANY),
    arrays.arrays(np.float64, (2, 5), elements=ANY),
    st.integers(0, 6),
    BOUNDS,
    STEPS,
)
def test_one_record_more_adds_its_own_vector_and_nothing_else(
    rows: np.ndarray, more: np.ndarray, place: int, bound: float, steps: int
) -> None:
    with np.errstate(all="ignore"):
        without, own = whole_sum(rows, bound, steps), whole_sum(more[:1], bound, steps)
        one, other = (whole_sum(np.insert(rows, min(place, len(rows)), r, axis=0), bound, steps) for r in more)
    noise = VectorNoise(1.0, 5, steps=steps, inward=True)
    assert np.array_equal(one - without, own)
    assert square(one - without) <= noise.sensitivity(ADD) ** 2 == steps**2
    assert square(one - other) <= noise.sensitivity(REPLACE) ** 2 == 4 * steps**2


def test_whole_numbers_are_the_clipped_gradient_to_the_nearest_or_toward_zero() -> None:
    rng = np.random.default_rng(3)
    cut = 0
    for _ in range(300):
        row = rng.normal(size=30) * rng.exponential()
        bound, steps = 3.0, 4096
        exact = row * min(1, bound / np.linalg.norm(row)) / bound * steps
        found = whole_sum(row[None], bound, steps)
        nearest = np.rint(exact)
        # the rule clips by 1e-6/‖g‖ + 2⁻²⁸ more: at most 1e-5 of numbers up to 4096
        if square(nearest) <= steps**2 - 1000:
            assert np.abs(found - exact).max() <= 0.5 + 0.05
        elif square(nearest) > steps**2 + 1000:
            cut += 1
            assert np.all(np.abs(found) <= np.abs(exact) + 1e-9)
            assert np.abs(found - exact).max() <= 1 + 0.05
    assert cut > 20
    np.testing.assert_array_equal(whole_sum(np.array([[3.0, -4.0], [0.3, 0.4]]), 10.0, 1000), [330, -360])
    np.testing.assert_array_equal(whole_sum(np.zeros((0, 3)), 1.0, 64), [0, 0, 0])
    assert whole_sum(np.zeros((0, 3)), 1.0, 64).dtype == np.int64


def test_what_is_no_number_is_nothing() -> None:
    rows = np.array([[np.nan, 1.0], [np.inf, 1.0], [1e200, 0.0], [0.5, 0.0]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(whole_sum(rows, 1.0, 1000), [500, 0])


# ---- the sum is clamped, then noise is added


@settings(max_examples=200, deadline=None)
@given(
    arrays.arrays(np.int64, 6, elements=st.integers(-(2**45), 2**45)),
    arrays.arrays(np.int64, 6, elements=st.integers(-(2**45), 2**45)),
    st.integers(64, 2**40),
)
def test_clamping_brings_no_two_sums_farther_apart(one: Ints, other: Ints, room: int) -> None:
    made = release(6, room=room)
    first, second = (made.message(total, NoNoise(np.random.default_rng(0))) for total in (one, other))
    assert np.all(np.abs(first - second) <= np.abs(one - other))
    assert max(np.abs(first).max(), np.abs(second).max()) <= room


def clamped_after(made: GradientRelease, total: Ints, entropy: Entropy) -> Ints:
    """The planted bug."""
    found: Ints = np.clip(made.noise.release(total, entropy), -made.room, made.room)
    return found


def goes_past_the_room(message: Callable[[GradientRelease, Ints, Entropy], Ints]) -> bool:
    """Whether sums at the edge, and far beyond it, get noise to both sides of the edge."""
    made = release(400, room=1000)
    for total in (1000, -1000, 10**9):
        drawn = message(made, np.full(400, total), seeded(5)) - int(np.clip(total, -1000, 1000))
        if not 120 < (drawn > 0).sum() < 280:  # 8 standard deviations of 400 coins: false alarm below 1e-15
            return False
    return True


def test_the_sum_is_clamped_before_the_noise_and_the_message_is_not() -> None:
    assert goes_past_the_room(GradientRelease.message)
    assert not goes_past_the_room(clamped_after)


@pytest.mark.parametrize("entropy", [seeded(), SystemEntropy()], ids=["seeded", "system"])
def test_no_record_gives_noise_of_its_law_alone(entropy: Entropy) -> None:
    made = release(2000, steps=64, multiplier=0.5)
    assert fits(made.message(np.zeros(2000, np.int64), entropy), "gaussian", 32.0)


# ---- shares


def shares_are_whole(made: GradientRelease, honest: int) -> bool:
    """Whether the noise of so many honest clients has the variance that is paid for.

    χ² with 12,000 degrees of freedom; false alarm 1e-6.
    """
    rng, count, squares = np.random.default_rng(11), made.noise.count, 0.0
    total = np.arange(count) % 50
    for _ in range(3):
        added = sum(made.message(total, SeededEntropy(rng)) for _ in range(honest)) - honest * total
        squares += float(((added / made.noise.grid_scale) ** 2).sum())
    low, high = chi2.ppf([5e-7, 1 - 5e-7], 3 * count)
    return bool(low < squares < high)


@pytest.mark.parametrize("honest", [1, 2, 24])
def test_shares_of_the_honest_add_up_to_the_noise_that_is_paid_for(honest: int) -> None:
    made = release(4000, steps=1024, multiplier=2.0, shares=honest)
    assert shares_are_whole(made, honest)
    assert made.noise.event() == replace(made.noise, shares=1).event()


def test_the_sum_of_shares_has_the_law_of_the_whole() -> None:
    made = release(20_000, steps=64, multiplier=1.0, shares=3)
    rng = np.random.default_rng(2)
    added = sum(made.message(np.zeros(20_000, np.int64), SeededEntropy(rng)) for _ in range(3))
    assert fits(np.asarray(added), "gaussian", 64.0)


def test_noise_sized_for_all_instead_of_the_honest_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: 41 shares make the whole, of which 24 are honest."""
    made = release(4000, steps=1024, multiplier=2.0, shares=24)
    monkeypatch.setattr(VectorNoise, "share_scale", property(lambda noise: noise.grid_scale / math.sqrt(41)))
    assert not shares_are_whole(made, 24)


# ---- the price


def subsampled(rate: float, scale: float, moved: float, epsilon: float) -> tuple[float, float]:
    """δ of (1 − q)·N(0, σ²) + q·N(m, σ²) from N(0, σ²), and the other way around, in closed form.

    The ratio of densities is 1 − q + q·e^{(mx − m²/2)/σ²}, which grows in x: the sets where one exceeds e^ε times the
    other are half-lines.
    """

    def edge(ratio: float) -> float:
        inner = (ratio - 1 + rate) / rate
        return -math.inf if inner <= 0 else scale**2 / moved * math.log(inner) + moved / 2

    t = edge(math.exp(epsilon))
    mixture = (1 - rate) * norm.sf(t, 0, scale) + rate * norm.sf(t, moved, scale)
    removed = mixture - math.exp(epsilon) * norm.sf(t, 0, scale)
    t = edge(math.exp(-epsilon))
    mixture = (1 - rate) * norm.cdf(t, 0, scale) + rate * norm.cdf(t, moved, scale)
    return float(removed), float(norm.cdf(t, 0, scale) - math.exp(epsilon) * mixture)


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("multiplier", [1.0, 2.5])
def test_the_event_of_a_sampled_step_bounds_the_exact_delta(rate: float, multiplier: float) -> None:
    """Hockey-stick divergences by summation over all whole numbers, one parameter, 16 steps.

    A record that moves the sum by all 16 steps; by fewer it is less. The event's Gaussian has σ² − 4.
    """
    noise = VectorNoise(multiplier, 1, steps=16, inward=True)
    event = PoissonSampled(rate, noise.event())
    assert (noise.event().sensitivity, noise.grid_scale) == (16.0, 16 * multiplier)
    _, p = mass("gaussian", noise.grid_scale, reach=14.0)
    without = np.pad(p, (0, 16))
    with_one = (1 - rate) * without + rate * np.pad(p, (16, 0))
    tight = []
    for epsilon in (0.05, 0.3, 1.0, 2.0):
        exact = hockey_stick(with_one, without, epsilon), hockey_stick(without, with_one, epsilon)
        bound = subsampled(rate, noise.event().noise_scale, 16.0, epsilon)
        for found, most in zip(exact, bound, strict=True):
            assert found <= most * (1 + 1e-9) + 1e-15
            tight.append(found / most if most > 1e-9 else 1.0)
        if 1e-9 < max(exact) < 1:
            assert by_pld(event, max(exact)) >= epsilon * (1 - 1e-9)
    assert min(tight) > 0.6  # σ² − 4 instead of σ² costs that much at most, where δ is smallest


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
def test_the_event_under_replacement_bounds_the_exact_delta(epsilon: float) -> None:
    """One record at +16 steps instead of one at −16, each taken with probability 0.3."""
    noise, rate = VectorNoise(2.0, 1, steps=16, inward=True), 0.3
    event = PoissonSampled(rate, noise.event(REPLACE), presence_sensitivity=noise.sensitivity(ADD))
    _, p = mass("gaussian", noise.grid_scale, reach=14.0)
    neither, up, down = np.pad(p, (16, 16)), np.pad(p, (32, 0)), np.pad(p, (0, 32))
    one, other = (1 - rate) * neither + rate * up, (1 - rate) * neither + rate * down
    exact = hockey_stick(one, other, epsilon)
    assert exact > 1e-9
    assert by_pld(event, exact) >= epsilon * (1 - 1e-9)


def test_the_smoothing_is_needed_and_enough() -> None:
    """At ε where a mass lies on the edge, discrete noise of scale σ costs more than Gaussian noise of scale σ.

    And no more than Gaussian noise of scale √(σ² − 4). By mpmath, for small noise, where it shows.
    """
    with mpmath.workdps(40):
        sigma, moved = mpmath.mpf(3), 2
        k = range(-60, 63)
        weights = [mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * sigma**2)) for x in range(-80, 81)]
        whole = mpmath.fsum(weights)

        def at(x: int) -> mpmath.mpf:
            return mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * sigma**2)) / whole

        def gaussian(scale: mpmath.mpf, epsilon: mpmath.mpf) -> mpmath.mpf:
            mu = moved / scale
            return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)

        larger = 0
        for number in range(1, 40):
            epsilon = mpmath.mpf(number) / 20
            exact = mpmath.fsum(max(mpmath.mpf(0), at(x - moved) - mpmath.exp(epsilon) * at(x)) for x in k)
            larger += exact > gaussian(sigma, epsilon)
            assert exact <= gaussian(mpmath.sqrt(sigma**2 - 4), epsilon)
        assert larger > 5


# ---- what is no release


def test_what_is_no_release_is_refused() -> None:
    for room in (63, 64.0, True):
        with pytest.raises(InputError, match="room must be a whole number, at least 64"):
            release(3, room=room)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_grad_norm must be above 0"):
        GradientRelease(0.0, 100, VectorNoise(1.0, 3, steps=64, inward=True))
    with pytest.raises(InputError, match="must be for vectors that are rounded inward"):
        GradientRelease(1.0, 100, VectorNoise(1.0, 3, steps=64))


def test_whole_numbers_leave_the_sum_of_today_alone() -> None:
    """`clipped_sum` is on its own grid; both clip a gradient to the same length."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 40)) * rng.exponential(size=(50, 1))
    today = per_record.clipped_sum(rows, 2.0, grid_of(2.0))
    found = whole_sum(rows, 2.0, 2**20) * 2.0 / 2**20
    # each of 50 records is cut toward 0 or rounded: one step of 2⁻¹⁹ at most
    np.testing.assert_allclose(found, today, rtol=0, atol=50 * 2.0**-19)
