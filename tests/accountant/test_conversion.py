"""RDP to (ε, δ) and back, against dp-accounting, closed forms and each other."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.bounds import best_order, spent_by_rdp
from accountant.conversion import delta_from_rdp, epsilon_from_rdp, rdp_capacity
from accountant.errors import InputError
from accountant.events import Composed, Gaussian, Laplace, Nothing, NotPrivate, Repeated
from accountant.rdp import DEFAULT_ORDERS, rdp

orders = st.one_of(st.floats(1.001, 1e4), st.just(math.inf))
deltas = st.floats(1e-15, 0.5)


def test_same_as_dp_accounting_on_the_same_curve() -> None:
    from dp_accounting.rdp import rdp_privacy_accountant as oracle

    grid = np.array([o for o in DEFAULT_ORDERS if 1.02 < o < math.inf])
    for scale in (1e-4, 0.01, 0.3, 2.0, 40.0):
        for delta in (1e-12, 1e-5, 0.01):
            ours, order = epsilon_from_rdp(grid, scale * grid, delta)
            theirs, their_order = oracle.compute_epsilon(grid, scale * grid, delta)
            assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-14)
            assert ours == 0 or order == their_order
            ours_delta = delta_from_rdp(grid, scale * grid, 1.0)
            assert ours_delta == pytest.approx(oracle.compute_delta(grid, scale * grid, 1.0)[0], rel=1e-6)


@given(st.floats(0.0, 100.0), deltas, orders)
@settings(max_examples=300, deadline=None)
def test_capacity_is_the_largest_rdp_that_converts_to_the_target(epsilon: float, delta: float, order: float) -> None:
    capacity = rdp_capacity(epsilon, delta, order)
    assert capacity >= 0
    if capacity > 0:
        assert epsilon_from_rdp([order], [capacity], delta)[0] <= epsilon
    if capacity > 1e-6:
        assert epsilon_from_rdp([order], [capacity * (1 + 1e-6) + 1e-6], delta)[0] > epsilon * (1 - 1e-12)


@given(st.floats(1.001, 1e3), st.floats(0.0, 20.0), deltas)
@settings(max_examples=200, deadline=None)
def test_never_below_the_formula_in_high_precision(order: float, value: float, delta: float) -> None:
    with mp.workdps(50):
        a, r, d = mp.mpf(order), mp.mpf(value), mp.mpf(delta)
        exact = r + mp.log1p(-1 / a) - mp.log(a * d) / (a - 1)
        if -mp.expm1(-r) <= d * d:
            exact = mp.mpf(0)
        found = epsilon_from_rdp([order], [value], delta)[0]
        assert found >= max(exact, 0) * (1 - mp.mpf(10) ** -15) - mp.mpf(10) ** -15 or found == 0
        assert found <= max(exact, 0) * (1 + 1e-9) + 1e-9


def test_epsilon_and_delta_are_inverse() -> None:
    curve = rdp(Repeated(Gaussian(3.0), 20))
    epsilon, _ = epsilon_from_rdp(DEFAULT_ORDERS, curve, 1e-6)
    assert delta_from_rdp(DEFAULT_ORDERS, curve, epsilon) == pytest.approx(1e-6, rel=1e-6)


def test_pure_differential_privacy_composes_at_the_infinite_order() -> None:
    two = Composed((Laplace(2.0), Repeated(Laplace(4.0), 2)))
    assert spent_by_rdp(two, 0.0).epsilon == pytest.approx(1.0, rel=1e-9)
    assert spent_by_rdp(two, 1e-30).epsilon <= 1.0 + 1e-9
    assert spent_by_rdp(Gaussian(1.0), 0.0).epsilon == math.inf
    assert spent_by_rdp(Nothing(), 0.0).epsilon == 0.0
    assert spent_by_rdp(NotPrivate(), 0.1).epsilon == math.inf
    assert delta_from_rdp(DEFAULT_ORDERS, rdp(two), 1.001) == 0.0
    assert delta_from_rdp(DEFAULT_ORDERS, rdp(NotPrivate()), 1.0) == 1.0


@pytest.mark.parametrize("multiplier", [0.01, 0.3, 1.0, 30.0, 1e3, 1e5])
def test_the_best_order_is_never_at_the_edge_of_the_grid(multiplier: float) -> None:
    delta = 1e-6
    epsilon, order = best_order(lambda grid: rdp(Gaussian(multiplier), grid), delta)
    dense = 1 + np.geomspace(2.0**-20, 2.0**23, 40_000)
    best = epsilon_from_rdp(dense, dense / (2 * multiplier**2), delta)
    assert epsilon <= best[0] * (1 + 1e-4) + 1e-12
    assert epsilon >= best[0] * (1 - 1e-6)
    if best[0] > 0:
        assert order - 1 == pytest.approx(best[1] - 1, rel=0.2)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"delta must be in \[0, 1\)"):
        epsilon_from_rdp([2.0], [1.0], 1.0)
    with pytest.raises(InputError, match="same length"):
        epsilon_from_rdp([2.0, 3.0], [1.0], 0.1)
    with pytest.raises(InputError, match="above 1"):
        epsilon_from_rdp([1.0], [1.0], 0.1)
    with pytest.raises(InputError, match="at least 0 at every order"):
        epsilon_from_rdp([2.0], [float("nan")], 0.1)
    with pytest.raises(InputError, match="epsilon must be at least 0"):
        delta_from_rdp([2.0], [1.0], -1.0)
    with pytest.raises(InputError, match="order must be above 1"):
        rdp_capacity(1.0, 1e-5, 1.0)
