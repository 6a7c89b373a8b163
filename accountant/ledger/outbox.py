"""Reservations and the messages made with them: a token is used once, a message is stored before it is sent.

    reserve  ->  redeem  ->  draw noise  ->  store the message  ->  send

Each arrow waits until the step before is on disk. After a crash the ledger shows how far it got: a token not
yet redeemed may still be used; a stored message is sent again, byte for byte; a redeemed token without a
message is spent, and a new reservation is needed. So a crash may count a release nobody saw, never miss one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from accountant.errors import InputError, Refused
from accountant.ledger import schema
from accountant.ledger.storage import fetch

if TYPE_CHECKING:
    from accountant.ledger.ledger import Ledger


class TokenAlreadyUsed(Refused):
    """A token was used a second time: the release it stood for may already have been made."""

    def __init__(self, token: str) -> None:
        """The message says what can still be done."""
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


def store(connection: Connection, token: str, message: bytes, now: str) -> None:
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


def load(connection: Connection, token: str) -> bytes | None:
    """The stored message; None when there is none."""
    require_token(connection, token)
    stored = schema.messages.c
    message = connection.scalar(select(stored.message).where(stored.token == token))
    return None if message is None else bytes(message)


def contradictions(connection: Connection) -> Iterator[str]:
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
