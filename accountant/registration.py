"""The rules for naming data: one kind for life, one name per fingerprint, and releases that show it."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from accountant.books import DatasetState
from accountant.errors import InputError
from accountant.fingerprint import key_of
from accountant.spending import Payer, folded, require_one_spelling
from accountant.storage import fetch

Registered = list[tuple[str, str]]


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
