"""Calibration never overshoots its target and stays within 1% of it, for any plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accountant
from accountant.calibration import Channel, calibrate, calibrate_release, exact_delta, scale_noise, search_factor
from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Mechanism,
    Nothing,
    NotPrivate,
    PoissonSampled,
    Repeated,
)

REPLACE = Adjacency.REPLACE_ONE

noises = st.sampled_from([Gaussian, Laplace])
grids = st.sampled_from([DiscreteGaussian, DiscreteLaplace])
scales = st.floats(0.1, 50.0)
mechanisms = st.one_of(
    st.builds(lambda kind, scale: kind(scale), noises, scales),
    st.builds(lambda kind, scale, steps: kind(scale * steps, steps), grids, scales, st.integers(1, 20)),
)
releases = st.one_of(mechanisms, st.builds(PoissonSampled, st.floats(0.001, 1.0), mechanisms))
channels = st.builds(
    lambda events: tuple(Channel(f"channel {i}", event, count) for i, (event, count) in enumerate(events)),
    st.lists(st.tuples(releases, st.integers(1, 300)), min_size=1, max_size=3),
)


@given(
    plan=st.dictionaries(st.sampled_from(["north", "south", "west"]), channels, min_size=1, max_size=3),
    epsilon=st.floats(0.05, 20.0),
    delta=st.sampled_from([1e-9, 1e-6, 1e-5]),
)
@settings(max_examples=40, deadline=None)
def test_a_calibrated_run_never_overshoots_and_is_within_one_percent(
    plan: dict[str, tuple[Channel, ...]], epsilon: float, delta: float
) -> None:
    found = calibrate(plan, epsilon, delta)
    by_client = {
        client: accountant.epsilon([Repeated(c.event, c.count) for c in calibrated], delta)
        for client, calibrated in found.plan.items()
    }
    assert max(by_client.values()) <= epsilon
    assert max(by_client.values()) >= 0.99 * epsilon
    assert found.by_client() == by_client
    assert found.epsilon == max(by_client.values()) == by_client[found.worst_client]
    for client, original in plan.items():
        for before, after in zip(original, found.plan[client], strict=True):
            assert after.event == scale_noise(before.event, found.factor)


@given(rate=st.floats(0.01, 0.5), epsilon=st.floats(0.3, 8.0), steps=st.integers(10, 400))
@settings(max_examples=4, deadline=None)
def test_by_pld_too(rate: float, epsilon: float, steps: int) -> None:
    plan = [
        Channel("updates", PoissonSampled(rate, Gaussian(1.0)), steps),
        Channel("counts", Laplace(100.0), fixed=True),
    ]
    found = calibrate(plan, epsilon, method="pld")
    by_pld = accountant.epsilon([channel.total for channel in found.plan[""]], 1e-5, "pld")
    assert 0.99 * epsilon <= by_pld <= epsilon
    assert found.factor <= calibrate(plan, epsilon).factor


def test_channels_keep_their_proportions_and_fixed_ones_their_noise() -> None:
    plan = (
        Channel("updates", PoissonSampled(0.05, Gaussian(1.0)), 500),
        Channel("scores", PoissonSampled(0.1, Laplace(3.0)), 20),
        Channel("counts", DiscreteLaplace(10.0), fixed=True),
    )
    found = calibrate(plan, 3.0)
    noise = found.noise()
    assert noise["scores"] / noise["updates"] == pytest.approx(3.0)
    assert noise["counts"] == 10.0
    assert found.channel("counts") == plan[2]
    assert set(found.by_channel()) == set(noise)
    assert max(found.by_channel().values()) < found.epsilon
    with pytest.raises(InputError, match="channel must be one of"):
        found.channel("logs")


def test_what_cannot_be_reached_is_refused_with_the_reason() -> None:
    step = Channel("updates", PoissonSampled(0.1, Gaussian(1.0)), 10)
    with pytest.raises(InputError, match="Fixed channels alone"):
        calibrate([step, Channel("counts", Laplace(0.5), fixed=True)], 1.0)
    with pytest.raises(InputError, match="a channel is not private"):
        calibrate([step, Channel("debug", NotPrivate())], 1.0)
    with pytest.raises(InputError, match="δ is 0 with Gaussian noise"):
        calibrate(Gaussian(1.0), 1.0, 0.0)
    with pytest.raises(InputError, match="must be small enough to need noise"):
        search_factor(lambda _: 0.0, 5.0, 1e-3)  # records sampled with less than δ: no noise is needed at all
    with pytest.raises(InputError, match="whose noise may change"):
        calibrate([Channel("counts", Laplace(1.0), fixed=True)], 1.0)
    with pytest.raises(InputError, match="channels of different names"):
        calibrate([step, step], 1.0)
    with pytest.raises(InputError, match="epsilon must be above 0"):
        calibrate(Gaussian(1.0), 0.0)
    with pytest.raises(InputError, match="method must be one of"):
        calibrate(Gaussian(1.0), 1.0, method="gdp")  # type: ignore[arg-type]  # wrong on purpose


def test_noise_is_scaled_wherever_it_is() -> None:
    event = Composed((Repeated(PoissonSampled(0.1, Gaussian(2.0)), 3), Nothing(), DiscreteLaplace(1.0, 2)))
    assert scale_noise(event, 3.0) == Composed(
        (Repeated(PoissonSampled(0.1, Gaussian(6.0)), 3), Nothing(), DiscreteLaplace(3.0, 2))
    )


def test_the_search_returns_only_factors_it_has_seen_to_be_enough() -> None:
    def check(curve: Callable[[float], float]) -> None:
        seen: dict[float, float] = {}

        def watched(factor: float) -> float:
            seen[factor] = curve(factor)
            return seen[factor]

        found = search_factor(watched, 0.05, 1e-5)
        assert 0.99 * 0.05 <= seen[found] <= 0.05
        assert len(seen) < 40

    check(lambda f: 5 / f)
    check(lambda f: math.inf if f < 3 else 1 / f**2)
    check(lambda f: 7 * math.exp(-f / 50))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-8), (1.0, 1e-5), (5.0, 1e-3), (20.0, 1e-12)])
def test_one_gaussian_release_is_analytic(epsilon: float, delta: float) -> None:
    from dp_accounting import get_sigma_gaussian

    found = calibrate_release(Gaussian(1.0, 3.0), epsilon, delta)
    assert isinstance(found, Gaussian)
    assert found.noise_scale == pytest.approx(3 * get_sigma_gaussian(epsilon, delta), rel=1e-6)
    with mp.workdps(60):
        z, e = mp.mpf(found.noise_scale) / 3, mp.mpf(epsilon)
        exact = mp.ncdf(1 / (2 * z) - e * z) - mp.exp(e) * mp.ncdf(-1 / (2 * z) - e * z)
    assert delta * (1 - 1e-6) <= exact <= delta


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.05, 1.0, 8.0, 50.0, 300.0])
@pytest.mark.parametrize("delta", [1e-200, 1e-30, 1e-12, 1e-6, 1e-2])
def test_one_gaussian_release_never_overshoots_where_the_textbook_formula_cancels(epsilon: float, delta: float) -> None:
    found = calibrate_release(Gaussian(1.0), epsilon, delta)
    assert isinstance(found, Gaussian)
    with mp.workdps(400):
        z, e = mp.mpf(found.noise_scale), mp.mpf(epsilon)
        exact = (
            mp.erfc((e * z - 1 / (2 * z)) / mp.sqrt(2)) - mp.exp(e) * mp.erfc((e * z + 1 / (2 * z)) / mp.sqrt(2))
        ) / 2
        assert delta * (1 - 1e-6) <= exact <= delta
        assert float(abs(mp.mpf(exact_delta(found, epsilon)) / exact - 1)) < 2e-12


@given(kind=grids, steps=st.integers(1, 6), epsilon=st.floats(0.2, 6.0), delta=st.floats(1e-9, 1e-3))
@settings(max_examples=30, deadline=None)
def test_one_release_on_a_grid_by_its_exact_sum(
    kind: type[DiscreteGaussian], steps: int, epsilon: float, delta: float
) -> None:
    found = calibrate_release(kind(1.0, steps), epsilon, delta)
    assert isinstance(found, Mechanism)
    scale = found.noise_scale
    width = int(60 * scale) + 10
    masses = []
    for k in range(-width, width + 1):
        masses.append(math.exp(-(k**2) / (2 * scale**2) if kind is DiscreteGaussian else -abs(k) / scale))
    total = math.fsum(masses)
    gains = [(masses[i - steps] - math.exp(epsilon) * masses[i]) / total for i in range(steps, len(masses))]
    exact = math.fsum(max(gain, 0.0) for gain in gains)
    assert exact <= delta * (1 + 1e-9)
    assert exact_delta(replace(found, noise_scale=0.999 * scale), epsilon) > delta * (1 - 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3])
def test_one_laplace_release(delta: float) -> None:
    found = calibrate_release(Laplace(1.0, 2.0), 0.5, delta)
    assert isinstance(found, Laplace)
    assert found.noise_scale == pytest.approx(2 / (0.5 - 2 * math.log1p(-delta)), rel=1e-9)
    assert exact_delta(found, 0.5) <= delta


@pytest.mark.parametrize(
    "event",
    [
        PoissonSampled(0.1, Gaussian(1.0)),
        PoissonSampled(0.01, DiscreteLaplace(1.0, 3)),
        PoissonSampled(0.1, Gaussian(1.0, 1.0, REPLACE)),
        FixedSizeSampled(1, 10, Laplace(1.0, 1.0, REPLACE)),
        FixedSizeSampled(5, 10, DiscreteGaussian(1.0, 4, REPLACE)),
    ],
)
def test_one_sampled_release_against_pld(event: Event) -> None:
    found = calibrate_release(event, 1.0, 1e-6)
    assert accountant.delta_of(found, 1.0, "pld") == pytest.approx(1e-6, rel=1e-3)


def test_single_releases_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="Use Laplace noise"):
        calibrate_release(Gaussian(1.0), 1.0, 0.0)
    with pytest.raises(InputError, match="must be below the sampling rate"):
        calibrate_release(PoissonSampled(1e-6, Gaussian(1.0)), 1.0, 1e-5)
    with pytest.raises(InputError, match="must be one release"):
        calibrate_release(Repeated(Gaussian(1.0), 2), 1.0)
    with pytest.raises(InputError, match="clipped sum under replace-one"):
        calibrate_release(PoissonSampled(0.1, Gaussian(1.0, 2.0, REPLACE), 1.0), 1.0)
