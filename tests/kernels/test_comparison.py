"""The comparison of kernels with and without noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.kernels import EnergyKernel, GaussianKernel, LaplaceKernel, mmd2
from privfair.kernels.comparison import Check, compare, monte_carlo_band, variance_factor
from privfair.mechanisms import GaussianNoise, LaplaceNoise

X, Y = np.random.default_rng(0).beta(2, 5, 60), np.random.default_rng(1).beta(4, 4, 70)


def test_comparison_checks_itself() -> None:
    result = compare(GaussianKernel(0.3), LaplaceNoise(0.2), X, Y, repeats=60, rng=np.random.default_rng(2))
    assert result.noisy_check.agrees
    assert result.deconvolved_check is not None
    assert result.deconvolved_check.agrees
    assert result.mmd2_clean.value == mmd2(X, Y, GaussianKernel(0.3), biased=False)
    assert result.mmd2_convolved.value < result.mmd2_clean.value
    assert result.mmd2_deconvolved is not None
    assert result.mmd2_deconvolved.standard_error > result.mmd2_noisy.standard_error


def test_missing_deconvolution_has_a_reason() -> None:
    result = compare(EnergyKernel(), LaplaceNoise(0.2), X, Y, repeats=10, rng=np.random.default_rng(2))
    assert result.deconvolved.kernel is None
    assert result.mmd2_deconvolved is None
    assert result.variance_factor is None
    assert "Laplace noise can be taken off" in result.no_deconvolution


def test_a_wrong_prediction_is_found() -> None:
    result = compare(LaplaceKernel(0.3), GaussianNoise(0.3), X, Y, repeats=100, rng=np.random.default_rng(3))
    check = result.noisy_check
    assert not Check(check.mean, result.mmd2_clean.value, check.standard_error).agrees


def test_variance_factor_against_simulation() -> None:
    """Var C′ of one noisy score, simulated: within 5 standard errors (by batches) of the quadrature."""
    kernel, noise = GaussianKernel(0.3), LaplaceNoise(0.25)
    sharp = kernel.deconvolve(noise)
    rng = np.random.default_rng(4)
    scores = np.concatenate([X, Y])
    z = np.linspace(scores.min(), scores.max(), 21)
    clean = np.mean([np.var(kernel.profile(p - scores, 1)) for p in z])
    batches = []
    for _ in range(40):
        y = rng.choice(scores, 4000) + noise.sample(4000, rng)
        batches.append(np.mean([np.var(sharp.profile(p - y, 1)) for p in z]) / clean)
    error = np.std(batches, ddof=1) / math.sqrt(len(batches))
    assert abs(np.mean(batches) - variance_factor(kernel, sharp, noise, X, Y)) <= 5 * error


def test_monte_carlo_band_surrounds_the_closed_form() -> None:
    """±5 standard errors at 20 distances: fails by chance once in 87,000 runs of other seeds."""
    kernel, noise, d = LaplaceKernel(0.3), LaplaceNoise(0.4), np.linspace(-1, 1, 20)
    mean, error = monte_carlo_band(kernel, noise, d, draws=4000, rng=np.random.default_rng(5))
    assert np.all(np.abs(mean - kernel.convolve(noise).profile(d)) <= 5 * error)


def test_bad_input() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="repeats must be 2 or more"):
        compare(EnergyKernel(), LaplaceNoise(0.2), X, Y, repeats=1, rng=rng)
    with pytest.raises(InputError, match="noise scale must be above 0 to compare"):
        compare(EnergyKernel(), LaplaceNoise(0), X, Y, repeats=5, rng=rng)
    with pytest.raises(InputError, match="scores of the second group must hold at least one"):
        compare(EnergyKernel(), LaplaceNoise(0.1), X, [], repeats=5, rng=rng)
