"""What the ledger's rows settle about each dataset, and the rules for naming data.

The state of a dataset is kept in a small table beside the rows. It follows from the chained rows and is written in the
same transaction; an audit derives it again. The rules (`require_…`): one kind for life, one name per fingerprint, and
releases that show it.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlalchemy import Connection

from accountant.budget import Budget
from accountant.errors import InputError, LedgerBroken
from accountant.events import Adjacency, Event, Neighbouring, NeighbouringMismatch, Unit
from accountant.ledger import schema
from accountant.ledger.signing import key_of
from accountant.ledger.storage import fetch, insert_rows
from accountant.spending import SPEND, Draft, Payer, Source, Spend, folded, require_one_spelling

LEDGER, DATASET, BUDGET = "ledger", "dataset", "budget"
# Totals so far (see `totals`); somebody said that this copy is the newest, or put back an older one on purpose.
TOTALS, TRUSTED, RESTORED = "totals", "trusted", "restored"

Registered = list[tuple[str, str]]  # (dataset, fingerprint) of every registration


def settled(kind: str, dataset: str, body: dict[str, object]) -> Draft:
    """A row that settles something about a dataset, or names the ledger."""
    return Draft(kind, Source(dataset, "", "", "", "", json.dumps(body, sort_keys=True, separators=(",", ":"))))


def account_name() -> str:
    """The name of the account that runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@dataclass(frozen=True)
class DatasetState:
    """What is settled about a dataset: is it a simulation, which data, which adjacency, which budget."""

    name: str
    simulation: bool = False
    fingerprint: str = ""
    neighbouring: Neighbouring | None = None
    budget: Budget | None = None

    def keeping(self, neighbouring: Neighbouring | None) -> DatasetState:
        """The state after a release with this neighbouring; the dataset's first release settles it."""
        if neighbouring is None or neighbouring == self.neighbouring:
            return self
        if self.neighbouring is None:
            return replace(self, neighbouring=neighbouring)
        raise NeighbouringMismatch(
            "event",
            f"must be for '{self.neighbouring}', as every release of dataset {self.name!r}",
            str(neighbouring),
            "Sums over different adjacencies bound nothing.",
        )


@lru_cache(maxsize=4096)
def event_of(body: str) -> Event:
    """The event that a ledger row holds."""
    return Event.from_json(json.loads(body))


def read_state(connection: Connection, dataset: str) -> DatasetState:
    """What is settled about a dataset; nothing, for one that the ledger has never seen."""
    rows = fetch(connection, f"{_STATES} WHERE dataset = ?", dataset)
    return _state(*rows[0]) if rows else DatasetState(dataset)


def read_states(connection: Connection) -> list[DatasetState]:
    """What is settled about every dataset, by name."""
    return [_state(*row) for row in fetch(connection, f"{_STATES} ORDER BY dataset")]


def _state(name: str, simulation: int, fingerprint: str, adjacency: str, unit: str, budget: str) -> DatasetState:
    try:
        return DatasetState(
            name,
            bool(simulation),
            fingerprint,
            Neighbouring(Adjacency(adjacency), Unit(unit)) if adjacency else None,
            _budget(budget) if budget else None,
        )
    except (ValueError, TypeError) as error:  # InputError and JSONDecodeError are ValueErrors
        raise LedgerBroken(
            f"What is kept about dataset {name!r} cannot be read ({error}): the ledger was changed. privfair audit "
            "reports what was; put back a copy of the ledger."
        ) from None


_budget = lru_cache(maxsize=256)(Budget.from_json)


def write_state(connection: Connection, state: DatasetState) -> None:
    """Keep what is settled about a dataset."""
    protected = state.neighbouring
    row = (
        state.name,
        int(state.simulation),
        state.fingerprint,
        protected.adjacency.value if protected else "",
        protected.unit.value if protected else "",
        state.budget.to_json() if state.budget else "",
    )
    insert_rows(connection, schema.datasets, [row], replacing=True)


_STATES = "SELECT dataset, simulation, fingerprint, adjacency, unit, budget FROM datasets"


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


def require_same_kind(state: DatasetState, *, known: bool, simulation: bool) -> None:
    """A dataset that any row of the ledger is about (`known`) stays a simulation, or stays none."""
    if known and state.simulation != simulation:
        raise InputError(
            "simulation",
            f"must stay {state.simulation} for dataset {state.name!r}",
            simulation,
            "What was released as one kind does not become the other; register another name.",
        )


def require_free(state: DatasetState, fingerprint: str, seen: Registered, *, renew: bool) -> None:
    """The same data has no other name, and other data under this name was announced by `renew`."""
    owners = {name for name, mark in seen if mark and mark == fingerprint} - {state.name}
    if owners:
        raise InputError("dataset", f"must be {owners.pop()!r}, where this very data is registered", state.name)
    if fingerprint and state.fingerprint and fingerprint != state.fingerprint and not renew:
        raise InputError(
            "fingerprint",
            f"must be {state.fingerprint}",
            fingerprint,
            "The data changed. Register it with renew=True; what was spent stays spent.",
        )


def require_same_key(fingerprint: str, seen: Registered) -> None:
    """All fingerprints of a ledger come from the key of the first; else a new key would be a new budget."""
    first = next((mark for _, mark in seen if mark), "")
    if fingerprint and first and key_of(fingerprint) != key_of(first):
        raise InputError(
            "fingerprint",
            f"must be made with key {key_of(first) or '(none named)'}, as the first one in this ledger",
            fingerprint,
            "With another key the same data looks like other data.",
        )


def require_same_data(seen: Registered, state: DatasetState, fingerprint: str) -> None:
    """A release from fingerprinted data shows the fingerprint, and one that is shown is the registered one."""
    if fingerprint == state.fingerprint:
        return
    if not state.fingerprint:
        require_free(state, fingerprint, seen, renew=False)
        raise InputError(
            "fingerprint",
            f"must be registered for dataset {state.name!r} before it is shown",
            fingerprint,
            "Call Ledger.register(dataset, fingerprint=…) first.",
        )
    raise InputError(
        "fingerprint",
        f"must be that of dataset {state.name!r}, {state.fingerprint}",
        fingerprint,
        "The budget is bound to the data; releases from it show its fingerprint.",
    )


def require_known_spelling(
    connection: Connection, dataset: str, labels: Iterable[tuple[str, str, str]], payers: Iterable[Payer]
) -> None:
    """New clients and groups are no other spellings of those that the dataset has, by its rows or its `payers`."""
    rows = fetch(connection, "SELECT DISTINCT client, group_name FROM sources WHERE dataset = ?", dataset)
    rows += payers
    new = sorted(labels)
    for number, name in enumerate(("client", "group")):
        known = {folded(row[number]): row[number] for row in rows}
        require_one_spelling(name, [label[number + 1] for label in new], known)
