"""What this machine remembers of ledgers, outside of them: the newest row it saw of each, and which data have a budget.

A hash chain cannot tell an older copy of itself from the newest one. So the number and hash of the newest row are kept
in a small SQLite file in the folder `$PRIVFAIR_STATE`, by default the user's state folder; a ledger that lacks that row
is refused (see `ledger`). The state is written after the ledger: a crash between the two leaves it older than
the ledger, which is fine. State that is newer than the ledger is the alarm.

    moment                                       written
    a ledger is created, trusted or restored     with fsync, before anything else can happen
    a budget is set; a ledger is closed          with fsync
    every other row, every use of a token        without: it survives the death of the process

So what an older copy can hide is at most the newest transaction, if the process was killed between two statements, or,
after a power failure, what the operating system had not yet written to the state (it does so within seconds). Who can
write to the state as well as to the ledger is not stopped by any of this.

No records are kept here, only names, fingerprints, addresses without passwords, and hashes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accountant.errors import InputError, LedgerUnavailable
from accountant.ledger.chain import Head
from accountant.spending import folded

STATE_VARIABLE = "PRIVFAIR_STATE"
FILE = "ledgers.sqlite"
_WAIT_SECONDS = 60
_remembering: ContextVar[bool] = ContextVar("ledgers are remembered", default=True)


@dataclass(frozen=True)
class Seen:
    """The newest row that this machine saw of a ledger, and the token whose use it saw last; "" for none."""

    head: Head
    token: str = ""


@dataclass(frozen=True)
class KnownBudget:
    """A dataset that has a budget in some ledger."""

    dataset: str
    fingerprint: str
    ledger_id: str
    url: str


def state_folder() -> Path:
    """$PRIVFAIR_STATE, or `privfair` in the user's state folder ($XDG_STATE_HOME, ~/.local/state)."""
    given = os.environ.get(STATE_VARIABLE)
    if given:
        if not Path(given).is_absolute():
            raise InputError(STATE_VARIABLE, "must be an absolute path", given, "Another folder would forget it.")
        return Path(given)
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # as the XDG rules say
        try:
            base = Path.home() / ".local" / "state"
        except RuntimeError as error:
            raise LedgerUnavailable(f"There is no home folder ({error}): set {STATE_VARIABLE} to a folder.") from None
    return base / "privfair"


@contextmanager
def not_remembered() -> Iterator[None]:
    """Ledgers that are opened inside are neither remembered nor announced: for those that are thrown away."""
    token = _remembering.set(False)
    try:
        yield
    finally:
        _remembering.reset(token)


def remembering() -> bool:
    """Whether a ledger that is opened now is one to be remembered."""
    return _remembering.get()


class State:
    """The file, shared by all processes of this account; SQLite keeps writers apart and every change whole."""

    def __init__(self, folder: Path | None = None) -> None:
        """The state in a folder; no file is made before there is something to remember."""
        self.path = (folder or state_folder()) / FILE
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    def seen(self, ledger_id: str) -> Seen | None:
        """The newest row seen of a ledger; None for one that was never seen."""
        rows = self._read("SELECT sequence, hash, token FROM heads WHERE ledger = ?", ledger_id)
        return Seen(Head(*rows[0][:2]), rows[0][2]) if rows else None

    def remember(self, ledger_id: str, head: Head, url: str, *, token: str = "", durable: bool = False) -> None:
        """Keep the head, unless a newer one of the ledger is known; and the token, if one was used."""
        with self._writing(durable) as connection:
            connection.execute(_REMEMBER, (ledger_id, head.sequence, head.hash, token, url))
            if token:
                connection.execute("UPDATE heads SET token = ? WHERE ledger = ?", (token, ledger_id))

    def put_back(self, ledger_id: str, head: Head, url: str) -> None:
        """Keep this head although a newer one is known: the ledger was restored on purpose."""
        with self._writing(durable=True) as connection:
            connection.execute("DELETE FROM heads WHERE ledger = ?", (ledger_id,))
            connection.execute(_REMEMBER, (ledger_id, head.sequence, head.hash, "", url))

    def remember_budget(self, budget: KnownBudget) -> None:
        """Keep that a dataset has a budget in this ledger; a fingerprint once known is kept."""
        row = (folded(budget.dataset), budget.dataset, budget.fingerprint, budget.ledger_id, budget.url)
        with self._writing(durable=True) as connection:
            connection.execute(_REMEMBER_BUDGET, row)

    def budgets(self, dataset: str, fingerprint: str = "") -> list[KnownBudget]:
        """All budgets of data of this name, however it is spelt, or with this fingerprint; the newest first."""
        rows = self._read(_BUDGETS, folded(dataset), fingerprint, fingerprint)
        return [KnownBudget(*row) for row in rows]

    def sync(self) -> None:
        """Return when everything that was remembered has reached the disk."""
        with self._lock, self._explained():
            if self._connection is not None and self._process == os.getpid():
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        """As `close`, for those who forgot."""
        self.close()

    def _read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._explained():
            if not self.path.exists():
                return []
            return self._opened().execute(statement, values).fetchall()

    @contextmanager
    def _writing(self, durable: bool) -> Iterator[sqlite3.Connection]:
        with self._lock, self._explained():
            if not self.path.exists():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
            connection = self._opened()
            # In a write-ahead log NORMAL leaves out the fsync of a commit, and nothing but that.
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():
            # A forked child makes a connection of its own.
            connection = sqlite3.connect(self.path, _WAIT_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'budgets'").fetchall():
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(_TABLES)
            except BaseException:
                connection.close()
                raise
            self._connection, self._process = connection, os.getpid()
        return self._connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise LedgerUnavailable(
                f"What this machine remembers of ledgers, {self.path}, cannot be used ({error}). Without it an older "
                f"copy of a ledger cannot be told from the newest. Make the folder writable, or name another in "
                f"{STATE_VARIABLE}; if the file is damaged, move it away and run `privfair ledger trust`."
            ) from error


_TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS heads (
    ledger TEXT PRIMARY KEY, sequence INTEGER NOT NULL, hash TEXT NOT NULL, token TEXT NOT NULL, url TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS budgets (
    folded TEXT NOT NULL, dataset TEXT NOT NULL, fingerprint TEXT NOT NULL, ledger TEXT NOT NULL, url TEXT NOT NULL,
    PRIMARY KEY (ledger, folded)
) STRICT;
COMMIT;
"""
_REMEMBER = (
    "INSERT INTO heads VALUES (?, ?, ?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET sequence = excluded.sequence, "
    "hash = excluded.hash, url = excluded.url WHERE excluded.sequence > heads.sequence"
)
_REMEMBER_BUDGET = (
    "INSERT INTO budgets VALUES (?, ?, ?, ?, ?) ON CONFLICT (ledger, folded) DO UPDATE SET url = excluded.url, "
    "fingerprint = CASE WHEN excluded.fingerprint = '' THEN budgets.fingerprint ELSE excluded.fingerprint END"
)
_BUDGETS = (
    "SELECT dataset, fingerprint, ledger, url FROM budgets WHERE folded = ? OR (? <> '' AND fingerprint = ?) "
    "ORDER BY rowid DESC"
)
