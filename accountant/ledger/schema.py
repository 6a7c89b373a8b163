"""The ledger's tables, and the steps that bring an older ledger up to date.

The steps are a hand-written list instead of Alembic: a ledger is one file that a bank keeps for years, its
tables only ever grow, and a migration tool with its own configuration, scripts and command would be larger
than the code it serves. A step never rewrites a chained row: that would break every hash after it.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    inspect,
    select,
)

from accountant.errors import InputError

metadata = MetaData()

# Integer would be 32 bits on PostgreSQL; on SQLite only INTEGER PRIMARY KEY is the table's own B-tree.
Big = BigInteger().with_variant(Integer, "sqlite")

# What a row is about, once for all rows that agree in it: a round repeats the round before, and an event's text
# is half of a row. Its number is taken from the text itself (see chain.source_number). A row's hash covers the
# text, not the number, so nothing here can change unnoticed either.
sources = Table(
    "sources",
    metadata,
    Column("source", Big, primary_key=True, autoincrement=False),
    Column("dataset", Text, nullable=False),
    Column("client", Text, nullable=False),
    Column("group_name", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("body", Text, nullable=False),
    sqlite_strict=True,
)

# One row per promise: "this may have been released".
entries = Table(
    "entries",
    metadata,
    Column("sequence", Big, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("recorded_at", Text, nullable=False),
    Column("round", Big),
    Column("count", Big, nullable=False),
    Column("token", Text, nullable=False),
    Column("source", Big, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("signature", Text, nullable=False),
    sqlite_strict=True,
)

# The newest row's number and hash. Writers lock it first, so that they queue up (PostgreSQL), and it tells a
# ledger that lost its last rows from one that never had them.
head = Table(
    "head",
    metadata,
    Column("one", Integer, CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
    Column("sequence", Big, nullable=False),
    Column("hash", Text, nullable=False),
    sqlite_strict=True,
)

# What the rows say about each dataset, kept beside them so that a reservation need not read them all.
# Everything here follows from `entries`; an audit derives it again and compares.
datasets = Table(
    "datasets",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("simulation", Integer, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("adjacency", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("budget", Text, nullable=False),
    sqlite_strict=True,
)

# Not used any more, neither of the two: totals beside the chain can be edited. They are in the chain now
# (accountant.ledger.datasets); the tables stay for the ledgers that have them.
totals = Table(
    "totals",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("client", Text, primary_key=True),
    Column("group_name", Text, primary_key=True),
    Column("spent", Float(53).with_variant(Float, "sqlite"), nullable=False),
    sqlite_with_rowid=False,
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("sequence", Big, nullable=False),
    Column("hash", Text, nullable=False),
    sqlite_strict=True,
)

# A reservation's token is used by inserting it here; the primary key makes a second use impossible.
redemptions = Table(
    "redemptions",
    metadata,
    Column("token", Text, primary_key=True),
    Column("redeemed_at", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Finished messages, stored before they are sent. Deleting one is safe: its token stays spent, and `digests` keeps
# what it was, so that no other message takes its place.
messages = Table(
    "messages",
    metadata,
    Column("token", Text, primary_key=True),
    Column("stored_at", Text, nullable=False),
    Column("message", LargeBinary, nullable=False),
)

digests = Table(
    "digests",
    metadata,
    Column("token", Text, primary_key=True),
    Column("sha256", Text, nullable=False),
    sqlite_with_rowid=False,
)

schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", Text, nullable=False),
)

# The ledger as people read it.
_VIEW = """
CREATE VIEW ledger AS SELECT sequence, kind, recorded_at, dataset, client, group_name, channel, run, round, count,
body, token, previous, hash, signature FROM entries LEFT JOIN sources ON sources.source = entries.source
"""

_APPEND_ONLY = ("entries", "sources", "redemptions")


def _create_tables(connection: Connection) -> None:
    """Version 1: all tables, and triggers that refuse to change or delete what must stay."""
    metadata.create_all(connection)
    connection.exec_driver_sql(_VIEW)
    for table in _APPEND_ONLY:
        for statement in _append_only_statements(table, connection.dialect.name):
            connection.exec_driver_sql(statement)


def _append_only_statements(table: str, dialect: str) -> list[str]:
    """SQL that makes UPDATE and DELETE on the table fail.

    It stops mistakes and applications, not the owner of the database, who can drop a trigger; that is what
    the hash chain is for.
    """
    if dialect == "sqlite":
        return [_refusing(table, verb) for verb in ("UPDATE", "DELETE")]
    return _refusing_function(table, "UPDATE OR DELETE OR TRUNCATE")


def _refusing(table: str, verb: str) -> str:
    return (
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table}: append-only, {verb} refused'); END"
    )


def _refusing_function(table: str, verbs: str) -> list[str]:
    return [
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION USING MESSAGE = '{table}: append-only, ' || TG_OP || ' refused'; END $$",
        f"CREATE TRIGGER {table}_append_only BEFORE {verbs} ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()",
    ]


def _keep_digests(connection: Connection) -> None:
    """Version 2: the digest of every message stays, and a token's redemption or message cannot be replaced."""
    digests.create(connection, checkfirst=True)
    for token, message in connection.execute(select(messages.c.token, messages.c.message)):
        connection.execute(digests.insert().values(token=token, sha256=sha256(message).hexdigest()))
    dialect = connection.dialect.name
    statements = _append_only_statements("digests", dialect)
    if dialect == "sqlite":
        statements += [
            _refusing("messages", "UPDATE"),
            *(_no_replacement(table) for table in ("redemptions", "messages", "digests")),
        ]
    else:
        statements += _refusing_function("messages", "UPDATE OR TRUNCATE")
    for statement in statements:
        connection.exec_driver_sql(statement)


def _no_replacement(table: str) -> str:
    """SQL that makes INSERT OR REPLACE fail on SQLite, which deletes the old row without asking a trigger."""
    return (
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE token = NEW.token) "
        f"BEGIN SELECT RAISE(ABORT, '{table}: append-only, a second row for a token refused'); END"
    )


def _index_what_is_settled(connection: Connection) -> None:
    """Version 3: budgets and registrations are found without reading all rows. Releases are not in this index."""
    connection.exec_driver_sql("CREATE INDEX entries_settled ON entries (sequence) WHERE kind <> 'spend'")


def _index_totals(connection: Connection) -> None:
    """Version 4: rows of totals are found without reading all rows; what is settled is in them, too."""
    connection.exec_driver_sql("DROP INDEX IF EXISTS entries_settled")
    connection.exec_driver_sql("CREATE INDEX entries_totals ON entries (sequence) WHERE kind = 'totals'")


MIGRATIONS: list[Callable[[Connection], None]] = [_create_tables, _keep_digests, _index_what_is_settled, _index_totals]
# Whoever only reads can do so from this version on; later steps make things faster.
READABLE_VERSION = 2


def installed_version(connection: Connection) -> int:
    """The schema version of the connected database; 0 when it holds no ledger."""
    if not inspect(connection).has_table(schema_version.name):
        return 0
    versions = connection.scalars(select(schema_version.c.version))
    return max(versions, default=0)


def migrate(connection: Connection, now: str) -> int:
    """The version found before; applies the steps that are missing, in the transaction of the caller."""
    found = require_known_version(connection)
    for number, step in enumerate(MIGRATIONS[found:], start=found + 1):
        step(connection)
        connection.execute(schema_version.insert().values(version=number, applied_at=now))
    return found


def require_known_version(connection: Connection) -> int:
    """The installed version, if this program knows it; otherwise `InputError`."""
    found = installed_version(connection)
    if found > len(MIGRATIONS):
        raise InputError(
            "ledger",
            f"must have schema version {len(MIGRATIONS)} or older",
            found,
            "A newer program wrote it; use that one or a newer one.",
        )
    return found
