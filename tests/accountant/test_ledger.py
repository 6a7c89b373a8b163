from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.exc import DatabaseError, IntegrityError

from accountant.audit import audit
from accountant.budget import Budget, BudgetExceeded
from accountant.errors import InputError, LedgerBroken, LedgerUnavailable, OlderLedger
from accountant.events import Adjacency, Gaussian, Laplace, NeighbouringMismatch, NotPrivate
from accountant.ledger import schema
from accountant.ledger.chain import Progress, TokenAlreadyUsed
from accountant.ledger.ledger import Ledger
from accountant.ledger.storage import fetch
from accountant.spending import Spend


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.sqlite"


@pytest.fixture
def ledger(url):
    with Ledger(url) as opened:
        yield opened


def rows(ledger: Ledger, what: str = "*") -> list[tuple]:
    with ledger.reading() as connection:
        return fetch(connection, f"SELECT {what} FROM ledger ORDER BY sequence")


# --- reservations ---------------------------------------------------------------------------------------------


def test_a_reservation_is_on_the_books_for_another_process_before_it_is_returned(ledger, url):
    reservation = ledger.reserve(
        [Spend("d", Gaussian(2.0), client="c", group="sex=F", channel="counts", run="r", round=3, count=5)]
    )
    query = "SELECT dataset, client, group_name, channel, run, round, count, token FROM ledger WHERE kind = 'spend'"
    path = url.removeprefix("sqlite:///")
    code = f"import sqlite3; print(sqlite3.connect({path!r}).execute({query!r}).fetchall())"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert seen.strip() == str([("d", "c", "sex=F", "counts", "r", 3, 5, reservation.token)])


def test_sqlite_commits_are_durable(ledger):
    with ledger.reading() as connection:
        assert fetch(connection, "PRAGMA synchronous") == [(2,)]  # FULL
        assert fetch(connection, "PRAGMA journal_mode") == [("wal",)]


def test_a_token_works_once_also_in_another_process(ledger, url):
    reservation = ledger.reserve([Spend("d", Gaussian(2.0))])
    reservation.redeem()
    with pytest.raises(TokenAlreadyUsed, match="send that; if not, reserve anew"):
        reservation.redeem()
    with Ledger(url) as other, pytest.raises(TokenAlreadyUsed):
        other.redeem([reservation.token])


def test_redeeming_several_tokens_is_all_or_none(ledger):
    first, second = ledger.reserve_many([[Spend("d", Gaussian(2.0))], [Spend("d", Gaussian(2.0))]])
    second.redeem()
    with pytest.raises(TokenAlreadyUsed):
        ledger.redeem([first.token, second.token])
    assert first.progress() is Progress.RESERVED
    first.redeem()


def test_the_way_of_a_message_and_its_resume(ledger, url):
    reservation = ledger.reserve([Spend("d", Gaussian(2.0), run="r", round=1, client="c", channel="updates")])
    assert reservation.progress() is Progress.RESERVED
    with pytest.raises(InputError, match="redeemed before its message is stored"):
        reservation.store(b"too early")
    reservation.redeem()
    assert (reservation.progress(), reservation.message()) == (Progress.REDEEMED, None)
    reservation.store(b"\x00noisy\xff")
    ledger.close()
    with Ledger(url) as resumed:
        (found,) = resumed.reservations(run="r", round=1, client="c", channel="updates")
        assert found.token == reservation.token
        assert (found.progress(), found.message()) == (Progress.STORED, b"\x00noisy\xff")
        found.store(b"\x00noisy\xff")  # the same again changes nothing
        with pytest.raises(TokenAlreadyUsed):
            found.store(b"a second release")
        assert found.message() == b"\x00noisy\xff"
        assert resumed.reservations(run="r", round=2) == []


def test_a_discarded_message_leaves_its_token_spent(ledger):
    reservation = ledger.reserve([Spend("d", Gaussian(2.0))])
    reservation.redeem()
    reservation.store(b"large")
    ledger.discard_message(reservation.token)
    assert (reservation.progress(), reservation.message()) == (Progress.REDEEMED, None)
    with pytest.raises(TokenAlreadyUsed):
        reservation.redeem()


@pytest.mark.parametrize("token", ["", "1-", "x", "2-00", "99-" + "0" * 32, "-1-" + "0" * 32, "²-" + "0" * 32])
def test_an_invented_token_is_refused(ledger, token):
    ledger.reserve([Spend("d", Gaussian(2.0))])
    with pytest.raises(InputError, match="that this ledger gave out"):
        ledger.redeem([token])


def test_one_reservation_per_release_and_one_transaction_for_all(ledger):
    reservations = ledger.reserve_many(
        [[Spend("d", Laplace(2.0), client=c, group=f"sex={g}") for g in "FM"] for c in ("a", "b", "c")]
    )
    assert len({reservation.token for reservation in reservations}) == 3
    stored = rows(ledger, "client, group_name, token, recorded_at")[1:]
    assert [row[:2] for row in stored] == [(c, f"sex={g}") for c in "abc" for g in "FM"]
    assert [row[2] for row in stored] == [r.token for r in reservations for _ in range(2)]
    assert len({row[3] for row in stored}) == 1


def test_over_budget_nothing_at_all_is_written(ledger):
    ledger.set_budget("d", Budget(1.0, 1e-5))
    before = rows(ledger)
    cheap, dear = Spend("d", Gaussian(50.0), client="a"), Spend("d", Gaussian(0.5), client="b")
    with pytest.raises(BudgetExceeded):
        ledger.reserve_many([[cheap], [dear]])
    assert rows(ledger) == before
    assert ledger.spent("d") == {}
    ledger.reserve([cheap])
    assert audit(ledger, pld=False).fine


def test_past_spending_is_recorded_even_over_the_budget(ledger):
    ledger.set_budget("d", Budget(1.0, 1e-5))
    ledger.record_past([Spend("d", Gaussian(0.5), channel="imported")])
    report = audit(ledger, pld=False)
    assert report.verified
    assert report.datasets[0].exceeded
    with pytest.raises(BudgetExceeded) as error:
        ledger.reserve([Spend("d", Gaussian(100.0))])
    assert error.value.left == 0


def test_spending_before_the_first_budget_counts(ledger):
    ledger.reserve([Spend("d", Gaussian(2.0), count=3)])
    budget = ledger.set_budget("d", Budget(20.0, 1e-5))
    assert ledger.spent("d") == {("", ""): pytest.approx(3 * budget.order / (2 * 2.0**2), rel=1e-9)}


def test_totals_survive_reopening_and_writers_in_turns(url):
    with Ledger(url) as one, Ledger(url) as two:
        budget = one.set_budget("d", Budget(50.0, 1e-5))
        for _ in range(5):
            one.reserve([Spend("d", Gaussian(3.0), client="a")])
            two.reserve([Spend("d", Gaussian(3.0), client="a", count=2)])
        expected = {("a", ""): pytest.approx(15 * budget.order / 18, rel=1e-9)}
        assert one.spent("d") == two.spent("d") == expected
    with Ledger(url) as three:
        assert three.spent("d") == expected


def test_totals_in_the_chain_are_completed_from_the_rows_after_them(url, monkeypatch):
    monkeypatch.setattr("accountant.ledger.datasets.CHECKPOINT_ROWS", 4)
    monkeypatch.setattr("accountant.ledger.datasets.ROWS_PER_PAYER", 0)
    with Ledger(url) as ledger:
        budget = ledger.set_budget("d", Budget(50.0, 1e-5))
        for number in range(11):
            ledger.reserve([Spend("d", Gaussian(3.0), client="ab"[number % 2])])
        with ledger.reading() as connection:
            written = fetch(connection, "SELECT sequence FROM entries WHERE kind = 'totals' ORDER BY sequence")
            assert written == [(5,), (10,), (15,)]
    one = budget.order / 18
    with Ledger(url) as ledger:
        assert ledger.spent("d") == {("a", ""): pytest.approx(6 * one), ("b", ""): pytest.approx(5 * one)}
        assert audit(ledger, pld=False).fine


def test_an_older_copy_that_is_put_back_under_an_open_ledger_is_refused(ledger, url, tmp_path):
    path = url.removeprefix("sqlite:///")
    ledger.set_budget("d", Budget(50.0, 1e-5))
    ledger.reserve([Spend("d", Gaussian(3.0))])
    copy = sqlite3.connect(tmp_path / "copy.sqlite")
    current = sqlite3.connect(path)
    current.backup(copy)
    ledger.reserve([Spend("d", Gaussian(3.0), count=7)])
    copy.backup(current)
    for connection in (copy, current):
        connection.close()
    for ask in (lambda: ledger.spent("d"), lambda: ledger.reserve([Spend("d", Gaussian(3.0))])):
        with pytest.raises(OlderLedger, match="row 4 is missing, and the newest is 3"):
            ask()


# --- what may be written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": ""}, "dataset must not be empty"),
        ({"client": "a\nb"}, "client must be printable text"),
        ({"channel": " counts"}, "channel must be printable text"),
        ({"run": "e\u0301"}, "run must be in Unicode normal form C"),
        ({"client": "x" * 201}, "client must have at most 200 characters"),
        ({"client": None}, "client must be text"),
        ({"group": "F"}, 'group must be "attribute=value"'),
        ({"group": "sex=F,race=B"}, 'for a combination "sex,race=F,B"'),
        ({"group": "=F"}, 'group must be "attribute=value"'),
        ({"count": 0}, "count must be a whole number, at least 1"),
        ({"count": True}, "count must be a whole number"),
        ({"round": -1}, "round must be a whole number, at least 0"),
        ({"event": "gaussian"}, "event must be an accountant event"),
    ],
)
def test_a_spend_that_could_be_misread_is_refused(fields, message):
    with pytest.raises(InputError) as error:
        Spend(**{"dataset": "d", "event": Gaussian(1.0), **fields})
    assert message in str(error.value)


def test_a_dataset_keeps_its_adjacency(ledger):
    ledger.reserve([Spend("d", Gaussian(2.0)), Spend("d", NotPrivate())])
    replaced = Spend("d", Gaussian(2.0, adjacency=Adjacency.REPLACE_ONE))
    with pytest.raises(NeighbouringMismatch, match="add or remove one record"):
        ledger.reserve([replaced])
    with pytest.raises(NeighbouringMismatch):
        ledger.set_budget("d", Budget(1.0, 1e-5, adjacency="replace-one"))
    ledger.reserve([Spend("other", Gaussian(2.0, adjacency=Adjacency.REPLACE_ONE))])


def test_reserving_needs_spends_of_one_dataset(ledger):
    for nothing in ([], [[]]):
        with pytest.raises(InputError, match="at least one spend"):
            ledger.reserve_many(nothing)
    with pytest.raises(InputError, match="must concern one dataset"):
        ledger.reserve([Spend("d", Gaussian(1.0)), Spend("e", Gaussian(1.0))])


@pytest.mark.parametrize("statement", ["UPDATE entries SET count = 1", "DELETE FROM entries", "DELETE FROM sources"])
def test_the_database_refuses_to_change_rows(ledger, statement):
    ledger.reserve([Spend("d", Gaussian(2.0))])
    with pytest.raises((DatabaseError, IntegrityError), match="append-only"), ledger._storage.writing() as connection:
        connection.exec_driver_sql(statement)


# --- datasets ---------------------------------------------------------------------------------------------------


def test_simulations_have_no_budget_and_stay_simulations(ledger):
    ledger.register("toy", simulation=True)
    assert ledger.dataset("toy").simulation
    with pytest.raises(InputError, match="must not be a simulation to have a budget"):
        ledger.set_budget("toy", Budget(1.0, 1e-5))
    with pytest.raises(InputError, match="must stay True"):
        ledger.register("toy", simulation=False)
    ledger.reserve([Spend("real", Gaussian(1.0))])
    with pytest.raises(InputError, match="must stay False"):
        ledger.register("real", simulation=True)


def test_a_fingerprint_binds_the_budget_to_the_data(ledger):
    ledger.register("patients", fingerprint="aa")
    ledger.set_budget("patients", Budget(1.0, 1e-5))
    spend = Spend("patients", Gaussian(100.0))
    for wrong in ("", "bb"):
        with pytest.raises(InputError, match="must be that of dataset 'patients'"):
            ledger.reserve([spend], fingerprint=wrong)
    ledger.reserve([spend], fingerprint="aa")
    with pytest.raises(InputError, match="must be 'patients', where this very data is registered"):
        ledger.register("another-name", fingerprint="aa")
    with pytest.raises(InputError, match="renew=True"):
        ledger.register("patients", fingerprint="bb")
    spent = ledger.spent("patients")
    ledger.register("patients", fingerprint="bb", renew=True)
    assert ledger.spent("patients") == spent
    ledger.reserve([spend], fingerprint="bb")
    with pytest.raises(InputError, match="where this very data"):
        ledger.register("another-name", fingerprint="aa")  # the old data still belongs to the old name


def test_registering_twice_adds_no_row(ledger):
    ledger.register("d", fingerprint="aa")
    head = ledger.head()
    ledger.register("d", fingerprint="aa")
    assert ledger.head() == head


def test_budget_history_is_in_the_chain(ledger):
    first = ledger.set_budget("d", Budget(1.0, 1e-5), reason="start", actor="ada")
    ledger.reserve([Spend("d", Gaussian(50.0))])
    second = ledger.set_budget("d", Budget(2.0, 1e-6), reason="board, 12 May", actor="grace")
    assert second.order == first.order
    changes = audit(ledger, pld=False).datasets[0].budget_changes
    assert [(c.actor, c.reason, c.budget) for c in changes] == [
        ("ada", "start", first),
        ("grace", "board, 12 May", second),
    ]


# --- opening ----------------------------------------------------------------------------------------------------


def test_a_ledger_that_does_not_exist_is_not_created_for_a_reader(tmp_path):
    with pytest.raises(InputError, match="must exist"):
        Ledger(f"sqlite:///{tmp_path}/none.sqlite", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("sqlite://", "kept in a file"),
        ("sqlite:///:memory:", "kept in a file"),
        ("sqlite:///", "kept in a file"),
        ("sqlite:///?", "kept in a file"),
        ("sqlite:///file:x?mode=memory&uri=true", "kept in a file"),
        ("sqlite:///file::memory:?cache=shared&uri=true", "kept in a file"),
        ("sqlite:///FILE:x?mode=memory&uri=true", "kept in a file"),
        ("sqlite:///x?vfs=memdb&uri=true", "kept in a file"),
        ("sqlite:///file:/x?vfs=memdb&uri=true", "kept in a file"),
        ("sqlite+aiosqlite:///x", "sqlite:///FILE or postgresql"),
        ("sqlite+pysqlcipher://:secret@/x", "sqlite:///FILE or postgresql"),
        ("sqlite://host/x", "sqlite:///FILE or postgresql"),
        ("sqlite:///%00", "must be"),
        ("sqlite:////", "must be a database that opens"),
        ("sqlite:////dev/null/x", "must be"),
        ("sqlite:///" + "a" * 5000, "must be a file that can be reached"),
        ("postgresql://user:secret@host:port/db", "sqlite:///FILE or postgresql"),
        ("postgresql://user:secret@[::1/db", "sqlite:///FILE or postgresql"),
        ("postgresql+asyncpg://user:secret@host/db", "sqlite:///FILE or postgresql"),
        ("", "sqlite:///FILE or postgresql"),
        ("://", "sqlite:///FILE or postgresql"),
        ("mysql://u:secret@host/db", "sqlite:///FILE or postgresql"),
        ("nonsense", "sqlite:///FILE or postgresql"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_addresses_that_cannot_hold_a_ledger(address, message, create, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        Ledger(address, create=create)
    if create:
        assert message in str(error.value)
    assert "secret" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_ledger(tmp_path):
    (tmp_path / "text.sqlite").write_text("this is no database, it is a text file of some length")
    with pytest.raises(InputError, match="must be a database that opens"):
        Ledger(f"sqlite:///{tmp_path}/text.sqlite")
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(InputError, match="must be a ledger"):
        Ledger(f"sqlite:///{tmp_path}/empty.sqlite", create=False)


def test_a_ledger_that_cannot_be_used_is_explained(url, monkeypatch):
    path = url.removeprefix("sqlite:///")
    with Ledger(url) as ledger:
        ledger.reserve([Spend("d", Gaussian(1.0))])
    monkeypatch.setattr("accountant.ledger.storage.BUSY_SECONDS", 0)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Ledger(url, create=False) as ledger, pytest.raises(LedgerUnavailable, match="database is locked"):
        ledger.reserve([Spend("d", Gaussian(1.0))])
    holder.execute("DROP TABLE sources")
    holder.execute("COMMIT")
    holder.close()
    with pytest.raises(InputError, match="must be a ledger with all its tables"):
        Ledger(url, create=False)


def test_an_older_schema_is_migrated_and_a_newer_one_refused(url, monkeypatch):
    with Ledger(url) as ledger:
        ledger.reserve([Spend("d", Gaussian(1.0))])
        head = ledger.head()

    def add_notes(connection):
        connection.exec_driver_sql("CREATE TABLE notes (text TEXT)")

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, add_notes])
    with Ledger(url) as ledger, ledger.reading() as connection:
        assert schema.installed_version(connection) == len(schema.MIGRATIONS)
        assert fetch(connection, "SELECT * FROM notes") == []
        assert ledger.head() == head
    with Ledger(url) as ledger:
        assert audit(ledger, pld=False).fine
    monkeypatch.undo()
    with pytest.raises(InputError, match="newer program wrote it"):
        Ledger(url)


def test_a_head_that_does_not_fit_stops_writers(ledger):
    ledger.reserve([Spend("d", Gaussian(1.0))])
    with ledger._storage.writing() as connection:
        connection.exec_driver_sql("UPDATE head SET sequence = 7")
    with pytest.raises(LedgerBroken, match="Run an audit"):
        ledger.reserve([Spend("d", Gaussian(1.0))])


def test_times_are_utc_and_sort(url):
    with Ledger(url, clock=lambda: datetime(2026, 3, 1, 12, 30, tzinfo=UTC)) as ledger:
        assert rows(ledger, "recorded_at") == [("2026-03-01T12:30:00.000000Z",)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_its_own_connections(ledger):
    ledger.reserve([Spend("d", Gaussian(1.0))])
    context = multiprocessing.get_context("fork")
    child = context.Process(target=ledger.reserve, args=([Spend("d", Gaussian(1.0))],))
    child.start()
    child.join()
    assert child.exitcode == 0
    ledger.reserve([Spend("d", Gaussian(1.0))])
    assert len(rows(ledger)) == 4
    assert audit(ledger, pld=False).fine


def test_importing_the_ledger_does_not_load_torch_or_dp_accounting():
    code = "import sys, accountant.ledger.ledger, accountant.audit; print([m for m in ('torch', 'dp_accounting', "
    code += "'opacus', 'flwr', 'privfair', 'matplotlib') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_a_new_ledger_is_its_owners_alone(tmp_path: Path) -> None:
    """It may hold messages that were not sent yet."""
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite"):
        assert (tmp_path / "l.sqlite").stat().st_mode & 0o077 == 0
