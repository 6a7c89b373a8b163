"""What the chained rows say about each dataset: what is settled, what each payer has spent, and how data are named.

Nothing that decides about a release is read from beside the chain. A process reads the rows, verifies each against its
hash and the row before, and adds them up (`Position`). So that it need not begin at row 1 each time, a row of the kind
"totals" is written now and then, which holds the position as of the row before it. Such a row is taken as it is only if
it is at or before a row that this machine saw, and so verified, earlier (`machine_state`): its hash must fit, and all
rows from it to that row must follow from it. One that is newer is compared with what the rows add up to.

What somebody can do who can write to the database, but not to this machine's state:
- edit, insert or delete anything up to the newest row that this machine saw: it changes nothing that may be spent, or
  `LedgerBroken` is raised before anything more is spent. An audit reads all rows and finds every edit.
- add rows at the end, as every program that may write does. Rows that spend leave less. A row that raises a budget is
  refused only in a signed ledger, where it needs the owner's key; otherwise it is one more line of its history.
- cut off or rewrite rows that are newer than what this machine saw: not noticed, with or without a key.

What is settled about a dataset is also kept in a small table beside the rows. It follows from them and is written in
the same transaction; an audit derives it again. The rules for naming data (`require_…`): one kind for life, one name
per fingerprint, and releases that show it.
"""

from __future__ import annotations

import getpass
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection

from accountant.budget import Budget
from accountant.errors import InputError, LedgerBroken, OlderLedger
from accountant.events import Adjacency, Event, Neighbouring, NeighbouringMismatch, Unit
from accountant.ledger import chain, schema
from accountant.ledger.chain import NO_HASH, ChainCheck, Head, Rows, chained_text
from accountant.ledger.signing import OwnerKey, key_of
from accountant.ledger.storage import fetch, insert_rows
from accountant.spending import SPEND, Draft, Payer, Source, Spend, add_up, folded, payer_of, require_one_spelling

LEDGER, DATASET, BUDGET = "ledger", "dataset", "budget"
# Totals so far (see `Position`); somebody said that this copy is the newest, or put back an older one on purpose.
TOTALS, TRUSTED, RESTORED = "totals", "trusted", "restored"

Registered = list[tuple[str, str]]  # (dataset, fingerprint) of every registration

# A row of totals is written when so many rows were added since the last one, and more if there are many payers.
CHECKPOINT_ROWS = 1_000
ROWS_PER_PAYER = 8
# Totals are sums in another order than those they are compared with.
SAME = 1e-9
_BATCH = 1_000
_KIND, _COUNT, _SOURCE, _SOURCE_AND_COUNT = itemgetter(1), itemgetter(4), itemgetter(6), itemgetter(6, 4)

Spent = dict[Payer, float]


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


def runs_on(connection: Connection, dataset: str, channel: str | None = None) -> list[str]:
    """The names of all runs that released something from a dataset; or that did by one channel."""
    asked = "SELECT DISTINCT run FROM ledger WHERE kind = ? AND dataset = ?"
    if channel is None:
        rows = fetch(connection, asked, SPEND, dataset)
    else:
        rows = fetch(connection, f"{asked} AND channel = ?", SPEND, dataset, channel)
    return sorted(run for (run,) in rows if run)


# ---- The rules for naming data.


def require_same_kind(state: DatasetState, *, known: bool, simulation: bool) -> None:
    """Raise if a dataset that any row of the ledger is about (`known`) does not stay a simulation, or stay none."""
    if known and state.simulation != simulation:
        raise InputError(
            "simulation",
            f"must stay {state.simulation} for dataset {state.name!r}",
            simulation,
            "What was released as one kind does not become the other; register another name.",
        )


def require_free(state: DatasetState, fingerprint: str, seen: Registered, *, renew: bool) -> None:
    """Raise if the same data has another name, or if other data under this name was not announced by `renew`."""
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
    """Raise unless the fingerprint is made with the key of the first: a new key would be a new budget."""
    first = next((mark for _, mark in seen if mark), "")
    if fingerprint and first and key_of(fingerprint) != key_of(first):
        raise InputError(
            "fingerprint",
            f"must be made with key {key_of(first) or '(none named)'}, as the first one in this ledger",
            fingerprint,
            "With another key the same data looks like other data.",
        )


def require_same_data(seen: Registered, state: DatasetState, fingerprint: str) -> None:
    """Raise unless a release from fingerprinted data shows the fingerprint, and only one that is registered."""
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
    """Raise if new clients or groups are other spellings of those that the dataset has, by its rows or its `payers`."""
    rows = fetch(connection, "SELECT DISTINCT client, group_name FROM sources WHERE dataset = ?", dataset)
    rows += payers
    new = sorted(labels)
    for number, name in enumerate(("client", "group")):
        known = {folded(row[number]): row[number] for row in rows}
        require_one_spelling(name, [label[number + 1] for label in new], known)


# ---- What the rows add up to.


@dataclass
class Position:
    """What the rows up to `head` say. Datasets are found by their folded names: spellings of one name add up.

    spent: by dataset with a budget; None where releases came before the budget, so that all rows must be read again.
    conflicts: why a name with several spellings, from an older version, cannot be one dataset.
    checkpoint: the newest row of totals. ahead: budgets at whose orders everything is added up from row 1 on.
    """

    head: Head = field(default_factory=lambda: Head(0, NO_HASH))
    states: dict[str, DatasetState] = field(default_factory=dict)
    spellings: dict[str, list[str]] = field(default_factory=dict)
    spent: dict[str, Spent | None] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    registered: Registered = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    checkpoint: int = 0
    ahead: Mapping[str, Budget] = field(default_factory=dict)
    _waiting: Counter[int] = field(default_factory=Counter)

    def state(self, dataset: str) -> DatasetState:
        """What is settled about a dataset, under the name it was first written with."""
        return self.states.get(folded(dataset)) or DatasetState(dataset)

    def spent_on(self, dataset: str) -> Spent:
        """What each payer of a dataset with a budget has spent; `complete` must hold."""
        return self.spent.get(folded(dataset)) or {}

    @property
    def complete(self) -> bool:
        """Whether the totals of every budget are known."""
        return None not in self.spent.values()

    @property
    def due(self) -> bool:
        """Whether a row of totals should be written."""
        payers = sum(len(spent or ()) for spent in self.spent.values())
        return self.head.sequence - self.checkpoint >= max(CHECKPOINT_ROWS, ROWS_PER_PAYER * payers)

    # --- rows ---------------------------------------------------------------------------------------------------

    def add(self, rows: Rows, sources: Mapping[int, Source]) -> None:
        """Add verified rows; `LedgerBroken` where they contradict each other.

        Releases wait to be added up, equal ones together, until another kind of row comes; or for `settle`.
        """
        start = 0
        for place, row in enumerate(rows) if set(map(_KIND, rows)) != {SPEND} else ():
            if row[1] != SPEND:
                self._wait(rows[start:place])
                self.settle(sources)
                self._add_other(row[0], row[1], sources[row[6]])
                start = place + 1
        self._wait(rows[start:])
        self.head = Head(rows[-1][0], rows[-1][8])

    def settle(self, sources: Mapping[int, Source]) -> None:
        """Add up the releases that wait."""
        waiting, self._waiting = self._waiting, Counter()
        for number, count in waiting.items():
            self._spend(sources[number], count)

    def enter(self, head: Head, checkpoint: int, state: DatasetState, spent: Spent | None) -> None:
        """Take over what this process has written itself: releases from one dataset, after which this holds."""
        key = self._known(state.name)
        self.head, self.checkpoint, self.states[key] = head, checkpoint, state
        self.released.add(key)
        if spent is not None:
            self.spent[key] = spent

    def _known(self, dataset: str) -> str:
        key = folded(dataset)
        self.states.setdefault(key, DatasetState(dataset))
        spellings = self.spellings.setdefault(key, [])
        if dataset not in spellings:
            spellings.append(dataset)
        return key

    def _wait(self, rows: Rows) -> None:
        if set(map(_COUNT, rows)) == {1}:  # nearly always, and much faster
            self._waiting.update(map(_SOURCE, rows))
            return
        for (number, count), times in Counter(map(_SOURCE_AND_COUNT, rows)).items():
            if count < 1:
                raise LedgerBroken(f"A row counts {count} releases.")
            self._waiting[number] += count * times

    def _spend(self, source: Source, count: int) -> None:
        key = self._known(source.dataset)
        self.released.add(key)
        try:
            event = event_of(source.body)
            self.states[key] = self.states[key].keeping(event.neighbouring)
        except NeighbouringMismatch as error:
            self._contradiction(key, str(error))
        except (ValueError, TypeError) as error:  # InputError and JSONDecodeError are ValueErrors
            raise LedgerBroken(f"An event in the ledger cannot be read: {error}") from error
        budget = self.ahead.get(key) or self.states[key].budget
        spent = self.spent.setdefault(key, {}) if budget is not None else None
        if budget is not None and spent is not None:
            payer = payer_of(source.client, source.group, event)
            spent[payer] = add_up(spent.get(payer, 0.0), budget.cost(event, count))

    def _add_other(self, sequence: int, kind: str, source: Source) -> None:
        if kind in (TRUSTED, RESTORED) or (kind == LEDGER and sequence == 1):
            return
        try:
            said = json.loads(source.body)
            if kind == DATASET:
                self._register(source.dataset, bool(said["simulation"]), str(said["fingerprint"]))
            elif kind == BUDGET:
                self._set_budget(source.dataset, Budget.from_json(json.dumps(said["budget"])))
            elif kind == TOTALS:
                self._require_same(sequence, Position.read(said))
                self.checkpoint = sequence
            else:
                raise LedgerBroken(f"Row {sequence} is of unknown kind {kind!r}.")
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerBroken(f"Row {sequence} says nothing that can be read: {error}") from error

    def _register(self, dataset: str, simulation: bool, fingerprint: str) -> None:
        seen = folded(dataset) in self.states
        key = self._known(dataset)
        before = self.states[key]
        if seen and simulation != before.simulation:
            self._contradiction(key, "it is real data in one row and a simulation in another")
        elif before.fingerprint not in ("", fingerprint) and len(self.spellings[key]) > 1:
            self._contradiction(key, "it was registered with different fingerprints")
        self.states[key] = replace(before, simulation=simulation, fingerprint=fingerprint)
        self.registered.append((before.name, fingerprint))

    def _set_budget(self, dataset: str, budget: Budget) -> None:
        key = self._known(dataset)
        before = self.states[key]
        try:
            self.states[key] = replace(before.keeping(budget.neighbouring), budget=budget)
        except NeighbouringMismatch as error:
            self._contradiction(key, str(error))
            self.states[key] = replace(before, budget=budget)
        if key in self.ahead or key not in self.released:
            self.spent.setdefault(key, {})
        elif before.budget is None or before.budget.order != budget.order:
            self.spent[key] = None

    def _contradiction(self, key: str, what: str) -> None:
        """One dataset contradicts itself only in a changed ledger; two spellings could, in older versions."""
        if len(self.spellings[key]) < 2:
            raise LedgerBroken(f"Dataset {self.states[key].name!r}: {what}.")
        self.conflicts[key] = what

    # --- rows of totals -----------------------------------------------------------------------------------------

    def draft(self) -> Draft:
        """The row of totals that holds this position."""
        body = {
            "datasets": [self._dataset(key) for key in sorted(self.states)],
            "registered": self.registered,
        }
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return Draft(TOTALS, Source("", "", "", "", "", text))

    def _dataset(self, key: str) -> dict[str, object]:
        state, spent = self.states[key], self.spent.get(key) if self.states[key].budget else None
        how = state.neighbouring
        return {
            "name": state.name,
            "spellings": self.spellings[key],
            "simulation": state.simulation,
            "fingerprint": state.fingerprint,
            "neighbouring": how and [how.adjacency.value, how.unit.value],
            "budget": state.budget and json.loads(state.budget.to_json()),
            "released": key in self.released,
            "conflict": self.conflicts.get(key, ""),
            # As hexadecimal: exact, and infinity has a name.
            "spent": None if spent is None else [[*payer, amount.hex()] for payer, amount in sorted(spent.items())],
        }

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Position:
        """The position in the body of a row of totals."""
        position = cls(registered=[(str(name), str(mark)) for name, mark in said["registered"]])
        for about in said["datasets"]:
            key, how, budget = folded(about["name"]), about["neighbouring"], about["budget"]
            position.states[key] = DatasetState(
                about["name"],
                about["simulation"],
                about["fingerprint"],
                how and Neighbouring(Adjacency(how[0]), Unit(how[1])),
                budget and Budget.from_json(json.dumps(budget)),
            )
            position.spellings[key] = list(about["spellings"])
            if about["released"]:
                position.released.add(key)
            if about["conflict"]:
                position.conflicts[key] = about["conflict"]
            if budget is not None:
                position.spent[key] = {(client, group): float.fromhex(a) for client, group, a in about["spent"]}
        return position

    def _require_same(self, sequence: int, said: Position) -> None:
        """Raise if a row of totals does not say what the rows before it add up to."""
        same = (said.states, said.registered, said.released) == (self.states, self.registered, self.released)
        for key, state in self.states.items():
            mine, theirs = self.spent.get(key), said.spent.get(key)
            ahead = self.ahead.get(key)
            if state.budget is None or (ahead is not None and ahead.order != state.budget.order):
                continue
            if mine is not None and theirs is not None:
                same = same and same_totals(mine, theirs, sequence)
        if not same:
            raise LedgerBroken(f"The totals in row {sequence} are not what the rows before it add up to.")


def same_totals(one: Spent, other: Spent, rows: int) -> bool:
    """Whether two sums over so many rows are equal, but for rounding: each addition rounds up by at most an ulp."""
    tolerance = max(SAME, rows * 2.0**-51)
    return one.keys() == other.keys() and all(math.isclose(one[p], other[p], rel_tol=tolerance) for p in one)


def derive_totals(budget: Budget, spending: Iterable[Sequence[Any]]) -> Spent:
    """Totals at the budget's order, from (client, group, event, count)."""
    spent: Spent = {}
    for client, group, body, count in spending:
        event = event_of(body)
        payer = payer_of(client, group, event)
        spent[payer] = add_up(spent.get(payer, 0.0), budget.cost(event, int(count)))
    return spent


@dataclass(frozen=True)
class Reader:
    """Reads positions from a ledger, every row verified; with the owner's key, every signature."""

    signed_by: str
    key: OwnerKey | None

    def position(self, connection: Connection, head: Head, before: Position | None, seen: Head | None) -> Position:
        """The position at `head`: from the one before, which is changed, or from the newest that can be believed.

        `seen`: a row that this machine saw. `OlderLedger` if it is not in the ledger, `LedgerBroken` if a row was
        changed.
        """
        start = before or self._newest(connection, seen)
        position = self._advanced(connection, start, head, seen)
        if not position.complete:
            # Some releases are older than the budget that they count for: from row 1 on at its order.
            budgets = {key: budget for key, state in position.states.items() if (budget := state.budget) is not None}
            afresh = Position(ahead=budgets)
            position = replace(self._advanced(connection, afresh, head, seen), ahead={})
        return position

    def afresh(self, connection: Connection, head: Head) -> Position:
        """The position at `head`, from row 1, whatever was seen before."""
        return self.position(connection, head, Position(), None)

    def _newest(self, connection: Connection, seen: Head | None) -> Position:
        """The position in the newest row of totals up to the row that was seen; if there is none, before row 1."""
        found = [] if seen is None else fetch(connection, _NEWEST, seen.sequence)
        if not found:
            return Position()
        sequence, kind, at, number, count, token, previous, hash_, signature, *about = found[0]
        source = Source(*about)
        text = chained_text(sequence, kind, at, number, count, token, previous, "\n".join(source))
        if sha256(text.encode()).hexdigest() != hash_:
            raise changed(f"row {sequence} was changed: its hash does not fit its content")
        if self.key is not None and not self.key.signed(hash_, signature):
            raise changed(f"row {sequence} is not signed with this key")
        try:
            position = Position.read(json.loads(source.body))
        except (KeyError, TypeError, ValueError) as error:
            raise changed(f"row {sequence} cannot be read ({error})") from None
        position.head, position.checkpoint = Head(sequence, hash_), sequence
        return position

    def _advanced(self, connection: Connection, position: Position, head: Head, seen: Head | None) -> Position:
        if seen is not None and (seen.sequence > head.sequence or _differs(position.head, seen)):
            raise older(seen, head)
        if position.head == head:
            return position
        if position.head.sequence >= head.sequence:
            raise older(position.head, head)
        check = ChainCheck(self.signed_by, self.key, head=position.head)
        known: dict[int, Source] = {}
        with closing(chain.stream(connection, _BATCH, after=position.head.sequence)) as batches:
            for rows in batches:
                numbers = {row[6] for row in rows}
                for number in numbers - known.keys():
                    for row in fetch(connection, chain.ONE_SOURCE, number):
                        known[number] = Source(*row)
                for _ in check.passing([rows], {number: known[number] for number in numbers & known.keys()}):
                    if not check.intact:
                        raise changed(str(check.problems[0]))
                first = rows[0][0]
                if seen is not None and first <= seen.sequence <= rows[-1][0]:
                    row = rows[seen.sequence - first]
                    if row[8] != seen.hash:
                        raise older(seen, head)
                self._add(position, rows, known)
        self._add(position, (), known)
        if position.head != head:
            raise changed(f"its rows end with row {position.head.sequence}, and its head is row {head.sequence}")
        return position

    @staticmethod
    def _add(position: Position, rows: Rows, sources: Mapping[int, Source]) -> None:
        """Add the rows; without any, those that wait."""
        try:
            if rows:
                position.add(rows, sources)
            else:
                position.settle(sources)
        except LedgerBroken as error:
            raise changed(str(error).rstrip(".")) from error


def _differs(head: Head, seen: Head) -> bool:
    return head.sequence == seen.sequence and head.hash != seen.hash


def older(seen: Head, head: Head) -> OlderLedger:
    """The error for a ledger that lacks a row which was seen in it."""
    lost = f"row {seen.sequence} is missing, and the newest is {head.sequence}"
    if seen.sequence <= head.sequence:
        lost = f"row {seen.sequence} is another one"
    return OlderLedger(
        f"The ledger is an older copy, or rows were replaced: {lost}; this machine saw it with hash {seen.hash[:16]}…. "
        "What was spent since is not in it, and nothing more may be spent. Put the newer one back. If there is none: "
        "privfair ledger restore."
    )


def changed(what: str) -> LedgerBroken:
    """The error for a ledger that was changed."""
    return LedgerBroken(
        f"The ledger was changed: {what}. Nothing more may be spent: run privfair audit, which reports what "
        "was changed, and put back a copy of the ledger."
    )


_NEWEST = (
    "SELECT sequence, kind, recorded_at, round, count, token, previous, hash, signature, "
    "dataset, client, group_name, channel, run, body "
    "FROM entries JOIN sources ON sources.source = entries.source "
    f"WHERE kind = '{TOTALS}' AND sequence <= ? ORDER BY sequence DESC LIMIT 1"
)
