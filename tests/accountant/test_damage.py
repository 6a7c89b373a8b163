"""Files that were damaged: every way to open them ends in a clear error, or in a ledger that is whole."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from accountant.audit import audit
from accountant.budget import Budget
from accountant.errors import InputError, LedgerUnavailable, Refused
from accountant.events import Gaussian
from accountant.ledger import schema
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend

REQUEST = [Spend("patients", Gaussian(90.0), client="north")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "ledger.sqlite"
    with Ledger(f"sqlite:///{path}") as ledger:
        ledger.set_budget("patients", Budget(50.0, 1e-5))
        for _ in range(12):
            ledger.reserve(REQUEST).redeem()
    return path.read_bytes()


def outcomes(path: Path, content: bytes, *statements: str) -> list[str]:
    """The kinds of error when it is audited, shown and spent from; "fine" for none."""

    def look(ledger: Ledger) -> None:
        if not audit(ledger, pld=False).fine:
            raise Refused("not fine")

    found = []
    for create, ask in (
        (False, look),
        (False, lambda ledger: ledger.datasets()),
        (True, lambda ledger: ledger.reserve(REQUEST)),
    ):
        for old in path.parent.glob(f"{path.name}*"):
            old.unlink()
        path.write_bytes(content)
        if statements:
            connection = sqlite3.connect(path)
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement)
            connection.commit()
            connection.close()
        try:
            with Ledger(f"sqlite:///{path}", create=create) as ledger:
                ask(ledger)
            found.append("fine")
        except InputError:
            found.append("bad input")
        except Refused:
            found.append("refused")
        except LedgerUnavailable:
            found.append("unavailable")
    return found


def test_bytes_at_random(whole, tmp_path):
    rng = random.Random(16)
    seen = set()
    for number in range(120):
        content = bytearray(whole)
        for _ in range((1, 8, 64, 512)[number % 4]):
            content[rng.randrange(len(content))] = rng.randrange(256)
        seen.update(outcomes(tmp_path / "l.sqlite", bytes(content)))
    assert {"refused", "fine"} <= seen


@pytest.mark.parametrize("size", [1, 50, 99, 100, 512, 4095, 4096, 8192, 20_000, -4096])
def test_cut_short(whole, tmp_path, size):
    assert "fine" not in outcomes(tmp_path / "l.sqlite", whole[:size])[:2]


def test_no_database_and_no_ledger(tmp_path):
    path = tmp_path / "l.sqlite"
    assert outcomes(path, random.Random(0).randbytes(5_000)) == ["bad input"] * 3
    connection = sqlite3.connect(tmp_path / "other.sqlite")
    connection.execute("CREATE TABLE people (name TEXT)")
    connection.close()
    assert outcomes(path, (tmp_path / "other.sqlite").read_bytes())[:2] == ["bad input"] * 2


def test_without_its_head_row(whole, tmp_path):
    assert outcomes(tmp_path / "l.sqlite", whole, "DELETE FROM head") == ["refused"] * 3


@pytest.mark.parametrize("table", [table.name for table in schema.metadata.sorted_tables])
def test_a_table_that_was_dropped(whole, tmp_path, table):
    found = outcomes(tmp_path / "l.sqlite", whole, f"DROP TABLE {table}")
    if table not in ("totals", "snapshots"):  # not used any more
        assert "fine" not in found[:1]
