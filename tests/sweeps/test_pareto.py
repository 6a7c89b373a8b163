from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfair.sweeps.frontiers import best_quality, hypervolume, is_efficient

# a coarse grid, so that ties happen
points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12).map(
    lambda pairs: (np.array([q for q, _ in pairs]) / 6, np.array([u for _, u in pairs]) / 6)
)


@settings(max_examples=60, deadline=None)
@given(points)
def test_efficient_points_are_those_that_nothing_dominates(cloud: tuple[np.ndarray, np.ndarray]) -> None:
    q, u = cloud
    expected = [
        not any((q[j] >= q[i] and u[j] < u[i]) or (q[j] > q[i] and u[j] <= u[i]) for j in range(len(q)))
        for i in range(len(q))
    ]
    assert is_efficient(q, u).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(points)
def test_a_front_is_not_empty_and_is_its_own_front(cloud: tuple[np.ndarray, np.ndarray]) -> None:
    q, u = cloud
    front = is_efficient(q, u)
    assert front.any()
    assert is_efficient(q[front], u[front]).all()
    assert q.max() == q[front].max()
    assert u.min() == u[front].min()


@settings(max_examples=60, deadline=None)
@given(points, st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_hypervolume_depends_on_the_front_only_and_never_falls(
    cloud: tuple[np.ndarray, np.ndarray], extra: tuple[int, int]
) -> None:
    q, u = cloud
    reference = (0.1, 0.9)
    front = is_efficient(q, u)
    whole = hypervolume(q, u, reference)
    assert hypervolume(q[front], u[front], reference) == pytest.approx(whole, abs=1e-12)
    more = hypervolume(np.append(q, extra[0] / 6), np.append(u, extra[1] / 6), reference)
    assert more >= whole - 1e-12
    assert 0 <= whole <= 0.9 * 0.9 + 1e-12


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_hypervolume_against_monte_carlo(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, u = rng.random(8), rng.random(8)
    low, high = 0.2, 0.8
    draws = 40_000
    x, y = rng.uniform(low, 1, draws), rng.uniform(0, high, draws)
    hit = ((q[None] >= x[:, None]) & (u[None] <= y[:, None])).any(axis=1)
    box = (1 - low) * high
    error = box * max(hit.std(), 1 / math.sqrt(draws)) / math.sqrt(draws)
    # 5 standard errors: a false alarm in 2 million draws
    assert abs(hypervolume(q, u, (low, high)) - box * hit.mean()) < 5 * error


def test_hypervolume_by_hand() -> None:
    q, u = np.array([0.6, 0.8, 0.7]), np.array([0.1, 0.4, 0.5])  # the last is dominated
    assert hypervolume(q, u, (0.5, 0.6)) == pytest.approx(0.1 * 0.3 + 0.3 * 0.2)
    assert hypervolume(q, u, (0.9, 0.6)) == 0.0
    assert hypervolume(np.array([]), np.array([]), (0.5, 0.6)) == 0.0


def test_points_without_a_figure_add_nothing() -> None:
    q, u = np.array([0.6, np.nan]), np.array([0.1, np.nan])
    assert hypervolume(q, u, (0.5, 0.6)) == pytest.approx(0.1 * 0.5)


def test_best_quality_under_a_limit() -> None:
    q, u = np.array([0.6, 0.8, 0.7]), np.array([0.1, 0.4, 0.2])
    assert best_quality(q, u, 0.25) == 2
    assert best_quality(q, u, 0.05) is None
