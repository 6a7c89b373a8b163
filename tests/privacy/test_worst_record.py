"""The worst record's ε is one figure, whoever asks: the accountant, a run's statement or an audit of the ledger."""

from __future__ import annotations

import math
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.accountant import Accountant
from accountant.audit import DatasetAudit, Line, audit
from accountant.events import (
    Adjacency,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Neighbouring,
    PoissonSampled,
    Unit,
)
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import not_remembered
from accountant.spending import Spend, attribute_of
from accountant.worst_case import released_epsilon
from privfair.privacy.statement import _changes, _table, account

DELTA = 1e-5
RECORDS = Neighbouring(Adjacency.ADD_OR_REMOVE, Unit.RECORD)

events = st.sampled_from(
    [
        Gaussian(1.5),
        Gaussian(4.0),
        Laplace(8.0),
        DiscreteLaplace(12.0, 2),
        PoissonSampled(0.1, Gaussian(1.1)),
        PoissonSampled(0.3, Gaussian(1.1)),
        PoissonSampled(0.2, DiscreteGaussian(40.0, 16, step=1 / 16)),
    ]
)
groups = st.sampled_from(
    ["", "sex=F", "sex=M", "race=A", "race=B", "race=C", "sex,label=F,0", "sex,label=F,1", "sex,label=M,1"]
)
rows = st.builds(
    Spend,
    st.just("people"),
    events,
    client=st.sampled_from(["", "north", "south", "west"]),
    group=groups,
    channel=st.sampled_from(["counts", "updates"]),
    run=st.just("r1"),
    round=st.none() | st.integers(0, 2),
    count=st.sampled_from([1, 2, 7, 30]),
)
workloads = st.lists(rows, min_size=1, max_size=12)


def audited(spends: list[Spend], *, pld: bool) -> DatasetAudit:
    with tempfile.TemporaryDirectory() as folder, not_remembered(), Ledger(f"sqlite:///{folder}/l.sqlite") as ledger:
        ledger.record_past(spends)
        return audit(ledger, delta=DELTA, pld=pld).datasets[0]


def by_rdp(lines: tuple[Line, ...]) -> dict[str, float]:
    return {line.name: line.epsilon.rdp for line in lines if line.name and line.epsilon is not None}


def close(values: dict[str, float]) -> object:
    return pytest.approx(values, rel=1e-9, abs=0)  # they add the same numbers up in different orders


@given(workloads)
@settings(max_examples=60, deadline=None)
def test_accountant_statement_and_audit_have_the_same_epsilon(spends: list[Spend]) -> None:
    accountant, report = account(spends, RECORDS), audited(spends, pld=False)
    assert report.epsilon is not None
    total = accountant.epsilon(DELTA)
    assert total == pytest.approx(report.epsilon.rdp, rel=1e-9, abs=0)
    assert released_epsilon(spends, DELTA, with_pld=False).rdp == report.epsilon.rdp  # bit for bit
    assert {k: v for k, v in accountant.by_client(DELTA).items() if k} == close(by_rdp(report.by_client))
    assert accountant.by_group(DELTA) == close(by_rdp(report.by_group))
    assert accountant.by_channel(DELTA) == close(by_rdp(report.by_channel))
    assert max(accountant.by_client(DELTA).values()) == pytest.approx(total, rel=1e-9, abs=0)


@given(workloads)
@settings(max_examples=30, deadline=None)
def test_a_change_of_group_costs_the_statement_no_more_than_the_audit(spends: list[Spend]) -> None:
    """The audit takes the two costliest groups at every order, the statement one pair of groups after the other."""
    found, bound = _changes(account(spends, RECORDS), DELTA), by_rdp(audited(spends, pld=False).changing)
    pairs = {attribute: {s.group for s in spends if attribute_of(s.group) == attribute} for attribute in bound}
    for attribute, value in found.items():
        assert value is not None
        assert value <= bound[attribute] * (1 + 1e-9)
        if len(pairs[attribute]) == 2 and all(s.client for s in spends):
            assert value == pytest.approx(bound[attribute], rel=1e-9, abs=0)


@given(workloads)
@settings(max_examples=8, deadline=None)
def test_the_three_agree_by_privacy_loss_distributions(spends: list[Spend]) -> None:
    accountant = account(spends, RECORDS)
    of_rows, report = released_epsilon(spends, DELTA), audited(spends, pld=True)
    strict = accountant.epsilon(DELTA, "pld")
    assert of_rows.pld is not None
    assert report.epsilon is not None
    assert of_rows.pld <= strict * (1 + 1e-6)  # the smaller of both bounds for every record
    assert of_rows.pld >= min(0.99 * strict, of_rows.rdp) * (1 - 1e-6)
    if not report.rdp_for_pld:
        assert report.epsilon == of_rows
    table = _table(accountant.by_client(DELTA), lambda name, method: accountant.epsilon(DELTA, method, client=name))
    assert max(row["pld"] for row in table.values()) == pytest.approx(strict, rel=1e-6)


def test_equal_rows_have_one_epsilon_in_whatever_order_they_were_written() -> None:
    spends = [
        Spend("people", event, client=client, group=group)
        for event in (Gaussian(3.0), Laplace(8.0), PoissonSampled(0.1, Gaussian(1.1)), DiscreteLaplace(12.0, 2))
        for client, group in (("north", "sex=F"), ("south", ""), ("", "race=A"))
    ]
    found = {released_epsilon(order, DELTA) for order in (spends, spends[::-1], spends[5:] + spends[:5])}
    assert len(found) == 1
    assert math.isfinite(found.pop().rdp)


def test_too_many_kinds_of_records_are_bounded_by_their_largest_curve() -> None:
    spends = [
        Spend("people", Gaussian(30.0 + a + len(value)), client="north", group=f"a{a}={value}")
        for a in range(11)
        for value in ("x", "yy", "zzz")
    ]
    accountant, report = account(spends, RECORDS), audited(spends, pld=True)
    assert report.epsilon is not None
    assert report.rdp_for_pld
    assert report.epsilon.pld == report.epsilon.rdp
    assert accountant.spent(DELTA, "pld").method == "rdp"
    assert accountant.epsilon(DELTA) == pytest.approx(report.epsilon.rdp, rel=1e-9, abs=0)
    worst = Accountant()
    for a in range(11):
        worst.compose(Gaussian(31.0 + a), client="north")
    assert worst.epsilon(DELTA) == pytest.approx(report.epsilon.rdp, rel=1e-3)
