"""The witness function and MMD²: exactness, gradients, weights, bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.kernels import (
    EnergyKernel,
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    RationalQuadraticKernel,
    mmd2,
    mmd2_estimate,
    witness,
)
from privfair.kernels.witness import Embedding, SortedIndex, direct_sum
from privfair.mechanisms import LaplaceNoise
from tests.oracles import mmd2_by_matrix

SMOOTH = [
    GaussianKernel(0.3),
    RationalQuadraticKernel(0.2),
    EnergyKernel().convolve(LaplaceNoise(0.3)) + GaussianKernel(0.05),
]
SCORES = st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=1, max_size=30).map(np.array)


@given(y0=SCORES, y1=SCORES, z=SCORES, bandwidth=st.floats(-4, 2).map(lambda e: 10**e))
@settings(max_examples=80, deadline=None)
def test_sorted_sums_are_exact_for_any_samples(y0: np.ndarray, y1: np.ndarray, z: np.ndarray, bandwidth: float) -> None:
    """Ties, clusters, single samples, bandwidths from a ten-thousandth to a hundred: as the plain sum."""
    z = np.concatenate([z, y0])
    for kernel in (EnergyKernel(), LaplaceKernel(bandwidth), MaternKernel(bandwidth, 2.5)):
        c = witness(y0, y1, kernel)
        plain = kernel(z[:, None], y0).mean(axis=1) - kernel(z[:, None], y1).mean(axis=1)
        np.testing.assert_allclose(c(z), plain, atol=1e-11)
        slope = kernel.profile(z[:, None] - y0, 1).mean(axis=1) - kernel.profile(z[:, None] - y1, 1).mean(axis=1)
        np.testing.assert_allclose(c.derivative(z), slope, atol=1e-10 * max(1, 1 / bandwidth))


@pytest.mark.parametrize("kernel", SMOOTH, ids=str)
@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
@pytest.mark.parametrize("size", [20, 5000])  # 5000 samples are condensed before they are tabulated
def test_tables_keep_their_stated_error(kernel: Any, tolerance: float, size: int) -> None:
    rng = np.random.default_rng(0)
    y0, y1 = rng.beta(2, 5, size), rng.beta(5, 2, size)
    c = witness(y0, y1, kernel, tolerance=tolerance)
    assert 0 < c.error <= tolerance
    assert 0 < c.slope_error <= tolerance
    z = np.linspace(-0.3, 1.3, 400)  # beyond the table on both sides
    weights = np.concatenate([np.full(size, 1 / size), np.full(size, -1 / size)])
    samples = np.concatenate([y0, y1])
    for order, bound, values in ((0, c.error, c(z)), (1, c.slope_error, c.derivative(z))):
        exact = direct_sum(kernel.form, z, samples, weights, order)
        assert np.abs(values - exact).max() <= bound + 1e-11


def test_exact_kernels_state_no_error() -> None:
    c = witness([0.2], [0.7], LaplaceKernel(0.3).convolve(LaplaceNoise(0.1)))
    assert c.error == 0
    assert c.slope_error == 0


def test_witness_gradient_in_torch() -> None:
    rng = np.random.default_rng(1)
    z = torch.tensor(rng.uniform(size=6), requires_grad=True)
    for kernel in (EnergyKernel(), LaplaceKernel(0.2), MaternKernel(0.3), GaussianKernel(0.3)):
        c = witness(rng.uniform(size=30), rng.uniform(size=20), kernel, tolerance=1e-10)
        assert torch.autograd.gradcheck(c, (z,), eps=1e-7, atol=1e-5)
        per_example = torch.func.vmap(torch.func.grad(c))(z.detach())
        torch.testing.assert_close(per_example, c.derivative(z.detach()))
        assert c(z.float()).dtype == torch.float32


def test_witness_keeps_shapes() -> None:
    c = witness([0.1, 0.4], [0.5], EnergyKernel())
    assert np.ndim(c(0.3)) == 0
    assert c(np.zeros((2, 3))).shape == (2, 3)
    assert c(np.zeros(0)).shape == (0,)
    assert c(torch.zeros(2, 3)).shape == (2, 3)
    assert c.derivative(torch.zeros(0)).shape == (0,)


def test_weights_are_shares() -> None:
    """A weight of 2 is a score that is there twice."""
    twice = witness([0.1, 0.1, 0.7], [0.4], LaplaceKernel(0.2))
    weighted = witness([0.1, 0.7], [0.4], LaplaceKernel(0.2), weights0=[2, 1])
    z = np.linspace(0, 1, 11)
    np.testing.assert_allclose(twice(z), weighted(z), rtol=1e-14)


def test_million_pairs_of_smooth_kernels_agree_with_matrices() -> None:
    """Above the limit for direct sums MMD² comes from tables of condensed samples."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=900), rng.normal(0.3, 1, 1100)
    for kernel in SMOOTH:
        assert math.isclose(mmd2(x, y, kernel), mmd2_by_matrix(x, y, kernel, biased=True), abs_tol=4e-9)


def test_mmd2_of_large_samples_with_an_offset() -> None:
    """Scores far from 0 lose no digits: only differences count."""
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 64, 500) / 64, rng.integers(0, 80, 400) / 64  # exactly representable after the shift
    for kernel in (EnergyKernel(), LaplaceKernel(0.2)):
        near = mmd2(x, y, kernel)
        assert math.isclose(mmd2(x + 2.0**20, y + 2.0**20, kernel), near, rel_tol=1e-9)


def test_weighted_u_statistic_is_unbiased_for_equal_weights() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=20), rng.normal(size=30)
    plain = mmd2(x, y, GaussianKernel(0.5), biased=False)
    weighted = mmd2(x, y, GaussianKernel(0.5), biased=False, weights0=np.full(20, 3.0), weights1=np.ones(30))
    assert math.isclose(plain, weighted, rel_tol=1e-12)


def test_standard_error_is_the_leave_one_out_one() -> None:
    rng = np.random.default_rng(5)
    x, y, kernel = rng.normal(size=9), rng.normal(size=7), LaplaceKernel(0.4)
    variance = 0.0
    for sample, other, first in ((x, y, True), (y, x, False)):
        left_out = [np.delete(sample, i) for i in range(sample.size)]
        values = np.array(
            [mmd2(s, other, kernel, biased=False) if first else mmd2(other, s, kernel, biased=False) for s in left_out]
        )
        n = sample.size
        variance += (n - 1) / n * float(np.sum((values - values.mean()) ** 2))
    assert math.isclose(mmd2_estimate(x, y, kernel).standard_error, math.sqrt(variance), rel_tol=1e-10)


def test_mmd2_mixes_tensors_and_arrays() -> None:
    x = torch.tensor([0.1, 0.5, 0.9], requires_grad=True)
    value = mmd2(x, np.array([0.2, 0.3]), EnergyKernel())
    value.backward()
    assert value.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.shape == (3,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mmd2([0.1, math.nan], [0.2], EnergyKernel()),
            "x must be finite; found nan. 1 of 2 are not, first at 1",
        ),
        (lambda: mmd2([0.1], [math.inf], EnergyKernel()), "y must be finite; found inf"),
        (lambda: mmd2([], [0.2], EnergyKernel()), "x must hold at least one score"),
        (lambda: mmd2([0.1], [0.2, 0.3], EnergyKernel(), biased=False), "x must hold two scores or more"),
        (lambda: mmd2(["a"], [0.2], EnergyKernel()), "x must be numbers"),
        (lambda: witness([0.1], [], EnergyKernel()), "y1 must hold at least one score"),
        (
            lambda: witness([0.1], [0.2], EnergyKernel(), weights0=[1, 2]),
            "weights0 must have one weight for each of the 1",
        ),
        (lambda: witness([0.1, 0.2], [0.2], EnergyKernel(), weights0=[1, -1]), "weights0 must have a positive sum"),
        (lambda: witness([0.1], [0.2], GaussianKernel(0.3), domain=(1, 0)), r"domain must be \(low, high\)"),
        (lambda: witness([0.1], [0.2], GaussianKernel(0.3), tolerance=0), "tolerance must be above 0"),
        (lambda: witness([0.0], [1.0], GaussianKernel(1e-6)), "tolerance must be reachable.*narrower domain"),
    ],
)
def test_bad_scores_say_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@given(
    values=st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=60, unique=True)
    .map(sorted)
    .map(np.array),
    seed=st.integers(0, 2**32 - 1),
)
@example(values=np.array([0.0, 8e-108]), seed=0)
@settings(max_examples=60, deadline=None)
def test_grid_search_counts_as_binary_search(values: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spread = rng.uniform(values[0] - 1, values[-1] + 1, 1200)
    points = np.concatenate(
        [spread, values, np.nextafter(values, -np.inf), np.nextafter(values, np.inf), [-1e300, 1e300]]
    )
    np.testing.assert_array_equal(
        SortedIndex(values).count_up_to(points), np.searchsorted(values, points, side="right")
    )


def test_grid_search_of_crowded_values() -> None:
    rng = np.random.default_rng(6)
    values = np.unique(np.concatenate([rng.uniform(0, 1e-6, 500), rng.uniform(0, 1, 500)]))
    points = np.concatenate([rng.uniform(0, 2e-6, 3000), rng.uniform(-1, 2, 3000), values])
    np.testing.assert_array_equal(
        SortedIndex(values).count_up_to(points), np.searchsorted(values, points, side="right")
    )


def test_second_derivative_of_an_embedding() -> None:
    rng = np.random.default_rng(7)
    samples, weights = rng.uniform(size=20), np.full(20, 0.05)
    z = np.linspace(0.05, 0.95, 13)
    for kernel in (MaternKernel(0.3, 2.5), GaussianKernel(0.3)):
        embedding = Embedding(kernel, samples, weights, tolerance=1e-10)
        exact = direct_sum(kernel.form, z, samples, weights, 2)
        np.testing.assert_allclose(embedding.evaluate(z, 2), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tie", [0.0, 1e-6])
@pytest.mark.parametrize("points", [10, 5000])
def test_the_energy_kernels_slope_is_a_step_function_with_ties(tie: float, points: int) -> None:
    """Against −½ Σ w_j sign(z − y_j), a sample within the tie counting 0; on, beside and far from samples."""
    rng = np.random.default_rng(points)
    y, w = np.round(rng.random(300), 3), rng.normal(size=300)
    reach = tie * np.maximum(1.0, np.abs(y))
    edges = np.concatenate([y, y + 2 * reach, y - 2 * reach, np.nextafter(y, 2.0), np.nextafter(y, -2.0)])
    z = np.concatenate([rng.uniform(-0.5, 1.5, points), rng.choice(edges, points), [-np.inf, np.inf]])
    embedding = Embedding(EnergyKernel(), y, w, tie=tie)
    gaps = np.where(np.abs(z[:, None] - y) <= reach, 0.0, z[:, None] - y)
    assert np.allclose(embedding.evaluate(z, 1), -np.sign(gaps) @ w / 2, atol=1e-12)
