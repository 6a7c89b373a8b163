from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.audit import audit
from accountant.budget import Budget, BudgetExceeded, Fit, added, costs, require_room, smallest_epsilon, what_fits
from accountant.budget import require_budget_delta as require_delta
from accountant.errors import InputError
from accountant.events import Adjacency, Gaussian, Laplace, NotPrivate, PoissonSampled, Unit
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend, add_up, worst_record
from accountant.worst_case import clients as clients_of


def gaussian_epsilon(order: float, divergence: float, delta: float) -> float:
    """ε from RDP at one order, written down afresh (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


# --- the budget -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-8), (1.0, 1e-5), (3.0, 1e-5), (20.0, 1e-6)])
def test_the_capacity_converts_to_epsilon_and_no_more(epsilon, delta):
    budget = Budget(epsilon, delta)
    at_capacity = gaussian_epsilon(budget.order, budget.capacity, delta)
    assert at_capacity <= epsilon * (1 + 1e-12)
    assert at_capacity == pytest.approx(epsilon, rel=1e-9)
    assert budget.epsilon_at(budget.capacity) <= epsilon
    assert budget.epsilon_at(0.0) == 0.0


def test_a_gaussian_costs_order_over_twice_the_variance():
    budget = Budget(3.0, 1e-5)
    assert budget.cost(Gaussian(4.0, 2.0), 10) == pytest.approx(10 * budget.order * 2.0**2 / (2 * 4.0**2), rel=1e-9)
    assert budget.cost(NotPrivate()) == math.inf


def test_a_larger_budget_keeps_the_order():
    small = Budget(1.0, 1e-5, people=1000)
    large = small.resized(4.0, 1e-6)
    assert (large.order, large.people) == (small.order, 1000)
    assert gaussian_epsilon(small.order, large.capacity, 1e-6) == pytest.approx(4.0, rel=1e-9)


def test_a_budget_survives_json_and_its_numbers_bit_for_bit():
    budget = Budget(0.7, 1e-7, Adjacency.REPLACE_ONE, Unit.CLIENT, people=12)
    assert Budget.from_json(budget.to_json()) == budget


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "epsilon must be above 0"),
        ({"epsilon": math.inf}, "epsilon must be finite"),
        ({"delta": 0}, "delta must be above 0"),
        ({"delta": 1.0}, "delta must be below 1"),
        ({"people": 100_000}, "delta must be below 1/100000"),
        ({"people": 0}, "people must be a whole number"),
        ({"order": 1.0}, "order must be above 1"),
        ({"order": 1.001}, "order must leave room"),
        ({"adjacency": "remove"}, "adjacency must be one of"),
        ({"unit": "person"}, "unit must be one of"),
    ],
)
def test_budgets_that_promise_nothing_are_refused(change, message):
    with pytest.raises(InputError) as error:
        Budget(**{"epsilon": 1.0, "delta": 1e-5, **change})
    assert message in str(error.value)


def test_delta_must_be_below_one_over_the_released_count():
    assert require_delta(1e-5, 99_999) == 1e-5
    with pytest.raises(InputError, match="publishing somebody's record"):
        require_delta(1e-5, 100_000)


# --- who pays ---------------------------------------------------------------------------------------------------

clients = st.sampled_from(["", "north", "south"])
groups = st.sampled_from(["", "sex=F", "sex=M", "race=A", "race=B", "race=C"])
# Without subnormal amounts, which have too few digits to be compared to 1e-12 after rounding up.
amounts = st.floats(0.0, 10.0, allow_subnormal=False)
spending = st.dictionaries(st.tuples(clients, groups), amounts, max_size=12)


@given(spending)
@settings(max_examples=200, deadline=None)
def test_the_worst_record_is_the_worst_of_all_possible_records(spent):
    """Every record there can be: a client, and one group (or none) of each attribute."""
    best = 0.0
    for client, sex, race in product(["north", "south"], ["", "sex=F", "sex=M"], ["", "race=A", "race=B", "race=C"]):
        paid = [spent.get(payer, 0.0) for payer in product(["", client], {"", sex, race})]
        best = max(best, math.fsum(paid))
    found, client, its_groups = worst_record(spent)
    assert found == pytest.approx(best, rel=1e-12, abs=0)
    own = [spent.get(payer, 0.0) for payer in product({"", client}, {"", *its_groups})]
    assert math.fsum(own) == pytest.approx(found, rel=1e-12, abs=0)


@given(spending)
@settings(max_examples=200, deadline=None)
def test_the_kinds_of_records_contain_the_worst_record(spent):
    everyone = clients_of(spent)
    kinds = [math.fsum(spent[payer] for payer in payers) for client in everyone for payers in client.records()]
    assert max(kinds) == pytest.approx(worst_record(spent)[0], rel=1e-12, abs=0)
    assert len(kinds) == sum(client.kinds for client in everyone)
    largest = [client.largest(lambda payer: np.array([spent[payer]]), 1)[0] for client in everyone]
    assert max(largest) == pytest.approx(max(kinds), rel=1e-12, abs=0)


@given(spending, st.sets(st.tuples(clients, groups), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_the_worst_touched_record_is_the_worst_of_those_that_a_request_touches(spent, touched):
    spent = {**dict.fromkeys(touched, 0.0), **spent}
    best = 0.0
    for client, sex, race in product(["north", "south"], ["", "sex=F", "sex=M"], ["", "race=A", "race=B", "race=C"]):
        own = set(product(["", client], {"", sex, race}))
        if own & touched:
            best = max(best, math.fsum(spent.get(payer, 0.0) for payer in own))
    assert worst_record(spent, touched)[0] == pytest.approx(best, rel=1e-12, abs=0)


@given(st.lists(st.floats(0, 1e300), max_size=20))
@settings(max_examples=200, deadline=None)
def test_sums_are_never_rounded_down(amounts):
    assert add_up(*amounts) >= math.fsum(amounts)


def test_groups_do_not_separate_where_whole_clients_are_protected():
    event = Gaussian(1.0, unit=Unit.CLIENT)
    assert Spend("d", event, client="c", group="sex=F").payer == ("c", "")


# --- what fits --------------------------------------------------------------------------------------------------


def test_twelve_of_forty_rounds_fit():
    budget = Budget(1.0, 1e-5)
    noise = math.sqrt(12.5 * budget.order / (2 * budget.capacity))  # twelve and a half releases fill it
    spends = [Spend("d", Gaussian(noise), client=c, round=r) for r in range(40) for c in ("a", "b")]
    assert str(what_fits(budget, {}, spends)) == "12 of 40 rounds fit"
    assert what_fits(budget, {("b", ""): budget.capacity / 2}, spends).fits == 6
    one_event = [Spend("d", Gaussian(noise), count=40)]
    assert str(what_fits(budget, {}, one_event)) == "12 of 40 releases fit"


def test_what_is_released_once_is_counted_before_the_rounds():
    budget = Budget(1.0, 1e-5)
    noise = math.sqrt(12.5 * budget.order / (2 * budget.capacity))
    once = Spend("d", Gaussian(noise / math.sqrt(5)), channel="counts")
    spends = [once] + [Spend("d", Gaussian(noise), round=r) for r in range(40)]
    assert what_fits(budget, {}, spends) == Fit(7, 40, "rounds")


def test_groups_share_a_round_but_not_their_cost():
    budget = Budget(1.0, 1e-5)
    noise = math.sqrt(12.5 * budget.order / (2 * budget.capacity))
    by_sex = [Spend("d", Gaussian(noise), group=f"sex={g}", round=r) for r in range(40) for g in "FM"]
    assert what_fits(budget, {}, by_sex).fits == 12
    crossed = [Spend("d", Gaussian(noise), group=g, round=r) for r in range(40) for g in ("sex=F", "race=B")]
    assert what_fits(budget, {}, crossed).fits == 6


def test_the_refusal_tells_what_is_left_and_what_would_fit():
    budget = Budget(1.0, 1e-5)
    noise = math.sqrt(10.5 * budget.order / (2 * budget.capacity))
    spends = [Spend("patients", Gaussian(noise), client="north", round=r) for r in range(40)]
    spent = {("north", ""): budget.capacity / 2, ("south", ""): budget.capacity * 0.9}
    with pytest.raises(BudgetExceeded) as caught:
        require_room("patients", budget, spent, added(spent, costs(budget, spends)), spends)
    error = caught.value
    assert error.left == pytest.approx(budget.capacity / 2)
    assert error.fit == Fit(5, 40, "rounds")
    for part in ("'patients'", "ε = 1, δ = 1e-05", "client 'north'", "50%", "5 of 40 rounds fit", "budget raised"):
        assert part in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.fit, copy.left) == (str(error), error.fit, error.left)


@given(
    st.lists(
        st.tuples(
            st.floats(0.5, 50.0),
            st.floats(0.01, 1.0),
            st.sampled_from(["", "north", "south"]),
            st.sampled_from(["", "sex=F", "sex=M"]),
            st.integers(1, 30),
        ),
        min_size=1,
        max_size=25,
    )
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_asked_no_record_ever_exceeds_the_budget(tmp_path_factory, asked):
    """Adaptive spending by trial: each request is made whether or not the last was refused."""
    budget = Budget(2.0, 1e-5)
    granted: list[Spend] = []
    with Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/l.sqlite") as ledger:
        ledger.set_budget("d", budget)
        for noise, rate, client, group, count in asked:
            event = PoissonSampled(rate, Gaussian(noise)) if rate < 0.5 else Laplace(noise)
            spend = Spend("d", event, client=client, group=group, count=count)
            fits = ledger.what_fits([spend]).fits
            if fits < count:
                with pytest.raises(BudgetExceeded, match=f"{fits} of {count} releases fit"):
                    ledger.reserve([spend])
            if fits:
                granted.append(replace(spend, count=fits))
                ledger.reserve([granted[-1]])
    for client, group in product(["north", "south"], ["sex=F", "sex=M"]):
        paid = [s for s in granted if s.client in ("", client) and s.group in ("", group)]
        divergence = math.fsum(budget.cost(s.event) * s.count for s in paid)
        assert divergence <= budget.capacity
        assert not paid or gaussian_epsilon(budget.order, divergence, budget.delta) <= budget.epsilon


# --- promises that do not fit each other ----------------------------------------------------------------------------


def test_a_stated_capacity_cannot_be_larger_than_epsilon_and_delta_allow():
    honest = Budget(1.0, 1e-5)
    assert Budget(1.0, 1e-5, order=honest.order, capacity=honest.capacity) == honest
    assert Budget(1.0, 1e-5, order=honest.order, capacity=honest.capacity / 2).capacity == honest.capacity / 2
    for factor in (1 + 1e-9, 2, 1e9):
        with pytest.raises(InputError, match="capacity must be at most"):
            Budget(1.0, 1e-5, order=honest.order, capacity=honest.capacity * factor)


def test_a_budget_in_the_chain_with_too_large_a_capacity_is_reported_and_held_to_its_epsilon(tmp_path, monkeypatch):
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        with monkeypatch.context() as patched:
            patched.setattr("accountant.budget._require_honest", lambda _: None)
            ledger.set_budget("d", Budget(1.0, 1e-5, capacity=1e9))
            ledger.reserve([Spend("d", Gaussian(0.5))])
        report = audit(ledger, pld=False)
    assert "sets a budget that allows more than it says" in str(report.problems[0])
    assert report.datasets[0].exceeded
    assert report.datasets[0].state.budget == Budget(1.0, 1e-5)


def test_a_budget_is_not_lowered_to_what_its_order_cannot_express():
    budget = Budget(8.0, 1e-5)
    least = smallest_epsilon(1e-5, budget.order)
    assert gaussian_epsilon(budget.order, 0.0, 1e-5) == pytest.approx(least)
    with pytest.raises(InputError, match=f"epsilon must be above {least:.4g}"):
        budget.resized(least * 0.99, 1e-5)
    assert budget.resized(least * 1.01, 1e-5).capacity > 0


def test_a_mistaken_budget_can_be_set_right_until_something_was_released(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        ledger.set_budget("d", Budget(30.0, 1e-6, people=1000))
        assert ledger.set_budget("d", Budget(3.0, 1e-6)) == Budget(3.0, 1e-6, people=1000)
        ledger.reserve([Spend("d", Gaussian(20.0), client="a")])
        assert ledger.set_budget("d", Budget(8.0, 1e-6)).order == Budget(3.0, 1e-6).order
        (found,) = audit(ledger, pld=False).datasets
        assert found.burn_down[-1].left == found.left


def test_a_request_is_not_refused_for_what_another_client_has_used_up(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        ledger.reserve([Spend("d", NotPrivate(), client="a", group="sex=F")])
        ledger.set_budget("d", Budget(3.0, 1e-5))
        assert ledger.what_fits([Spend("d", Gaussian(20.0), client="b")]).fits == 1
        ledger.reserve([Spend("d", Gaussian(20.0), client="b")])
        ledger.reserve([Spend("d", Gaussian(20.0), client="a", group="sex=M")])
        for spend in (Spend("d", Gaussian(20.0), client="a"), Spend("d", Gaussian(20.0))):
            with pytest.raises(BudgetExceeded, match="for client 'a', group sex=F: 0%") as error:
                ledger.reserve([spend])
            assert "nan" not in str(error.value)
            assert (error.value.left, error.value.fit.fits) == (0.0, 0)
