from __future__ import annotations

import math
import pickle
import re

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.budget import (
    Budget,
    BudgetExceeded,
    Remaining,
    added,
    costs,
    noise_that_fits,
    remaining,
    require_room,
    rounded_down,
    rounded_up,
)
from accountant.calibration import calibrate_release
from accountant.events import DiscreteLaplace, Gaussian, Laplace, NotPrivate, PoissonSampled
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend

budgets = st.builds(Budget, st.floats(0.1, 20.0), st.sampled_from([1e-4, 1e-6, 1e-9]))


def fits(budget: Budget, spent: float, *spends: Spend) -> bool:
    before = {("", ""): spent}
    try:
        require_room("d", budget, before, added(before, costs(budget, spends)), spends)
    except BudgetExceeded:
        return False
    return True


@given(budgets, st.floats(0.0, 0.999), st.floats(0.05, 1.0), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_what_is_told_to_fit_is_admitted_by_the_filter(budget, share, part, count):
    """Noise calibrated by other code to the ε that is printed, in one release or in several."""
    spent = share * budget.capacity
    room = budget.remaining(spent)
    pure = float(rounded_down(room.pure)) * part
    assert fits(budget, spent, Spend("d", Laplace(1 / pure)))
    assert fits(budget, spent, Spend("d", Laplace(count / pure), count=count))
    assert fits(budget, spent, Spend("d", PoissonSampled(0.3, Laplace(1 / math.log1p(math.expm1(pure) / 0.3)))))
    assert fits(budget, spent, Spend("d", DiscreteLaplace(1 / pure)))
    if gaussian := float(rounded_down(room.gaussian)) * part:
        one = calibrate_release(Gaussian(1.0), gaussian, budget.delta)
        assert fits(budget, spent, Spend("d", one))
        assert fits(budget, spent, Spend("d", Gaussian(one.noise_scale * math.sqrt(count)), count=count))


@given(budgets, st.floats(0.0, 0.99))
@settings(max_examples=40, deadline=None)
def test_with_gaussian_noise_hardly_more_would_fit(budget, share):
    spent = share * budget.capacity
    more = budget.remaining(spent).gaussian * 1.001
    if more:
        assert not fits(budget, spent, Spend("d", calibrate_release(Gaussian(1.0), more, budget.delta)))


def test_the_gaussian_epsilon_is_that_of_its_exact_profile():
    """By mpmath: δ of the Gaussian release that costs all that is left."""
    left, order, delta = 0.723425, 9.0, 1e-6
    with mpmath.workdps(40):
        shift = mpmath.sqrt(2 * mpmath.mpf(left) / order)
        found = mpmath.findroot(
            lambda e: (
                mpmath.ncdf(shift / 2 - e / shift) - mpmath.exp(e) * mpmath.ncdf(-shift / 2 - e / shift)
            ) / delta - 1,
            (1.0, 2.0), solver="anderson",
        )  # fmt: skip
    assert remaining(left, order, delta).gaussian == pytest.approx(float(found), rel=1e-5)
    assert remaining(left, order, delta).gaussian < float(found)


def test_nothing_fits_where_nothing_is_left():
    for left in (0.0, -1.0, -math.inf):
        assert remaining(left, 9.0, 1e-6) == Remaining(0.0, 0.0)


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [(1.7709, "1.77", "1.78"), (0.15679, "0.156", "0.157"), (2.0, "2", "2"), (0.0, "0", "0"), (12.345, "12.3", "12.4")],
)
def test_what_fits_is_rounded_down_and_what_was_spent_up(value, down, up):
    assert (rounded_down(value), rounded_up(value)) == (down, up)


def refusal(budget: Budget, spent: float, *spends: Spend) -> BudgetExceeded:
    before = {("", ""): spent}
    with pytest.raises(BudgetExceeded) as caught:
        require_room("d", budget, before, added(before, costs(budget, spends)), spends)
    return caught.value


def test_the_refusal_is_said_in_epsilon():
    budget = Budget(3.0, 1e-6)
    spent = budget.capacity - 0.110634
    spends = [Spend("d", Gaussian(2.0), round=number) for number in range(2)]
    error = refusal(budget, spent, *spends)
    assert error.noise_factor == pytest.approx(math.sqrt(2.25 / 0.110634), rel=0.012)  # 1% and half a hundredth
    assert str(error) == (
        "Dataset 'd': the budget (ε = 3, δ = 1e-06) does not allow this. Left in all: 6.64% (Rényi divergence "
        "0.110634 of 1.6655 at order 9); asked: 2.25. In ε at this δ and order: 2.89 of 3 is spent, and this would "
        "make it 5.14. What certainly fits, taken together: ε of at most 0.156 with δ = 0, or ε of at most 0.642 at "
        "δ = 1e-06 by Gaussian noise on all records (on samples of them about that, but not certainly); or all of "
        f"this with {error.noise_factor:.2f} times the noise. 0 of 2 rounds fit. Ask for less, add more noise, or have "
        "the budget raised."
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    more = [Spend("d", Gaussian(2.0 * error.noise_factor), round=number) for number in range(2)]
    assert fits(budget, spent, *more)


def test_the_refusal_when_nothing_is_left():
    budget = Budget(3.0, 1e-6)
    assert "3 of 3 is spent, and this would make it 4.13. Nothing more fits." in str(
        refusal(budget, budget.capacity, Spend("d", Gaussian(2.0)))
    )
    reported = str(refusal(budget, math.inf, Spend("d", Gaussian(2.0))))
    assert "∞ of 3 is spent, and this would make it ∞. Nothing more fits." in reported
    reported = str(refusal(budget, 0.0, Spend("d", NotPrivate())))
    assert "In ε at this δ and order: 0 of 3 is spent, and this would make it ∞." in reported
    assert "times the noise" not in reported


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Gaussian(1.0), Laplace(2.0), PoissonSampled(0.1, Gaussian(0.7)), DiscreteLaplace(3.0)]),
            st.sampled_from(["", "a", "b"]),
            st.sampled_from(["", "sex=F", "sex=M"]),
            st.integers(1, 20),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=20, deadline=None)
def test_the_noise_that_is_told_to_fit_fits_and_a_little_less_does_not(asked):
    from accountant.calibration import scale_noise

    budget, before = Budget(0.5, 1e-5), {("a", ""): 0.01}

    def admitted(factor: float) -> bool:
        spends = [Spend("d", scale_noise(event, factor), c, g, count=count) for event, c, g, count in asked]
        try:
            require_room("d", budget, before, added(before, costs(budget, spends)), spends)
        except BudgetExceeded:
            return False
        return True

    factor = noise_that_fits(budget, before, [Spend("d", event, c, g, count=count) for event, c, g, count in asked])
    if factor is None:
        assert not admitted(32)
    else:
        assert admitted(factor)
        assert factor <= 1.01 or not admitted(factor * 0.97 - 0.01)


def test_a_run_that_is_told_to_fit_is_let_into_the_ledger(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        ledger.set_budget("d", Budget(3.0, 1e-6))
        ledger.reserve([Spend("d", Gaussian(2.0))])
        with pytest.raises(BudgetExceeded) as caught:
            ledger.reserve([Spend("d", Gaussian(1.0))])
        found = re.search(r"ε of at most (\S+) at δ = 1e-06 by Gaussian noise", str(caught.value))
        ledger.reserve([Spend("d", calibrate_release(Gaussian(1.0), float(found[1]), 1e-6))])
