"""Every kernel keeps the contract; and what is special about each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.kernels import (
    EnergyKernel,
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    NoDeconvolution,
    RationalQuadraticKernel,
    SumKernel,
)
from privfair.kernels.families import parse_kernel, parse_noise
from privfair.mechanisms import GaussianNoise, LaplaceNoise
from tests.contracts.kernel_contract import KernelContract


class TestGaussian(KernelContract):
    @pytest.fixture
    def kernel(self) -> Any:
        return GaussianKernel(0.3)

    def deconvolves(self, noise: Any) -> bool:
        return isinstance(noise, LaplaceNoise) or noise.scale < 0.3

    def test_gaussian_noise_gives_a_gaussian_kernel_of_larger_variance(self) -> None:
        """Corollary 5.3 of the paper, in closed form."""
        wide = GaussianKernel(0.3).convolve(GaussianNoise(0.4))
        d = np.linspace(-2, 2, 41)
        np.testing.assert_allclose(wide.profile(d), 0.6 * GaussianKernel(0.5).profile(d), rtol=1e-14)
        assert math.isclose(wide.effective_bandwidth or 0, 0.5, rel_tol=1e-9)

    def test_laplace_noise_taken_off_in_closed_form(self) -> None:
        ell, b = 0.3, 0.5
        d = np.linspace(-2, 2, 41)
        expected = np.exp(-(d**2) / (2 * ell**2)) * (1 + b**2 / ell**2 - b**2 * d**2 / ell**4)
        np.testing.assert_allclose(GaussianKernel(ell).deconvolve(LaplaceNoise(b)).profile(d), expected, atol=1e-14)

    def test_limits_of_gaussian_deconvolution(self) -> None:
        GaussianKernel(0.3).deconvolve(GaussianNoise(0.29))
        GaussianKernel(0.3).deconvolve(GaussianNoise(0.21), sides=2)
        with pytest.raises(NoDeconvolution, match=r"noise scale below 0\.3\."):
            GaussianKernel(0.3).deconvolve(GaussianNoise(0.3))
        with pytest.raises(NoDeconvolution, match=r"bandwidth is above 0\.3111.*noise scale below 0\.2121"):
            GaussianKernel(0.3).deconvolve(GaussianNoise(0.22), sides=2)


class TestLaplace(KernelContract):
    @pytest.fixture
    def kernel(self) -> Any:
        return LaplaceKernel(0.4)

    def deconvolves(self, noise: Any) -> bool:
        return False


class TestEnergy(KernelContract):
    @pytest.fixture
    def kernel(self) -> Any:
        return EnergyKernel()

    def deconvolves(self, noise: Any) -> bool:
        return False

    def test_mmd2_is_the_area_between_the_distribution_functions_squared(self) -> None:
        from privfair.kernels import mmd2

        rng = np.random.default_rng(0)
        x, y = rng.normal(size=200), rng.normal(0.5, 1, 150)
        grid = np.sort(np.concatenate([x, y]))
        f = np.searchsorted(np.sort(x), grid, side="right") / 200
        g = np.searchsorted(np.sort(y), grid, side="right") / 150
        area = float(np.sum((f - g)[:-1] ** 2 * np.diff(grid)))
        assert math.isclose(mmd2(x, y, EnergyKernel()), area, rel_tol=1e-12)


class TestMatern32(KernelContract):
    @pytest.fixture
    def kernel(self) -> Any:
        return MaternKernel(0.35, 1.5)

    def deconvolves(self, noise: Any) -> bool:
        return isinstance(noise, LaplaceNoise)


class TestMatern52(KernelContract):
    @pytest.fixture
    def kernel(self) -> Any:
        return MaternKernel(0.35, 2.5)

    def deconvolves(self, noise: Any) -> bool:
        return isinstance(noise, LaplaceNoise)


class TestCauchy(KernelContract):
    @pytest.fixture
    def kernel(self) -> Any:
        return RationalQuadraticKernel(0.3)

    def deconvolves(self, noise: Any) -> bool:
        return isinstance(noise, LaplaceNoise)


class TestRationalQuadratic(KernelContract):
    @pytest.fixture
    def kernel(self) -> Any:
        return RationalQuadraticKernel(0.25, 2.5)

    def deconvolves(self, noise: Any) -> bool:
        return isinstance(noise, LaplaceNoise)


class TestSum(KernelContract):
    @pytest.fixture
    def kernel(self) -> Any:
        return 0.5 * GaussianKernel(0.3) + 2.0 * EnergyKernel() + LaplaceKernel(0.2)

    def deconvolves(self, noise: Any) -> bool:
        return False

    def test_sums_add_up(self) -> None:
        d = np.linspace(-1, 1, 11)
        total = GaussianKernel(0.3) + 0.5 * LaplaceKernel(0.2)
        np.testing.assert_allclose(
            total.profile(d), GaussianKernel(0.3).profile(d) + 0.5 * LaplaceKernel(0.2).profile(d), rtol=1e-15
        )

    def test_sums_of_sums_are_flat(self) -> None:
        nested = 2.0 * (GaussianKernel(0.3) + 0.5 * EnergyKernel())
        assert nested == SumKernel(((2.0, GaussianKernel(0.3)), (1.0, EnergyKernel())))


@pytest.mark.parametrize(
    ("kernel", "one_sided", "two_sided"),
    [
        (GaussianKernel(0.3), True, True),
        (RationalQuadraticKernel(0.3), True, True),
        (MaternKernel(0.3, 1.5), True, False),
        (MaternKernel(0.3, 2.5), True, True),
        (LaplaceKernel(0.3), False, False),
        (EnergyKernel(), False, False),
    ],
    ids=str,
)
def test_which_kernels_lose_laplace_noise(kernel: Any, one_sided: bool, two_sided: bool) -> None:
    """S/φ and S/φ² integrable or not."""
    for sides, exists in ((1, one_sided), (2, two_sided)):
        if exists:
            kernel.deconvolve(LaplaceNoise(0.7), sides=sides)
        else:
            with pytest.raises(NoDeconvolution, match="Laplace noise can be taken off"):
                kernel.deconvolve(LaplaceNoise(0.7), sides=sides)


def test_a_convolved_kernel_can_lose_smaller_noise_of_another_kind() -> None:
    """The Laplace kernel alone cannot; with Laplace noise on it, it can lose a second, different one."""
    kernel = LaplaceKernel(0.3).convolve(LaplaceNoise(0.5)).deconvolve(LaplaceNoise(0.2))
    again = kernel.convolve(LaplaceNoise(0.2))
    d = np.linspace(-1, 1, 9)
    np.testing.assert_allclose(again.profile(d), LaplaceKernel(0.3).convolve(LaplaceNoise(0.5)).profile(d))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianKernel(0), "bandwidth must be above 0; found 0"),
        (lambda: LaplaceKernel(-1.5), r"bandwidth must be above 0; found -1\.5"),
        (lambda: MaternKernel(math.nan), "bandwidth must be finite; found nan"),
        (lambda: MaternKernel(0.3, 0.5), r"nu must be 1\.5 or 2\.5; found 0\.5.*LaplaceKernel"),
        (lambda: RationalQuadraticKernel(0.3, 0.4), r"alpha must be above 0\.5; found 0\.4"),
        (lambda: GaussianKernel("wide"), "bandwidth must be a number; found 'wide'"),
        (lambda: GaussianNoise(-0.1), r"noise scale must be 0 or above; found -0\.1\. Use 0 for no noise\."),
        (lambda: LaplaceNoise(math.inf), "noise scale must be finite; found inf"),
        (lambda: -1.0 * GaussianKernel(0.3), r"factor must be above 0; found -1\.0.*not positive definite"),
        (lambda: GaussianKernel(0.3).deconvolve(LaplaceNoise(0.1), sides=3), "sides must be 1 or 2; found 3"),
        (lambda: parse_kernel("gauss:0.3"), "found 'gauss:0.3'. Did you mean 'gaussian:0.3'"),
        (lambda: parse_kernel("gaussian"), "kernel must be written like 'gaussian:0.3'; found 'gaussian'"),
        (lambda: parse_kernel("gaussian:wide"), "kernel must have numbers after its colons, not 'wide'"),
        (lambda: parse_noise("uniform:1"), "noise must be a known name; found 'uniform:1'"),
    ],
)  # fmt: skip
def test_bad_input_says_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "text",
    [
        "gaussian:0.3",
        "laplace:0.25",
        "energy",
        "matern32:0.3",
        "matern52:0.4",
        "cauchy:0.2",
        "rq:0.2:3",
        "0.5*gaussian:0.3+energy",
    ],
)
def test_names_of_kernels_read_back(text: str) -> None:
    assert str(parse_kernel(text)) == text


def test_names_of_noises_read_back() -> None:
    for text in ("gaussian:0.5", "laplace:0.25"):
        assert str(parse_noise(text)) == text
