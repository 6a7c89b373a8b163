"""The rules for naming data: one kind for life, one name per fingerprint, and releases that show it."""

from __future__ import annotations

import json

from sqlalchemy import Connection

from accountant.books import DATASET, DatasetState
from accountant.errors import InputError
from accountant.storage import fetch

Registered = list[tuple[str, str]]


def registered(connection: Connection) -> Registered:
    """(dataset, fingerprint) of every registration ever made."""
    rows = fetch(connection, "SELECT dataset, body FROM ledger WHERE kind = ?", DATASET)
    return [(dataset, json.loads(body)["fingerprint"]) for dataset, body in rows]


def require_same_kind(state: DatasetState, seen: Registered, *, simulation: bool) -> None:
    """A dataset that the ledger knows stays a simulation, or stays none."""
    known = state.name in {name for name, _ in seen} or state != DatasetState(state.name)
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


def require_same_data(state: DatasetState, fingerprint: str) -> None:
    """A release from fingerprinted data shows the fingerprint."""
    if state.fingerprint and fingerprint != state.fingerprint:
        raise InputError(
            "fingerprint",
            f"must be that of dataset {state.name!r}, {state.fingerprint}",
            fingerprint,
            "The budget is bound to the data; releases from it show its fingerprint.",
        )
