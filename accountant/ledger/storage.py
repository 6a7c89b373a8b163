"""Where the ledger is kept: SQLite or PostgreSQL, one transaction for readers and one for writers.

SQLite: write-ahead log with `synchronous=FULL`, so a commit has reached the disk when it returns; writers
take the write lock at once (BEGIN IMMEDIATE) and wait for each other. PostgreSQL: writers lock the head's
row, and `synchronous_commit` is switched on for their transaction whatever the server's default is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError

from accountant.errors import InputError, LedgerBroken, LedgerUnavailable, NotThere

LEDGER_VARIABLE = "PRIVFAIR_LEDGER"
DEFAULT_LEDGER = "sqlite:///privfair-ledger.sqlite"
BUSY_SECONDS = 60
# Any fixed number; taken while the tables are created, when there is no head row to lock yet.
_CREATION_LOCK = 0x6C6564676572


def ledger_url(given: str | None) -> str:
    """The ledger asked for: the one given, that of the environment, or the default file in this folder."""
    return given or os.environ.get(LEDGER_VARIABLE) or DEFAULT_LEDGER


def absolute_url(url: str) -> str:
    """The same ledger from whatever folder: a SQLite file with its whole path."""
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        return url
    return str(parsed.set(database=str(Path(str(parsed.database)).resolve())))


def exists(url: str) -> bool:
    """Whether a ledger may be there: a SQLite file that is none yet is not."""
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        return True
    try:
        return Path(str(parsed.database)).exists()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise InputError("ledger", "must be a file that can be reached", str(parsed.database), str(error)) from None


class Storage:
    """A database with a transaction for readers and one for writers."""

    def __init__(self, url: str, *, create: bool) -> None:
        """Connect to `url`; without `create`, a missing SQLite file is an error instead of a new ledger."""
        parsed = _parse(url)
        self.name = parsed.render_as_string(hide_password=True)
        self.full_name = absolute_url(self.name)
        if not create and not exists(url):
            raise NotThere("ledger", "must exist", self.name, "Check the path; nothing was created.")
        if parsed.get_backend_name() == "sqlite" and not exists(url):
            # A ledger may hold messages that are not sent yet: it is its owner's. If this fails, connecting says why.
            with suppress(OSError):
                os.close(os.open(str(parsed.database), os.O_CREAT | os.O_WRONLY, 0o600))
        options: dict[str, Any] = {}
        if parsed.get_backend_name() == "sqlite" and not create:
            options = _read_only(Path(str(parsed.database)))
        try:
            # Every transaction here ends by commit or rollback; the pool need not roll back once more.
            self._engine = create_engine(parsed, pool_reset_on_return=None, **options)
        except ImportError:
            raise InputError(
                "ledger", "needs the PostgreSQL driver", self.name, "Run: pip install 'privfair[postgres]'"
            ) from None
        self._process = os.getpid()
        self._writer = self._engine.execution_options(ledger_writes=True)
        self._reader = self._engine
        if self._engine.dialect.name == "postgresql":
            self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ")
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _configure_sqlite)
            if create:
                event.listen(self._engine, "connect", _use_write_ahead_log)
            event.listen(self._engine, "begin", _begin_sqlite)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one unchanging state of the ledger."""
        self._forget_parents_connections()
        with self._explained(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is durable when it ends; an exception inside leaves no trace."""
        self._forget_parents_connections()
        with self._explained(), self._writer.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
            yield connection

    def lock_creation(self, connection: Connection) -> None:
        """Hold back other processes that want to create the tables; SQLite's write lock already does."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")

    def close(self) -> None:
        """Give the connections back; the storage can be used again afterwards."""
        self._forget_parents_connections()
        self._engine.dispose()

    def _forget_parents_connections(self) -> None:
        if self._process != os.getpid():
            # A forked child must not touch its parent's connections: it makes its own.
            self._engine.dispose(close=False)
            self._process = os.getpid()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the driver's words into an error for the person who gave the address, or who keeps the ledger."""
        # `fetch` goes past SQLAlchemy, whose errors wrap the driver's; so both kinds arrive here.
        try:
            yield
        except UnicodeDecodeError as error:  # the driver's own, of a message about a damaged schema
            raise LedgerBroken("The ledger's file is damaged: it has no text where text must be.") from error
        except (DatabaseError, self._engine.dialect.loaded_dbapi.Error) as error:
            reason = str(getattr(error, "orig", error)).strip()
            said = reason.lower()
            if any(sign in said for sign in _UNAVAILABLE):
                raise LedgerUnavailable(
                    f"The ledger {self.name} cannot be used now: {reason}. Nothing was spent."
                ) from error
            if any(sign in said for sign in _DAMAGED):
                raise LedgerBroken(f"The ledger's file is damaged: {reason}. Put back a copy of it.") from error
            for signs, rule in _UNUSABLE.items():
                if any(sign in said for sign in signs):
                    raise InputError("ledger", rule, self.name, reason) from error
            if isinstance(error, IntegrityError) or "append-only" in said:
                raise
            raise LedgerUnavailable(f"The ledger {self.name} cannot be used: {reason}.") from error


# What passes, or what whoever keeps the machine can put right.
_UNAVAILABLE = (
    *("disk is full", "disk full", "disk i/o error", "no space left", "readonly", "read-only", "permission denied"),
    *("locked", "connection is lost", "server closed the connection", "terminating connection"),
)
_DAMAGED = (
    "malformed",
    "could not decode",
    "invalid byte sequence",
    "already exists",
    "corrupt",
    "unsupported file format",
)
_UNUSABLE = {
    ("not a database", "unable to open", "connection"): "must be a database that opens",
    ("no such table", "no such column", "no such index", "does not exist"): "must be a ledger with all its tables",
}


def _read_only(path: Path) -> dict[str, Any]:
    """How to open a file in a folder that cannot be written to: SQLite would make its own files beside it.

    Without a write-ahead log beside it the file is all there is, and nobody changes it here; with one, SQLite can read
    both, if its index of the log is there.
    """
    if os.access(path.parent, os.W_OK):
        return {}
    log = path.with_name(f"{path.name}-wal")
    fixed = "" if log.exists() and log.stat().st_size else "&immutable=1"
    address = f"{path.resolve().as_uri()}?mode=ro{fixed}"
    connect: Callable[[], sqlite3.Connection] = lambda: sqlite3.connect(address, uri=True, check_same_thread=False)  # noqa: E731
    return {"creator": connect}


def fetch(connection: Connection, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows a query gives; `?` stands for a value. For what every reservation does.

    It goes straight to the driver: a reservation makes half a dozen small statements, and building each with
    SQLAlchemy takes longer than running it.
    """
    cursor = connection.connection.cursor()
    try:
        cursor.execute(_placeholders(statement, connection.dialect.paramstyle), values)
        return list(cursor.fetchall())
    finally:
        cursor.close()


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[tuple[object, ...]], *, replacing: bool = False
) -> None:
    """Insert complete rows, columns in the table's order; with `replacing`, over rows with the same key."""
    if not rows:
        return
    statement = _placeholders(_insert_statement(table, replacing), connection.dialect.paramstyle)
    cursor = connection.connection.cursor()
    try:
        cursor.executemany(statement, rows)
    finally:
        cursor.close()


@lru_cache
def _placeholders(statement: str, paramstyle: str) -> str:
    return statement if paramstyle == "qmark" else statement.replace("?", "%s")


@lru_cache
def _insert_statement(table: Table, replacing: bool) -> str:
    names = [column.name for column in table.columns]
    places = ", ".join("?" for _ in names)
    statement = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({places})"
    if not replacing:
        return statement
    keys = [column.name for column in table.primary_key]
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
    return f"{statement} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changed}"


_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "postgresql+psycopg2": "postgresql+psycopg",
}


def _parse(url: str) -> URL:
    """The address, with the driver that is used; `InputError` for one that cannot keep a ledger."""
    rule = "must be sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    try:
        parsed = make_url(url)
        shown = parsed.render_as_string(hide_password=True)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        holds_password = isinstance(url, str) and "@" in url  # perhaps
        raise InputError("ledger", rule, "another address" if holds_password else url) from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None or "\0" in (parsed.database or ""):
        raise InputError("ledger", rule, shown)
    if driver != "sqlite":
        return parsed.set(drivername=driver)
    database = parsed.database or ""
    if not database.strip() or database.lower().lstrip().startswith((":memory:", "file:")) or parsed.query:
        remedy = "A ledger in memory is lost in a crash; options, and addresses that begin with file:, are not taken."
        raise InputError("ledger", "must be kept in a file, sqlite:///FILE", shown, remedy)
    if parsed.host:
        raise InputError("ledger", rule, shown, "A path has three slashes before it, an absolute one four.")
    return parsed.set(drivername=driver)


def _configure_sqlite(connection: Any, _record: object) -> None:
    # The driver's own transaction handling would open transactions late; `_begin_sqlite` opens them.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")  # a message that was discarded is not to be found in the file


def _use_write_ahead_log(connection: Any, _record: object) -> None:
    # The mode stays with the file. Whoever only reads does not set it: the file might be no ledger at all.
    connection.execute("PRAGMA journal_mode = WAL")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("ledger_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
