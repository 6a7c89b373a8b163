"""`privfair ledger`, and what the commands say of ledgers that are older, unknown, damaged or cannot be used."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from accountant import Budget, Gaussian, Ledger, Spend
from accountant.errors import LedgerUnavailable
from privfair import cli

RUN = ["--set", "privacy.epsilon=1", "--set", "privacy.delta=1e-6", "--set", "data.records=60"]


@pytest.fixture
def privfair(monkeypatch, capsys):
    """(exit code, stdout, stderr) of a command."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["privfair", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        return int(code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def ledger(tmp_path, monkeypatch) -> Path:
    """The default ledger of a folder, with a budget."""
    monkeypatch.chdir(tmp_path)
    with Ledger("sqlite:///privfair-ledger.sqlite") as opened:
        opened.set_budget("synthetic", Budget(3.0, 1e-5))
    return tmp_path / "privfair-ledger.sqlite"


@pytest.fixture
def older(ledger, tmp_path) -> Path:
    """The same after one was put back from a backup."""
    shutil.copy(ledger, tmp_path / "backup")
    with Ledger(f"sqlite:///{ledger}") as opened:
        opened.reserve([Spend("synthetic", Gaussian(30.0))])
    for old in tmp_path.glob("privfair-ledger.sqlite*"):
        old.unlink()
    shutil.copy(tmp_path / "backup", ledger)
    return ledger


@pytest.mark.parametrize(
    "command",
    [
        ("train", *RUN, "--out", "run"),
        ("train", "--out", "run"),
        ("budget", "show"),
        ("budget", "set", "synthetic", "--epsilon", "4", "--delta", "1e-5"),
        ("ledger", "trust"),
    ],
)
def test_an_older_copy_is_refused_by_every_command(privfair, older, tmp_path, command):
    code, _, reported = privfair(*command)
    assert (code, "older copy" in reported, "privfair ledger restore" in reported) == (1, True, True), reported
    assert not (tmp_path / "run").exists()


def test_an_audit_says_that_it_is_an_older_copy(privfair, older):
    code, reported, _ = privfair("audit", "--no-pld", "--json")
    assert code == 1
    assert "older copy" in json.loads(reported)["chain"]["problems"][0]["what"]


def test_a_restore_needs_a_reason_and_is_then_over(privfair, older):
    assert privfair("ledger", "restore")[0] == 2
    code, reported, _ = privfair("ledger", "restore", "--reason", "disk failed")
    assert (code, "goes on at row 3" in reported, "had seen row 3" in reported) == (0, True, True)
    assert privfair("audit", "--no-pld")[0] == 0
    code, _, reported = privfair("ledger", "restore", "--reason", "again")
    assert (code, "It has them all" in reported) == (2, True)


def test_a_ledger_with_a_budget_from_elsewhere_is_trusted_first(privfair, ledger, tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVFAIR_STATE", str(tmp_path / "another machine"))
    code, _, reported = privfair("train", *RUN, "--out", "run")
    assert (code, "privfair ledger trust" in reported) == (1, True)
    assert not (tmp_path / "run").exists()
    code, reported, _ = privfair("ledger", "trust", "--reason", "moved", "--json")
    assert code == 0
    assert json.loads(reported)["rows"] == 3
    assert "was known already" in privfair("ledger", "trust")[1]
    assert privfair("budget", "set", "synthetic", "--epsilon", "4", "--delta", "1e-5")[0] == 0


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda path: path.write_bytes(b"\x07" * 5_000), 2),
        (lambda path: path.write_bytes(path.read_bytes()[:9_000]), 1),
        (lambda path: _execute(path, "DELETE FROM head"), 1),
        (lambda path: _execute(path, "DROP TABLE sources"), 2),
        (lambda path: (path.unlink(), _execute(path, "CREATE TABLE people (name TEXT)")), 2),
    ],
)
def test_a_damaged_ledger_has_an_error_and_no_traceback(privfair, ledger, damage, code):
    damage(ledger)
    for command in (("audit", "--no-pld"), ("budget", "show"), ("train", *RUN)):
        found, out, err = privfair(*command)
        if command[0] == "train" and "people" in "".join(_tables(ledger)):
            continue  # tables of somebody else stay beside those of a new ledger
        assert found == code, (command, out, err)
        assert "Traceback" not in out + err


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def _tables(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    except sqlite3.Error:
        return []
    finally:
        connection.close()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///file:x?mode=memory&uri=true", "postgresql://h:x/y", "nonsense"]
)
def test_odd_addresses_are_bad_input(privfair, tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    for command in (
        ("audit", "--ledger", url),
        ("budget", "show", "--ledger", url),
        ("budget", "set", "x", "--epsilon", "1", "--delta", "1e-5", "--ledger", url),
        ("ledger", "trust", "--ledger", url),
        ("train", *RUN, "--set", f"run.ledger={url}"),
        ("train", "--set", f"run.ledger={url}"),
    ):
        code, _, reported = privfair(*command)
        assert (code, "ledger must be" in reported) == (2, True), (command, reported)
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_cannot_be_used_now_exits_with_three(privfair, ledger, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise LedgerUnavailable("The disk is full.")

    monkeypatch.setattr("accountant.ledger.ledger.Ledger.datasets", fail)
    code, _, reported = privfair("budget", "show")
    assert (code, "The disk is full." in reported) == (3, True)


def test_announcements_leave_stdout_to_json(tmp_path):
    """In a process of its own: pytest takes over what is logged."""
    command = [Path(sys.executable).with_name("privfair"), "budget", "set", "p", "--epsilon", "3", "--delta", "1e-5"]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["dataset"] == "p"
    assert done.stderr == f"New ledger: sqlite:///{tmp_path}/privfair-ledger.sqlite\n"


def test_a_second_budget_for_the_same_name_is_noted(privfair, ledger, tmp_path):
    second = ("budget", "set", "Synthetic", "--epsilon", "3", "--delta", "1e-5", "--ledger", "sqlite:///second.sqlite")
    code, _, reported = privfair(*second)
    assert (code, f"also have a budget in sqlite:///{ledger}" in reported) == (0, True)
    code, _, reported = privfair("budget", "set", "synthetic", "--epsilon", "4", "--delta", "1e-5")
    assert (code, "second.sqlite" in reported) == (0, True)
