"""The privacy ledger: what was released from which data, in rows that cannot be changed unnoticed.

ledger = Ledger("sqlite:///ledger.sqlite")
ledger.set_budget("patients", Budget(epsilon=3, delta=1e-6))
reservation = ledger.reserve([Spend("patients", Gaussian(2.0), client="north", channel="counts")])
reservation.redeem()            # on disk; now, and only now, noise may be drawn
reservation.store(message)      # on disk; now it may be sent
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from accountant import books, chain, history, outbox, registration, schema
from accountant.books import DatasetState
from accountant.budget import Budget, Fit
from accountant.chain import Head, Stored, timestamp, utc_now
from accountant.errors import InputError
from accountant.fitting import added, costs, require_room, what_fits
from accountant.outbox import Progress, Reservation
from accountant.settled import read_settled, require_settled
from accountant.signing import OwnerKey
from accountant.spending import SPEND, Draft, Source, Spend, drafts, require_name, require_text
from accountant.storage import Storage, fetch, insert_rows
from accountant.totals import Totals, store

FORMAT = 1
REMEMBERED_SOURCES = 100_000


class Ledger:
    """An append-only, hash-chained record of releases, with budgets that refuse to be overspent.

    url: sqlite:///FILE or postgresql://USER@HOST/DATABASE. create: make it when it does not exist.
    key: the owner's key. A ledger that was created with a key signs every row, and needs it to add one.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        key: OwnerKey | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Open the ledger; with `create`, also make it or bring an older one up to date."""
        self._storage = Storage(url, create=create)
        self._clock = clock
        self._key = key
        self._known_sources: dict[Source, Stored] = {}
        self._known_labels: set[tuple[str, str, str]] = set()
        self._totals = Totals()
        try:
            self._open(create)
            self.ledger_id, self.signed_by = self._opening()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Where the ledger is kept, without its password."""
        return self._storage.name

    def close(self) -> None:
        """Close the connections to the database."""
        self._storage.close()

    def __enter__(self) -> Self:
        """The ledger itself; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    # --- what is known ------------------------------------------------------------------------------------

    def head(self) -> Head:
        """The newest row's number and hash: note it outside, and a cut tail will be found."""
        with self._storage.reading() as connection:
            return chain.read_head(connection)

    def dataset(self, name: str) -> DatasetState:
        """What is settled about a dataset: simulation or not, fingerprint, adjacency, budget.

        `LedgerBroken` when what is kept beside the chain is not what its newest rows say.
        """
        with self._storage.reading() as connection:
            return read_settled(connection, name)

    def datasets(self) -> list[DatasetState]:
        """The same for every dataset in the ledger, by name."""
        with self._storage.reading() as connection:
            return [require_settled(connection, state) for state in books.read_states(connection)]

    def budget(self, dataset: str) -> Budget | None:
        """The lifetime budget of a dataset; None when it has none."""
        return self.dataset(dataset).budget

    def spent(self, dataset: str) -> dict[tuple[str, str], float]:
        """Rényi divergence at the budget's order by (client, group); empty for a dataset without a budget."""
        with self._storage.reading() as connection:
            budget = read_settled(connection, dataset).budget
            if budget is None:
                return {}
            head = chain.read_head(connection)
            return dict(self._totals.now(connection, dataset, budget, head).spent)

    def what_fits(self, spends: Iterable[Spend]) -> Fit:
        """How much of a request would fit now, for example "12 of 40 rounds fit". Reserves nothing."""
        request = tuple(spends)
        dataset = _one_dataset(request)
        budget = self.budget(dataset)
        if budget is None:
            raise InputError("dataset", "must have a budget", dataset, "Set one with Ledger.set_budget.")
        return what_fits(budget, self.spent(dataset), request)

    def require_room(self, spends: Iterable[Spend]) -> None:
        """Nothing, if all of this would fit into the dataset's budget now; else `BudgetExceeded`. Reserves nothing."""
        request = tuple(spends)
        dataset = _one_dataset(request)
        budget = self.budget(dataset)
        if budget is not None:
            before = self.spent(dataset)
            require_room(dataset, budget, before, added(before, costs(budget, request)), request)

    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction that sees one unchanging state of the ledger, for audits."""
        return self._storage.reading()

    # --- settling things ----------------------------------------------------------------------------------

    def register(
        self, dataset: str, *, simulation: bool = False, fingerprint: str = "", renew: bool = False
    ) -> DatasetState:
        """The settled state, after registering a dataset.

        simulation: its noise may be seeded; it makes no ε claims and can have no budget. Settled once.
        fingerprint: binds the name to the data; releases must then show it (see accountant.fingerprint). All
        fingerprints of a ledger are made with one key: with another, the same data would look like new data.
        renew: the data under this name changed; note the new fingerprint. What was spent stays spent.
        """
        require_name("dataset", dataset)
        require_name("fingerprint", fingerprint, empty=True)
        with self._storage.writing() as connection:
            head = chain.read_head(connection, lock=True)
            before = read_settled(connection, dataset)
            seen = registration.registered(connection)
            registration.require_same_kind(connection, before, simulation=simulation)
            registration.require_same_key(fingerprint, seen)
            registration.require_free(before, fingerprint, seen, renew=renew)
            state = replace(before, simulation=simulation, fingerprint=fingerprint or before.fingerprint)
            if dataset in {name for name, _ in seen} and state == before:
                return before
            body = {"actor": books.account_name(), "fingerprint": state.fingerprint, "simulation": simulation}
            self._append(connection, head, [(books.settled(books.DATASET, dataset, body), "")])
            books.write_state(connection, state)
        return state

    def set_budget(self, dataset: str, budget: Budget, *, reason: str = "", actor: str = "") -> Budget:
        """The budget as it holds from now on, over everything the dataset has ever released.

        A dataset that already has a budget keeps its order once something was released; only the capacity changes.
        """
        require_name("dataset", dataset)
        require_text("reason", reason, empty=True)
        require_text("actor", actor, empty=True)
        with self._storage.writing() as connection:
            head = chain.read_head(connection, lock=True)
            before = read_settled(connection, dataset)
            if before.simulation:
                raise InputError(
                    "dataset",
                    "must not be a simulation to have a budget",
                    dataset,
                    "Simulations make no ε claims.",
                )
            state = before.keeping(budget.neighbouring)
            if before.budget is not None:
                if self._totals.now(connection, dataset, before.budget, head).spent:
                    budget = before.budget.resized(budget.epsilon, budget.delta, budget.people)
                elif budget.people is None:
                    budget = replace(budget, people=before.budget.people)
            body = {"actor": actor or books.account_name(), "budget": json.loads(budget.to_json()), "reason": reason}
            self._append(connection, head, [(books.settled(books.BUDGET, dataset, body), "")])
            books.write_state(connection, replace(state, budget=budget))
            self._totals.forget(connection, dataset)
        return budget

    # --- spending -----------------------------------------------------------------------------------------

    def reserve(self, spends: Iterable[Spend], *, fingerprint: str = "") -> Reservation:
        """The right to make one release that costs these spends; on disk when this returns.

        Raises `BudgetExceeded`, and reserves nothing, when a record would go over the dataset's budget.
        """
        return self.reserve_many([spends], fingerprint=fingerprint)[0]

    def reserve_many(self, releases: Iterable[Iterable[Spend]], *, fingerprint: str = "") -> list[Reservation]:
        """One reservation per release (say, per client of a round), in one transaction, all or none."""
        return [Reservation(token, self) for token in self._enter(_releases(releases), fingerprint, past=False)]

    def record_past(self, spends: Iterable[Spend], *, fingerprint: str = "") -> None:
        """Write down releases that were made elsewhere. They count, even where they exceed the budget."""
        request = tuple(spends)
        if not request:
            raise InputError("spends", "must name at least one spend", request)
        self._enter([request], fingerprint, past=True, redeemed=True)

    def spend_many(self, releases: Iterable[Iterable[Spend]], *, fingerprint: str = "") -> list[str]:
        """The token of each release, reserved and redeemed in one transaction, all or none; noise may be drawn now.

        For whoever makes many releases at once and begins afresh after a crash: between reserving and redeeming there
        is nothing to come back to.
        """
        return self._enter(_releases(releases), fingerprint, past=False, redeemed=True)

    def redeem(self, tokens: Sequence[str]) -> None:
        """Use the tokens, all or none; noise may be drawn when this returns. Each works once."""
        with self._storage.writing() as connection:
            outbox.redeem(connection, tokens, self._now())

    def store_message(self, token: str, message: bytes) -> None:
        """Keep a finished message; it may be sent when this returns."""
        self.store_messages({token: message})

    def store_messages(self, messages: Mapping[str, bytes]) -> None:
        """Keep finished messages by their tokens, all or none; they may be sent when this returns."""
        with self._storage.writing() as connection:
            for token, message in messages.items():
                outbox.store(connection, token, message, self._now())

    def message(self, token: str) -> bytes | None:
        """The stored message of a token, for sending again; None when there is none."""
        with self._storage.reading() as connection:
            return outbox.load(connection, token)

    def discard_message(self, *tokens: str) -> None:
        """Forget messages that have arrived, to save room. Their tokens stay spent, for other bytes too."""
        with self._storage.writing() as connection:
            for token in tokens:
                outbox.require_token(connection, token)
                connection.execute(schema.messages.delete().where(schema.messages.c.token == token))

    def progress(self, token: str) -> Progress:
        """How far a reservation got: reserved, redeemed or stored."""
        with self._storage.reading() as connection:
            return outbox.progress(connection, token)

    def reservations(
        self, *, run: str, round: int | None = None, client: str | None = None, channel: str | None = None
    ) -> list[Reservation]:
        """The reservations of a run in their order, for resuming it after a crash."""
        query = "SELECT token FROM ledger WHERE kind = ? AND run = ?"
        values: list[object] = [SPEND, run]
        for column, value in (("round", round), ("client", client), ("channel", channel)):
            if value is not None:
                query, values = f"{query} AND {column} = ?", [*values, value]
        with self._storage.reading() as connection:
            rows = fetch(connection, f"{query} ORDER BY sequence", *values)
        return [Reservation(token, self) for token in dict.fromkeys(token for (token,) in rows)]

    def spends(self, *, run: str) -> list[tuple[str, Spend]]:
        """(token, spend) of every row of a run, in order: what it has released, or may have."""
        with self._storage.reading() as connection:
            return history.spends_of(connection, run)

    def runs(self, dataset: str) -> list[str]:
        """The names of all runs that released something from a dataset."""
        with self._storage.reading() as connection:
            return history.runs_on(connection, dataset)

    def rebuild_totals(self) -> None:
        """Derive the cached totals of every budgeted dataset from the rows again."""
        with self._storage.writing() as connection:
            head = chain.read_head(connection, lock=True)
            for state in books.read_states(connection):
                self._totals.forget(connection, state.name)
                if state.budget is not None:
                    store(connection, state.name, self._totals.now(connection, state.name, state.budget, head))

    # --- inside -------------------------------------------------------------------------------------------

    def _enter(
        self, requests: list[tuple[Spend, ...]], fingerprint: str, *, past: bool, redeemed: bool = False
    ) -> list[str]:
        """The tokens of the requests, after checking them against the budget and writing them down."""
        spends = [spend for request in requests for spend in request]
        dataset = _one_dataset(spends)
        placed = drafts(spends)
        with self._storage.writing() as connection:
            head = chain.read_head(connection, lock=True)
            before = read_settled(connection, dataset)
            state = before
            for event in {id(spend.event): spend.event for spend in spends}.values():
                state = state.keeping(event.neighbouring)
            registration.require_same_data(connection, state, fingerprint)
            labels = {(dataset, spend.client, spend.group) for spend in spends}
            if not labels <= self._known_labels:
                registration.require_known_spelling(connection, dataset, labels - self._known_labels)
            if state != before or before == DatasetState(dataset):
                books.write_state(connection, state)
            snapshot = None
            if state.budget is not None:
                snapshot = self._totals.now(connection, dataset, state.budget, head)
                after = added(snapshot.spent, costs(state.budget, spends))
                if not past:
                    require_room(dataset, state.budget, snapshot.spent, after, spends)
            tokens = _tokens(head.sequence, requests)
            owners = [token for token, request in zip(tokens, requests, strict=True) for _ in request]
            head, new = self._append(connection, head, list(zip(placed, owners, strict=True)))
            if redeemed:
                insert_rows(connection, schema.redemptions, [(token, self._now()) for token in tokens])
            if snapshot is not None:
                snapshot = replace(snapshot, head=head, spent=after)
                snapshot = self._totals.store_if_behind(connection, dataset, snapshot)
        # Only now all this is certainly stored.
        if snapshot is not None:
            self._totals.remember(dataset, snapshot)
        if len(self._known_sources) > REMEMBERED_SOURCES:
            self._known_sources.clear()
            self._known_labels.clear()
        self._known_sources.update(new)
        self._known_labels |= labels
        return tokens

    def _append(
        self, connection: Connection, head: Head | None, rows: list[tuple[Draft, str]]
    ) -> tuple[Head, dict[Source, Stored]]:
        if head is not None and (self._key.key_id if self._key else "") != self.signed_by:
            raise InputError(
                "key",
                "must be the one the ledger was created with",
                self._key.key_id if self._key else None,
                f"Its rows are signed with key {self.signed_by}." if self.signed_by else "It has none.",
            )
        return chain.append(connection, head, rows, now=self._now(), key=self._key, known=self._known_sources)

    def _open(self, create: bool) -> None:
        with self._storage.reading() as connection:
            version = schema.require_known_version(connection)
        if version == 0 and not create:
            raise InputError("ledger", "must be a ledger", self.url, "This database holds none.")
        if version < len(schema.MIGRATIONS):
            try:
                self._prepare()
            except InputError:
                # A copy that may only be read is read as it is.
                if create or version < schema.READABLE_VERSION:
                    raise

    def _prepare(self) -> None:
        """Create the tables, or bring older ones up to date; row 1 names the ledger."""
        with self._storage.writing() as connection:
            self._storage.lock_creation(connection)
            if schema.migrate(connection, self._now()) == 0:
                body = {
                    "format": FORMAT,
                    "ledger": secrets.token_hex(16),
                    "signed_by": self._key.key_id if self._key else "",
                }
                self._append(connection, None, [(books.settled(books.LEDGER, "", body), "")])

    def _opening(self) -> tuple[str, str]:
        """(the ledger's own name, the name of the key it is signed with), from row 1."""
        with self._storage.reading() as connection:
            rows = fetch(connection, "SELECT body FROM ledger WHERE sequence = 1")
        try:
            opening = json.loads(rows[0][0] if rows else "")
            return str(opening["ledger"]), str(opening["signed_by"])
        except (json.JSONDecodeError, KeyError, TypeError):
            raise chain.LedgerBroken("Row 1 does not name the ledger; it was changed or deleted.") from None

    def _now(self) -> str:
        return timestamp(self._clock())


def _one_dataset(spends: Sequence[Spend]) -> str:
    names = {spend.dataset for spend in spends}
    if len(names) != 1:
        raise InputError("spends", "must concern one dataset", sorted(names))
    return names.pop()


def _releases(releases: Iterable[Iterable[Spend]]) -> list[tuple[Spend, ...]]:
    requests = [tuple(spends) for spends in releases]
    if not requests or not all(requests):
        raise InputError("spends", "must name at least one spend per release", requests)
    return requests


def _tokens(newest: int, requests: Sequence[Sequence[Spend]]) -> list[str]:
    """One unguessable token per request; it starts with the number of the request's first row."""
    randomness = secrets.token_hex(16 * len(requests))
    tokens, first = [], newest + 1
    for number, request in enumerate(requests):
        tokens.append(f"{first}-{randomness[32 * number : 32 * number + 32]}")
        first += len(request)
    return tokens
