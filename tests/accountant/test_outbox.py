"""Tokens and messages beside the chain: one message per token for ever, and an audit that finds what does not fit."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import DatabaseError

from accountant.audit import audit
from accountant.events import Gaussian
from accountant.ledger import schema
from accountant.ledger.chain import Progress, Reservation, TokenAlreadyUsed
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/l.sqlite"


def sent(ledger: Ledger, message: bytes = b"one") -> Reservation:
    reservation = ledger.reserve([Spend("d", Gaussian(2.0))])
    reservation.redeem()
    reservation.store(message)
    return reservation


def test_another_message_is_refused_also_after_the_first_was_discarded(url):
    with Ledger(url) as ledger:
        reservation = sent(ledger)
        ledger.discard_message(reservation.token)
        with pytest.raises(TokenAlreadyUsed):
            reservation.store(b"two")
        assert (reservation.progress(), reservation.message()) == (Progress.REDEEMED, None)
        reservation.store(b"one")
        assert reservation.message() == b"one"
        assert audit(ledger, pld=False).fine


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE messages SET message = x'00'",
        "INSERT OR REPLACE INTO messages SELECT token, stored_at, x'00' FROM messages",
        "UPDATE digests SET sha256 = ''",
        "DELETE FROM digests",
        "INSERT OR REPLACE INTO digests SELECT token, '' FROM digests",
        "UPDATE redemptions SET redeemed_at = ''",
        "DELETE FROM redemptions",
        "INSERT OR REPLACE INTO redemptions SELECT token, '' FROM redemptions",
    ],
)
def test_the_database_refuses_to_change_what_was_redeemed_and_stored(url, statement):
    with Ledger(url) as ledger:
        sent(ledger)
        with pytest.raises(DatabaseError, match="append-only"), ledger._storage.writing() as connection:
            connection.exec_driver_sql(statement)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("INSERT INTO redemptions VALUES ('2-00', '')", "1 tokens in redemptions were never given out"),
        ("INSERT INTO redemptions VALUES ('nonsense', '')", "1 tokens in redemptions were never given out"),
        ("INSERT INTO messages VALUES ('9-00', '', x'00')", "1 tokens in messages were never given out"),
        ("DELETE FROM redemptions", "1 tokens are in digests but not in redemptions"),
        ("DELETE FROM digests", "1 tokens are in messages but not in digests"),
    ],
)
def test_an_audit_finds_tokens_that_do_not_fit_the_rows(url, statement, problem):
    with Ledger(url) as ledger:
        sent(ledger)
        assert audit(ledger, pld=False).fine
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
    connection.close()
    with Ledger(url) as ledger:
        report = audit(ledger, pld=False)
    assert not report.fine
    assert any(problem in str(found) for found in report.problems)


def test_an_audit_finds_a_token_that_was_used_twice(url):
    with Ledger(url) as ledger:
        sent(ledger)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("CREATE TABLE copy AS SELECT * FROM redemptions UNION ALL SELECT * FROM redemptions")
        connection.execute("DROP TABLE redemptions")
        connection.execute("ALTER TABLE copy RENAME TO redemptions")
    connection.close()
    with Ledger(url) as ledger:
        assert [str(p) for p in audit(ledger, pld=False).problems] == ["1 tokens are twice in redemptions"]


def test_an_older_ledgers_messages_get_their_digests(url, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        with Ledger(url) as ledger:
            token = sent(ledger).token
            with ledger._storage.writing() as connection:
                connection.exec_driver_sql("DROP TABLE digests")
    with Ledger(url) as ledger:
        assert audit(ledger, pld=False).fine
        ledger.discard_message(token)
        with pytest.raises(TokenAlreadyUsed):
            ledger.store_message(token, b"two")
