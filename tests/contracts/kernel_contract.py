"""What every kernel promises. Each kernel's test class inherits this suite and names its instance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from privfair.kernels import NoDeconvolution, mmd2, witness
from privfair.mechanisms import GaussianNoise, LaplaceNoise
from tests.oracles import mmd2_by_matrix, witness_by_sums

NOISES = [GaussianNoise(0.15), LaplaceNoise(0.2), LaplaceNoise(0.9)]
POINTS = np.concatenate([[0.0], np.geomspace(1e-4, 3.0, 14), -np.geomspace(1e-3, 2.0, 6)])


class KernelContract:
    """Laws that hold for every kernel, alone and convolved."""

    @pytest.fixture
    def kernel(self) -> Any:
        raise NotImplementedError("each kernel's test class gives its instance")

    @pytest.fixture(params=[None, *NOISES], ids=str)
    def any_form(self, kernel: Any, request: pytest.FixtureRequest) -> Any:
        """The kernel clean, and convolved with each noise."""
        return kernel if request.param is None else kernel.convolve(request.param)

    def test_symmetric(self, any_form: Any) -> None:
        x, y = POINTS, POINTS[::-1] * 1.7
        np.testing.assert_array_equal(any_form(x, y), any_form(y, x))

    def test_gram_matrix_is_positive_on_zero_sum_weights(self, any_form: Any) -> None:
        """Bounded kernels on all weights; the energy kernel, conditionally positive definite, on zero-sum ones."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=40)
        gram = any_form(x[:, None], x[None, :])
        if not any_form.bounded:
            centring = np.eye(40) - 1 / 40
            gram = centring @ gram @ centring
        lowest = float(np.linalg.eigvalsh(gram)[0])
        assert lowest >= -1e-12 * 40

    def test_shapes_and_types(self, any_form: Any) -> None:
        assert np.ndim(any_form(0.3, 0.1)) == 0
        assert any_form(np.zeros(0), 0.5).shape == (0,)
        assert any_form(np.zeros((2, 1)), np.zeros(3)).shape == (2, 3)
        assert any_form(np.arange(3), 1).dtype == np.float64
        single = np.linspace(0, 1, 5, dtype=np.float32)
        assert any_form(single, single[::-1]).dtype == np.float32
        assert any_form(torch.zeros(0), 0.5).shape == (0,)
        assert any_form(torch.from_numpy(single), 0.5).dtype == torch.float32
        whole = any_form(torch.tensor([0, 1]), 3)
        assert whole.dtype == torch.float32
        np.testing.assert_allclose(whole.numpy(), any_form(np.array([0, 1]), 3), rtol=1e-5)
        assert any_form(torch.from_numpy(single).bfloat16(), 0.5).dtype == torch.bfloat16

    def test_numpy_and_torch_agree(self, any_form: Any) -> None:
        y = 0.25
        from_torch = any_form(torch.tensor(POINTS), y).numpy()
        np.testing.assert_array_equal(from_torch, any_form(POINTS, y))
        single = any_form(torch.tensor(POINTS, dtype=torch.float32), y).numpy()
        np.testing.assert_allclose(single, any_form(POINTS, y), rtol=2e-5, atol=1e-6)

    def test_gradient(self, any_form: Any) -> None:
        x = torch.tensor([-0.7, -0.2, 0.05, 0.4, 1.3], dtype=torch.float64, requires_grad=True)
        y = torch.tensor([0.1, 0.3, 0.0, 0.9, -0.4], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(any_form, (x, y))
        assert torch.autograd.gradgradcheck(any_form, (x, y), atol=1e-4)

    def test_gradient_under_vmap(self, any_form: Any) -> None:
        x = torch.linspace(-1, 1, 7, dtype=torch.float64)
        slopes = torch.func.vmap(torch.func.grad(lambda t: any_form(t, 0.1)))(x)
        torch.testing.assert_close(slopes, any_form.profile(x - 0.1, 1))

    def test_derivative_against_difference_quotient(self, any_form: Any) -> None:
        d = np.array([-1.1, -0.3, 0.2, 0.65, 2.0])
        h = 1e-5
        slope = (any_form.profile(d + h) - any_form.profile(d - h)) / (2 * h)
        np.testing.assert_allclose(any_form.profile(d, 1), slope, rtol=1e-6, atol=1e-7)

    def test_spectrum_against_numerical_transform(self, any_form: Any) -> None:
        """v(d) = (1/π)∫S(ω)cos(ωd)dω; without cos for v(0) − v(d) where the kernel is unbounded."""
        for d in (0.15, 0.8):
            value = any_form.profile(d) if any_form.bounded else any_form.profile(0.0) - any_form.profile(d)
            assert math.isclose(float(value), self._inverse_transform(any_form, d), rel_tol=1e-4, abs_tol=2e-6)

    @staticmethod
    def _inverse_transform(kernel: Any, d: float) -> float:
        top = 4000.0
        edges = np.concatenate([[1e-12], np.geomspace(1e-3, top, 4000)])
        nodes, weights = np.polynomial.legendre.leggauss(12)
        half = np.diff(edges) / 2
        omega = (edges[:-1] + half)[:, None] + half[:, None] * nodes
        wave = np.cos(omega * d) if kernel.bounded else 2 * np.sin(omega * d / 2) ** 2
        total = float(np.sum(kernel.spectral_density(omega) * wave * half[:, None] * weights))
        if not kernel.bounded:  # the tail of a spectrum that falls like ω⁻² or faster; its wave averages to 1
            total += top * float(kernel.spectral_density(top))
        return total / math.pi

    def test_convolution_against_quadrature(self, kernel: Any) -> None:
        for noise in NOISES:
            for d in (0.0, 0.3, 1.4):
                reach = 45 * noise.scale
                expected, _ = quad(
                    lambda x, d=d, noise=noise: float(kernel.profile(d - x)) * float(noise.density(x)),
                    -reach, reach, points=sorted({0.0, d}), limit=300, epsabs=1e-11,
                )  # fmt: skip
                assert math.isclose(float(kernel.convolve(noise).profile(d)), expected, rel_tol=1e-8, abs_tol=1e-10)

    def test_deconvolution_is_undone_by_quadrature(self, kernel: Any) -> None:
        """κ′ convolved numerically with the noise is κ, wherever κ′ exists."""
        found = 0
        for noise in NOISES:
            try:
                sharp = kernel.deconvolve(noise)
            except NoDeconvolution:
                continue
            found += 1
            for d in (0.0, 0.25, 1.1):
                reach = 45 * noise.scale
                back, _ = quad(
                    lambda x, d=d, noise=noise, sharp=sharp: float(sharp.profile(d - x)) * float(noise.density(x)),
                    -reach, reach, points=sorted({0.0, d}), limit=400, epsabs=1e-11,
                )  # fmt: skip
                assert math.isclose(back, float(kernel.profile(d)), rel_tol=1e-7, abs_tol=1e-8)
        assert found == len([noise for noise in NOISES if self.deconvolves(noise)])

    def deconvolves(self, noise: Any) -> bool:
        """Whether theory says the one-sided deconvolution exists."""
        raise NotImplementedError

    def test_convolve_and_deconvolve_are_inverse(self, kernel: Any) -> None:
        for noise in NOISES:
            assert kernel.convolve(noise).deconvolve(noise) == kernel
            assert kernel.convolve(noise).convolve(noise).deconvolve(noise, sides=2) == kernel
            if self.deconvolves(noise):
                assert kernel.deconvolve(noise).convolve(noise) == kernel

    def test_order_of_two_noises_does_not_matter(self, kernel: Any) -> None:
        first, second = NOISES[0], NOISES[1]
        there, back = kernel.convolve(first).convolve(second), kernel.convolve(second).convolve(first)
        np.testing.assert_allclose(there.profile(POINTS), back.profile(POINTS), rtol=1e-12, atol=1e-14)

    def test_no_noise_changes_nothing(self, kernel: Any) -> None:
        for noise in (GaussianNoise(0.0), LaplaceNoise(0.0)):
            assert kernel.convolve(noise) == kernel
            assert kernel.deconvolve(noise) == kernel

    def test_small_noise_changes_little(self, kernel: Any) -> None:
        for noise in (GaussianNoise(1e-6), LaplaceNoise(1e-6)):
            np.testing.assert_allclose(kernel.convolve(noise).profile(POINTS), kernel.profile(POINTS), atol=1e-4)

    def test_far_away_and_no_warnings(self, any_form: Any) -> None:
        far = np.array([1e3, 1e10, 1e200, -1e200])
        for order in (0, 1, 2):
            values = any_form.profile(far, order)
            assert np.all(np.isfinite(values))

    def test_witness_equals_plain_sums(self, any_form: Any) -> None:
        rng = np.random.default_rng(1)
        y0, y1 = rng.beta(2, 4, 37), rng.normal(0.4, 0.5, 51)
        y1[:3] = y0[:3]  # ties between the groups
        w0 = rng.uniform(0.1, 1, 37)
        z = np.concatenate([np.linspace(-1, 2, 61), y0[:10], y1[:10]])
        c = witness(y0, y1, any_form, weights0=w0)
        plain = np.full(51, 1 / 51)
        for order, values in ((0, c(z)), (1, c.derivative(z))):
            expected = witness_by_sums(y0, y1, any_form, z, order, w0 / w0.sum(), plain)
            slack = (c.error, c.slope_error)[order] + 1e-11
            assert np.abs(values - expected).max() <= slack
        both = c.with_derivative(z)
        np.testing.assert_array_equal(both[0], c(z))
        np.testing.assert_array_equal(both[1], c.derivative(z))

    def test_mmd2_equals_matrices(self, any_form: Any) -> None:
        rng = np.random.default_rng(2)
        x, y = np.round(rng.normal(0, 0.3, 45), 2), np.round(rng.normal(0.2, 0.4, 60), 2)  # rounding makes ties
        for biased in (True, False):
            expected = mmd2_by_matrix(x, y, any_form, biased=biased)
            assert math.isclose(mmd2(x, y, any_form, biased=biased), expected, abs_tol=1e-12)

    def test_mmd2_gradient(self, any_form: Any) -> None:
        rng = np.random.default_rng(3)
        x = torch.tensor(rng.normal(0, 0.3, 8), requires_grad=True)
        y = torch.tensor(rng.normal(0.2, 0.4, 9), requires_grad=True)
        for biased in (True, False):
            assert torch.autograd.gradcheck(
                lambda a, b, biased=biased: mmd2(a, b, any_form, biased=biased), (x, y), eps=1e-7, atol=1e-5
            )
