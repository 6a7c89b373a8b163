"""Somebody who can write to the database, but has neither this machine's memory nor the owner's key.

Every edit of a table changes nothing about what may be spent, or is refused before anything more is spent.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accountant.audit import audit
from accountant.budget import Budget, BudgetExceeded
from accountant.errors import InputError, LedgerBroken
from accountant.events import Gaussian
from accountant.ledger import chain, schema
from accountant.ledger.chain import Head
from accountant.ledger.datasets import BUDGET, settled
from accountant.ledger.ledger import Ledger
from accountant.ledger.signing import OwnerKey
from accountant.spending import Draft, Source, Spend

REQUEST = [Spend("patients", Gaussian(3.0), client="north", channel="counts", run="r")]


def fill(url: str, key: OwnerKey | None = None) -> int:
    """A ledger with rows of every kind, in which the budget of one dataset is used up; how many releases fitted."""
    with Ledger(url, key=key) as ledger:
        ledger.register("toys", simulation=True)
        ledger.set_budget("patients", Budget(20.0, 1e-5))
        ledger.set_budget("others", Budget(5.0, 1e-5))
        released = 0
        while True:
            try:
                reservation = ledger.reserve(REQUEST)
            except BudgetExceeded:
                return released
            reservation.redeem()
            reservation.store(b"message")
            released += 1


@pytest.fixture(scope="module")
def spent(tmp_path_factory) -> bytes:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("accountant.ledger.datasets.CHECKPOINT_ROWS", 4)
        patched.setattr("accountant.ledger.datasets.ROWS_PER_PAYER", 0)
        path = tmp_path_factory.mktemp("spent") / "ledger.sqlite"
        assert fill(f"sqlite:///{path}") > 5
    return content(path)


def content(path: Path) -> bytes:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.read_bytes()


def edited(path: Path, before: bytes, *statements: str) -> str:
    """The address of a ledger with this content, after the statements; all triggers were dropped first."""
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    path.write_bytes(before)
    connection = sqlite3.connect(path)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return f"sqlite:///{path}"


def assert_nothing_can_be_spent(url: str, what: str) -> None:
    try:
        with Ledger(url) as ledger:
            ledger.reserve(REQUEST)
    except (BudgetExceeded, LedgerBroken, InputError):
        return
    pytest.fail(f"spent again after: {what}")


def test_an_inserted_snapshot_does_not_open_a_budget_again(spent, tmp_path):
    url = edited(
        tmp_path / "l.sqlite",
        spent,
        "DELETE FROM totals",
        "DELETE FROM snapshots",
        "INSERT INTO snapshots SELECT 'patients', sequence, hash FROM head",
    )
    with Ledger(url) as ledger, pytest.raises(BudgetExceeded):
        ledger.reserve(REQUEST)


VALUES = ("0", "'patients'", "9000000000000000000")


def test_every_column_of_every_table(spent, tmp_path):
    """One column of all rows, or of the newest, to values of several kinds."""
    tried = 0
    for table in schema.metadata.sorted_tables:
        for column in table.columns:
            for value in VALUES:
                for where in ("", f" WHERE rowid = (SELECT max(rowid) FROM {table.name})"):
                    statement = f"UPDATE OR REPLACE {table.name} SET {column.name} = {value}{where}"
                    try:
                        url = edited(tmp_path / "l.sqlite", spent, statement)
                    except sqlite3.Error:
                        continue  # the table does not take it: no edit
                    assert_nothing_can_be_spent(url, statement)
                    tried += 1
    assert tried > 50


@pytest.mark.parametrize("table", [table.name for table in schema.metadata.sorted_tables])
def test_every_table_without_its_rows_or_gone(spent, tmp_path, table):
    for statement in (f"DELETE FROM {table}", f"DROP TABLE {table}"):
        assert_nothing_can_be_spent(edited(tmp_path / "l.sqlite", spent, statement), statement)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_any_row_of_any_table(spent, tmp_path, data):
    """One row is deleted, or takes a column's value from another row; several such edits together."""
    statements = []
    for _ in range(data.draw(st.integers(1, 3))):
        table = data.draw(st.sampled_from(schema.metadata.sorted_tables))
        key = next(iter(table.primary_key.columns)).name

        def row(table=table, key=key) -> str:
            place = data.draw(st.integers(0, 30))
            return f"(SELECT {key} FROM {table.name} ORDER BY {key} LIMIT 1 OFFSET {place})"

        column = data.draw(st.sampled_from(list(table.columns))).name
        statements.append(
            data.draw(
                st.sampled_from(
                    [
                        f"DELETE FROM {table.name} WHERE {key} = {row()}",
                        f"DELETE FROM {table.name} WHERE {key} >= {row()}",
                        f"UPDATE OR IGNORE {table.name} SET {column} = (SELECT {column} FROM {table.name} "
                        f"WHERE {key} = {row()}) WHERE {key} = {row()}",
                    ]
                )
            )
        )
    try:
        url = edited(tmp_path / "l.sqlite", spent, *statements)
    except sqlite3.Error:
        return
    assert_nothing_can_be_spent(url, "; ".join(statements))


# --- rows that are added at the end, as a program would -------------------------------------------------------------


def appended(url: str, draft: Draft, key: OwnerKey | None = None) -> None:
    """Chain a row onto the ledger, past the program; a forger has no key, or another one."""
    with Ledger(url, create=False) as ledger, ledger._storage.writing() as connection:
        head: Head = chain.read_head(connection)
        chain.append(connection, head, [(draft, "")], now=ledger._now(), key=key, known={})


def test_forged_totals_at_the_end_are_compared_with_the_rows(tmp_path):
    url = f"sqlite:///{tmp_path}/l.sqlite"
    fill(url)
    with Ledger(url) as ledger:
        with ledger._reading() as (_, position):
            draft = position.draft()
        body = draft.source.body.replace(position.spent_on("patients")["north", ""].hex(), (0.0).hex())
    assert body != draft.source.body
    appended(url, draft._replace(source=Source("", "", "", "", "", body)))
    with Ledger(url) as ledger, pytest.raises(LedgerBroken, match="are not what the rows before it add up to"):
        ledger.reserve(REQUEST)
    with Ledger(url) as ledger:
        assert any("not what the rows before it add up to" in str(p) for p in audit(ledger, pld=False).problems)


@pytest.mark.parametrize("forger", [None, OwnerKey(bytes(32))])
def test_a_budget_that_is_raised_without_the_owners_key_is_refused(tmp_path, forger):
    url, key = f"sqlite:///{tmp_path}/l.sqlite", OwnerKey(bytes(range(32)))
    fill(url, key)
    wide = settled(
        BUDGET, "patients", {"actor": "x", "budget": json.loads(Budget(900.0, 1e-5).to_json()), "reason": ""}
    )
    appended(url, wide, forger)
    with Ledger(url, key=key) as ledger, pytest.raises(LedgerBroken, match="is not signed with this key"):
        ledger.reserve(REQUEST)


def test_reopening_reads_rows_after_the_newest_totals_only(tmp_path, monkeypatch):
    """Whatever the ledger's length: this is what keeps the start of a process cheap."""
    url = f"sqlite:///{tmp_path}/l.sqlite"
    monkeypatch.setattr("accountant.ledger.datasets.CHECKPOINT_ROWS", 50)
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(1e4, 1e-5))
        for _ in range(40):
            ledger.reserve(REQUEST * 10)
        rows = ledger.head().sequence
    read: list[int] = []
    stream = chain.stream

    def counted(*args, **options):
        for batch in stream(*args, **options):
            read.append(len(batch))
            yield batch

    monkeypatch.setattr(chain, "stream", counted)
    with Ledger(url) as ledger:
        ledger.reserve(REQUEST)
        assert rows > 400
        assert sum(read) < 70
        expected = 401 * REQUEST[0].event.noise_scale ** -2 * ledger.budget("patients").order / 2
        assert ledger.spent("patients") == {("north", ""): pytest.approx(expected, rel=1e-9)}
