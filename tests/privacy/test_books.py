"""What is said about a run's ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accountant import Budget, Ledger
from privfair.config import Config
from privfair.datasets import load
from privfair.privacy import books
from privfair.run_names import beginning_of, division_of, has_inferred_schema, run_name
from privfair.setting import Credentials


def test_the_ledgers_password_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration's address has it; people read the ledger's own name for itself."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    ledger.set_budget("synthetic", Budget(3.0, 1e-5))
    monkeypatch.setattr(books, "exists", lambda url: "secret" in url)
    monkeypatch.setattr(books, "Ledger", lambda url, create: ledger)
    config = Config.build({"run": {"ledger": "postgresql://me:secret@host/books"}})
    where, dataset, budget = books.budget_at_hand(config, "synthetic")
    assert (dataset, budget) == ("synthetic", Budget(3.0, 1e-5))
    assert where == f"sqlite:///{tmp_path}/ledger.sqlite"


@pytest.mark.parametrize("inferred", [False, True])
def test_the_name_of_a_run_tells_whether_its_schema_was_inferred(inferred: bool) -> None:
    loaded = load("synthetic", records=20)
    federation = replace(loaded, schema=replace(loaded.schema, inferred=inferred))
    name = Credentials.new(Config.build({}), federation, None).run
    assert has_inferred_schema(name) is inferred
    assert division_of(name) == books.definition(Config.build({}), federation, None)
    assert run_name(beginning_of(name), division_of(name), inferred=inferred) == name
