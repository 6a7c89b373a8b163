"""Sides of a run's division: a record pays for one of them in each run, and for all runs together."""

from __future__ import annotations

from pathlib import Path

import pytest

from accountant import Accountant, Budget, Gaussian, Ledger
from accountant.audit import audit
from accountant.bounds import spent
from accountant.budget import BudgetExceeded
from accountant.errors import InputError
from accountant.events import Composed, Repeated
from accountant.spending import TEST, TRAIN, Spend, is_side, side_group
from accountant.worst_case import released_epsilon

DELTA = 1e-5
TRAINING, TESTING = Gaussian(9.0), Gaussian(2.5)


def run_of(name: str, dataset: str = "people", client: str = "north") -> list[Spend]:
    return [
        Spend(dataset, TRAINING, client, side_group(name, TRAIN), "updates", name, 0, 20),
        Spend(dataset, TESTING, client, side_group(name, TEST), "evaluation", name),
    ]


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_one_run_costs_the_larger_of_its_sides(method: str) -> None:
    accountant = Accountant()
    for row in run_of("a"):
        accountant.compose(row.event, row.count, client=row.client, group=row.group, channel=row.channel)
    each = [spent(Repeated(TRAINING, 20), DELTA, method).epsilon, spent(TESTING, DELTA, method).epsilon]
    assert accountant.epsilon(DELTA, method) == pytest.approx(max(each), rel=1e-9)
    assert accountant.by_group(DELTA) == {}  # a side is no group of people


def test_several_runs_add_up_whatever_side_a_record_was_on() -> None:
    """Never the larger of two sums: a record can be trained on in one run and tested on in the next."""
    mixed = [
        Spend("people", TRAINING, "north", side_group("a", TRAIN), "updates", "a", 0, 20),
        Spend("people", TESTING, "north", side_group("b", TEST), "evaluation", "b"),
    ]
    together = spent(Composed((Repeated(TRAINING, 20), TESTING)), DELTA, "rdp").epsilon
    assert released_epsilon(mixed, DELTA, with_pld=False).rdp == pytest.approx(together, rel=1e-6)
    both = released_epsilon([*run_of("a"), *run_of("b")], DELTA, with_pld=False).rdp
    assert both >= together
    assert both == pytest.approx(spent(Repeated(TRAINING, 40), DELTA, "rdp").epsilon, rel=1e-6)


def test_a_row_without_a_side_is_paid_for_by_both() -> None:
    old = Spend("people", TESTING, "north", "", "evaluation", "a")
    found = released_epsilon([run_of("a")[0], old], DELTA, with_pld=False).rdp
    assert found == pytest.approx(spent(Composed((Repeated(TRAINING, 20), TESTING)), DELTA, "rdp").epsilon, rel=1e-6)


def test_a_budget_counts_the_larger_side_of_each_run(tmp_path: Path) -> None:
    budget = Budget(9.0, DELTA)
    one = max(budget.cost(TRAINING, 20), budget.cost(TESTING))
    times = int(budget.capacity / one)
    assert times >= 2
    with Ledger(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger:
        ledger.set_budget("people", budget)
        for number in range(times):
            for row in run_of(f"run {number}"):
                ledger.reserve([row])
        with pytest.raises(BudgetExceeded):
            ledger.reserve(run_of("one more"))
        ledger.reserve([Spend("people", Gaussian(1e4), "south", "", "counts", "other")])
        report = audit(ledger)
    (dataset,) = report.datasets
    assert report.verified
    assert dataset.by_group == ()


def test_a_changed_attribute_may_move_a_record_to_the_other_side() -> None:
    """The removal from one side and the addition to the other are both paid for."""
    rows = [*run_of("a"), *(Spend("people", Gaussian(50.0), "north", f"sex={g}", "predictions", "a") for g in "FM")]
    accountant = Accountant()
    for row in rows:
        accountant.compose(row.event, row.count, client=row.client, group=row.group, channel=row.channel)
    change = accountant.spent_on_changing_group("north", "sex=F", "sex=M", DELTA).epsilon
    moved = Composed((Repeated(TRAINING, 20), TESTING, Gaussian(50.0), Gaussian(50.0)))
    assert change >= spent(moved, DELTA, "rdp").epsilon * (1 - 1e-9)


def test_a_side_is_train_or_test() -> None:
    with pytest.raises(InputError, match="side must be one of"):
        side_group("a", "validation")
    assert is_side(side_group("a", TEST))
    assert not is_side("sex=F")
