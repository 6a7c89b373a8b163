"""What is said about a run's ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from accountant import Budget, Ledger
from privfair.config import Config
from privfair.privacy import books


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
