"""Noise in shares in the ledger: an event that costs what the sum costs, and knows what one share alone would cost."""

from __future__ import annotations

import json

import pytest

from accountant import Budget, Ledger, epsilon
from accountant.audit import audit
from accountant.errors import InputError
from accountant.events import Composed, Event, Gaussian, InShares, PoissonSampled, Repeated, Unit, as_replaced, unshared
from accountant.spending import Spend

SUM, ALONE = PoissonSampled(0.3, Gaussian(6.0)), PoissonSampled(0.3, Gaussian(2.0))
SHARED = InShares(SUM, ALONE, 10, 3, 9)


def test_it_is_read_back_from_its_json() -> None:
    assert Event.from_json(json.loads(json.dumps(SHARED.to_json()))) == SHARED


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_it_costs_what_the_sum_costs_however_it_is_composed(method: str) -> None:
    many = Composed((Repeated(SHARED, 20), SHARED))
    assert epsilon(many, delta=1e-5, method=method) == epsilon(Repeated(SUM, 21), delta=1e-5, method=method)
    beyond = epsilon(unshared(many), delta=1e-5, method=method)
    assert beyond == epsilon(Repeated(ALONE, 21), delta=1e-5, method=method)
    assert beyond > epsilon(many, delta=1e-5, method=method)


def test_both_events_follow_a_change_of_neighbours() -> None:
    replaced = as_replaced(SHARED)
    assert isinstance(replaced, InShares)
    assert (replaced.event, replaced.alone) == (as_replaced(SUM), as_replaced(ALONE))


def test_events_of_different_neighbours_or_impossible_cohorts_are_refused() -> None:
    with pytest.raises(InputError, match="must speak of the same neighbours"):
        InShares(Gaussian(6.0), Gaussian(2.0, unit=Unit.CLIENT), 10, 3, 9)
    with pytest.raises(InputError, match="smallest must be above the colluders, 9, and at most the holders, 10"):
        InShares(SUM, ALONE, 10, 9, 9)


def test_a_budget_counts_it_and_an_audit_says_whom_it_is_for(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    with Ledger(url) as ledger:
        ledger.set_budget("clinic", Budget(2.0, 1e-5))
        ledger.reserve([Spend("clinic", SHARED, "a", "", "updates", "run", 0, 5)])
        rows = [spend for _, spend in ledger.spends(run="run")]
        assert rows[0].event == SHARED
        found = audit(ledger).datasets[0]
    assert found.epsilon is not None
    assert found.collusion is not None
    assert found.collusion.cohorts == ((10, 3, 9),)
    assert found.epsilon.rdp == pytest.approx(epsilon(Repeated(SUM, 5), delta=1e-5, method="rdp"), rel=1e-6)
    assert found.collusion.beyond is not None
    expected = epsilon(Repeated(ALONE, 5), delta=1e-5, method="rdp")
    assert found.collusion.beyond.rdp == pytest.approx(expected, rel=1e-6)
