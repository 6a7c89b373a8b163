"""Adaptive spending: why optimal composition is not enough, and that a budget's Rényi filter is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import accountant
from accountant.budget import Budget, choose_order, what_fits
from accountant.conversion import epsilon_from_rdp, rdp_capacity
from accountant.errors import InputError
from accountant.events import Composed, Event, Gaussian, Laplace, Nothing, NotPrivate, PoissonSampled
from accountant.rdp import rdp
from accountant.spending import Spend

EPSILON, DELTA = 1.0, 1e-5
FIRST = Gaussian(5.0)


def hockey_stick(event: Event, epsilon: np.ndarray) -> np.ndarray:
    """δ(ε) of one Gaussian or Laplace release, from textbook formulas, for ε of either sign."""
    if isinstance(event, Gaussian):
        z = event.noise_scale
        return norm.cdf(0.5 / z - epsilon * z) - np.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)
    assert isinstance(event, Laplace)
    s = 1 / event.noise_scale
    inside = np.maximum(0.0, -np.expm1(np.minimum(0.0, (epsilon - s) / 2)))
    return np.where(epsilon < -s, -np.expm1(epsilon), inside)


def true_delta(*follow_ups: Event) -> float:
    """δ at EPSILON of FIRST and then, seeing its output, the worst of the follow-ups.

    Given the first output with loss l, the rest must pay for ε − l: δ = E max_f δ_f(ε − l), l ~ N(1/2z², 1/z²).
    """
    x = np.linspace(-12.0, 12.0, 100_001)
    z = FIRST.noise_scale
    loss = 0.5 / z**2 + x / z
    worst = np.max([hockey_stick(event, EPSILON - loss) for event in follow_ups], axis=0)
    return float(np.trapezoid(worst * norm.pdf(x), x))


def least_noise(kind: type[Gaussian] | type[Laplace]) -> Event:
    """The follow-up of this kind that together with FIRST has δ just below DELTA."""
    low, high = 0.5, 1e3
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if true_delta(kind(middle)) <= DELTA else (middle, high)
    return kind(high)


def fits(budget: Budget, spent: float, event: Event) -> bool:
    return how_many_fit(budget, spent, event, 1) == 1


def how_many_fit(budget: Budget, spent: float, event: Event, asked: int) -> int:
    return what_fits(budget, {("", ""): spent}, [Spend("people", event, count=asked)]).fits


def test_choosing_between_two_affordable_follow_ups_breaks_delta_and_the_filter_refuses_it() -> None:
    gaussian, laplace = least_noise(Gaussian), least_noise(Laplace)
    for follow_up in (gaussian, laplace):  # each plan alone, fixed beforehand, meets the target
        assert true_delta(follow_up) <= DELTA
        assert accountant.epsilon(Composed((FIRST, follow_up)), DELTA, "pld") <= EPSILON * 1.001
    assert true_delta(gaussian, laplace) > 1.5 * DELTA  # choosing after the first output does not

    budget = Budget(EPSILON, DELTA)
    spent = budget.cost(FIRST)
    assert fits(budget, 0.0, FIRST)
    assert not fits(budget, spent, gaussian)
    assert not fits(budget, spent, laplace)


def test_whatever_is_chosen_among_releases_that_fit_the_filter_meets_delta() -> None:
    budget = Budget(EPSILON, DELTA)
    spent = budget.cost(FIRST)
    fitting: list[Event] = []
    for kind in (Gaussian, Laplace):
        scale = 1.0
        while not fits(budget, spent, kind(scale)):
            scale *= 1.01
        fitting.append(kind(scale))
    adaptive = true_delta(*fitting)
    assert max(true_delta(event) for event in fitting) < adaptive <= DELTA


@given(st.floats(0.01, 20.0), st.floats(1e-10, 1e-2))
@settings(max_examples=50, deadline=None)
def test_everything_a_filter_lets_through_converts_to_the_budget(epsilon: float, delta: float) -> None:
    budget = Budget(epsilon, delta)
    event = PoissonSampled(0.1, Gaussian(1.0))
    count = how_many_fit(budget, 0.0, event, 10**6)
    if count > 0:
        assert fits(budget, (count - 1) * budget.cost(event) * (1 - 1e-12), event)
    assert epsilon_from_rdp([budget.order], [count * budget.cost(event)], delta)[0] <= epsilon
    assert (count + 1) * budget.cost(event) > budget.capacity


def test_the_order_depends_on_the_budget_alone_and_is_a_good_one() -> None:
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (3.0, 1e-5), (10.0, 1e-8)):
        order = choose_order(epsilon, delta)
        assert order == choose_order(epsilon, delta)
        most = max(rdp_capacity(epsilon, delta, a) / a for a in 1 + np.geomspace(1e-2, 1e4, 1500))
        assert rdp_capacity(epsilon, delta, order) / order >= 0.999 * most
    assert choose_order(1.0, 0.0) == math.inf


def test_what_is_left_and_what_fits() -> None:
    budget = Budget(3.0, DELTA, order=8.0, capacity=1.0)
    event = Gaussian(4.0)  # costs 8/32 = 0.25
    assert budget.cost(event) == pytest.approx(0.25)
    assert how_many_fit(budget, 0.0, event, 9) == 3  # four would exceed it by rounding, which goes to the private side
    assert how_many_fit(budget, 0.6, event, 9) == 1
    assert how_many_fit(budget, 2.0, event, 9) == 0
    assert how_many_fit(budget, 0.9, Nothing(), 9) == 9
    assert how_many_fit(budget, 0.0, NotPrivate(), 9) == 0
    assert budget.remaining(2.0).pure == budget.remaining(2.0).gaussian == 0.0
    assert budget.remaining(0.6).pure == pytest.approx(0.4)
    assert budget.cost(event) == rdp(event, (8.0,))[0]


def test_bad_filters_are_refused() -> None:
    with pytest.raises(InputError, match="order must be above 1"):
        Budget(3.0, DELTA, order=1.0)
    with pytest.raises(InputError, match="capacity must be finite"):
        Budget(3.0, DELTA, order=2.0, capacity=float("nan"))
