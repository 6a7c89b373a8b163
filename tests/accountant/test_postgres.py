"""The same ledger on a real PostgreSQL server, which these tests start themselves (package pgserver).

There is no skipping: where the server cannot start, the tests fail.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy.exc import DatabaseError

from accountant.audit import audit
from accountant.budget import Budget, BudgetExceeded
from accountant.errors import InputError, LedgerBroken, LedgerUnavailable, OlderLedger
from accountant.events import Gaussian, Laplace, PoissonSampled
from accountant.ledger.chain import Progress, TokenAlreadyUsed
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import not_remembered
from accountant.ledger.signing import OwnerKey
from accountant.spending import Spend
from tests.accountant.test_faults import kill_while_releasing, prepare_for_kills, race_for_a_budget

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[object]:
    with pytest.MonkeyPatch.context() as environment:
        # The package looks for a folder of its own when it is imported, and warns where there is none.
        environment.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        import pgserver

        started = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete")
        yield started
        started.cleanup()


@pytest.fixture
def url(server, request) -> str:
    name = request.node.name.lower()[:60]
    server.psql(f'CREATE DATABASE "{name}";')
    return server.get_uri(name)


def test_the_way_of_a_release(url):
    key = OwnerKey(bytes(range(32)))
    with Ledger(url, key=key) as ledger:
        ledger.register("patients", fingerprint="aa")
        budget = ledger.set_budget("patients", Budget(3.0, 1e-5), reason="Ausschuß, § 3")
        spends = [
            Spend(
                "patients", PoissonSampled(0.1, Laplace(4.0)), client="c", group=g, channel="scores", run="r", round=1
            )
            for g in ("sex=F", "sex=M")
        ]
        reservation = ledger.reserve(spends, fingerprint="aa")
        reservation.redeem()
        with pytest.raises(TokenAlreadyUsed):
            reservation.redeem()
        reservation.store(b"\x00\xff")
    with Ledger(url, key=key) as ledger:
        (found,) = ledger.reservations(run="r", round=1, client="c", channel="scores")
        assert (found.progress(), found.message()) == (Progress.STORED, b"\x00\xff")
        with pytest.raises(BudgetExceeded, match="releases fit"):
            ledger.reserve([Spend("patients", Gaussian(0.1), count=5)], fingerprint="aa")
        report = audit(ledger, key=key)
        assert report.fine, report.problems
        assert report.datasets[0].state.budget == budget
        assert 0 < report.datasets[0].epsilon.pld <= report.datasets[0].epsilon.rdp


def test_sqlite_and_postgresql_write_the_same_chain(url, tmp_path, monkeypatch):
    """Row for row the same hashes, given the same clock and the same randomness."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * (2 * size))
    heads = []
    for address in (url, f"sqlite:///{tmp_path}/l.sqlite"):
        # They have the same name, too: not to be taken for copies of one ledger.
        with not_remembered(), Ledger(address, clock=lambda: datetime(2026, 1, 2, tzinfo=UTC)) as ledger:
            ledger.set_budget("d", Budget(3.0, 1e-5), actor="ada")
            for number in range(5):
                ledger.reserve([Spend("d", Gaussian(90.0), client="ü", round=number, count=3)])
            heads.append(ledger.head())
    assert heads[0] == heads[1]


@pytest.mark.parametrize(
    "statement", ["UPDATE entries SET count = 1", "DELETE FROM entries", "TRUNCATE entries", "DELETE FROM redemptions"]
)
def test_the_server_refuses_to_change_rows(url, statement):
    with Ledger(url) as ledger:
        ledger.reserve([Spend("d", Gaussian(2.0))])
        with pytest.raises(DatabaseError, match="append-only"), ledger._storage.writing() as connection:
            connection.exec_driver_sql(statement)


def test_tampering_is_found(url):
    with Ledger(url) as ledger:
        for _ in range(6):
            ledger.reserve([Spend("d", Gaussian(2.0))])
        with ledger._storage.writing() as connection:
            connection.exec_driver_sql("ALTER TABLE entries DISABLE TRIGGER ALL")
            connection.exec_driver_sql("UPDATE entries SET count = 0 WHERE sequence = 3")
            connection.exec_driver_sql("DELETE FROM entries WHERE sequence IN (5, 7)")
        found = [str(problem) for problem in audit(ledger, pld=False).problems]
        assert "row 3: was changed: its hash does not fit its content" in found
        assert "row 5: row 5 is missing before row 6" in found
        assert any("ends with row 6, but its head is noted as row 7" in line for line in found)
        with pytest.raises(LedgerBroken):
            ledger.reserve([Spend("d", Gaussian(2.0))])


def test_eight_processes_never_exceed_one_budget(url):
    race_for_a_budget(url, processes=8, releases=1000)


def test_threads_that_create_the_same_ledger_at_once(url):
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: Ledger(url), range(8)))
    assert len({ledger.ledger_id for ledger in opened}) == 1
    for ledger in opened:
        ledger.close()


def test_killed_clients_lose_no_release(url, tmp_path):
    prepare_for_kills(url)
    rng = random.Random(20260303)
    made = [kill_while_releasing(url, tmp_path / "markers", rng) for _ in range(20)]
    while not made[-1] and len(made) < 60:  # on a busy machine the first kills may come before the first release
        made.append(kill_while_releasing(url, tmp_path / "markers", rng))
    assert made[-1] > 0


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="must be a database that opens") as error:
        Ledger(f"postgresql://user:secret@/none?host={tmp_path}")
    assert "secret" not in str(error.value)


def test_an_older_copy_is_refused_and_can_be_restored(url):
    """As after a restore of the server from a backup: rows that this machine saw are gone."""
    with Ledger(url) as ledger:
        ledger.set_budget("d", Budget(30.0, 1e-5))
        for _ in range(4):
            ledger.reserve([Spend("d", Gaussian(9.0))])
        with ledger._storage.writing() as connection:
            connection.exec_driver_sql("ALTER TABLE entries DISABLE TRIGGER ALL")
            connection.exec_driver_sql("DELETE FROM entries WHERE sequence > 4")
            connection.exec_driver_sql(
                "UPDATE head SET sequence = 4, hash = (SELECT hash FROM entries WHERE sequence = 4)"
            )
    with Ledger(url) as ledger, pytest.raises(OlderLedger, match="row 6 is missing, and the newest is 4"):
        ledger.reserve([Spend("d", Gaussian(9.0))])
    with Ledger(url) as ledger:
        assert not audit(ledger, pld=False).fine
        assert ledger.restore(reason="backup").sequence == 5
        ledger.reserve([Spend("d", Gaussian(9.0))])
        assert audit(ledger, pld=False).fine


def test_a_role_that_may_only_read_audits_and_writes_nothing(url, server):
    with Ledger(url) as ledger:
        ledger.set_budget("d", Budget(30.0, 1e-5))
        ledger.reserve([Spend("d", Gaussian(9.0))])
        head = ledger.head()
    name = url.partition("?")[0].rpartition("/")[2]
    server.psql("CREATE ROLE reader LOGIN;")
    server.psql(f'\\c "{name}"\nGRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;')
    reading = url.replace("postgres:", "reader:", 1) if "postgres:" in url else url.replace("postgres@", "reader@", 1)
    assert reading != url
    with Ledger(reading, create=False) as ledger:
        assert audit(ledger, pld=False).fine
        assert ledger.budget("d") is not None
        with pytest.raises(LedgerUnavailable, match="permission denied"):
            ledger.reserve([Spend("d", Gaussian(9.0))])
        assert ledger.head() == head


@pytest.mark.parametrize("path", ["pg_temp", "pg_temp%2Cpublic"], ids=["first", "second"])
def test_temporary_tables_are_refused(url, path):
    """The functions that guard the tables are not found there."""
    joined = "&" if "?" in url else "?"
    with pytest.raises(InputError, match="must be a ledger with all its tables"):
        Ledger(f"{url}{joined}options=-csearch_path%3D{path}")
    with pytest.raises(InputError, match="This database holds none"):
        Ledger(url, create=False)
