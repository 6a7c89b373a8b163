"""Bills of many runs: paid in one transaction, before anything is answered; what cannot be paid is not answered."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from accountant.audit import audit
from accountant.budget import Budget, BudgetExceeded
from accountant.events import Adjacency
from accountant.ledger.ledger import Ledger
from privfair.channels.base import PriceList
from privfair.federated.messages import Parameters, ScoreRelease, Scores, ScoresRequest
from privfair.mechanisms.score_release import ScoreNoise
from privfair.privacy.ledger_gateway import LedgerGateway, RetriesUsedUp, settle
from tests.privacy.plans import cells_of

CELLS = cells_of()


def scores(number: int) -> ScoresRequest:
    release = ScoreRelease(ScoreNoise("gaussian", 2.0), np.array([0.1, 0.1]))
    return ScoresRequest(number, Parameters(np.zeros(2)), np.array([2, 3]), release)


def desk_of(ledger: Ledger, run: str, dataset: str = "people", retries: int = 1) -> LedgerGateway:
    prices = [
        PriceList(dataset, run, f"client{k}", ("s0=0", "s0=1"), CELLS, Adjacency.ADD_OR_REMOVE, np.array([9, 9]))
        for k in range(2)
    ]
    return LedgerGateway(ledger, prices, run=run, fingerprint="", retries=retries)


def written(path: Path) -> tuple[int, int, int]:
    """(rows, redeemed tokens, messages), as another process sees them."""
    connection = sqlite3.connect(path)
    try:
        tables = ("entries WHERE kind = 'spend'", "redemptions", "messages")
        rows, redeemed, messages = (connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables)
        return rows, redeemed, messages
    finally:
        connection.close()


def test_all_runs_are_paid_for_at_once(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with Ledger(f"sqlite:///{path}") as one, Ledger(f"sqlite:///{path}") as other:
        desks = [desk_of(one, "run 1"), desk_of(other, "run 2")]  # each with a connection of its own
        times = set()
        for number in range(2):
            assert settle([d.bill([(0, scores(number)), (1, scores(number))]) for d in desks]) == {}
            # two cells of two clients of two runs in each round; nothing is kept to be sent again
            assert written(path) == (8 * (number + 1), 4 * (number + 1), 0)
        with one.reading() as connection:
            times = {t for (t,) in connection.exec_driver_sql("SELECT recorded_at FROM entries WHERE kind = 'spend'")}
        assert len(times) == 2  # one transaction a round
        assert [gateway.rows for gateway in desks] == [8, 8]
        assert [len(one.spends(run=f"run {n}")) for n in (1, 2)] == [8, 8]
        assert audit(one, pld=False).fine


def test_what_cannot_be_paid_is_told_and_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with Ledger(f"sqlite:///{path}") as ledger:
        ledger.set_budget("strict", Budget(epsilon=0.01, delta=1e-6), reason="test")
        bills = [
            desk_of(ledger, "run 1").bill([(0, scores(0))]),
            desk_of(ledger, "run 2", "strict").bill([(0, scores(0))]),
            desk_of(ledger, "run 3", "strict").bill([(1, scores(0))]),
        ]
        unpaid = settle(bills)
        assert list(unpaid) == [1, 2]
        assert all(isinstance(error, BudgetExceeded) for error in unpaid.values())
        assert written(path)[:2] == (2, 1)
        assert [bill.gateway.rows for bill in bills] == [2, 0, 0]


def test_after_a_crash_the_release_counts_and_the_plan_says_how_often(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        settle([desk_of(ledger, "run 1").bill([(0, scores(0))])])  # and then the process dies
        after = desk_of(ledger, "run 1")
        assert not after.begun_anew
        after.answer([(0, scores(0))], lambda client, request: Scores((np.zeros(2), np.zeros(3))))
        assert after.rows == 4  # the lost one, and the one that was answered
        with pytest.raises(RetriesUsedUp):
            desk_of(ledger, "run 1", retries=0).bill([(0, scores(0))])
