"""What the ledger's rows settle about each dataset, kept in a small table beside them.

It follows from the chained rows and is written in the same transaction; an audit derives it again.
"""

from __future__ import annotations

import getpass
import json
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlalchemy import Connection

from accountant import schema
from accountant.budget import Budget
from accountant.errors import LedgerBroken
from accountant.events import Event
from accountant.neighbouring import Adjacency, Neighbouring, NeighbouringMismatch, Unit
from accountant.spending import Draft, Source
from accountant.storage import fetch, insert_rows

LEDGER, DATASET, BUDGET = "ledger", "dataset", "budget"
# Totals so far (accountant.totals); somebody said that this copy is the newest, or put back an older one on purpose.
TOTALS, TRUSTED, RESTORED = "totals", "trusted", "restored"


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
            f"What is kept about dataset {name!r} cannot be read ({error}): the books were changed. privfair audit "
            "tells what was; put back a copy of the ledger."
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
