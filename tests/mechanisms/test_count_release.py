"""Noisy counts: their law, what they cost, and noise for a target."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant import Adjacency, Composed, DiscreteGaussian, DiscreteLaplace, InputError, delta_of, spent
from accountant.calibration import exact_delta
from privfair.mechanisms.count_release import CountNoise, Kind, gaussian_scale_for, laplace_scale_for
from privfair.mechanisms.entropy import Entropy, SeededEntropy, SystemEntropy
from tests.mechanisms.laws import fits, hockey_stick, mass


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize(
    "entropy", [SystemEntropy(), SeededEntropy(np.random.default_rng(2))], ids=["system", "seeded"]
)
def test_every_count_gets_its_own_noise(kind: Kind, entropy: Entropy) -> None:
    """False alarm 1e-6; neighbours are uncorrelated to 5 standard errors of a product of two draws."""
    counts = np.arange(6000).reshape(3, 2000)
    released = CountNoise(kind, 2.5).release(counts, entropy)
    assert released.dtype == np.int64
    assert released.shape == counts.shape
    noise = (released - counts).reshape(-1)
    assert fits(noise, kind, 2.5)
    assert abs(np.mean(noise[1:] * noise[:-1])) < 5 * noise.var() / math.sqrt(noise.size)
    assert (CountNoise(kind, 50.0).release(np.zeros(200, dtype=np.int64), entropy) < 0).any()  # never clamped


def test_events_count_the_entries_that_one_record_moves() -> None:
    laplace, gaussian = CountNoise("laplace", 3.0), CountNoise("gaussian", 3.0)
    assert laplace.event() == DiscreteLaplace(3.0, 1)
    assert laplace.event(4) == DiscreteLaplace(3.0, 4)
    assert laplace.event(4, "replace-one") == DiscreteLaplace(3.0, 8, Adjacency.REPLACE_ONE)
    assert gaussian.event() == DiscreteGaussian(3.0, 1)
    assert gaussian.event(2) == Composed((DiscreteGaussian(3.0, 1),) * 2)
    one = DiscreteGaussian(3.0, 1, Adjacency.REPLACE_ONE)
    assert gaussian.event(1, Adjacency.REPLACE_ONE) == Composed((one, one))


@pytest.mark.parametrize("moves", [(1, 1), (1, -1)], ids=["added", "replaced"])
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_events_cover_the_exact_divergence_of_two_moved_counts(kind: Kind, moves: tuple[int, int]) -> None:
    """Two entries moved together, one record in two sets or one exchanged: δ(ε) over the plane, exactly."""
    noise = CountNoise(kind, 2.0)
    _, p = mass(kind, 2.0, reach=30)
    plain = np.multiply.outer(np.pad(p, 1), np.pad(p, 1))
    moved = np.multiply.outer(np.roll(np.pad(p, 1), moves[0]), np.roll(np.pad(p, 1), moves[1]))
    event = noise.event(2) if moves == (1, 1) else noise.event(1, Adjacency.REPLACE_ONE)
    for epsilon in (0.1, 0.4, 0.7, 0.95):
        exact = hockey_stick(moved, plain, epsilon)
        claimed = delta_of(event, epsilon, "pld")
        assert exact - 1e-9 <= claimed
        if kind == "gaussian":  # Laplace noise is accounted for one entry moved twice as far: somewhat more
            assert claimed <= exact * (1 + 1e-3) + 1e-9
        assert delta_of(noise.event(1), epsilon, "pld") < exact  # one entry's cost is not enough


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_epsilon_is_that_of_dp_accounting(kind: Kind) -> None:
    """dp-accounting's own discrete mechanisms, at its finest practical grid: equal to a few cells of 1e-4."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    if kind == "laplace":
        oracle = pld.from_discrete_laplace_mechanism(1 / 2.5, sensitivity=3, value_discretization_interval=1e-4)
        event = CountNoise(kind, 2.5).event(3)
    else:
        oracle = pld.from_discrete_gaussian_mechanism(2.5, sensitivity=1, value_discretization_interval=1e-4)
        oracle, event = oracle.self_compose(3), CountNoise(kind, 2.5).event(3)
    assert spent(event, 1e-5, "pld").epsilon == pytest.approx(oracle.get_epsilon_for_delta(1e-5), abs=4e-4)


@given(st.floats(1e-3, 20), st.integers(1, 12))
def test_laplace_scale_is_pure_and_least(epsilon: float, overlap: int) -> None:
    """Exactly, in fractions: overlap/b ≤ ε, and the float below does not do."""
    scale = laplace_scale_for(epsilon, overlap)
    assert overlap / Fraction(scale) <= Fraction(epsilon)
    assert overlap / Fraction(math.nextafter(scale, 0)) > Fraction(epsilon)


def test_discrete_laplace_is_pure_with_sensitivity_over_scale() -> None:
    """The largest ratio of masses at a shift of Δ is e^(Δ/b), from the masses themselves."""
    _, p = mass("laplace", 2.5)
    for shift in (1, 4):
        losses = np.log(p[shift:] / p[:-shift])
        assert np.abs(losses).max() == pytest.approx(shift / 2.5, rel=1e-9)
    assert exact_delta(DiscreteLaplace(laplace_scale_for(0.5, 3), 3), 0.5 * (1 + 1e-12)) == 0.0


@pytest.mark.parametrize("overlap", [1, 3])
def test_gaussian_scale_meets_the_target_and_not_by_much(overlap: int) -> None:
    """δ over the plane of the moved entries, exactly: they move together, so ε is that of independent draws."""
    scale = gaussian_scale_for(0.8, 1e-5, overlap)
    assert spent(CountNoise("gaussian", scale).event(overlap), 1e-5, "pld").epsilon <= 0.8 + 1e-3
    assert _exact_delta(scale, overlap, 0.8) <= 1e-5
    assert _exact_delta(scale * 0.98, overlap, 0.8) > 1e-5


def _exact_delta(scale: float, overlap: int, epsilon: float) -> float:
    """Moving `overlap` entries by 1: the loss is (2S + overlap)/2σ², S the sum of as many draws; P by convolution."""
    _, p = mass("gaussian", scale, reach=14)
    total = p
    for _ in range(overlap - 1):
        total = np.convolve(total, p)
    s = np.arange(total.size) - total.size // 2
    loss = (2 * s + overlap) / (2 * scale**2)
    return float((total * np.maximum(0.0, -np.expm1(epsilon - loss))).sum())


def test_wrong_input_is_named() -> None:
    with pytest.raises(InputError, match=r"kind of noise must be one of \['laplace', 'gaussian'\]; found 'none'."):
        CountNoise("none", 1.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"noise scale must be above 0; found 0. Counts without noise are public"):
        CountNoise("laplace", 0)
    with pytest.raises(InputError, match=r"noise scale must be between 1e-12 and 2\*\*40; found 1e\+20."):
        CountNoise("laplace", 1e20)
    with pytest.raises(InputError, match=r"overlap must be a whole number of at least 1; found 0. It is the number of"):
        CountNoise("laplace", 1.0).event(0)
    with pytest.raises(InputError, match=r"counts must be whole numbers; found 'float64'. Count records; do not"):
        CountNoise("laplace", 1.0).release(np.array([1.5]), SystemEntropy())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"epsilon must be above 0; found 0."):
        laplace_scale_for(0)
