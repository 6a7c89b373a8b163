"""Scores on a grid: what is sampled is what is accounted, and how far that is from continuous noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import laplace, norm

import accountant
from accountant import Adjacency, DiscreteGaussian, DiscreteLaplace, InputError, PoissonSampled, Repeated
from privfair.kernels import EnergyKernel, GaussianKernel
from privfair.mechanisms.entropy import SystemEntropy
from privfair.mechanisms.score_release import GaussianNoise, Kind, LaplaceNoise, ScoreNoise
from tests.mechanisms.laws import fits, mass


def test_grid_of_the_unit_interval() -> None:
    noise = ScoreNoise("gaussian", 0.5)
    assert (noise.steps, noise.step, noise.grid_scale) == (256, 1 / 256, 128.0)
    assert (noise.middle_index, noise.middle) == (128, 0.5)
    assert noise.noise == GaussianNoise(0.5)
    assert ScoreNoise("laplace", 0.3).noise == LaplaceNoise(0.3)


def test_the_middle_of_an_odd_grid_is_on_it() -> None:
    noise = ScoreNoise("laplace", 1.0, low=-1.0, high=2.0, step=1.0)
    assert (noise.steps, noise.middle_index, noise.middle) == (3, 1, 0.0)


def test_clipping_rounding_and_what_is_not_a_number() -> None:
    noise = ScoreNoise("gaussian", 1.0, low=-1.0, high=1.0, step=0.5)
    scores = [-7.0, -1.0, -0.7, 0.3, 0.9, 1e308, math.nan, math.inf, -math.inf]
    assert noise.to_grid(scores).tolist() == [0, 0, 1, 3, 4, 4, 2, 2, 2]
    assert noise.from_grid(noise.to_grid(scores[:5])).tolist() == [-1.0, -1.0, -0.5, 0.5, 1.0]


@given(st.floats(), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 2000))
def test_every_score_lands_on_the_grid_within_half_a_step(score: float, low: float, width: float, n: int) -> None:
    high = low + width
    noise = ScoreNoise("laplace", width, low, high, (high - low) / n)
    index = int(noise.to_grid([score])[0])
    assert noise.steps == n
    assert 0 <= index <= n
    if math.isfinite(score):
        clipped = min(max(score, low), high)
        assert abs(low + index * noise.step - clipped) <= noise.step / 2 * (1 + 1e-6) + 1e-9
    else:
        assert index == n // 2


def test_event_is_what_is_sampled() -> None:
    gaussian = ScoreNoise("gaussian", 0.37, 0.1, 0.4, 0.01)
    expected = DiscreteGaussian(0.37 / 0.01, 30, Adjacency.ADD_OR_REMOVE, step=0.01)
    assert gaussian.event("add-or-remove") == expected
    swapped = ScoreNoise("laplace", 0.37, -1, 1).event(Adjacency.REPLACE_ONE)
    assert swapped == DiscreteLaplace(0.37 * 128, 256, Adjacency.REPLACE_ONE, step=1 / 128)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_released_scores_have_the_law_of_the_event(kind: Kind) -> None:
    """From the operating system, end to end; false alarm 1e-6."""
    noise = ScoreNoise(kind, 0.15, low=-1.0, high=1.0, step=0.125)
    event = noise.event()
    released = noise.release(np.full(8000, 3), SystemEntropy())
    steps = (released - (-1.0)) / event.step - 3
    assert np.array_equal(steps, np.rint(steps))
    assert fits(steps.astype(np.int64), kind, event.noise_scale)


@given(st.floats(1e-6, 1e6), st.floats(0.1, 10.0))
def test_a_calibrated_scale_is_never_rounded_down(grid_scale: float, width: float) -> None:
    noise = ScoreNoise("gaussian", width, 0.0, width).with_grid_scale(grid_scale)
    assert grid_scale <= noise.event().noise_scale <= grid_scale * (1 + 1e-15)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [0.02, 0.4, 0.6, 1.0, 7.3, 20.0])
def test_grid_noise_is_within_half_a_step_of_continuous_noise(kind: str, scale: float) -> None:
    """∫|F − F̃| over the line, in steps: the Wasserstein distance that the class promises, at every scale."""
    k, probability = mass(kind, scale)
    inside = (np.arange(200) + 0.5) / 200
    continuous = (norm if kind == "gaussian" else laplace).cdf((k[:, None] + inside) / scale)
    distance = np.abs(np.cumsum(probability)[:, None] - continuous).mean(axis=1).sum()
    assert 0.01 < distance < 0.5


@pytest.mark.parametrize(("kernel", "lipschitz"), [(EnergyKernel(), 0.5), (GaussianKernel(0.3), math.exp(-0.5) / 0.3)])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [0.004, 0.1, 1.0])
def test_convolved_kernels_hold_for_grid_noise(
    kernel: EnergyKernel | GaussianKernel, lipschitz: float, kind: Kind, scale: float
) -> None:
    """E κ(z, grid score + grid noise), summed exactly, against the kernel convolved with continuous noise."""
    noise = ScoreNoise(kind, scale)
    k, probability = mass(kind, noise.grid_scale)
    z, scores = np.linspace(0, 1, 23), np.random.default_rng(1).random(9)
    at = noise.from_grid(noise.to_grid(scores))
    for score, grid in zip(scores, at, strict=True):
        exact = kernel(z[:, None], (grid + k * noise.step)[None, :]) @ probability
        assert np.abs(exact - kernel.convolve(noise.noise)(z, score)).max() <= lipschitz * noise.step


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_epsilon_is_that_of_dp_accounting_for_continuous_noise(kind: Kind) -> None:
    """100 messages at rate 0.05; the tolerance is what changes from a grid twice as coarse, and 1e-3 for theirs."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    theirs = dp_accounting.GaussianDpEvent(2.0) if kind == "gaussian" else dp_accounting.LaplaceDpEvent(2.0)
    oracle = PLDAccountant().compose(dp_accounting.PoissonSampledDpEvent(0.05, theirs), 100).get_epsilon(1e-5)

    def ours(steps: int) -> float:
        event = ScoreNoise(kind, 6.0, -1.0, 2.0, 3.0 / steps).event()
        return accountant.spent(Repeated(PoissonSampled(0.05, event), 100), 1e-5, "pld").epsilon

    assert ours(256) == pytest.approx(oracle, rel=1e-3 + 2 * abs(ours(128) / ours(256) - 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "cauchy"}, "kind of noise must be one of ['gaussian', 'laplace']; found 'cauchy'."),
        ({"scale": 0}, "noise scale must be above 0; found 0. Scores without noise are not private: they need no"),
        ({"scale": 1e20}, "noise scale must be between 1e-12 and 2**40 grid steps; found 1e+20."),
        ({"low": 1}, "low must be below high, 1; found 1. A score without bounds needs a clipping range."),
        ({"high": math.inf}, "high must be finite; found inf."),
        ({"low": -1e308, "high": 1e308}, "high - low must be finite; found inf. A score without bounds needs a"),
        ({"step": 0.3}, "step must divide the range 1 into a whole number of steps, at most 1048576; found 0.3. For"),
        ({"step": 1e-9}, "step must divide the range 1 into a whole number of steps, at most 1048576; found 1e-09."),
        ({"step": 2.5}, "step must divide the range 1 into a whole number of steps, at most 1048576; found 2.5."),
        ({"step": -1}, "step must be above 0; found -1.0."),
    ],
)
def test_wrong_input_is_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as error:
        ScoreNoise(**{"kind": "gaussian", "scale": 0.5, **arguments})  # type: ignore[arg-type]
    assert message in str(error.value)
