"""Older copies of a ledger, ledgers that a machine sees for the first time, and ledgers that may only be read."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accountant.audit import audit
from accountant.budget import Budget
from accountant.errors import InputError, LedgerUnavailable, OlderLedger, Refused, UnknownLedger
from accountant.events import Gaussian
from accountant.ledger.chain import Head
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import FILE, STATE_VARIABLE, KnownBudget, State, not_remembered, state_folder
from accountant.ledger.signing import OwnerKey
from accountant.ledger.storage import fetch
from accountant.spending import Spend

REQUEST = [Spend("patients", Gaussian(30.0), client="north", run="r")]
KEY = OwnerKey(bytes(range(32)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def backup(path: Path, to: Path) -> Path:
    source, target = sqlite3.connect(path), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()
    return to


def put_back(copy: Path, path: Path) -> str:
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    shutil.copy(copy, path)
    return f"sqlite:///{path}"


def spend(url: str, times: int = 1, key: OwnerKey | None = None) -> Head:
    with Ledger(url, key=key) as ledger:
        for _ in range(times):
            ledger.reserve(REQUEST).redeem()
        return ledger.head()


@pytest.fixture
def older(path: Path, tmp_path: Path) -> str:
    """The address of a ledger with a budget, of which an older copy was put back."""
    url = f"sqlite:///{path}"
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5))
    spend(url, 2)
    copy = backup(path, tmp_path / "copy.sqlite")
    spend(url, 3)
    return put_back(copy, path)


# --- older copies -----------------------------------------------------------------------------------------------


def test_an_older_copy_is_refused_by_the_next_process(older):
    for ask in (
        lambda ledger: ledger.reserve(REQUEST),
        lambda ledger: ledger.spend_many([REQUEST]),
        lambda ledger: ledger.record_past(REQUEST),
        lambda ledger: ledger.register("new"),
        lambda ledger: ledger.set_budget("patients", Budget(4.0, 1e-5)),
        lambda ledger: ledger.budget("patients"),
        lambda ledger: ledger.spent("patients"),
        lambda ledger: ledger.rebuild_totals(),
        lambda ledger: ledger.trust(),
    ):
        with Ledger(older) as ledger, pytest.raises(OlderLedger, match="row 7 is missing, and the newest is 4"):
            ask(ledger)
    with Ledger(older, create=False) as ledger:
        report = audit(ledger, pld=False)
        assert not report.fine
        assert "older copy" in str(report.problems[0])


def test_a_copy_that_went_on_by_itself_is_refused_too(older):
    """It has as many rows as were seen, and more; but another row in the place of the one that was seen."""
    with not_remembered():
        spend(older, 5)
    with Ledger(older) as ledger, pytest.raises(OlderLedger, match="row 7 is another one"):
        ledger.reserve(REQUEST)


def test_a_copy_of_before_a_token_was_used_is_refused(path, tmp_path):
    """It has the same rows: without this the token could be used twice."""
    url = f"sqlite:///{path}"
    with Ledger(url) as ledger:
        token = ledger.reserve(REQUEST).token
        copy = backup(path, tmp_path / "copy.sqlite")
        ledger.redeem([token])
    put_back(copy, path)
    with Ledger(url) as ledger, pytest.raises(OlderLedger):
        ledger.redeem([token])


def test_a_restore_is_a_row_of_the_ledger(older):
    with Ledger(older) as ledger:
        lost = ledger.seen.head
        with pytest.raises(InputError, match="reason must not be empty"):
            ledger.restore(reason="")
        head = ledger.restore(reason="the disk failed", actor="ada")
        assert head.sequence == 5
        ledger.reserve(REQUEST)
    with Ledger(older) as ledger:
        with ledger.reading() as connection:
            ((kind, body),) = fetch(connection, "SELECT kind, body FROM ledger WHERE sequence = 5")
        assert kind == "restored"
        assert body == (
            f'{{"actor":"ada","lost":{{"hash":"{lost.hash}","sequence":{lost.sequence}}},"reason":"the disk failed"}}'
        )
        assert audit(ledger, pld=False).fine
        with pytest.raises(InputError, match="must lack rows that this machine has seen"):
            ledger.restore(reason="again")
        ledger.reserve(REQUEST)


def test_a_changed_copy_is_not_restored(older, path):
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_no_update")
    connection.execute("UPDATE entries SET count = 0 WHERE sequence = 3")
    connection.commit()
    connection.close()
    with Ledger(older) as ledger, pytest.raises(Refused, match="row 3: was changed"):
        ledger.restore(reason="x")


def test_the_newer_copy_is_welcome_again(path, tmp_path):
    url = f"sqlite:///{path}"
    spend(url, 1)
    copy = backup(path, tmp_path / "copy.sqlite")
    spend(url, 1)
    newest = backup(path, tmp_path / "newest.sqlite")
    put_back(copy, path)
    with Ledger(url) as ledger, pytest.raises(OlderLedger):
        ledger.reserve(REQUEST)
    put_back(newest, path)
    spend(url)


def test_a_crash_between_ledger_and_memory_locks_nobody_out(path, monkeypatch):
    """Memory older than the ledger is fine: it is written second."""
    url = f"sqlite:///{path}"
    spend(url)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(State, "remember", die)
        with pytest.raises(KeyboardInterrupt):
            spend(url)
    with Ledger(url) as ledger:
        assert ledger.seen.head.sequence < ledger.head().sequence
        ledger.reserve(REQUEST)
        assert audit(ledger, pld=False).fine


def test_a_killed_process_has_remembered_what_it_spent(path, tmp_path):
    """Without waiting for the disk, but before the reservation is handed out."""
    url = f"sqlite:///{path}"
    spend(url)
    copy = backup(path, tmp_path / "copy.sqlite")
    code = (
        "import os; from accountant import Ledger, Spend, Gaussian\n"
        f"Ledger({url!r}).reserve([Spend('patients', Gaussian(30.0), client='north', run='r')])\n"
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    put_back(copy, path)
    with Ledger(url) as ledger, pytest.raises(OlderLedger):
        ledger.reserve(REQUEST)


# --- ledgers that are new to a machine --------------------------------------------------------------------------


def another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "another machine"))


@pytest.mark.parametrize("key", [None, KEY])
def test_a_ledger_with_a_budget_or_signatures_is_not_spent_from_before_it_is_trusted(
    path, tmp_path, monkeypatch, key, caplog
):
    url = f"sqlite:///{path}"
    with Ledger(url, key=key) as ledger:
        if key is None:
            ledger.set_budget("patients", Budget(3.0, 1e-5))
    spend(url, 2, key)
    another_machine(monkeypatch, tmp_path)
    with Ledger(url, key=key) as ledger:
        with pytest.raises(UnknownLedger, match="privfair ledger trust --ledger"):
            ledger.reserve(REQUEST)
        with pytest.raises(UnknownLedger):
            ledger.require_known()
        rows = ledger.head().sequence
        assert audit(ledger, pld=False, key=key).fine
        assert "not remembered before `privfair ledger trust`" in caplog.text
    with Ledger(url, key=key) as ledger:
        with pytest.raises(UnknownLedger):  # an audit is no word that this is the newest
            ledger.reserve(REQUEST)
        assert ledger.trust(reason="moved").sequence == rows + 1
        assert ledger.trust(reason="again").sequence == rows + 1
        ledger.reserve(REQUEST)
    spend(url, 1, key)
    with Ledger(url, key=key) as ledger:
        assert audit(ledger, pld=False, key=key).fine


def test_a_changed_ledger_is_not_trusted(path, tmp_path, monkeypatch):
    url = f"sqlite:///{path}"
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5))
    spend(url, 2)
    another_machine(monkeypatch, tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_no_update")
    connection.execute("UPDATE entries SET count = 0 WHERE sequence = 3")
    connection.commit()
    connection.close()
    with Ledger(url) as ledger, pytest.raises(Refused, match="row 3: was changed"):
        ledger.trust()


def test_new_ledgers_are_announced_and_others_without_a_budget_too(path, tmp_path, monkeypatch, caplog):
    url = f"sqlite:///{path}"
    spend(url)
    assert [record.getMessage() for record in caplog.records] == [f"New ledger: sqlite:///{path}"]
    caplog.clear()
    spend(url)
    assert caplog.text == ""
    another_machine(monkeypatch, tmp_path)
    spend(url)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "is new to this machine" in record.getMessage()


def test_announcements_go_to_stderr(path):
    code = f"from accountant import Ledger; Ledger('sqlite:///{path}').close(); print('{{}}')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "{}\n"
    assert done.stderr == f"New ledger: sqlite:///{path}\n"


# --- the memory itself ------------------------------------------------------------------------------------------


def test_the_state_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(STATE_VARIABLE, "relative")
    with pytest.raises(InputError, match="must be an absolute path"):
        state_folder()
    monkeypatch.delenv(STATE_VARIABLE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder() == tmp_path / "xdg" / "privfair"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder() == tmp_path / ".local" / "state" / "privfair"


def test_a_newer_head_is_never_lost(tmp_path):
    state = State(tmp_path)
    state.remember("l", Head(5, "five"), "u")
    state.remember("l", Head(3, "three"), "u", token="3-x")
    seen = state.seen("l")
    assert (seen.head, seen.token) == (Head(5, "five"), "3-x")
    state.put_back("l", Head(2, "two"), "u")
    assert state.seen("l").head == Head(2, "two")
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    state.close()


def _remember(folder: Path, first: int) -> None:
    state = State(folder)
    for sequence in range(first, 200, 4):
        state.remember("l", Head(sequence, f"hash {sequence}"), "u")
    state.close()


def test_processes_that_remember_at_once_keep_the_newest(tmp_path):
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_remember, args=(tmp_path, first)) for first in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    state = State(tmp_path)
    assert state.seen("l").head == Head(199, "hash 199")
    state.close()


def test_budgets_are_found_by_any_spelling_and_by_fingerprint(tmp_path):
    state = State(tmp_path)
    known = KnownBudget("Patients", "k-f", "l", "u")
    state.remember_budget(known)
    state.remember_budget(KnownBudget("Patients", "", "l", "u"))  # a fingerprint once known is kept
    assert state.budgets("ｐatients") == state.budgets("other", "k-f") == [known]
    assert state.budgets("other") == state.budgets("other", "k-g") == []
    state.close()


def test_without_a_usable_memory_nothing_is_spent_and_audits_go_on(path, tmp_path, monkeypatch, caplog):
    url = f"sqlite:///{path}"
    spend(url)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / FILE).write_bytes(b"no database, but some text that is long enough to be read as one" * 20)
    monkeypatch.setenv(STATE_VARIABLE, str(broken))
    with Ledger(url) as ledger:
        assert audit(ledger, pld=False).fine
        assert "cannot be used" in caplog.text
        with pytest.raises(LedgerUnavailable, match=STATE_VARIABLE):
            ledger.reserve(REQUEST)


# --- reading only -----------------------------------------------------------------------------------------------


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that everybody may read: pytest's own are for one account."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        Path(folder).chmod(0o755)


def unprivileged(work: Callable[[], None]) -> None:
    """Do it in a process that has no right to write where it may only read: root may write anywhere."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("folder_too", [False, True])
def test_a_ledger_that_may_only_be_read_is_audited_and_stays_as_it_is(readable, folder_too, monkeypatch):
    path = readable / "ledger.sqlite"
    url = f"sqlite:///{path}"
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5))
    spend(url, 3)
    path.chmod(0o444)
    if folder_too:
        readable.chmod(0o555)
    before = path.read_bytes()

    def look() -> None:
        os.environ[STATE_VARIABLE] = str(readable / "nobody's state")  # cannot be written either
        with Ledger(url, create=False) as ledger:
            assert audit(ledger, pld=False).fine
            assert len(ledger.spent("patients")) == 1
            with pytest.raises((LedgerUnavailable, UnknownLedger)):
                ledger.reserve(REQUEST)

    unprivileged(look)
    assert path.read_bytes() == before


def test_reading_an_older_ledger_does_not_bring_it_up_to_date(path, monkeypatch):
    from accountant.ledger import schema

    url = f"sqlite:///{path}"
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        spend(url)
    with Ledger(url, create=False) as ledger:
        assert audit(ledger, pld=False).fine
        assert ledger.datasets()[0].name == "patients"
        with ledger.reading() as connection:
            assert schema.installed_version(connection) == 3
        ledger.reserve(REQUEST)
        with ledger.reading() as connection:
            assert schema.installed_version(connection) == len(schema.MIGRATIONS)


def test_a_full_disk_is_unavailable_and_nothing_is_spent(path):
    url = f"sqlite:///{path}"
    spend(url)
    with Ledger(url) as ledger:
        head = ledger.head()
        with ledger._storage._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")  # SQLite says the same of a full disk
            connection.rollback()
        many = [Spend("patients", Gaussian(30.0), client=f"c{number}", run="r" * 100) for number in range(500)]
        with pytest.raises(LedgerUnavailable, match="disk is full"):
            ledger.reserve(many)
        assert ledger.head() == head
        assert audit(ledger, pld=False).fine
