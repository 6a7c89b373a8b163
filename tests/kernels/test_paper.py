"""The paper's statements about noise, gradients and decomposition, as experiments.

Rychener, Kuhn & Hu, "Global Group Fairness in Federated Learning via Function Tracking", AISTATS 2025.
Statistical tests use fixed seeds and allow 5 standard errors: a correct program fails one comparison in 1.7 million.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from privfair.kernels import EnergyKernel, GaussianKernel, LaplaceKernel, MaternKernel, mmd2, mmd2_from_noisy, witness
from privfair.mechanisms import GaussianNoise, LaplaceNoise

STANDARD_ERRORS = 5
KERNELS = [GaussianKernel(0.3), LaplaceKernel(0.3), EnergyKernel(), MaternKernel(0.3)]
NOISES = [GaussianNoise(0.25), LaplaceNoise(0.2)]


def assert_mean(values: np.ndarray, expected: np.ndarray | float) -> None:
    """The mean over the first axis is the expected one within the tolerance that its own spread gives."""
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - expected) <= STANDARD_ERRORS * error + 1e-14)


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_proposition_5_2_noise_on_samples_is_noise_on_the_kernel(kernel: Any, noise: Any) -> None:
    """E[C(z; noisy Y₀, noisy Y₁) | Y₀, Y₁] = C̃(z; Y₀, Y₁), C̃ with the convolved kernel; for C′ too."""
    rng = np.random.default_rng(11)
    y0, y1 = rng.beta(2, 5, 12), rng.beta(4, 3, 9)
    z = np.linspace(0, 1, 5)
    values, slopes = [], []
    for _ in range(1500):
        noisy = witness(y0 + noise.sample(12, rng), y1 + noise.sample(9, rng), kernel, domain=(0, 1), tolerance=1e-6)
        value, slope = noisy.with_derivative(z)
        values.append(value)
        slopes.append(slope)
    expected = witness(y0, y1, kernel.convolve(noise))
    assert_mean(np.array(values), expected(z))
    assert_mean(np.array(slopes), expected.derivative(z))


def test_proposition_5_2_can_fail() -> None:
    """The same experiment against the kernel without noise is refuted, so the test above has power."""
    rng = np.random.default_rng(11)
    y0, y1 = rng.beta(2, 5, 12), rng.beta(4, 3, 9)
    kernel, noise, z = LaplaceKernel(0.3), LaplaceNoise(0.2), np.linspace(0, 1, 5)
    values = np.array([witness(y0 + noise.sample(12, rng), y1 + noise.sample(9, rng), kernel)(z) for _ in range(1500)])
    with pytest.raises(AssertionError):
        assert_mean(values, witness(y0, y1, kernel)(z))


def test_corollary_5_3_gaussian_noise_widens_the_gaussian_kernel() -> None:
    rng = np.random.default_rng(5)
    d = np.array([0.0, 0.2, 0.5, 1.0])
    draws = GaussianKernel(0.3).profile(d - GaussianNoise(0.4).sample((40_000, 1), rng))
    assert_mean(draws, 0.6 * GaussianKernel(0.5).profile(d))


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_deconvolution_gives_back_the_noiseless_witness(noise: Any) -> None:
    """E C′ of the deconvolved kernel on noisy samples is the C′ of the kernel on clean ones."""
    rng = np.random.default_rng(12)
    kernel = GaussianKernel(0.4)
    y0, y1, z = rng.beta(2, 5, 12), rng.beta(4, 3, 9), np.linspace(0, 1, 5)
    sharp = kernel.deconvolve(noise)
    slopes = np.array(
        [
            witness(
                y0 + noise.sample(12, rng), y1 + noise.sample(9, rng), sharp, domain=(0, 1), tolerance=1e-5
            ).derivative(z)
            for _ in range(1500)
        ]
    )
    assert_mean(slopes, witness(y0, y1, kernel).derivative(z))


@pytest.mark.parametrize(
    ("kernel", "noise"),
    [
        (GaussianKernel(0.4), GaussianNoise(0.2)),
        (GaussianKernel(0.4), LaplaceNoise(0.2)),
        (MaternKernel(0.4, 2.5), LaplaceNoise(0.2)),
    ],
    ids=str,
)
def test_unbiased_mmd2_from_noisy_samples(kernel: Any, noise: Any) -> None:
    """Over the noise, the twice deconvolved U-statistic has the clean U-statistic as its mean, and an honest error."""
    rng = np.random.default_rng(13)
    x, y = rng.beta(2, 5, 60), rng.beta(4, 3, 50)
    estimates = [
        mmd2_from_noisy(x + noise.sample(60, rng), y + noise.sample(50, rng), kernel, noise) for _ in range(400)
    ]
    assert_mean(np.array([e.value for e in estimates]), mmd2(x, y, kernel, biased=False))


def test_standard_error_covers_fresh_records_and_noise() -> None:
    """The jackknife error is that of new records with new noise: its square averages to the estimates' variance."""
    rng = np.random.default_rng(14)
    kernel, noise = GaussianKernel(0.4), LaplaceNoise(0.2)
    estimates = []
    for _ in range(400):
        x, y = (rng.beta(*shape, 80) + noise.sample(80, rng) for shape in ((2, 5), (4, 3)))
        estimates.append(mmd2_from_noisy(x, y, kernel, noise))
    spread = np.var([e.value for e in estimates], ddof=1)
    claimed = np.mean([e.standard_error**2 for e in estimates])
    # the sampling error of a variance from 400 draws is √(2/399) = 7%, and the jackknife leans to the large side
    assert 0.75 <= claimed / spread <= 1.5


def test_lemma_4_1_unbiased_gradient() -> None:
    """E ∇f(θ; Y₀, Y₁) = ∇ MMD²(θ) when Y₀, Y₁ are drawn anew from the predictions at θ."""
    rng = np.random.default_rng(15)
    kernel = EnergyKernel()
    features = [torch.tensor(rng.normal(size=(40, 3))), torch.tensor(rng.normal(0.5, 1, size=(50, 3)))]

    def predictions(theta: torch.Tensor) -> list[torch.Tensor]:
        return [torch.sigmoid(x @ theta) for x in features]

    theta = torch.tensor([0.4, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    (exact,) = torch.autograd.grad(mmd2(*predictions(theta), kernel), theta)
    gradients = []
    for _ in range(3000):
        now = predictions(theta)
        shared = [rng.choice(p.detach().numpy(), size=10, replace=True) for p in now]
        c = witness(*shared, kernel)
        f = 2 * (c(now[0]).mean() - c(now[1]).mean())
        gradients.append(torch.autograd.grad(f, theta)[0].numpy())
    assert_mean(np.array(gradients), exact.numpy())


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_proposition_3_1_global_fairness_does_not_decompose(kernel: Any) -> None:
    """Two clients, each unfair, in opposite ways: together they are fair. And two fair ones can be unfair together."""
    low, high = np.full(50, 0.2), np.full(50, 0.8)
    assert mmd2(low, high, kernel) > 0.05
    assert mmd2(np.concatenate([low, high]), np.concatenate([high, low]), kernel) <= 1e-15
    # fair at each client, unfair together: the groups live at different clients in different proportions
    first, second = (
        np.concatenate([np.full(90, 0.2), np.full(10, 0.8)]),
        np.concatenate([np.full(10, 0.2), np.full(90, 0.8)]),
    )
    assert mmd2(np.full(90, 0.2), np.full(10, 0.2), kernel) <= 1e-15
    assert mmd2(np.full(10, 0.8), np.full(90, 0.8), kernel) <= 1e-15
    assert mmd2(first, second, kernel) > 0.05
