"""Running totals: what each payer of a dataset has spent, at its budget's order, without reading every row.

A snapshot names the row up to which it counts, by number and hash; later rows are added to it. A process remembers
its own snapshot and stores one now and then for others. A snapshot whose row is gone is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from accountant import schema
from accountant.books import event_of
from accountant.budget import Budget
from accountant.chain import NO_HASH, Head, LedgerBroken
from accountant.spending import SPEND, Payer, add_up, payer_of
from accountant.storage import fetch, insert_rows

# Stored totals may lag by so many rows.
SNAPSHOT_ROWS = 2_000


@dataclass(frozen=True)
class Snapshot:
    """What each payer had spent when `head` was the newest row; `stored_at`: the row of the last one stored."""

    head: Head
    spent: dict[Payer, float]
    stored_at: int = 0


class Totals:
    """The totals of every dataset with a budget, as one process remembers them."""

    def __init__(self) -> None:
        """Nothing remembered."""
        self._remembered: dict[str, Snapshot] = {}

    def now(self, connection: Connection, dataset: str, budget: Budget, head: Head) -> Snapshot:
        """What each payer has spent up to `head`: a remembered or stored snapshot, and the rows after it."""
        known = self._remembered.get(dataset)
        if known is not None and known.head == head:
            return known
        if known is None or not _in_chain(connection, known.head):
            known = _stored(connection, dataset)
        later = fetch(connection, _SPENDING, dataset, known.head.sequence)
        return Snapshot(head, derive_totals(budget, later, known.spent), known.stored_at)

    def store_if_behind(self, connection: Connection, dataset: str, snapshot: Snapshot) -> Snapshot:
        """The snapshot; also stored, when the last stored one is far behind."""
        if snapshot.head.sequence - snapshot.stored_at < SNAPSHOT_ROWS:
            return snapshot
        return store(connection, dataset, snapshot)

    def remember(self, dataset: str, snapshot: Snapshot) -> None:
        """For the next time. Only after the transaction: a row that was rolled back must not count."""
        self._remembered[dataset] = snapshot

    def forget(self, connection: Connection, dataset: str) -> None:
        """Drop the totals, stored and remembered, so that they are derived from all rows again."""
        self._remembered.pop(dataset, None)
        connection.execute(schema.snapshots.delete().where(schema.snapshots.c.dataset == dataset))
        connection.execute(schema.totals.delete().where(schema.totals.c.dataset == dataset))


def store(connection: Connection, dataset: str, snapshot: Snapshot) -> Snapshot:
    """The snapshot, stored for whoever opens the ledger next."""
    rows = [(dataset, client, group, amount) for (client, group), amount in snapshot.spent.items()]
    insert_rows(connection, schema.totals, rows, replacing=True)
    row = (dataset, snapshot.head.sequence, snapshot.head.hash)
    insert_rows(connection, schema.snapshots, [row], replacing=True)
    return replace(snapshot, stored_at=snapshot.head.sequence)


def derive_totals(
    budget: Budget,
    spending: Iterable[Sequence[Any]],
    before: Mapping[Payer, float] | None = None,
) -> dict[Payer, float]:
    """Totals at the budget's order, from (client, group, event, count), on top of those before."""
    spent = dict(before or {})
    for client, group, body, count in spending:
        try:
            event = event_of(body)
        except (ValueError, TypeError) as error:  # InputError and JSONDecodeError are ValueErrors
            raise LedgerBroken(f"An event in the ledger cannot be read: {error}") from error
        payer = payer_of(client, group, event)
        spent[payer] = add_up(spent.get(payer, 0.0), budget.cost(event, int(count)))
    return spent


def _stored(connection: Connection, dataset: str) -> Snapshot:
    found = fetch(connection, "SELECT sequence, hash FROM snapshots WHERE dataset = ?", dataset)
    if not found or not _in_chain(connection, head := Head(*found[0])):
        return Snapshot(Head(0, NO_HASH), {})
    rows = fetch(connection, "SELECT client, group_name, spent FROM totals WHERE dataset = ?", dataset)
    return Snapshot(head, {(client, group): spent for client, group, spent in rows}, head.sequence)


def _in_chain(connection: Connection, head: Head) -> bool:
    """Whether the row is still there; not so after an older copy of the ledger was put back."""
    return fetch(connection, "SELECT hash FROM entries WHERE sequence = ?", head.sequence) == [(head.hash,)]


_SPENDING = (
    "SELECT client, group_name, body, sum(count) FROM entries JOIN sources ON sources.source = entries.source "
    f"WHERE dataset = ? AND sequence > ? AND kind = '{SPEND}' GROUP BY client, group_name, body"
)
