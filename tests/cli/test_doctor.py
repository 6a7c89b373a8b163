"""`privfair doctor`, `--version` and shell completion, as a person runs them; broken packages are really broken."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from accountant import Budget, Ledger
from privfair.cli.doctor import CHECKS, about_machine, diagnose
from privfair.datasets.registry import DATASETS
from privfair.util import installed

PRIVFAIR = Path(sys.executable).parent / "privfair"


def privfair(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = "PRIVFAIR_STATE"  # the folder of tests, not the user's own
    clean = {name: value for name, value in os.environ.items() if name == kept or not name.startswith("PRIVFAIR")}
    return subprocess.run(
        [PRIVFAIR, *arguments], cwd=folder, env=clean | environment, capture_output=True, text=True, check=False
    )


def test_everything_works_here_and_nothing_is_left_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "adult.data").write_text("")
    work = tmp_path / "work"
    work.mkdir()
    done = privfair(work, "doctor", "--json", PRIVFAIR_DATA=str(data), XDG_CACHE_HOME=str(tmp_path / "cache"))
    about = json.loads(done.stdout)
    assert (done.returncode, about["healthy"]) == (0, True), about
    assert set(about) == {"healthy", "versions", "machine", "parts", "datasets"}
    required = {name for name, part in about["parts"].items() if part["required"]}
    assert required == {"training", "dp_sgd", "encryption", "ledger", "stacked", "default_ledger"}
    assert all(about["parts"][name]["works"] for name in required)
    assert {"flower", "ray", "postgres", "parquet"} == set(about["parts"]) - required
    for part in about["parts"].values():
        assert part["works"] == (part["remedy"] == "")
    assert about["datasets"]["adult"] == {"adult.data": str(data / "adult.data"), "adult.test": None}
    assert set(about["datasets"]) == {name for name, dataset in DATASETS.items() if dataset.files}
    assert list(work.iterdir()) == []


def test_a_broken_part_that_is_needed_gives_exit_code_1_and_the_others_are_tried(tmp_path: Path) -> None:
    (tmp_path / "tenseal.py").write_text("import os\nprint('noise of a library')\nos.abort()\n")
    (tmp_path / "torch.py").write_text("raise OSError('libgomp.so: not for this machine\\nmore words')\n")
    (tmp_path / "flwr.py").write_text("raise ImportError('no flower here')\n")
    done = privfair(tmp_path, "doctor", COLUMNS="120", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout
    reported = " ".join(done.stdout.split())
    assert "training (torch) broken OSError: libgomp.so: not for this machine → Install privfair again in a" in reported
    assert "encrypted sums (TenSEAL) broken it ended the process (SIGABRT) → Install privfair again" in reported
    assert "privacy ledger (SQLite) works 3 rows written to a temporary ledger and audited" in reported
    assert "Something that privfair needs does not work" in reported
    assert "Traceback" not in done.stdout + done.stderr


def test_a_missing_optional_part_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('not installed')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun: list[str] = []
    postgres, ledger = diagnose(["postgres", "ledger"], begins=begun.append)
    assert (postgres.works, postgres.required, postgres.found) == (False, False, "ImportError: not installed")
    assert postgres.remedy == "Only if you need it: pip install 'privfair[postgres]'"
    assert ledger.works
    assert begun == ["postgres", "ledger"]


def test_the_default_ledger_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRIVFAIR_LEDGER", raising=False)

    def ask() -> tuple[bool, str]:
        (outcome,) = diagnose(["default_ledger"])
        return outcome.works, outcome.found

    assert ask() == (True, "sqlite:///privfair-ledger.sqlite (the default): none yet, the first private run makes it")
    with Ledger("sqlite:///privfair-ledger.sqlite") as ledger:
        ledger.set_budget("patients", Budget(epsilon=1.0, delta=1e-6))
        rows = ledger.head().sequence
    assert ask() == (True, f"sqlite:///privfair-ledger.sqlite (the default): opens, {rows} rows")
    (tmp_path / "other.sqlite").write_text("this is no database, and long enough to be seen as none" * 20)
    monkeypatch.setenv("PRIVFAIR_LEDGER", "sqlite:///other.sqlite")
    works, found = ask()
    assert not works
    assert "ledger must be a database that opens" in found
    monkeypatch.setenv("PRIVFAIR_LEDGER", "nosuch://me:secret@host/books")
    works, found = ask()
    assert not works
    assert "secret" not in found


def test_versions_and_machine() -> None:
    found = installed()
    assert found["python"] == platform.python_version()
    assert found["torch"] == version("torch")
    assert {"privfair", "opacus", "tenseal", "numba", "flwr", "ray", "pyarrow", "psycopg"} <= set(found)
    machine = about_machine()
    assert machine["cores"] >= 1
    assert machine["memory_gb"] is None or machine["memory_gb"] > machine["free_gb"] > 0


def test_every_check_has_a_remedy() -> None:
    assert all(check.title and check.remedy for check in CHECKS.values())


def test_version(tmp_path: Path) -> None:
    assert privfair(tmp_path, "--version").stdout == f"privfair {version('privfair')}\n"


@pytest.mark.parametrize(
    ("words", "position", "offered"),
    [
        ("privfair do", "1", {"doctor"}),
        ("privfair in", "1", {"init"}),
        ("privfair data ", "2", {"list", "fetch", "check"}),
        ("privfair init --se", "2", {"--sensitive"}),
    ],
)
def test_completion_in_bash(tmp_path: Path, words: str, position: str, offered: set[str]) -> None:
    done = privfair(tmp_path, _PRIVFAIR_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=position)
    assert set(done.stdout.split()) == offered
