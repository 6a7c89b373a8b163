"""Is what is kept about a dataset what the rows of the chain say? Asked whenever a budget is read for spending.

The small table beside the chain (see accountant.books) is quick to read, and quick to edit. So the newest budget and
registration of the dataset are read from the chain as well: a few rows, found by an index, whose hashes must fit
their content. Whether the rows before them are whole is for an audit, which reads all of them.
"""

from __future__ import annotations

import json
from hashlib import sha256

from sqlalchemy import Connection

from accountant.books import BUDGET, DATASET, DatasetState, read_state
from accountant.budget import Budget
from accountant.chain import chained_text
from accountant.errors import LedgerBroken
from accountant.spending import Source
from accountant.storage import fetch


def read_settled(connection: Connection, dataset: str) -> DatasetState:
    """What is settled about a dataset, checked."""
    return require_settled(connection, read_state(connection, dataset))


def require_settled(connection: Connection, state: DatasetState) -> DatasetState:
    """The state, if the dataset's newest budget and registration in the chain say the same; else `LedgerBroken`.

    Not compared: the adjacency of a dataset without a budget, which its releases settle.
    """
    simulation, fingerprint, budget = False, "", None
    newest = _newest(connection, state.name)
    try:
        if DATASET in newest:
            simulation, fingerprint = bool(newest[DATASET]["simulation"]), str(newest[DATASET]["fingerprint"])
        if BUDGET in newest:
            budget = newest[BUDGET]["budget"]
    except (KeyError, TypeError) as error:
        raise _changed(state.name, f"a row of it cannot be read ({error})") from None
    if (state.simulation, state.fingerprint) != (simulation, fingerprint) or _kept(state.budget) != budget:
        raise _changed(state.name, "what is kept about it differs from what its rows say")
    if state.budget is not None and state.neighbouring != state.budget.neighbouring:
        raise _changed(state.name, "what is kept about it differs from its budget")
    return state


def _newest(connection: Connection, dataset: str) -> dict[str, dict[str, object]]:
    """What the newest row of each kind but releases says about the dataset; each row's hash is checked."""
    found: dict[str, dict[str, object]] = {}
    for sequence, kind, at, number, count, token, previous, hash_, *about in fetch(connection, _SETTLED, dataset):
        if kind in found:
            continue
        source = Source(*about)
        text = chained_text(sequence, kind, at, number, count, token, previous, "\n".join(source))
        if sha256(text.encode()).hexdigest() != hash_:
            raise _changed(dataset, f"row {sequence} was changed")
        try:
            found[kind] = json.loads(source.body)
        except ValueError as error:
            raise _changed(dataset, f"row {sequence} cannot be read ({error})") from None
    return found


def _kept(budget: Budget | None) -> object:
    return None if budget is None else json.loads(budget.to_json())


def _changed(dataset: str, what: str) -> LedgerBroken:
    return LedgerBroken(
        f"Dataset {dataset!r}: {what}. The books were changed, and nothing more may be spent: run privfair audit, "
        "which tells what was changed, and put back a copy of the ledger."
    )


# "kind <> 'spend'" is word for word the condition of the index `entries_settled`: only then is it used.
_SETTLED = (
    "SELECT sequence, kind, recorded_at, round, count, token, previous, hash, "
    "dataset, client, group_name, channel, run, body "
    "FROM entries JOIN sources ON sources.source = entries.source "
    "WHERE kind <> 'spend' AND dataset = ? ORDER BY sequence DESC"
)
