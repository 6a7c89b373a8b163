"""What the rows of a ledger say of past runs."""

from __future__ import annotations

from sqlalchemy import Connection

from accountant.books import event_of
from accountant.spending import SPEND, Spend
from accountant.storage import fetch


def spends_of(connection: Connection, run: str) -> list[tuple[str, Spend]]:
    """(token, spend) of every row of a run, in order."""
    columns = "token, dataset, body, client, group_name, channel, round, count"
    rows = fetch(connection, f"SELECT {columns} FROM ledger WHERE kind = ? AND run = ? ORDER BY sequence", SPEND, run)
    return [
        (token, Spend(dataset, event_of(body), client, group, channel, run, number, count))
        for token, dataset, body, client, group, channel, number, count in rows
    ]


def runs_on(connection: Connection, dataset: str) -> list[str]:
    """The names of all runs that released something from a dataset."""
    rows = fetch(connection, "SELECT DISTINCT run FROM ledger WHERE kind = ? AND dataset = ?", SPEND, dataset)
    return sorted(run for (run,) in rows if run)
