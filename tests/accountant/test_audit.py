from __future__ import annotations

import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from accountant.accountant import Accountant, epsilon
from accountant.audit import NotedHead, audit
from accountant.budget import Budget
from accountant.errors import InputError, LedgerBroken
from accountant.events import Composed, Gaussian, Laplace, NotPrivate, PoissonSampled, Repeated
from accountant.ledger import datasets as books_module
from accountant.ledger import schema
from accountant.ledger.chain import chained_text
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import not_remembered
from accountant.ledger.signing import OwnerKey
from accountant.spending import Source, Spend
from accountant.worst_case import WorstCase

STEP = PoissonSampled(0.02, Gaussian(1.2))
SCORES = PoissonSampled(0.1, Laplace(5.0))


@pytest.fixture(scope="module")
def books(tmp_path_factory) -> Path:
    """A ledger of some rounds, as a file to be copied and tampered with."""
    path = tmp_path_factory.mktemp("books") / "ledger.sqlite"
    with Ledger(f"sqlite:///{path}") as ledger:
        ledger.set_budget("patients", Budget(8.0, 1e-5))
        for number in range(6):
            ledger.reserve(
                [Spend("patients", STEP, client=c, channel="updates", run="r1", round=number) for c in ("a", "b")]
            )
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


def tampered(books: Path, folder: Path, *statements: str) -> Ledger:
    """The ledger after somebody with full access to the file ran these statements past the triggers."""
    copy = folder / "tampered.sqlite"
    shutil.copy(books, copy)
    connection = sqlite3.connect(copy)
    triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        assert connection.execute(statement).rowcount != 0
    connection.commit()
    connection.close()
    return Ledger(f"sqlite:///{copy}", create=False)


def problems(ledger: Ledger, **options) -> list[str]:
    report = audit(ledger, pld=False, **options)
    ledger.close()
    assert report.fine == report.verified == (not report.problems)
    return [str(problem) for problem in report.problems]


# --- what is found ----------------------------------------------------------------------------------------------


def test_untouched_books_are_fine(books, tmp_path):
    assert problems(tampered(books, tmp_path)) == []


@pytest.mark.parametrize(
    "change",
    [
        "kind = 'nothing'", "recorded_at = '2020-01-01T00:00:00.000000Z'", "round = 9", "round = NULL", "count = 2",
        "token = 'x'", "source = (SELECT source FROM entries WHERE sequence = 6)", "signature = ''  , count = 7",
    ],
)  # fmt: skip
def test_an_edited_row_is_found(books, tmp_path, change):
    found = problems(tampered(books, tmp_path, f"UPDATE entries SET {change} WHERE sequence = 7"))
    assert found[0] == "row 7: was changed: its hash does not fit its content"
    assert len([line for line in found if line.startswith("row")]) <= 2


@pytest.mark.parametrize("column", ["dataset", "client", "group_name", "channel", "run", "body"])
def test_an_edited_source_is_found_in_every_row_that_uses_it(books, tmp_path, column):
    found = problems(tampered(books, tmp_path, f"UPDATE sources SET {column} = 'x' WHERE client = 'a'"))
    changed = [line for line in found if "was changed" in line]
    assert [line.split(":")[0] for line in changed] == [f"row {n}" for n in (3, 5, 7, 9, 11, 13)]


def test_a_deleted_source_is_found_and_counts_as_not_private(books, tmp_path):
    ledger = tampered(books, tmp_path, "DELETE FROM sources WHERE client = 'a'")
    report = audit(ledger, pld=False)
    ledger.close()
    assert not report.verified
    assert {d.state.name: d.epsilon.rdp for d in report.datasets}["(unknown)"] == float("inf")


def test_an_edited_link_or_hash_is_found(books, tmp_path):
    assert problems(tampered(books, tmp_path, "UPDATE entries SET previous = hash WHERE sequence = 7")) == [
        "row 7: was changed: its hash does not fit its content"
    ]
    found = problems(tampered(books, tmp_path, f"UPDATE entries SET hash = '{'0' * 64}' WHERE sequence = 7"))
    assert found == [
        "row 7: was changed: its hash does not fit its content",
        "row 8: does not follow the row before it: one of the two was replaced or inserted",
    ]


def test_a_deleted_row_is_found(books, tmp_path):
    found = problems(tampered(books, tmp_path, "DELETE FROM entries WHERE sequence = 7"))
    assert found[0] == "row 7: row 7 is missing before row 8"
    more = problems(tampered(books, tmp_path, "DELETE FROM entries WHERE sequence BETWEEN 4 AND 9"))
    assert more[0] == "row 4: rows 4 to 9 are missing before row 10"


def test_swapped_rows_are_found(books, tmp_path):
    swap = [f"UPDATE entries SET sequence = {new} WHERE sequence = {old}" for old, new in ((5, -1), (8, 5), (-1, 8))]
    found = problems(tampered(books, tmp_path, *swap))
    assert [line for line in found if "was changed" in line] == [
        f"row {number}: was changed: its hash does not fit its content" for number in (5, 8)
    ]


def test_an_inserted_row_is_found(books, tmp_path):
    """Also when its own hash is right: later rows must be renumbered, and do not fit any more."""
    connection = sqlite3.connect(books)
    row = connection.execute("SELECT * FROM entries WHERE sequence = 7").fetchone()
    source = Source(*connection.execute("SELECT * FROM sources WHERE source = ?", (row[6],)).fetchone()[1:])
    previous = connection.execute("SELECT hash FROM entries WHERE sequence = 6").fetchone()[0]
    connection.close()
    text = chained_text(7, row[1], row[2], 77, 1, "fake", previous, "\n".join(source))
    digest = sha256(text.encode()).hexdigest()
    values = f"7, '{row[1]}', '{row[2]}', 77, 1, 'fake', {row[6]}, '{previous}', '{digest}', ''"
    shift = [f"UPDATE entries SET sequence = {n + 1} WHERE sequence = {n}" for n in range(14, 6, -1)]
    found = problems(tampered(books, tmp_path, *shift, f"INSERT INTO entries VALUES ({values})"))
    assert found[0] == "row 8: was changed: its hash does not fit its content"


def test_a_cut_tail_is_found_by_the_kept_head_and_by_a_noted_one(books, tmp_path):
    with Ledger(f"sqlite:///{books}") as ledger:
        head = ledger.head()
    found = problems(tampered(books, tmp_path, "DELETE FROM entries WHERE sequence > 10"))
    assert "the ledger ends with row 10, but its head is noted as row 14" in found[0]
    thorough = (
        "DELETE FROM entries WHERE sequence > 10",
        "UPDATE head SET sequence = 10, hash = (SELECT hash FROM entries WHERE sequence = 10)",
    )
    (found,) = problems(tampered(books, tmp_path, *thorough))
    assert "older copy, or rows were replaced: row 14 is missing, and the newest is 10" in found
    with not_remembered():
        assert problems(tampered(books, tmp_path, *thorough)) == []  # the documented limit of a chain
        found = problems(tampered(books, tmp_path, *thorough), heads=[head.hash])
    assert found == [f"the noted head {head.hash} is not in the ledger: rows were cut off or replaced"]
    assert problems(tampered(books, tmp_path), heads=[head.hash]) == []


def test_a_noted_head_stays_good_while_the_ledger_grows(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        ledger.reserve([Spend("d", Gaussian(1.0))])
        noted = ledger.head().hash
        ledger.reserve([Spend("d", Gaussian(1.0))])
        assert audit(ledger, pld=False, heads=[noted, ledger.head().hash]).fine
        with pytest.raises(InputError, match="64 lower-case hexadecimal digits"):
            audit(ledger, heads=["abc"])


def test_row_one_is_needed(books, tmp_path):
    with pytest.raises(LedgerBroken, match="Row 1"):
        tampered(books, tmp_path, "DELETE FROM entries WHERE sequence = 1")


def test_text_that_is_no_text_is_reported_not_raised(books, tmp_path):
    found = problems(tampered(books, tmp_path, "UPDATE entries SET token = CAST(x'ff' AS TEXT) WHERE sequence = 7"))
    assert any("cannot be read" in line for line in found)


# --- caches beside the chain --------------------------------------------------------------------------------------


def test_what_is_kept_of_a_dataset_and_cannot_be_read_is_refused(books, tmp_path):
    with tampered(books, tmp_path, "UPDATE datasets SET budget = '{'") as ledger:
        with pytest.raises(LedgerBroken, match="What is kept about dataset 'patients' cannot be read"):
            ledger.budget("patients")
        with pytest.raises(LedgerBroken, match="privfair audit reports what"):
            ledger.reserve([Spend("patients", STEP, client="a")])


def test_totals_beside_the_chain_are_not_read(books, tmp_path):
    """Older versions kept them there; one inserted row let an exhausted budget be spent again."""
    with Ledger(f"sqlite:///{books}") as ledger:
        head, spent = ledger.head(), ledger.spent("patients")
    lowered = (
        "INSERT INTO totals VALUES ('patients', 'a', '', 0.001), ('patients', 'b', '', 0.001)",
        f"INSERT INTO snapshots VALUES ('patients', {head.sequence}, '{head.hash}')",
    )
    with tampered(books, tmp_path, *lowered) as ledger:
        assert ledger.spent("patients") == spent
        assert audit(ledger, pld=False).fine
        ledger.rebuild_totals()
        assert audit(ledger, pld=False).fine
        assert ledger.spent("patients") == spent


def test_a_raised_budget_that_is_not_in_the_chain_is_found(books, tmp_path):
    wide = Budget(100.0, 1e-5).to_json()
    found = problems(tampered(books, tmp_path, f"UPDATE datasets SET budget = '{wide}'"))
    assert found == ["what is kept about dataset 'patients' differs from what its rows say"]


KEPT = "what is kept about it differs from what its rows say. The ledger was changed"
CHAINED = "The ledger was changed: row 2: was changed: its hash does not fit its content"


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (f"UPDATE datasets SET budget = '{Budget(100.0, 1e-5).to_json()}'", KEPT),
        ("UPDATE datasets SET budget = ''", KEPT),
        ("UPDATE datasets SET simulation = 1", KEPT),
        ("UPDATE datasets SET fingerprint = 'x'", KEPT),
        ("UPDATE datasets SET unit = 'client'", KEPT),
        ("DELETE FROM datasets", KEPT),
        (
            "UPDATE sources SET body = replace(body, '\"epsilon\":', '\"epsilon\":9') WHERE body LIKE '%budget%'",
            CHAINED,
        ),
        ("DELETE FROM sources WHERE body LIKE '%budget%'", CHAINED),
    ],
)
def test_nothing_is_spent_from_a_budget_that_is_not_the_chains(books, tmp_path, statement, what):
    request = [Spend("patients", STEP, client="a")]
    with tampered(books, tmp_path, statement) as ledger:
        head = ledger.head()
        for ask in (
            lambda: ledger.reserve(request),
            lambda: ledger.spend_many([request]),
            lambda: ledger.require_room(request),
            lambda: ledger.what_fits(request),
            lambda: ledger.budget("patients"),
            lambda: ledger.set_budget("patients", Budget(5.0, 1e-5)),
            lambda: ledger.register("patients"),
        ):
            with pytest.raises(LedgerBroken, match=rf"{what}.* run privfair audit"):
                ask()
        assert ledger.head() == head


def test_the_newest_totals_are_found_without_reading_all_rows(books):
    with sqlite3.connect(books) as connection:
        plan = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {books_module._NEWEST}", (1_000,))]
    connection.close()
    assert "SEARCH entries USING INDEX entries_totals (sequence<?)" in plan


def test_an_older_ledger_that_may_only_be_read_is_read(tmp_path, monkeypatch):
    path = tmp_path / "l.sqlite"
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        with Ledger(f"sqlite:///{path}") as ledger:
            ledger.set_budget("d", Budget(3.0, 1e-5))

    def refuse(*_):
        raise InputError("ledger", "must be writable", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(schema, "migrate", refuse)
        with Ledger(f"sqlite:///{path}", create=False) as ledger:
            assert audit(ledger, pld=False).fine
        with pytest.raises(InputError, match="must be writable"):
            Ledger(f"sqlite:///{path}")
    with Ledger(f"sqlite:///{path}") as ledger, ledger.reading() as connection:
        assert schema.installed_version(connection) == len(schema.MIGRATIONS)


# --- signatures ---------------------------------------------------------------------------------------------------


def test_a_signed_ledger(tmp_path):
    key, other = OwnerKey(bytes(range(32))), OwnerKey(bytes(32))
    url = f"sqlite:///{tmp_path}/l.sqlite"
    with Ledger(url, key=key) as ledger:
        ledger.reserve([Spend("d", Gaussian(1.0))])
        assert audit(ledger, pld=False, key=key).signatures == f"checked with key {key.key_id}"
    with Ledger(url) as ledger:
        assert "not checked" in audit(ledger, pld=False).signatures
        with pytest.raises(InputError, match="signed with key"):
            ledger.reserve([Spend("d", Gaussian(1.0))])
        with pytest.raises(InputError, match=f"key must be {key.key_id}: this is not the key of this ledger") as wrong:
            audit(ledger, pld=False, key=other)
        assert f"found '{other.key_id}'" in str(wrong.value)
    with Ledger(url, key=other) as ledger, pytest.raises(InputError, match="must be the one the ledger"):
        ledger.reserve([Spend("d", Gaussian(1.0))])


def test_a_chain_computed_afresh_is_found_by_its_signatures(tmp_path):
    """The strongest forger: writes rows, hashes, head and all afresh, but has no key and signs with another."""
    key = OwnerKey(bytes(range(32)))
    with Ledger(f"sqlite:///{tmp_path}/forged.sqlite", key=OwnerKey(bytes(32))) as ledger:
        ledger.reserve([Spend("d", Gaussian(50.0))])
        assert audit(ledger, pld=False).fine
        with pytest.raises(InputError, match="created with this key, it was replaced by another"):
            audit(ledger, pld=False, key=key)


def test_a_forger_who_writes_the_owners_name_but_has_no_key_is_found(tmp_path, monkeypatch):
    key, forger = OwnerKey(bytes(range(32))), OwnerKey(bytes(32))
    with monkeypatch.context() as patched:
        patched.setattr(OwnerKey, "key_id", key.key_id)
        with Ledger(f"sqlite:///{tmp_path}/forged.sqlite", key=forger) as ledger:
            ledger.reserve([Spend("d", Gaussian(50.0))])
    with Ledger(f"sqlite:///{tmp_path}/forged.sqlite") as ledger:
        found = [str(problem) for problem in audit(ledger, pld=False, key=key).problems]
    assert found == [f"row {n}: is not signed with this key" for n in (1, 2)]


def test_a_changed_first_row_is_no_wrong_key(tmp_path):
    """Who writes another key's name into row 1 changed the books: that is told, not that the key is wrong."""
    key = OwnerKey(bytes(range(32)))
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite", key=key) as ledger:
        ledger.reserve([Spend("d", Gaussian(50.0))])
    swap = f"UPDATE sources SET body = replace(body, '{key.key_id}', '{'0' * 16}')"
    with tampered(tmp_path / "l.sqlite", tmp_path, swap) as ledger:
        assert str(audit(ledger, pld=False, key=key).problems[0]).startswith("row 1: was changed")


def test_a_key_for_a_ledger_without_signatures_is_bad_input(books):
    with Ledger(f"sqlite:///{books}") as ledger, pytest.raises(InputError, match="rows of this ledger are not signed"):
        audit(ledger, pld=False, key=OwnerKey(bytes(32)))


def test_where_a_noted_head_was_found(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        ledger.reserve([Spend("d", Gaussian(50.0))])
        noted = ledger.head().hash
        ledger.reserve([Spend("d", Gaussian(50.0))])
        report = audit(ledger, pld=False, heads=[noted, "0" * 64, noted])
        assert report.noted_heads == (NotedHead(noted, 2), NotedHead("0" * 64, None))
        assert not report.verified
        assert audit(ledger, pld=False).noted_heads == ()


# --- what was spent -----------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    start = datetime(2026, 3, 1, tzinfo=UTC)
    ticks = iter(range(10_000))
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite", clock=lambda: start + timedelta(hours=next(ticks))) as opened:
        yield opened


def releases() -> list[dict]:
    made = [{"event": Laplace(10.0), "client": c, "channel": "counts", "run": "r1"} for c in ("a", "b")]
    for number in range(5):
        for client, rate in (("a", 0.01), ("b", 0.03)):
            step = PoissonSampled(rate, Gaussian(1.1))
            made.append({"event": step, "count": 10, "client": client, "channel": "updates", "round": number})
            for group, noise in (("sex=F", 3.0), ("sex=M", 6.0)):
                scores = {"event": PoissonSampled(0.2, Laplace(noise)), "client": client, "group": group}
                made.append({**scores, "channel": "predictions", "round": number})
    return [{"run": f"r{1 + (release.get('round', 0) > 2)}", **release} for release in made]


def test_the_report_agrees_with_the_accountant(ledger):
    accountant = Accountant()
    for release in releases():
        ledger.reserve([Spend("patients", **release)])
        accountant.compose(release["event"], **{k: v for k, v in release.items() if k not in ("event", "run")})
    (found,) = audit(ledger, delta=1e-6).datasets
    for method in ("rdp", "pld"):
        values = {
            "by_client": accountant.by_client(1e-6, method),
            "by_group": accountant.by_group(1e-6, method),
            "by_channel": accountant.by_channel(1e-6, method),
        }
        for name, expected in values.items():
            lines = {line.name: getattr(line.epsilon, method) for line in getattr(found, name)}
            assert lines == pytest.approx(expected, rel=1e-9), (method, name)
        assert getattr(found.epsilon, method) == pytest.approx(accountant.epsilon(1e-6, method), rel=1e-9)
    changing = max(accountant.spent_on_changing_group(c, "sex=F", "sex=M", 1e-6).epsilon for c in ("a", "b"))
    assert [(line.name, line.epsilon.rdp) for line in found.changing] == [("sex", pytest.approx(changing, rel=1e-9))]
    assert found.releases == sum(release.get("count", 1) for release in releases())


def test_a_run_is_composed_by_itself(ledger):
    ledger.reserve([Spend("d", Gaussian(2.0), run="one", count=3)])
    ledger.reserve([Spend("d", Gaussian(3.0), run="two")])
    (found,) = audit(ledger).datasets
    assert {line.name: (line.releases, line.epsilon.rdp) for line in found.by_run} == {
        "one": (3, epsilon(Repeated(Gaussian(2.0), 3), 1e-5)),
        "two": (1, epsilon(Gaussian(3.0), 1e-5)),
    }
    assert found.epsilon.rdp == epsilon(Composed((Repeated(Gaussian(2.0), 3), Gaussian(3.0))), 1e-5)


def test_changing_an_attribute_also_replaces_the_record_in_other_attributes_groups(ledger):
    ledger.reserve([Spend("d", Gaussian(8.0), group=f"sex={g}") for g in "FM"])
    ledger.reserve([Spend("d", Gaussian(8.0), group="race=B")])
    (found,) = audit(ledger, pld=False).datasets
    lines = {line.name: line.epsilon.rdp for line in found.changing}
    # sex: F and M see one record less and one more; race=B sees a replacement, twice the sensitivity.
    two_and_replaced = Composed((Repeated(Gaussian(8.0), 2), Gaussian(8.0, 2.0)))
    assert lines["sex"] == pytest.approx(epsilon(two_and_replaced, 1e-5), rel=1e-9)


def test_changing_an_attribute_of_which_only_one_group_released(ledger):
    ledger.reserve([Spend("d", Gaussian(0.3), group="sex=F"), Spend("d", Gaussian(1.0))])
    (found,) = audit(ledger, pld=False).datasets
    expected = epsilon(Composed((Gaussian(0.3), Gaussian(1.0, 2.0))), 1e-5)
    assert {line.name: line.epsilon.rdp for line in found.changing} == {"sex": pytest.approx(expected, rel=1e-9)}


def test_lines_of_clients_and_groups_include_what_touches_everybody(ledger):
    ledger.reserve([Spend("d", Gaussian(0.2), client="B"), Spend("d", Gaussian(1.0))])
    ledger.reserve([Spend("d", Gaussian(5.0), client="A", group="sex=F")])
    (found,) = audit(ledger).datasets
    at_b = Composed((Gaussian(0.2), Gaussian(1.0)))
    for method in ("rdp", "pld"):
        clients = {line.name: getattr(line.epsilon, method) for line in found.by_client}
        at_a = epsilon(Composed((Gaussian(5.0), Gaussian(1.0))), 1e-5, method)
        worst = epsilon(at_b, 1e-5, method)
        assert clients == pytest.approx({"": worst, "A": at_a, "B": worst}, rel=1e-9)
        groups = {line.name: getattr(line.epsilon, method) for line in found.by_group}
        assert groups == pytest.approx({"sex=F": worst}, rel=1e-9)


def test_an_audit_does_not_list_every_combination_of_groups(ledger):
    """Eight groups of each of six attributes: a quarter of a million kinds of records."""
    spends = [Spend("d", Gaussian(20.0 + n), group=f"{a}={n}") for a in "abcdef" for n in range(8)]
    ledger.reserve(spends)
    (found,) = audit(ledger).datasets
    worst = epsilon(Repeated(Gaussian(20.0), 6), 1e-5)
    assert found.epsilon.rdp == found.epsilon.pld == pytest.approx(worst, rel=1e-9)
    assert found.burn_down[-1].epsilon >= worst
    assert len(found.by_group) == 48


def test_pld_beyond_the_limit_is_bounded_by_rdp(ledger, monkeypatch):
    for number in range(4):
        ledger.reserve([Spend("d", PoissonSampled(0.01 + number / 1000, Gaussian(1.0)), client=f"c{number}", count=50)])
    (all_pld,) = audit(ledger).datasets
    monkeypatch.setattr("accountant.audit.WorstCase", partial(WorstCase, pld_limit=1))
    (one_pld,) = audit(ledger).datasets
    assert all_pld.epsilon.pld < one_pld.epsilon.pld < one_pld.epsilon.rdp
    for line, exact in zip(one_pld.by_client, all_pld.by_client, strict=True):
        assert exact.epsilon.pld <= line.epsilon.pld <= line.epsilon.rdp
    assert sum(line.epsilon.pld == line.epsilon.rdp for line in one_pld.by_client) == 3
    assert not any(line.epsilon.pld == line.epsilon.rdp for line in all_pld.by_client)
    assert (one_pld.rdp_for_pld, all_pld.rdp_for_pld) == (True, False)


def test_channels_come_before_clients_where_pld_is_limited(ledger, monkeypatch):
    """A statement has ε by channel too: both must say the same."""
    for number in range(4):
        client = f"c{number}"
        ledger.reserve([Spend("d", STEP, client=client, channel="updates", count=50)])
        ledger.reserve([Spend("d", Laplace(5.0 + number), client=client, channel="counts")])
    monkeypatch.setattr("accountant.audit.WorstCase", partial(WorstCase, pld_limit=9))
    (found,) = audit(ledger).datasets
    channels = {line.name: line.epsilon.pld for line in found.by_channel}
    assert channels["updates"] == pytest.approx(epsilon(Repeated(STEP, 50), 1e-5, "pld"))
    assert channels["counts"] == pytest.approx(epsilon(Laplace(5.0), 1e-5, "pld"))


def test_the_burn_down_ends_at_epsilon_of_everything(ledger):
    """Curves that cross: the largest at every order is above each of them."""
    ledger.reserve([Spend("d", Gaussian(2.0), client="a"), Spend("d", Laplace(0.9), client="b")])
    (found,) = audit(ledger, pld=False).datasets
    assert found.burn_down[-1].epsilon == found.epsilon.rdp


def test_simulations_claim_no_epsilon(ledger):
    ledger.register("toy", simulation=True)
    ledger.reserve([Spend("toy", Gaussian(1.0), client="c", run="r")])
    (found,) = audit(ledger).datasets
    assert (found.epsilon, found.releases, found.burn_down) == (None, 1, ())
    assert [line.epsilon for line in (*found.by_client, *found.by_run)] == [None, None]


def test_not_private_is_infinite_and_named(ledger):
    ledger.reserve([Spend("d", NotPrivate(), channel="evaluation"), Spend("d", Gaussian(2.0), channel="counts")])
    (found,) = audit(ledger).datasets
    lines = {line.name: line.epsilon for line in found.by_channel}
    assert found.epsilon.rdp == found.epsilon.pld == lines["evaluation"].rdp == float("inf")
    assert lines["counts"].rdp < 5


def test_delta_is_the_budgets_own_and_below_one_over_people(ledger):
    ledger.set_budget("d", Budget(3.0, 1e-7, people=1000))
    ledger.reserve([Spend("d", Gaussian(20.0))])
    assert audit(ledger, pld=False).datasets[0].delta == 1e-7
    with pytest.raises(InputError, match="must be below 1/1000"):
        audit(ledger, delta=1e-3)


def test_the_burn_down_starts_full_and_ends_where_the_budget_stands(ledger):
    budget = ledger.set_budget("d", Budget(2.0, 1e-5))
    for _ in range(10):
        ledger.reserve([Spend("d", Gaussian(20.0), client="a")])
    ledger.set_budget("d", Budget(4.0, 1e-5))
    (found,) = audit(ledger, pld=False).datasets
    left = [point.left for point in found.burn_down]
    cost = budget.order / (2 * 20.0**2)
    assert left[:11] == pytest.approx([1 - n * cost / budget.capacity for n in range(11)])
    assert left[11] == found.left == pytest.approx(1 - 10 * cost / budget.resized(4.0, 1e-5).capacity)
    assert [point.at for point in found.burn_down] == sorted(point.at for point in found.burn_down)
    epsilons = [point.epsilon for point in found.burn_down]
    assert epsilons[10] == pytest.approx(epsilon(Repeated(Gaussian(20.0), 10), 1e-5), rel=2e-3)
    assert epsilons[10] >= epsilon(Repeated(Gaussian(20.0), 10), 1e-5)


def test_events_of_an_unknown_kind_and_mixed_adjacencies_count_as_not_private(ledger, monkeypatch):
    """Rows another program may have added to an unsigned chain: well hashed, but not understood."""
    ledger.reserve([Spend("d", Gaussian(2.0))])
    monkeypatch.setattr(books_module.DatasetState, "keeping", lambda self, _: self)
    ledger.reserve([Spend("mixed", Gaussian(2.0))])
    ledger.reserve([Spend("mixed", Gaussian(2.0, adjacency="replace-one"))])
    monkeypatch.undo()
    monkeypatch.setattr("accountant.spending.canonical_json", lambda _: '{"kind":"quantum","version":1}')
    ledger.reserve([Spend("d", Gaussian(2.0))])
    monkeypatch.undo()
    report = audit(ledger, pld=False)
    assert not report.verified
    assert {d.state.name: d.epsilon.rdp for d in report.datasets} == {"d": float("inf"), "mixed": float("inf")}
    text = " ".join(str(problem) for problem in report.problems)
    assert "cannot be read and counts as not private" in text
    assert "mixes adjacencies" in text


def test_an_empty_ledger(ledger):
    report = audit(ledger)
    assert (report.fine, report.rows, report.datasets) == (True, 1, ())
