"""Sums of features and of their products: what one record moves, what is drawn, and the scaling that follows."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import chi2

from accountant.calibration import exact_delta
from accountant.errors import InputError
from accountant.events import Adjacency
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.moments import (
    CUT,
    MomentsPlan,
    Scaling,
    columns_of,
    gaussian_budget,
    moments,
    multiplier_of,
    products,
    ratio_of,
    standard,
    whitened,
)
from privfair.mechanisms.vector_release import VectorNoise
from privfair.per_record import whole_sum

Rows = np.ndarray
ANY = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf, -math.inf])


def plan(features: int = 3, columns: int | None = None, **more: object) -> MomentsPlan:
    return MomentsPlan(features, columns or features, True, 4, **more)  # type: ignore[arg-type]


# ---- what one record moves


@settings(max_examples=300, deadline=None)
@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 5), st.just(3)), elements=ANY),
    arrays.arrays(np.float64, (2, 3), elements=ANY),
    st.sampled_from([0, 1]),
    st.sampled_from([64, 1024, 2**20]),
)
def test_one_record_moves_a_sum_by_a_vector_of_its_own_within_the_bound(rows, more, which, steps) -> None:
    scaling = Scaling(np.array([0.1, -0.5, 0.0]), np.array([0.3, 2.0, 1e-3]))
    vectors: Callable[[Rows], Rows] = moments if which == 0 else lambda x: products(scaling.standardised(x))
    bound = plan().bounds[which]
    without = whole_sum(vectors(rows), bound, steps)
    one, other = (whole_sum(vectors(np.vstack([rows, new])), bound, steps) for new in more)
    assert np.array_equal(one - without, whole_sum(vectors(more[:1]), bound, steps))
    assert sum(int(v) ** 2 for v in one - without) <= steps**2
    noise = VectorNoise(1.0, one.size, steps=steps, inward=True)
    assert sum(int(v) ** 2 for v in one - other) <= noise.sensitivity(Adjacency.REPLACE_ONE) ** 2


def longest(vectors: Callable[[Rows], Rows], corners: Rows) -> float:
    return float(np.linalg.norm(vectors(corners), axis=1).max())


def test_the_bounds_are_reached_and_never_passed() -> None:
    """By brute force over corners: (x, x²) at the ends of the ranges, s at ±3 and on the sphere of radius √d."""
    corners = np.array(list(product((-1.0, -0.5, 0.0, 1.0), repeat=4)))
    assert longest(moments, corners) == pytest.approx(plan(4).bounds[0], rel=1e-12)
    far = np.array(list(product((-CUT, 0.0, 0.7, CUT), repeat=4)))
    on_sphere = np.random.default_rng(0).normal(size=(500, 4))
    on_sphere *= 2 / np.linalg.norm(on_sphere, axis=1, keepdims=True)
    for rows in (far, on_sphere):
        assert longest(products, rows) <= plan(4).bounds[1] * (1 + 1e-12)
    assert longest(products, far) == pytest.approx(math.sqrt(4 * (4 + 2)), rel=1e-12)


def test_one_feature_of_each_category_is_not_zero() -> None:
    names = ("age", "age: below 30", "age: from 30", "race=A", "race=B", "race=C", "sex=F", "sex=M")
    assert columns_of(names) == 4
    one_hot = np.array([[0.9, 0, 1, 0, 1, 0, 1, 0], [-1.0, 1, 0, 0, 0, 1, 0, 1]])
    assert longest(moments, one_hot) <= plan(8, 4).bounds[0]


def within(vectors: Callable[[Rows], Rows], bound: float) -> bool:
    rng = np.random.default_rng(2)
    rows = np.vstack([rng.normal(size=(200, 6)) * 3, np.full((1, 6), 9.0)])
    return longest(vectors, rows) <= bound * (1 + 1e-9)


def without_clip(x: Rows) -> Rows:
    """The planted bug."""
    return np.concatenate([x, np.square(x)], axis=1)


def without_cut(s: Rows) -> Rows:
    """The planted bug: rows are not cut to √d."""
    first, second = np.triu_indices(s.shape[1])
    weights = np.where(first == second, 1.0, math.sqrt(2.0))
    return np.concatenate([s[:, first] * s[:, second] * weights, math.sqrt(2.0) * s], axis=1)


def test_forgotten_clips_pass_the_bound() -> None:
    first, second = plan(6).bounds
    assert within(moments, first)
    assert not within(without_clip, first)
    assert within(products, second)
    assert not within(without_cut, second)


def test_the_triangle_has_the_length_of_the_whole_matrix() -> None:
    """Off-diagonal entries stand for two of the matrix: with a weight of 1 the sensitivity of the matrix is lost."""
    s = np.random.default_rng(4).normal(size=(50, 5)) * 0.3
    triangle = products(s)[:, :15]
    matrices = np.einsum("ni,nj->nij", s, s)
    np.testing.assert_allclose(np.linalg.norm(triangle, axis=1), np.linalg.norm(matrices, axis=(1, 2)), rtol=1e-12)
    first, second = np.triu_indices(5)
    unweighted = np.linalg.norm(s[:, first] * s[:, second], axis=1)
    # the planted bug: with that length as the bound, the matrix would move by up to √2 times as far as is paid for
    assert (unweighted / np.linalg.norm(matrices, axis=(1, 2))).min() < 0.8


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(np.float32, (40, 5), elements=st.floats(-4, 4, width=32)), st.integers(0, 39), st.integers(1, 40))
def test_a_record_is_scaled_by_itself_to_the_last_bit(x, i, count) -> None:
    rng = np.random.default_rng(8)
    scaling = Scaling(rng.normal(size=5), rng.uniform(0.1, 2, size=5), rng.normal(size=5), rng.normal(size=(5, 5)))
    alone, together = scaling.apply(x[i : i + 1])[0], scaling.apply(x[:count])
    if i < count:
        np.testing.assert_array_equal(alone, together[i])
    np.testing.assert_array_equal(products(scaling.standardised(x[i : i + 1]))[0], products(scaling.standardised(x))[i])


# ---- noise and grid


def seeded(seed: int = 1) -> SeededEntropy:
    return SeededEntropy(np.random.default_rng(seed))


@pytest.mark.parametrize("shares", [1, 3])
def test_the_noise_of_a_sum_has_the_law_that_is_paid_for(shares: int) -> None:
    """χ² with 3·35·20 degrees of freedom; false alarm 1e-6."""
    release = plan(7, shares=shares, modulus=2**31 - 1, masked=True).release(1, 500, (9.0, 5.0))
    assert release.noise is not None
    assert release.noise.shares == shares
    zero, squares = np.zeros(release.count, dtype=np.int64), 0.0
    for k in range(60):
        drawn = sum(release.message(zero, seeded(100 * k + s)) for s in range(shares))
        squares += float(np.square(np.asarray(drawn) / release.noise.grid_scale).sum())
    low, high = chi2.ppf([5e-7, 1 - 5e-7], 60 * release.count)
    assert low < squares < high


@pytest.mark.parametrize(("count", "ratio"), [(2, 0.3), (16, 5.0), (11_174, 11.0)])
def test_the_event_of_the_grid_costs_no_more_than_the_planned_one(count: int, ratio: float) -> None:
    multiplier = multiplier_of(ratio, count)
    assert ratio_of(multiplier, count) >= ratio * (1 - 1e-12)
    steps = 2 ** math.ceil(math.log2(max(16 * math.sqrt(count), 16 / multiplier)))
    event = VectorNoise(multiplier, count, 2.0, steps, inward=True).event()
    assert event.noise_scale / event.sensitivity >= ratio


@given(st.floats(0.05, 8), st.sampled_from([1e-9, 1e-6, 1e-3]))
@settings(max_examples=30, deadline=None)
def test_the_budget_is_the_gaussian_one(epsilon: float, delta: float) -> None:
    from accountant.events import Gaussian

    mu = gaussian_budget(epsilon, delta)
    assert exact_delta(Gaussian(1 / mu, 1.0), epsilon) == pytest.approx(delta, rel=1e-3)


def test_sums_that_find_no_room_are_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match='"none"'):
        plan(150, modulus=2**29, masked=True).release(1, 10_000_000, (9.0, 5.0))
    with pytest.raises(InputError, match='"none"'):
        plan(3, modulus=2**20, masked=True).release(0, 10_000_000, None)


# ---- the scaling


def test_scaling_without_noise_is_that_of_numpy() -> None:
    rng = np.random.default_rng(5)
    x = np.clip(rng.normal(size=(4000, 6)) * 0.3 + rng.uniform(-0.5, 0.5, size=6), -1, 1)
    x[:, 5] = 0.25 * x[:, 0] + 0.5 * x[:, 5]
    scaling = standard(moments(x).sum(axis=0), len(x), 0.0)
    np.testing.assert_allclose(scaling.centre, x.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(scaling.scale, np.sqrt(x.var(axis=0) + 1e-6), rtol=1e-9)
    s = scaling.standardised(x)
    lengths = np.linalg.norm(s, axis=1, keepdims=True)
    cut = s * np.minimum(1, math.sqrt(6) / lengths)
    found = whitened(scaling, products(s).sum(axis=0), len(x), 0.0)
    assert found.matrix is not None
    covariance = np.cov(cut.T, bias=True)
    floor = 1e-3 * np.linalg.eigvalsh(covariance).max()
    np.testing.assert_allclose(found.matrix @ (covariance + floor * np.eye(6)) @ found.matrix, np.eye(6), atol=1e-9)
    np.testing.assert_allclose(found.shift, cut.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.apply(x), (s - cut.mean(axis=0)) @ found.matrix, atol=1e-10)


def test_noise_cannot_make_a_variance_small_or_a_matrix_indefinite() -> None:
    scaling = standard(np.array([5.0, 900.0, -40.0, 1.0]), 100, 7.0)
    assert np.all(scaling.scale >= math.sqrt(2 * 7.0 / 100))
    assert np.all(np.abs(scaling.centre) <= 1)
    total = np.array([-50.0, 300.0, -20.0, 0.0, 0.0])
    found = whitened(scaling, total, 100, 7.0)
    assert found.matrix is not None
    assert np.linalg.eigvalsh(found.matrix).max() <= 1 / math.sqrt(2 * 7.0 * math.sqrt(2) / 100) * (1 + 1e-9)


def test_a_step_on_whitened_features_is_newtons_with_the_hessian_at_zero() -> None:
    """The closed form: from θ = 0, step 4 leads to (¼ E[s̃s̃ᵀ] + ¼ρ)⁻¹ E[(y − ½)s̃], s̃ = (s, 1), ρ on the features."""
    rng = np.random.default_rng(6)
    x = np.clip(rng.normal(size=(3000, 4)) * 0.1, -1, 1)  # nothing is cut here: sums are of whole rows
    x[:, 3] = 0.6 * x[:, 0] + 0.5 * x[:, 3]
    y = (rng.uniform(size=3000) < 1 / (1 + np.exp(-8 * x @ [1, -1, 0.5, 0]))).astype(float)
    scaling = standard(moments(x).sum(axis=0), len(x), 0.0)
    s = scaling.standardised(x)
    full = np.concatenate([np.einsum("ni,nj->ij", s, s)[np.triu_indices(4)], s.sum(axis=0)])
    first, second = np.triu_indices(4)
    weights = np.concatenate([np.where(first == second, 1.0, math.sqrt(2.0)), np.full(4, math.sqrt(2.0))])
    z = whitened(scaling, full * weights, len(x), 0.0).apply(x)
    inputs = np.column_stack([z, np.ones(len(z))])
    step = 4 * inputs.T @ (y - 0.5) / len(y)
    with_one = np.column_stack([s, np.ones(len(s))])
    floor = 1e-3 * np.linalg.eigvalsh(np.cov(s.T, bias=True)).max()
    hessian = 0.25 * (with_one.T @ with_one / len(s) + floor * np.diag([1, 1, 1, 1, 0]))
    newton = np.linalg.solve(hessian, with_one.T @ (y - 0.5) / len(y))
    np.testing.assert_allclose(inputs @ step, with_one @ newton, atol=1e-10)
