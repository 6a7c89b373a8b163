"""The privacy ledger: what was released from which data, in rows that cannot be changed unnoticed.

ledger = Ledger("sqlite:///ledger.sqlite")
ledger.set_budget("patients", Budget(epsilon=3, delta=1e-6))
reservation = ledger.reserve([Spend("patients", Gaussian(2.0), client="north", channel="counts")])
reservation.redeem()            # on disk; now, and only now, noise may be drawn
reservation.store(message)      # on disk; now it may be sent
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from accountant.budget import Budget, Fit, added, costs, require_room, what_fits
from accountant.errors import InputError, LedgerBroken, LedgerUnavailable, OlderLedger, Refused, UnknownLedger
from accountant.ledger import chain, datasets, schema
from accountant.ledger.chain import Head, Progress, Reservation, Stored, timestamp, utc_now
from accountant.ledger.datasets import DatasetState, Position, Reader, older
from accountant.ledger.machine_state import KnownBudget, Seen, State, remembering
from accountant.ledger.signing import OwnerKey
from accountant.ledger.storage import Storage, fetch, insert_rows
from accountant.spending import SPEND, Draft, Source, Spend, drafts, folded, require_name, require_text

log = logging.getLogger(__name__)

FORMAT = 1
REMEMBERED_SOURCES = 100_000


@dataclass
class _Writing:
    """A transaction that adds rows: the head moves as they are appended. after: to be done when it is committed."""

    connection: Connection
    head: Head
    position: Position
    token: str = ""
    after: Callable[[], None] | None = None


class Ledger:
    """An append-only, hash-chained record of releases, with budgets that refuse to be overspent.

    url: sqlite:///FILE or postgresql://USER@HOST/DATABASE. create: make it when it does not exist.
    key: the owner's key. A ledger that was created with a key signs every row, and needs it to add one.

    This machine remembers the newest row that it saw (`machine_state`): a ledger that lacks it is refused with
    `OlderLedger`. One that has a budget or is signed, and was never seen here, is not spent from before `trust`.
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
        self._lock = threading.RLock()
        self._position: Position | None = None
        self._unsynced = False
        self._budgets: set[KnownBudget] = set()
        self._state = State() if remembering() else None
        try:
            self._open(create)
            self.ledger_id, self.signed_by = self._opening()
            self._reader = Reader(self.signed_by, key if key is not None and key.key_id == self.signed_by else None)
            self._seen_state, self._known = self._recall()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Where the ledger is kept, without its password."""
        return self._storage.name

    def close(self) -> None:
        """Close the connections to the database, once what was seen of it has reached the disk."""
        try:
            if self._unsynced and self._state is not None:
                self._state.sync()
                self._unsynced = False
        finally:
            self._storage.close()
            if self._state is not None:
                self._state.close()

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

        However its name is spelt; the state has the name it was first written with. `LedgerBroken` when what is kept
        beside the chain is not what the rows say.
        """
        with self._reading() as (connection, position):
            return _checked(connection, position, name)

    def datasets(self) -> list[DatasetState]:
        """The same for every dataset in the ledger, by name."""
        with self._reading() as (connection, position):
            names = {state.name for state in datasets.read_states(connection)}
            names |= {state.name for state in position.states.values()}
            found = {state.name: state for name in names if (state := _checked(connection, position, name))}
            return [found[name] for name in sorted(found)]

    def budget(self, dataset: str) -> Budget | None:
        """The lifetime budget of a dataset; None when it has none."""
        return self.dataset(dataset).budget

    def spent(self, dataset: str) -> dict[tuple[str, str], float]:
        """Rényi divergence at the budget's order by (client, group); empty for a dataset without a budget."""
        with self._reading() as (connection, position):
            state = _checked(connection, position, dataset)
            return {} if state.budget is None else dict(position.spent_on(dataset))

    def what_fits(self, spends: Iterable[Spend]) -> Fit:
        """How much of a request would fit now, for example "12 of 40 rounds fit". Reserves nothing."""
        request = tuple(spends)
        dataset = _one_dataset(request)
        budget = self.budget(dataset)
        if budget is None:
            raise InputError("dataset", "must have a budget", dataset, "Set one with Ledger.set_budget.")
        return what_fits(budget, self.spent(dataset), request)

    def require_room(self, spends: Iterable[Spend]) -> None:
        """Raise `BudgetExceeded` if not all of this would fit into the dataset's budget now. Reserves nothing."""
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
        fingerprint: binds the name to the data; releases must then show it (see accountant.ledger.signing). All
        fingerprints of a ledger are made with one key: with another, the same data would look like new data.
        renew: the data under this name changed; note the new fingerprint. What was spent stays spent.
        """
        require_name("dataset", dataset)
        require_name("fingerprint", fingerprint, empty=True)
        with self._writing() as writing:
            connection, position = writing.connection, writing.position
            before = _spelt(_checked(connection, position, dataset), position, dataset)
            seen = position.registered
            known = folded(dataset) in position.states
            datasets.require_same_kind(before, known=known, simulation=simulation)
            datasets.require_same_key(fingerprint, seen)
            datasets.require_free(before, fingerprint, seen, renew=renew)
            state = replace(before, simulation=simulation, fingerprint=fingerprint or before.fingerprint)
            if dataset in {name for name, _ in seen} and state == before:
                return before
            body = {"actor": datasets.account_name(), "fingerprint": state.fingerprint, "simulation": simulation}
            self._append(writing, [(datasets.settled(datasets.DATASET, dataset, body), "")])
            datasets.write_state(connection, state)
        return state

    def set_budget(self, dataset: str, budget: Budget, *, reason: str = "", actor: str = "") -> Budget:
        """The budget as it holds from now on, over everything the dataset has ever released.

        A dataset that already has a budget keeps its order once something was released; only the capacity changes.
        """
        require_name("dataset", dataset)
        require_text("reason", reason, empty=True)
        require_text("actor", actor, empty=True)
        with self._writing(durable=True) as writing:
            connection, position = writing.connection, writing.position
            before = _spelt(_checked(connection, position, dataset), position, dataset)
            if before.simulation:
                raise InputError(
                    "dataset",
                    "must not be a simulation to have a budget",
                    dataset,
                    "Simulations make no ε claims.",
                )
            state = before.keeping(budget.neighbouring)
            if before.budget is not None:
                if position.spent_on(dataset):
                    budget = before.budget.resized(budget.epsilon, budget.delta, budget.people)
                elif budget.people is None:
                    budget = replace(budget, people=before.budget.people)
            body = {"actor": actor or datasets.account_name(), "budget": json.loads(budget.to_json()), "reason": reason}
            self._append(writing, [(datasets.settled(datasets.BUDGET, dataset, body), "")])
            datasets.write_state(connection, replace(state, budget=budget))
            if before.budget is None and folded(dataset) in position.released:
                # All rows were read for this; whoever opens the ledger next need not.
                complete = self._reader.afresh(connection, writing.head)
                self._append_totals(writing, complete)
                writing.after = lambda: setattr(self, "_position", complete)
        self._remember_budgets([KnownBudget(dataset, state.fingerprint, self.ledger_id, self._storage.full_name)])
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
        with self._writing() as writing:
            chain.redeem(writing.connection, tokens, self._now())
            writing.token = tokens[-1] if tokens else ""

    def store_message(self, token: str, message: bytes) -> None:
        """Keep a finished message; it may be sent when this returns."""
        self.store_messages({token: message})

    def store_messages(self, messages: Mapping[str, bytes]) -> None:
        """Keep finished messages by their tokens, all or none; they may be sent when this returns."""
        with self._storage.writing() as connection:
            for token, message in messages.items():
                chain.store_message(connection, token, message, self._now())

    def message(self, token: str) -> bytes | None:
        """The stored message of a token, for sending again; None when there is none."""
        with self._storage.reading() as connection:
            return chain.load_message(connection, token)

    def discard_message(self, *tokens: str) -> None:
        """Forget messages that have arrived, to save room. Their tokens stay spent, for other bytes too."""
        with self._storage.writing() as connection:
            for token in tokens:
                chain.require_token(connection, token)
                connection.execute(schema.messages.delete().where(schema.messages.c.token == token))

    def progress(self, token: str) -> Progress:
        """How far a reservation got: reserved, redeemed or stored."""
        with self._storage.reading() as connection:
            return chain.progress(connection, token)

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
            return datasets.spends_of(connection, run)

    def runs(self, dataset: str, channel: str | None = None) -> list[str]:
        """The names of all runs that released something from a dataset; or that did by one channel."""
        with self._reading() as (connection, position):
            spellings = position.spellings.get(folded(dataset), [dataset])
            return sorted({run for name in spellings for run in datasets.runs_on(connection, name, channel)})

    # --- copies of the ledger -----------------------------------------------------------------------------

    @property
    def seen(self) -> Seen | None:
        """The newest row that this machine has seen of this ledger; None when it has seen none."""
        return self._seen_state

    def require_known(self) -> None:
        """Raise if nothing may be spent from this copy: rows are missing, or it was never seen here (`trust`)."""
        with self._reading() as (_, position):
            self._require_known(position)

    def trust(self, *, reason: str = "", actor: str = "") -> Head:
        """The head, after saying that this copy is the newest: every row is verified, and it is remembered from now on.

        It is a row of the ledger, where that can be written. A copy that lacks rows seen here is `OlderLedger`.
        """
        require_text("reason", reason, empty=True)
        with self._reading() as (_, position):
            if self._known or self._state is None:
                return position.head
            head = position.head
        body: dict[str, object] = {"actor": actor or datasets.account_name(), "reason": reason}
        try:
            if self.signed_by and self._key is None:
                raise LedgerUnavailable("Only who has the owner's key can add rows.")
            with self._writing(durable=True, trusting=True) as writing:
                self._append(writing, [(datasets.settled(datasets.TRUSTED, "", body), "")])
                head = writing.head
        except LedgerUnavailable:  # it may only be read
            self._remember(head, durable=True)
        self._known = True
        self._remember_budgets(self._budgets_in(position))
        return head

    def restore(self, *, reason: str, actor: str = "") -> Head:
        """The head, after accepting an older copy on purpose: what was spent in the lost rows is not counted any more.

        A row of the ledger says who did it and why, and which row was the newest that this machine had seen.
        """
        require_text("reason", reason)
        lost = self.seen
        if lost is None or self._state is None:
            raise InputError("ledger", "must be one that this machine has seen", self.url, "Use: privfair ledger trust")
        with self._lock, self._storage.reading() as connection:
            head = chain.read_head(connection)
            try:
                self._reader.position(connection, head, None, lost.head)
                _require_used(connection, lost, head)
            except OlderLedger:
                pass
            else:
                raise InputError("ledger", "must lack rows that this machine has seen", self.url, "It has them all.")
        self._prepare_to_write()
        said = {"sequence": lost.head.sequence, "hash": lost.head.hash}
        body: dict[str, object] = {"actor": actor or datasets.account_name(), "reason": reason, "lost": said}
        with self._lock, self._storage.writing() as connection:
            head = chain.read_head(connection, lock=True)
            writing = _Writing(connection, head, self._reader.afresh(connection, head))
            self._append(writing, [(datasets.settled(datasets.RESTORED, "", body), "")])
        self._state.put_back(self.ledger_id, writing.head, self._storage.full_name)
        self._position, self._seen_state, self._known = None, Seen(writing.head), True
        return writing.head

    def note_audited(self, head: Head, *, plain: bool) -> None:
        """Remember the head of an audit that found nothing wrong. plain: the ledger has no budget and no signatures.

        A ledger with one that was not seen before stays unknown: an audit cannot say that it is the newest.
        """
        if self._state is None:
            return
        if not self._known:
            reported = "remembered from now on" if plain else "not remembered before `privfair ledger trust`"
            log.warning(
                "Ledger %s is new to this machine: an older copy could not be told from the newest. It is %s.",
                self._storage.full_name,
                reported,
            )
            if not plain:
                return
        try:
            self._remember(head, durable=True)
        except LedgerUnavailable as error:
            log.warning("%s", error)

    def rebuild_totals(self) -> None:
        """Add up all rows again, from row 1, and write the totals as a row."""
        with self._writing() as writing:
            self._append_totals(writing, self._reader.afresh(writing.connection, writing.head))

    # --- inside -------------------------------------------------------------------------------------------

    def _enter(
        self, requests: list[tuple[Spend, ...]], fingerprint: str, *, past: bool, redeemed: bool = False
    ) -> list[str]:
        """The tokens of the requests, after checking them against the budget and writing them down."""
        spends = [spend for request in requests for spend in request]
        dataset = _one_dataset(spends)
        placed = drafts(spends)
        with self._writing() as writing:
            connection, position = writing.connection, writing.position
            before = _spelt(_checked(connection, position, dataset), position, dataset)
            state = before
            for event in {id(spend.event): spend.event for spend in spends}.values():
                state = state.keeping(event.neighbouring)
            datasets.require_same_data(position.registered, state, fingerprint)
            labels = {(dataset, spend.client, spend.group) for spend in spends}
            if not labels <= self._known_labels:
                new_labels = labels - self._known_labels
                datasets.require_known_spelling(connection, dataset, new_labels, position.spent_on(dataset))
            if state != before or before == DatasetState(dataset):
                datasets.write_state(connection, state)
            after = None
            if state.budget is not None:
                spent = position.spent_on(dataset)
                after = added(spent, costs(state.budget, spends))
                if not past:
                    require_room(dataset, state.budget, spent, after, spends)
            checkpoint = position.checkpoint
            if position.due:
                self._append_totals(writing, position)
                checkpoint = writing.head.sequence
            tokens = _tokens(writing.head.sequence, requests)
            owners = [token for token, request in zip(tokens, requests, strict=True) for _ in request]
            new = self._append(writing, list(zip(placed, owners, strict=True)))
            if redeemed:
                insert_rows(connection, schema.redemptions, [(token, self._now()) for token in tokens])
            position_then = (writing.head, checkpoint, state, after)
            writing.after = lambda: self._entered(position, position_then, new, labels)
        return tokens

    def _entered(
        self,
        position: Position,
        then: tuple[Head, int, DatasetState, dict[tuple[str, str], float] | None],
        new: dict[Source, Stored],
        labels: set[tuple[str, str, str]],
    ) -> None:
        """Take over what was written, now that it is certainly stored."""
        position.enter(*then)
        if len(self._known_sources) > REMEMBERED_SOURCES:
            self._known_sources.clear()
            self._known_labels.clear()
        self._known_sources.update(new)
        self._known_labels |= labels

    def _append_totals(self, writing: _Writing, position: Position) -> None:
        self._append(writing, [(position.draft(), "")])

    def _append(self, writing: _Writing, rows: list[tuple[Draft, str]]) -> dict[Source, Stored]:
        """The sources that are new, after adding (draft, token) rows."""
        if (self._key.key_id if self._key else "") != self.signed_by:
            raise InputError(
                "key",
                "must be the one the ledger was created with",
                self._key.key_id if self._key else None,
                f"Its rows are signed with key {self.signed_by}." if self.signed_by else "It has none.",
            )
        writing.head, new = chain.append(
            writing.connection, writing.head, rows, now=self._now(), key=self._key, known=self._known_sources
        )
        return new

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, Position]]:
        """A transaction to read in, and what the rows say at that moment."""
        with self._lock, self._storage.reading() as connection:
            yield connection, self._now_at(connection, chain.read_head(connection))

    @contextmanager
    def _writing(self, *, durable: bool = False, trusting: bool = False) -> Iterator[_Writing]:
        """A transaction to add rows in; when it is committed, its newest row is remembered.

        Raise if this copy of the ledger is not to be spent from; `trusting`: somebody has just said that it is.
        """
        self._prepare_to_write()
        with self._lock:
            with self._storage.writing() as connection:
                head = chain.read_head(connection, lock=True)
                writing = _Writing(connection, head, self._now_at(connection, head))
                if not trusting:
                    self._require_known(writing.position)
                yield writing
            if writing.after is not None:
                writing.after()
            self._remember(writing.head, token=writing.token, durable=durable)

    def _now_at(self, connection: Connection, head: Head) -> Position:
        """What the rows up to the head say: as remembered, and completed from the rows since, each verified."""
        before, self._position = self._position, None
        seen = self._seen_state
        position = self._reader.position(connection, head, before, None if seen is None else seen.head)
        if before is None and seen is not None:
            _require_used(connection, seen, head)
        self._position = position
        return position

    def _require_known(self, position: Position) -> None:
        if self._known or self._state is None:
            return
        budgets = self._budgets_in(position)
        if budgets or self.signed_by or self._key is not None:
            why = f"has a budget for {budgets[0].dataset!r}" if budgets else "is signed with the owner's key"
            raise UnknownLedger(
                f"This machine has no memory of the ledger {self.url}, which {why}: an older copy could not be told "
                f"from the newest ({self._state.path} is where it would be). If this is the newest, say so once: "
                f"privfair ledger trust --ledger {self.url}"
            )
        log.warning("Ledger %s is new to this machine: its %d rows are taken as they are, and remembered from now on.",
                    self._storage.full_name, position.head.sequence)  # fmt: skip
        self._known = True

    def _recall(self) -> tuple[Seen | None, bool]:
        """(the newest row seen of this ledger, whether it is known); unknown also where there is no memory at all."""
        if self._state is None:
            return None, True
        try:
            seen = self._state.seen(self.ledger_id)
        except LedgerUnavailable as error:
            log.warning("%s", error)  # to read is allowed; to write will say it again, and refuse
            return None, False
        return seen, seen is not None

    def _remember(self, head: Head, *, token: str = "", durable: bool = False) -> None:
        if self._state is None or (self._seen_state == Seen(head, token or self._token_seen) and not durable):
            return
        self._state.remember(self.ledger_id, head, self._storage.full_name, token=token, durable=durable)
        self._seen_state = Seen(head, token or self._token_seen)
        self._unsynced = not durable

    @property
    def _token_seen(self) -> str:
        return self._seen_state.token if self._seen_state is not None else ""

    def _budgets_in(self, position: Position) -> list[KnownBudget]:
        where = self._storage.full_name
        return [
            KnownBudget(state.name, state.fingerprint, self.ledger_id, where)
            for state in position.states.values()
            if state.budget is not None
        ]

    def _remember_budgets(self, budgets: Iterable[KnownBudget]) -> None:
        for budget in budgets:
            if self._state is not None and budget not in self._budgets:
                self._state.remember_budget(budget)
                self._budgets.add(budget)

    def _open(self, create: bool) -> None:
        with self._storage.reading() as connection:
            self._version = schema.require_known_version(connection)
        if self._version == 0 and not create:
            raise InputError("ledger", "must be a ledger", self.url, "This database holds none.")
        if create:
            self._prepare_to_write()
        elif self._version < schema.READABLE_VERSION:
            rule = f"must have schema version {schema.READABLE_VERSION} or newer to be read"
            raise InputError("ledger", rule, self._version, "Opening it to write brings it up to date.")

    def _prepare_to_write(self) -> None:
        """Create the tables, or bring older ones up to date; row 1 names the ledger."""
        if self._version >= len(schema.MIGRATIONS):
            return
        created = False
        with self._storage.writing() as connection:
            self._storage.lock_creation(connection)
            if schema.migrate(connection, self._now()) == 0:
                created = True
                name, key = secrets.token_hex(16), self._key.key_id if self._key else ""
                body: dict[str, object] = {"format": FORMAT, "ledger": name, "signed_by": key}
                row = (datasets.settled(datasets.LEDGER, "", body), "")
                head, _ = chain.append(connection, None, [row], now=self._now(), key=self._key, known={})
                if self._state is not None:
                    # Before it is committed: no other process may find it and not know it. Nobody else has its name.
                    self._state.remember(name, head, self._storage.full_name, durable=True)
        self._version = len(schema.MIGRATIONS)
        if created and self._state is not None:
            log.warning("New ledger: %s", self._storage.full_name)

    def _opening(self) -> tuple[str, str]:
        """(the ledger's own name, the name of the key it is signed with), from row 1."""
        with self._storage.reading() as connection:
            rows = fetch(connection, "SELECT body FROM ledger WHERE sequence = 1")
        try:
            opening = json.loads(rows[0][0] if rows else "")
            return str(opening["ledger"]), str(opening["signed_by"])
        except (json.JSONDecodeError, KeyError, TypeError):
            raise LedgerBroken("Row 1 does not name the ledger; it was changed or deleted.") from None

    def _now(self) -> str:
        return timestamp(self._clock())


def _checked(connection: Connection, position: Position, dataset: str) -> DatasetState:
    """What the rows say about a dataset, if what is kept beside them is the same; else `LedgerBroken`."""
    state = position.state(dataset)
    if len(position.spellings.get(folded(dataset), ())) > 1:
        return state  # an older version kept one row for each spelling
    if datasets.read_state(connection, state.name) != state:
        raise LedgerBroken(
            f"Dataset {state.name!r}: what is kept about it differs from what its rows say. The ledger was changed, "
            "and nothing more may be spent: run privfair audit, which reports what was changed, and put back a copy of "
            "the ledger."
        )
    return state


def _spelt(state: DatasetState, position: Position, dataset: str) -> DatasetState:
    """The state, if the dataset is written as it was first, and is one dataset; otherwise raise."""
    if state.name != dataset:
        remedy = "Two spellings would be two budgets for the same records."
        raise InputError("dataset", f"must be written {state.name!r}, as before", dataset, remedy)
    if conflict := position.conflicts.get(folded(dataset)):
        names = ", ".join(map(repr, position.spellings[folded(dataset)]))
        raise Refused(
            f"The datasets {names} are one name in different spellings, and cannot be added up: {conflict}. Give the "
            "data another name, and carry over what was spent with Ledger.record_past."
        )
    return state


def _require_used(connection: Connection, seen: Seen, head: Head) -> None:
    """Raise if a token that this machine saw used is unused: the copy is older, though it has the same rows."""
    if seen.token and not fetch(connection, "SELECT 1 FROM redemptions WHERE token = ?", seen.token):
        raise older(seen.head, head)


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
