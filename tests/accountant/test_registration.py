"""One name, one kind, one key and one spelling for the same data, clients and groups."""

from __future__ import annotations

import json

import pytest

from accountant.accountant import Accountant
from accountant.audit import audit
from accountant.budget import Budget
from accountant.errors import InputError, Refused
from accountant.events import Event, Gaussian, NotPrivate, canonical_json
from accountant.ledger import chain
from accountant.ledger import datasets as registration
from accountant.ledger.datasets import BUDGET, settled
from accountant.ledger.ledger import Ledger
from accountant.ledger.signing import OwnerKey, canonical_cell, fingerprint_columns, fingerprint_csv, key_of
from accountant.spending import Draft, Spend, require_group

KEY, OTHER = OwnerKey(bytes(range(32))), OwnerKey(bytes(32))


@pytest.fixture
def ledger(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as opened:
        yield opened


@pytest.mark.parametrize("event", [NotPrivate(), Gaussian(1.0)])
def test_data_that_was_released_from_does_not_become_a_simulation(ledger, event):
    ledger.reserve([Spend("patients", event)]).redeem()
    with pytest.raises(InputError, match="must stay False"):
        ledger.register("patients", simulation=True)
    ledger.register("patients", fingerprint="aa")


def test_an_audit_finds_data_that_was_made_a_simulation_afterwards(ledger, monkeypatch):
    monkeypatch.setattr(registration, "require_same_kind", lambda *_, **__: None)
    ledger.register("toy", simulation=True)
    ledger.reserve([Spend("toy", Gaussian(1.0)), Spend("toy", Gaussian(2.0))])
    ledger.reserve([Spend("patients", NotPrivate())])
    for number in range(3):
        ledger.reserve([Spend("toy", Gaussian(1.0), run=f"r{number}")])
    assert audit(ledger, pld=False).fine
    ledger.register("patients", simulation=True)
    report = audit(ledger, pld=False)
    assert "makes dataset 'patients' a simulation after it was used as real data" in str(report.problems[0])
    assert {d.state.name: d.state.simulation for d in report.datasets} == {"patients": False, "toy": True}


def test_a_fingerprint_that_is_shown_is_the_registered_one(ledger):
    ledger.register("patients", fingerprint="aa")
    with pytest.raises(InputError, match="must be 'patients', where this very data is registered"):
        ledger.reserve([Spend("study", Gaussian(1.0))], fingerprint="aa")
    with pytest.raises(InputError, match="must be registered for dataset 'study'"):
        ledger.reserve([Spend("study", Gaussian(1.0))], fingerprint="bb")
    ledger.register("study", fingerprint="bb")
    ledger.reserve([Spend("study", Gaussian(1.0))], fingerprint="bb")


def test_another_key_does_not_make_new_data(ledger):
    table = {"age": [31, 45]}
    first = fingerprint_columns(table, KEY)
    assert key_of(first) == KEY.key_id
    ledger.register("patients", fingerprint=first)
    with pytest.raises(InputError, match=f"must be made with key {KEY.key_id}"):
        ledger.register("patients-2", fingerprint=fingerprint_columns(table, OTHER))
    with pytest.raises(InputError, match="must be made with key"):
        ledger.register("patients-2", fingerprint="aa")
    ledger.register("others", fingerprint=fingerprint_columns({"age": [32]}, KEY))


def test_saving_a_table_anew_does_not_make_new_data(tmp_path):
    (tmp_path / "plain.csv").write_text("age,score\n31,0\n45,1.5\n", encoding="utf-8")
    (tmp_path / "marked.csv").write_text("age,score\n31,-0.0\n45.0,1.5\n", encoding="utf-8-sig")
    assert fingerprint_csv(tmp_path / "plain.csv", KEY) == fingerprint_csv(tmp_path / "marked.csv", KEY)
    assert canonical_cell("-0") == canonical_cell(-0.0) == canonical_cell(0) == "0.0"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"client": "north"}, {"client": "North"}),
        ({"client": "ﬁrst"}, {"client": "first"}),
        ({"client": "north１"}, {"client": "north1"}),
        ({"client": "Straße"}, {"client": "STRASSE"}),
        ({"group": "sex=F"}, {"group": "sex=f"}),
        ({"group": "sex,race=F,B"}, {"group": "sex,race=F, B"}),
    ],
)
def test_another_spelling_is_no_second_payer(ledger, first, second):
    (known,) = first.values()
    books = Accountant().compose(Gaussian(5.0), **first)
    ledger.reserve([Spend("d", Gaussian(5.0), **first)])
    for attempt in (lambda: ledger.reserve([Spend("d", Gaussian(5.0), **second)]),
                    lambda: books.compose(Gaussian(5.0), **second)):  # fmt: skip
        with pytest.raises(InputError, match="must be written") as error:
            attempt()
        assert repr(known) in str(error.value)
    with pytest.raises(InputError, match="must be written"):
        ledger.reserve([Spend("new", Gaussian(5.0), **labels) for labels in (first, second)])
    with Ledger(ledger.url) as another, pytest.raises(InputError, match="must be written"):
        another.reserve([Spend("d", Gaussian(5.0), **second)])
    ledger.reserve([Spend("d", Gaussian(5.0), **first)])
    ledger.reserve([Spend("e", Gaussian(5.0), **second)])
    assert len(books.releases) == 1


def test_spaces_that_nobody_sees_are_refused():
    with pytest.raises(InputError, match="several spaces in a row"):
        Spend("d", Gaussian(1.0), client="north  1")
    for group in ("sex= F", "sex =F", "sex = F"):
        with pytest.raises(InputError, match="no spaces around it"):
            require_group(group)
    assert require_group("age band=30 to 40") == "age band=30 to 40"


# --- spellings of datasets ----------------------------------------------------------------------------------------

SPELLINGS = ("P", "ｐ", "𝐏")


@pytest.mark.parametrize("other", SPELLINGS)
def test_another_spelling_of_a_dataset_is_no_second_budget(ledger, other):
    budget = ledger.set_budget("p", Budget(3.0, 1e-5))
    ledger.reserve([Spend("p", Gaussian(9.0))])
    assert ledger.budget(other) == budget
    assert ledger.dataset(other).name == "p"
    assert ledger.spent(other) == ledger.spent("p") != {}
    for ask in (
        lambda: ledger.reserve([Spend(other, Gaussian(9.0))]),
        lambda: ledger.set_budget(other, Budget(9.0, 1e-5)),
        lambda: ledger.register(other, simulation=True),
    ):
        with pytest.raises(InputError, match="dataset must be written 'p', as before"):
            ask()


def _old_rows(ledger: Ledger, *drafts: Draft) -> None:
    """Rows as an older version wrote them, which took every spelling for a dataset of its own."""
    with ledger._storage.writing() as connection:
        rows = [(draft, "") for draft in drafts]
        chain.append(connection, chain.read_head(connection), rows, now=ledger._now(), key=None, known={})


def _spending(dataset: str, event: Event) -> Draft:
    return Spend(dataset, event, client="c").draft(canonical_json(event))


@pytest.mark.parametrize("budget_first", [False, True])
def test_spellings_in_older_ledgers_add_up(ledger, budget_first):
    budget = Budget(3.0, 1e-5)
    row = settled(BUDGET, "p", {"actor": "a", "budget": json.loads(budget.to_json()), "reason": ""})
    spends = [_spending(name, Gaussian(9.0)) for name in ("p", "P", "ｐ", "P")]
    _old_rows(ledger, *([row, *spends] if budget_first else [*spends, row]))
    assert ledger.spent("P") == {("c", ""): pytest.approx(4 * budget.order / 2 / 81, rel=1e-9)}
    (found,) = audit(ledger, pld=False).datasets
    assert (found.state.name, found.releases) == ("p", 4)
    assert found.spent == pytest.approx(4 * budget.order / 2 / 81, rel=1e-9)
    ledger.reserve([Spend("p", Gaussian(9.0), client="c")])
    with pytest.raises(InputError, match="must be written 'p'"):
        ledger.reserve([Spend("P", Gaussian(9.0), client="c")])
    assert ledger.runs("P") == []
    assert audit(ledger, pld=False).fine


def test_spellings_that_cannot_be_added_up_are_refused(ledger):
    _old_rows(ledger, _spending("p", Gaussian(9.0)), _spending("P", Gaussian(9.0, adjacency="replace-one")))
    for ask in (
        lambda: ledger.reserve([Spend("p", Gaussian(9.0), client="c")]),
        lambda: ledger.set_budget("p", Budget(3.0, 1e-5)),
    ):
        with pytest.raises(Refused, match=r"'p', 'P' are one name in different spellings.*Ledger.record_past"):
            ask()
