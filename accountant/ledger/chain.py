"""The rows of the ledger, chained by their hashes, and the tokens and messages that belong to them.

Every row's hash covers all its columns and the hash of the row before.

    hash_n = SHA-256( sequence_n, kind_n, …, hash_{n-1}, …, body_n ),   the fields joined by line feeds

No field may contain a line feed: such a row is never written. So the text of a written row has exactly one
line feed between each two fields, and no other row has the same text. Row 1 follows a hash of zeros and
names the ledger. Changing, deleting, swapping or inserting rows breaks the chain at that place.

Not found by the chain alone: rows cut from the end, or a chain computed afresh from some row on. Both are
found against a head noted elsewhere before (every machine remembers the newest it saw, see `machine_state`, and every
run's statement has one), the second also by signatures, which need the owner's key. Not found by anything here: changes
newer than the last noted head without a key, a second ledger on another machine, and data copied to another name that
was never fingerprinted.

A row that reserves a release gives out a token. It is used once, and a message is stored before it is sent:

    reserve  ->  redeem  ->  draw noise  ->  store the message  ->  send

Each arrow waits until the step before is on disk. After a crash the ledger shows how far it got: a token not
yet redeemed may still be used; a stored message is sent again, byte for byte; a redeemed token without a
message is spent, and a new reservation is needed. So a crash may count a release nobody saw, never miss one.

Redemptions, messages and their digests are beside the chain. The database refuses to change them, and an audit
finds tokens that were never given out or are there twice, and a message or digest without what must precede it.
Not found: whoever can drop a trigger can delete a token's redemption, digest and message together, and it may be
used again; or put another message and its digest in their place. Neither changes what the rows say was spent, but
a token used twice is one release more than they say. The tokens are for programs that crash, not for forgers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from accountant.errors import InputError, LedgerBroken, Refused
from accountant.ledger import schema
from accountant.ledger.signing import OwnerKey
from accountant.ledger.storage import fetch, insert_rows
from accountant.spending import Draft, Source

if TYPE_CHECKING:
    from accountant.ledger.ledger import Ledger

NO_HASH = "0" * 64
HASH_PATTERN = re.compile(r"[0-9a-f]{64}")
SHOWN_PROBLEMS = 20
LOST = "(what this row was about is missing)"

Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Head:
    """The newest row's number and hash: all earlier rows follow from it."""

    sequence: int
    hash: str


def require_hash(name: str, value: str) -> str:
    """The value, if it looks like a row's hash; people type it into commands. Otherwise `InputError`."""
    if not HASH_PATTERN.fullmatch(value):
        raise InputError(name, "must be 64 lower-case hexadecimal digits", value)
    return value


class Stored(NamedTuple):
    """A source with its number, and the text that all its rows share."""

    number: int
    text: str


def stored_source(source: Source) -> Stored:
    """The number is the first 63 bits of the text's SHA-256. Refuses fields that are not separable."""
    text = "\n".join(source)
    if text.count("\n") != len(source) - 1:
        raise InputError("ledger row", "must not contain line feeds", source)
    return Stored(int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1, text)


def chained_text(
    sequence: int,
    kind: str,
    recorded_at: str,
    round_number: int | None,
    count: int,
    token: str,
    previous: str,
    about: str,
) -> str:
    """The text whose SHA-256 is the row's hash; `about` is its source's text."""
    number = "" if round_number is None else round_number
    return f"{sequence}\n{kind}\n{recorded_at}\n{number}\n{count}\n{token}\n{previous}\n{about}"


def utc_now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """A moment as text that sorts by time: 2025-01-31T09:30:00.000000Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_head(connection: Connection, *, lock: bool = False) -> Head:
    """The newest row's number and hash, checked against the newest row itself.

    With `lock`, other writers wait from here to the end of the transaction (on SQLite they already do).
    """
    if lock and connection.dialect.name == "postgresql":
        # A statement of its own: the next one must see what the writer before us committed.
        fetch(connection, "SELECT one FROM head FOR UPDATE")
    found = fetch(connection, _HEAD)
    if len(found) != 1:
        raise LedgerBroken("The ledger's head is not noted: its row was deleted. Put back a copy of the ledger.")
    ((noted, hash_, newest, newest_hash),) = found
    if (noted, hash_) != (newest, newest_hash):
        raise LedgerBroken(
            f"The ledger's head is noted as row {noted}, hash {hash_}, but its newest row is {newest}, "
            f"hash {newest_hash}. Run an audit before anything is added."
        )
    return Head(noted, hash_)


def noted_head(connection: Connection) -> Head:
    """The head as the ledger notes it, checked against nothing: for an audit, which checks it itself."""
    noted = fetch(connection, "SELECT sequence, hash FROM head")
    return Head(*noted[0]) if noted else Head(0, NO_HASH)


def append(
    connection: Connection,
    head: Head | None,
    drafts: Sequence[tuple[Draft, str]],
    *,
    now: str,
    key: OwnerKey | None,
    known: Mapping[Source, Stored],
) -> tuple[Head, dict[Source, Stored]]:
    """(new head, sources that are new), after adding (draft, token) rows in the caller's transaction.

    known: sources that are certainly stored already.
    """
    sequence, previous = (head.sequence, head.hash) if head else (0, NO_HASH)
    new: dict[Source, Stored] = {}
    rows = []
    for (kind, source, round_number, count), token in drafts:
        sequence += 1
        about = known.get(source) or new.get(source) or new.setdefault(source, stored_source(source))
        text = chained_text(sequence, kind, now, round_number, count, token, previous, about.text)
        digest = sha256(text.encode()).hexdigest()
        signature = key.sign(digest) if key else ""
        rows.append((sequence, kind, now, round_number, count, token, about.number, previous, digest, signature))
        previous = digest
    _store_sources(connection, new)
    insert_rows(connection, schema.entries, rows)
    insert_rows(connection, schema.head, [(1, sequence, previous)], replacing=True)
    return Head(sequence, previous), new


def _store_sources(connection: Connection, sources: Mapping[Source, Stored]) -> None:
    for source, (number, _) in sources.items():
        found = fetch(connection, ONE_SOURCE, number)
        if not found:
            insert_rows(connection, schema.sources, [(number, *source)])
        elif tuple(found[0]) != source:
            raise LedgerBroken(f"Source {number} was changed. Run an audit before anything is added.")


def read_sources(connection: Connection) -> dict[int, Source]:
    """What the rows are about, by number."""
    return {row[0]: Source(*row[1:]) for row in fetch(connection, _SOURCES)}


def stream(connection: Connection, batch: int = 256, *, after: int = 0) -> Generator[Rows, None, None]:
    """The rows in order, from the one after `after` on, in lists of plain tuples.

    The lists are short: rows that are still in the processor's cache are verified a fifth faster.
    """
    columns = ", ".join(column.name for column in schema.entries.columns)
    driver = connection.dialect.loaded_dbapi
    # The driver's own cursor: SQLAlchemy's row objects would double the time of an audit. On PostgreSQL a cursor
    # with a name stays at the server, which would otherwise send all rows at once.
    at_server = {"name": "ledger_rows"} if connection.dialect.name == "postgresql" else {}
    read = after
    with closing(connection.connection.cursor(**at_server)) as cursor:
        cursor.execute(f"SELECT {columns} FROM entries WHERE sequence > {int(after)} ORDER BY sequence")
        while True:
            try:
                rows = cursor.fetchmany(batch)
            except driver.Error as error:
                raise LedgerBroken(f"Rows after row {read} cannot be read: {error}") from error
            if not rows:
                return
            read = rows[-1][0]
            yield rows


_SOURCES = "SELECT source, dataset, client, group_name, channel, run, body FROM sources"
ONE_SOURCE = "SELECT dataset, client, group_name, channel, run, body FROM sources WHERE source = ?"
_HEAD = (
    "SELECT head.sequence, head.hash, newest.sequence, newest.hash FROM head "
    "LEFT JOIN entries AS newest ON newest.sequence = (SELECT max(sequence) FROM entries)"
)


@dataclass(frozen=True)
class Problem:
    """Something wrong with the ledger, and the row where it shows; row 0 when it is no single row."""

    row: int
    what: str

    def __str__(self) -> str:
        """For example "row 17: was changed"."""
        return f"row {self.row}: {self.what}" if self.row else self.what


@dataclass
class ChainCheck:
    """Verifies rows as they stream past; `problems` holds the first of those found, `found` counts all.

    found_heads: the row of every noted head that was met.
    """

    signed_by: str = ""
    key: OwnerKey | None = None
    noted_heads: Collection[str] = ()
    problems: list[Problem] = field(default_factory=list)
    found: int = 0
    rows: int = 0
    head: Head = field(default_factory=lambda: Head(0, NO_HASH))
    missing_heads: set[str] = field(init=False)
    found_heads: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """No noted head has been met yet."""
        self.missing_heads = set(self.noted_heads)

    @property
    def intact(self) -> bool:
        """Whether nothing wrong was found."""
        return self.found == 0

    def report(self, row: int, what: str) -> None:
        """Count a problem, and keep it if it is among the first: one insertion breaks every row after it."""
        self.found += 1
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(Problem(row, what))

    def passing(self, batches: Iterable[Rows], sources: Mapping[int, Source]) -> Iterator[Rows]:
        """The same batches, each verified before it is handed on."""
        expected, last = self.head.sequence + 1, self.head.hash
        texts = {number: "\n".join(source) for number, source in sources.items()}
        look_closer = bool(self.signed_by or self.key or self.missing_heads)
        for rows in batches:
            # Spelled out: this loop is most of an audit's time.
            for row in rows:
                sequence, kind, at, round_number, count, token, source, previous, stored, _ = row
                about = texts.get(source, LOST)
                text = chained_text(sequence, kind, at, round_number, count, token, previous, about)
                if sha256(text.encode()).hexdigest() != stored or sequence != expected or previous != last:
                    self._explain(row, expected, last, sha256(text.encode()).hexdigest() == stored)
                if look_closer:
                    self._look_closer(sequence, *row[-2:])
                expected, last = sequence + 1, stored
            self.rows += len(rows)
            self.head = Head(expected - 1, last)
            yield rows

    def finish(self, noted: Head) -> None:
        """After the last row: does the ledger end where it was noted to end?"""
        for hash_ in sorted(self.missing_heads):
            self.report(0, f"the noted head {hash_} is not in the ledger: rows were cut off or replaced")
        if noted != self.head:
            self.report(
                0,
                f"the ledger ends with row {self.head.sequence}, but its head is noted as row "
                f"{noted.sequence}: rows were cut off, or added past the program",
            )

    def _look_closer(self, sequence: int, stored: str, signature: str) -> None:
        if stored in self.missing_heads:
            self.missing_heads.discard(stored)
            self.found_heads[stored] = sequence
        if self.key is not None and not self.key.signed(stored, signature):
            self.report(sequence, "is not signed with this key")
        elif self.signed_by and not signature:
            self.report(sequence, f"is not signed, though the ledger is signed with key {self.signed_by}")

    def _explain(self, row: tuple[Any, ...], expected: int, last: str, intact: bool) -> None:
        sequence = row[0]
        if sequence != expected:
            gap = f"row {expected} is" if sequence == expected + 1 else f"rows {expected} to {sequence - 1} are"
            self.report(expected, f"{gap} missing before row {sequence}")
        if not intact:
            self.report(sequence, "was changed: its hash does not fit its content")
        elif row[7] != last and sequence == expected:
            self.report(sequence, "does not follow the row before it: one of the two was replaced or inserted")


# ---- Tokens: the right to make one release, how far it got, and the message made with it.


class TokenAlreadyUsed(Refused):
    """A token was used a second time: the release it stood for may already have been made."""

    def __init__(self, token: str) -> None:
        """Say what can still be done."""
        self.token = token
        super().__init__(
            f"Reservation {token} has been used. If its message is stored, send that; if not, reserve anew."
        )

    def __reduce__(self) -> tuple[type[TokenAlreadyUsed], tuple[str]]:
        """Survive the way back from a worker process."""
        return type(self), (self.token,)


class Progress(StrEnum):
    """How far a reservation got."""

    RESERVED = "reserved"  # in the ledger; noise may be drawn after redeeming it
    REDEEMED = "redeemed"  # noise may have been drawn; without a message it is spent
    STORED = "stored"  # the message is on disk and can be sent, again and again


@dataclass(frozen=True)
class Reservation:
    """The right to make one release, once. Durable when `Ledger.reserve` returns it."""

    token: str
    ledger: Ledger = field(repr=False, compare=False)

    def redeem(self) -> None:
        """Use the token. Noise may be drawn when this returns; a second call raises `TokenAlreadyUsed`."""
        self.ledger.redeem([self.token])

    def store(self, message: bytes) -> None:
        """Keep the finished message; it may be sent when this returns."""
        self.ledger.store_message(self.token, message)

    def message(self) -> bytes | None:
        """The stored message, to be sent again after a crash; None when there is none."""
        return self.ledger.message(self.token)

    def progress(self) -> Progress:
        """How far this reservation got."""
        return self.ledger.progress(self.token)


def require_token(connection: Connection, token: str) -> str:
    """The token, if the ledger gave it out; otherwise `InputError`.

    A token starts with its first row's number, so it is found without an index.
    """
    number, _, secret = token.partition("-")
    if secret and number.isascii() and number.isdecimal() and int(number) < 2**63:
        columns = schema.entries.c
        found = connection.scalar(select(columns.token).where(columns.sequence == int(number)))
        if found == token:
            return token
    raise InputError("token", "must be one that this ledger gave out", token, "Call Ledger.reserve first.")


def redeem(connection: Connection, tokens: Iterable[str], now: str) -> None:
    """Mark the tokens as used, all or none."""
    for token in tokens:
        require_token(connection, token)
        try:
            connection.execute(schema.redemptions.insert().values(token=token, redeemed_at=now))
        except IntegrityError:
            raise TokenAlreadyUsed(token) from None


def store_message(connection: Connection, token: str, message: bytes, now: str) -> None:
    """Keep the message of a redeemed token. The same bytes again change nothing; other bytes are refused.

    Also after the message was discarded: its digest stays, and another message would be a second release.
    """
    state = progress(connection, token)
    if state is Progress.RESERVED:
        raise InputError("token", "must be redeemed before its message is stored", token)
    digest = sha256(message).hexdigest()
    kept = connection.scalar(select(schema.digests.c.sha256).where(schema.digests.c.token == token))
    if kept not in (None, digest):
        raise TokenAlreadyUsed(token)
    if kept is None:
        connection.execute(schema.digests.insert().values(token=token, sha256=digest))
    if state is Progress.REDEEMED:
        connection.execute(schema.messages.insert().values(token=token, stored_at=now, message=message))


def load_message(connection: Connection, token: str) -> bytes | None:
    """The stored message; None when there is none."""
    require_token(connection, token)
    stored = schema.messages.c
    message = connection.scalar(select(stored.message).where(stored.token == token))
    return None if message is None else bytes(message)


def token_contradictions(connection: Connection) -> Iterator[str]:
    """What is wrong with the redemptions and messages: they are beside the chain, and must fit the tokens in it."""
    first = _FIRST_ROW[connection.dialect.name]
    for table in ("redemptions", "digests", "messages"):
        query = (
            f"SELECT count(*), count(DISTINCT t.token), count(CASE WHEN e.token = t.token THEN 1 END) FROM {table} t"
        )
        ((rows, tokens, known),) = fetch(connection, f"{query} LEFT JOIN entries e ON e.sequence = {first}")
        if rows != tokens:
            yield f"{rows - tokens} tokens are twice in {table}"
        if rows != known:
            yield f"{rows - known} tokens in {table} were never given out"
    for table, before in (("digests", "redemptions"), ("messages", "digests")):
        query = f"SELECT count(*) FROM {table} t WHERE NOT EXISTS (SELECT 1 FROM {before} b WHERE b.token = t.token)"
        if lost := fetch(connection, query)[0][0]:
            yield f"{lost} tokens are in {table} but not in {before}, from which a row was deleted"


# The number that a token starts with.
_FIRST_ROW = {
    "sqlite": "CAST(t.token AS INTEGER)",
    "postgresql": "CAST(substring(t.token from '^[0-9]{1,18}') AS BIGINT)",
}


def progress(connection: Connection, token: str) -> Progress:
    """How far a reservation got."""
    require_token(connection, token)
    if connection.scalar(select(schema.messages.c.token).where(schema.messages.c.token == token)):
        return Progress.STORED
    used = connection.scalar(select(schema.redemptions.c.token).where(schema.redemptions.c.token == token))
    return Progress.REDEEMED if used else Progress.RESERVED
