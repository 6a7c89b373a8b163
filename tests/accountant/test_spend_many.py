"""Many releases reserved and redeemed at once: all on disk when the call returns, or none."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from accountant.audit import audit
from accountant.budget import Budget, BudgetExceeded
from accountant.errors import InputError
from accountant.events import Gaussian
from accountant.ledger.chain import Progress, TokenAlreadyUsed
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend


def release(client: str, number: int = 0, scale: float = 4.0) -> list[Spend]:
    """One release of two groups of a client."""
    return [Spend("people", Gaussian(scale), client, f"s={g}", "scores", f"run {client}", number) for g in "ab"]


def test_they_are_on_disk_and_redeemed_when_it_returns(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        tokens = ledger.spend_many([release("a"), release("b"), release("a", 1)])
        other = sqlite3.connect(tmp_path / "l.sqlite")
        rows = [t for (t,) in other.execute("SELECT token FROM ledger WHERE kind = 'spend' ORDER BY sequence")]
        redeemed = {t for (t,) in other.execute("SELECT token FROM redemptions")}
        other.close()
        assert rows == [token for token in tokens for _ in range(2)]
        assert redeemed == set(tokens)
        assert len(redeemed) == 3
        assert {ledger.progress(token) for token in tokens} == {Progress.REDEEMED}
        with pytest.raises(TokenAlreadyUsed):
            ledger.redeem(tokens[:1])
        assert [s.round for _, s in ledger.spends(run="run a")] == [0, 0, 1, 1]
        assert audit(ledger, pld=False).fine


def test_a_message_may_be_stored_afterwards(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        (token,) = ledger.spend_many([release("a")])
        ledger.store_message(token, b"noisy")
        assert ledger.message(token) == b"noisy"


def test_over_budget_nothing_is_spent_or_redeemed(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        ledger.set_budget("people", Budget(epsilon=1.0, delta=1e-5), reason="test")
        before = ledger.head()
        with pytest.raises(BudgetExceeded):
            ledger.spend_many([release("a"), release("b", scale=0.1)])
        assert ledger.head() == before
        ledger.spend_many([release("a", scale=50.0)])
        assert len(ledger.spends(run="run a")) == 2
        assert audit(ledger, pld=False).fine


def test_empty_releases_are_refused(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        cases: list[list[list[Spend]]] = [[], [[]], [release("a"), []]]
        for wrong in cases:
            with pytest.raises(InputError, match="spends must name at least one spend per release"):
                ledger.spend_many(wrong)
