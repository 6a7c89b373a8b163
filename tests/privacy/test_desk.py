"""The desk at the door: on a real ledger, seen from a second connection at the moment of each answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from accountant.audit import audit
from accountant.budget import Budget, BudgetExceeded
from accountant.events import Adjacency
from accountant.ledger.ledger import Ledger
from privfair.channels.base import PriceList
from privfair.federated.messages import (
    Counts,
    CountsRequest,
    Parameters,
    Reply,
    Request,
    ScoreRelease,
    Scores,
    ScoresRequest,
)
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.score_release import ScoreNoise
from privfair.privacy.ledger_gateway import LedgerGateway, RetriesUsedUp
from tests.privacy.plans import cells_of

CELLS = cells_of()
NOISE = ScoreNoise("gaussian", 0.5)
RUN = "run-1"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as opened:
        yield opened


def desk_on(ledger: Ledger, clients: int = 2, retries: int | None = 1) -> LedgerGateway:
    prices = [
        PriceList("people", RUN, f"client{k}", ("s0=0", "s0=1"), CELLS, Adjacency.ADD_OR_REMOVE, np.array([9, 9]))
        for k in range(clients)
    ]
    return LedgerGateway(ledger, prices, run=RUN, fingerprint="", retries=retries)


def counts() -> CountsRequest:
    return CountsRequest(CountNoise("laplace", 5.0))


def scores(number: int) -> ScoresRequest:
    release = ScoreRelease(NOISE, np.array([0.5, 0.5]))
    return ScoresRequest(number, Parameters(np.zeros(2)), np.array([2, 3]), release)


class Answering:
    """Clients that answer with fresh random numbers, and note when they were asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._rng = np.random.default_rng(1)

    def __call__(self, client: int, request: Request) -> Reply:
        self.asked.append(client)
        if isinstance(request, ScoresRequest):
            return Scores((self._rng.normal(size=2), self._rng.normal(size=3)))
        return Counts(18, self._rng.integers(1, 100, size=2))


class Crash(Exception):
    """A process that dies while it answers."""


def crashing(client: int, request: Request) -> Reply:
    raise Crash


def looked_up(path: Path) -> tuple[list[str], set[str], set[str]]:
    """(tokens of the rows, redeemed tokens, tokens with messages), as another process sees them."""
    connection = sqlite3.connect(path)
    try:
        rows = [t for (t,) in connection.execute("SELECT token FROM ledger WHERE kind = 'spend' ORDER BY sequence")]
        redeemed = {t for (t,) in connection.execute("SELECT token FROM redemptions")}
        return rows, redeemed, {t for (t,) in connection.execute("SELECT token FROM messages")}
    finally:
        connection.close()


def same(one: Reply, other: Reply) -> bool:
    if isinstance(one, Scores) and isinstance(other, Scores):
        return all(np.array_equal(a, b) for a, b in zip(one.cells, other.cells, strict=True))
    return isinstance(one, Counts) and isinstance(other, Counts) and np.array_equal(one.cells, other.cells)


def test_the_price_is_on_disk_and_redeemed_before_anything_is_answered(ledger: Ledger, tmp_path: Path) -> None:
    seen = []
    inner = Answering()

    def watched(client: int, request: Request) -> Reply:
        seen.append(looked_up(tmp_path / "l.sqlite"))
        return inner(client, request)

    replies = desk_on(ledger).answer([(0, scores(0)), (1, scores(0))], watched)
    assert len(replies) == len(seen) == 2
    for rows, redeemed, messages in seen:
        assert len(rows) == 4  # two cells of two clients
        assert len(set(rows)) == 2
        assert redeemed == set(rows)
        assert not messages
    rows, redeemed, messages = looked_up(tmp_path / "l.sqlite")
    assert messages == redeemed == set(rows)  # stored when the replies are handed over
    spends = ledger.spends(run=RUN)
    assert [(s.client, s.group, s.channel, s.round) for _, s in spends] == [
        (f"client{k}", f"s0={g}", "predictions", 0) for k in range(2) for g in range(2)
    ]


def test_a_stored_message_is_sent_again_and_nobody_is_asked(ledger: Ledger) -> None:
    first = desk_on(ledger).answer([(0, scores(0)), (1, scores(0))], Answering())
    before = {t: ledger.message(t) for t, _ in ledger.spends(run=RUN)}
    resumed = desk_on(ledger)
    again = resumed.answer([(1, scores(0)), (0, scores(0))], crashing)  # in another order
    assert same(first[0], again[1])
    assert same(first[1], again[0])
    assert {t: ledger.message(t) for t, _ in ledger.spends(run=RUN)} == before
    assert len(before) == 2
    assert same(resumed.answer([(0, scores(0))], crashing)[0], first[0])  # and once more


def test_only_those_are_asked_whose_message_is_missing(ledger: Ledger) -> None:
    (first,) = desk_on(ledger).answer([(1, scores(0))], Answering())
    asking = Answering()
    replies = desk_on(ledger).answer([(0, scores(0)), (1, scores(0))], asking)
    assert asking.asked == [0]
    assert same(replies[1], first)


def test_a_release_that_was_lost_is_paid_twice(ledger: Ledger) -> None:
    with pytest.raises(Crash):
        desk_on(ledger).answer([(0, scores(0))], crashing)
    asking = Answering()
    desk_on(ledger).answer([(0, scores(0))], asking)
    assert asking.asked == [0]
    tokens = [t for t, _ in ledger.spends(run=RUN)]
    assert len(tokens) == 4  # two rows for each of two tokens
    assert len(set(tokens)) == 2
    assert desk_on(ledger).answer([(0, scores(0))], crashing)  # what was made the second time is there to stay


def test_a_reservation_that_was_never_used_is_used(ledger: Ledger) -> None:
    """A crash between reserving and redeeming: no noise was drawn, so the price stands for the release to come."""
    before = desk_on(ledger)
    token = ledger.reserve(before.prices[0].spends(scores(0))).token
    asking = Answering()
    desk_on(ledger).answer([(0, scores(0))], asking)
    assert asking.asked == [0]
    assert {t for t, _ in ledger.spends(run=RUN)} == {token}


def test_a_reservation_at_another_price_is_not_used(ledger: Ledger) -> None:
    gateway = desk_on(ledger)
    cheaper = ScoresRequest(0, Parameters(np.zeros(2)), np.array([2, 0]), ScoreRelease(NOISE, np.array([0.1, 0.0])))
    token = ledger.reserve(gateway.prices[0].spends(cheaper)).token
    desk_on(ledger).answer([(0, scores(0))], Answering())
    assert len({t for t, _ in ledger.spends(run=RUN)} - {token}) == 1
    assert len(ledger.spends(run=RUN)) == 3


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_are_limited(ledger: Ledger, tmp_path: Path, retries: int) -> None:
    for _ in range(retries + 1):
        with pytest.raises(Crash):
            desk_on(ledger, retries=retries).answer([(0, scores(5))], crashing)
    rows = len(ledger.spends(run=RUN))
    assert rows == 2 * (retries + 1)
    asking = Answering()
    message = (
        rf"Client 'client0' lost {retries + 1} releases of its predictions in crashes, and the plan has room for "
        rf"{retries}: one more would cost more than privacy.epsilon\. What was trained so far stays as it is\. "
        r"Start a new run with a larger privacy.retries\."
    )
    with pytest.raises(RetriesUsedUp, match=message):
        desk_on(ledger, retries=retries).answer([(0, scores(5)), (1, scores(5))], asking)
    assert not asking.asked
    assert len(ledger.spends(run=RUN)) == rows  # nor was the other client charged
    assert desk_on(ledger, retries=retries).answer([(1, scores(5))], asking)  # it still has its own


def test_retries_of_all_rounds_count_together(ledger: Ledger) -> None:
    for number in range(2):
        with pytest.raises(Crash):
            desk_on(ledger, retries=1).answer([(0, scores(number))], crashing)
    desk_on(ledger, retries=1).answer([(0, scores(0))], Answering())
    with pytest.raises(RetriesUsedUp, match="lost 2 releases"):
        desk_on(ledger, retries=1).answer([(0, scores(1))], Answering())


def test_without_a_target_there_is_no_limit(ledger: Ledger) -> None:
    for _ in range(7):
        with pytest.raises(Crash):
            desk_on(ledger, retries=None).answer([(0, scores(0))], crashing)
    assert desk_on(ledger, retries=None).answer([(0, scores(0))], Answering())


def test_lost_counts_are_told_to_the_planner(ledger: Ledger) -> None:
    assert desk_on(ledger).releases_of_counts() == 0
    for expected in (1, 2, 3):
        gateway = desk_on(ledger, retries=0)  # counts are planned after the fact: they have no limit here
        with pytest.raises(Crash):
            gateway.answer([(0, counts())], crashing)
        assert gateway.releases_of_counts() == desk_on(ledger).releases_of_counts() == expected


def test_over_budget_nothing_is_asked_reserved_or_redeemed(ledger: Ledger, tmp_path: Path) -> None:
    ledger.set_budget("people", Budget(epsilon=0.01, delta=1e-6))
    asking = Answering()
    with pytest.raises(BudgetExceeded):
        desk_on(ledger).answer([(0, scores(0)), (1, scores(0))], asking)
    assert not asking.asked
    assert looked_up(tmp_path / "l.sqlite") == ([], set(), set())


def test_delivered_forgets_messages_and_no_prices(ledger: Ledger, tmp_path: Path) -> None:
    gateway = desk_on(ledger)
    gateway.answer([(0, counts()), (1, counts())], Answering())
    gateway.answer([(0, scores(0)), (1, scores(0))], Answering())
    before = ledger.spends(run=RUN)
    gateway.delivered()
    rows, redeemed, messages = looked_up(tmp_path / "l.sqlite")
    assert not messages
    assert redeemed == set(rows)
    assert ledger.spends(run=RUN) == before
    assert audit(ledger, pld=False).fine
    gateway.delivered()  # nothing left to forget


def test_a_resumed_desk_forgets_what_the_one_before_had_stored(ledger: Ledger, tmp_path: Path) -> None:
    desk_on(ledger).answer([(0, scores(0))], Answering())
    resumed = desk_on(ledger)
    resumed.answer([(0, scores(1))], Answering())
    resumed.delivered()
    assert not looked_up(tmp_path / "l.sqlite")[2]
