"""Accuracy of the closed forms against high-precision quadrature and formulas, over six orders of magnitude.

The stated accuracy: |error| ≤ 1e-6·max(|k|, 1e-300) for values and ≤ 1e-6·max(|k′|, 1e-8·sup|k′|) for derivatives,
for bandwidth : noise from 1e-3 to 1e3 and |d| ≤ 50.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privfair.kernels import EnergyKernel, GaussianKernel, LaplaceKernel, MaternKernel, RationalQuadraticKernel
from privfair.mechanisms import GaussianNoise, LaplaceNoise
from tests.oracles import convolution_by_quadrature, mp_density, mp_profile

DISTANCES = np.concatenate([[0.0], np.geomspace(1e-9, 50.0, 45)])
RATIOS = [1e-3, 1e-2, 0.1, 0.5, 0.999, 1 - 1e-7, 1.0, 1 + 1e-12, 1.001, 2.0, 10.0, 100.0, 1e3]


def _smoothed_exponential(a: Any, s: Any, d: Any) -> tuple[Any, Any]:
    """E exp(−|d − sZ|/a), Z standard normal, and its derivative, from erfc in mpmath."""

    def side(x: Any) -> Any:
        return mp.exp(s**2 / (2 * a**2) - x / a) * mp.erfc((s / a - x / s) / mp.sqrt(2))

    return (side(d) + side(-d)) / 2, (side(-d) - side(d)) / (2 * a)


def _closed_form(kernel: Any, noise: Any, d: float) -> tuple[Any, Any]:
    """v ⊛ noise and its derivative, from the formulas, in eighty digits."""
    d, scale = mp.mpf(d), mp.mpf(noise.scale)
    ell = mp.mpf(getattr(kernel, "bandwidth", 1.0))
    gaussian_noise = isinstance(noise, GaussianNoise)
    if isinstance(kernel, EnergyKernel):
        if gaussian_noise:
            z = d / (mp.sqrt(2) * scale)
            value = -(scale * mp.sqrt(2 / mp.pi) * mp.exp(-(z**2)) + d * mp.erf(z)) / 2
            return value, -mp.erf(z) / 2
        return -(d + scale * mp.exp(-d / scale)) / 2, -(1 - mp.exp(-d / scale)) / 2
    if isinstance(kernel, GaussianKernel):
        if gaussian_noise:
            total = ell**2 + scale**2
            value = ell / mp.sqrt(total) * mp.exp(-(d**2) / (2 * total))
            return value, -d / total * value
        factor = mp.sqrt(2 * mp.pi) * ell / (2 * scale)
        value, slope = _smoothed_exponential(scale, ell, d)
        return factor * value, factor * slope
    if gaussian_noise:
        return _smoothed_exponential(ell, scale, d)
    if ell == scale:
        return (1 + d / scale) * mp.exp(-d / scale) / 2, -d / scale**2 * mp.exp(-d / scale) / 2
    factor = ell / (ell**2 - scale**2)
    fast, slow = mp.exp(-d / ell), mp.exp(-d / scale)
    return factor * (ell * fast - scale * slow), factor * (slow - fast)


def _check(kernel: Any, noise: Any, distances: np.ndarray) -> None:
    with mp.workdps(80):
        exact = [_closed_form(kernel, noise, float(d)) for d in distances]
        steepest = max(abs(slope) for _, slope in exact)
        convolved = kernel.convolve(noise)
        values, slopes = convolved.profile(distances), convolved.profile(distances, 1)
        for d, value, slope, (v, dv) in zip(distances, values, slopes, exact, strict=True):
            assert abs(float(value) - v) <= mp.mpf("1e-6") * max(abs(v), mp.mpf("1e-300")), (d, value, v)
            if d > 0:
                allowed = mp.mpf("1e-6") * max(abs(dv), mp.mpf("1e-8") * steepest)
                assert abs(float(slope) - dv) <= allowed, (d, slope, dv)


@pytest.mark.parametrize("noise_type", [GaussianNoise, LaplaceNoise])
@pytest.mark.parametrize("ratio", RATIOS)
def test_table_of_closed_forms(noise_type: Any, ratio: float) -> None:
    for kernel in (GaussianKernel(0.3), LaplaceKernel(0.3), EnergyKernel()):
        _check(kernel, noise_type(0.3 * ratio), DISTANCES)


@given(
    bandwidth=st.floats(-2, 1).map(lambda e: 10**e),
    ratio=st.floats(-3, 3).map(lambda e: 10**e),
    distance=st.floats(-8, math.log10(50)).map(lambda e: 10**e),
    laplace_noise=st.booleans(),
    kind=st.sampled_from([GaussianKernel, LaplaceKernel]),
)
@example(bandwidth=0.3, ratio=1 + 3e-6, distance=2e-8, laplace_noise=True, kind=LaplaceKernel)
@settings(max_examples=60, deadline=None)
def test_any_scales(bandwidth: float, ratio: float, distance: float, laplace_noise: bool, kind: Any) -> None:
    noise = (LaplaceNoise if laplace_noise else GaussianNoise)(bandwidth * ratio)
    # the steepest point is needed for the stated accuracy: it lies near the larger of the two scales
    around = np.geomspace(0.1, 3, 12) * max(bandwidth, noise.scale)
    _check(kind(bandwidth), noise, np.concatenate([[distance], around]))


@pytest.mark.parametrize("noise", [GaussianNoise(0.2), LaplaceNoise(0.15), LaplaceNoise(0.3)], ids=str)
@pytest.mark.parametrize(
    "kernel",
    [
        GaussianKernel(0.3),
        LaplaceKernel(0.3),
        EnergyKernel(),
        MaternKernel(0.3, 1.5),
        MaternKernel(0.3, 2.5),
        RationalQuadraticKernel(0.3),
        RationalQuadraticKernel(0.3, 3.0),
    ],
    ids=str,
)
def test_against_quadrature_in_forty_digits(kernel: Any, noise: Any) -> None:
    convolved = kernel.convolve(noise)
    for d in (0.0, 0.17, 0.9, 4.0):
        expected = convolution_by_quadrature(mp_profile(kernel), mp_density(noise), d, (0.3, noise.scale))
        assert float(abs(convolved.profile(d) - expected)) <= 1e-11 * max(float(abs(expected)), 1e-3)


@pytest.mark.parametrize("nu", [1.5, 2.5])
@pytest.mark.parametrize("distance_to_resonance", [0.0, 1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 0.03, 0.1])
def test_matern_near_resonance_with_laplace_noise(nu: float, distance_to_resonance: float) -> None:
    """Where 1/b meets the kernel's own rate the partial fractions blow up; the merged series must not."""
    kernel = MaternKernel(0.3, nu)
    noise = LaplaceNoise((1 + distance_to_resonance) / kernel.rate)
    once = kernel.convolve(noise)
    twice = once.convolve(noise)
    density = mp_density(noise)
    for d in (0.0, 0.2, 1.0):
        expected = convolution_by_quadrature(mp_profile(kernel), density, d, (0.3, noise.scale))
        assert math.isclose(float(once.profile(d)), float(expected), rel_tol=1e-9)
        # the density of two Laplace draws together is (1 + |x|/b)e^{−|x|/b}/4b
        scale = mp.mpf(noise.scale)
        expected = convolution_by_quadrature(
            mp_profile(kernel),
            lambda x, scale=scale: (1 + abs(x) / scale) * mp.exp(-abs(x) / scale) / (4 * scale),
            d,
            (0.3, noise.scale),
        )
        assert math.isclose(float(twice.profile(d)), float(expected), rel_tol=1e-8)


def test_symmetric_in_bandwidth_and_noise() -> None:
    """Laplace ⊛ Laplace is symmetric but for the factor of the densities' normalisation."""
    d = np.linspace(0, 3, 31)
    one = LaplaceKernel(0.3).convolve(LaplaceNoise(0.7)).profile(d) / 0.3
    other = LaplaceKernel(0.7).convolve(LaplaceNoise(0.3)).profile(d) / 0.7
    np.testing.assert_allclose(one, other, rtol=1e-13)


def test_far_tail_of_the_rational_quadratic_convolution() -> None:
    """Beyond the table the mixture is summed directly; the heavy tail must survive the noise."""
    kernel, noise = RationalQuadraticKernel(0.3), LaplaceNoise(0.2)
    d = np.array([50.0, 400.0, 5000.0])
    np.testing.assert_allclose(kernel.convolve(noise).profile(d), kernel.profile(d), rtol=2e-3)
