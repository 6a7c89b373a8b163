from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table
from typer.testing import CliRunner

from accountant import Budget, Gaussian, InputError, Laplace, Ledger, NotPrivate, PoissonSampled, epsilon
from accountant.audit import Line
from accountant.ledger.signing import OwnerKey
from accountant.spending import Spend
from accountant.worst_case import Epsilon, WorstCase
from privfair.cli import audit as command
from privfair.cli.audit import SHOWN_LINES, _add_lines
from privfair.run_names import run_name

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command.audit)


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    """A ledger with two clients, two groups, two channels and two runs."""
    monkeypatch.delenv("PRIVFAIR_LEDGER", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    address = f"sqlite:///{tmp_path}/ledger.sqlite"
    with Ledger(address) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5), reason="board")
        for run in ("r1", "r2"):
            for client, rate in (("north", 0.01), ("south", 0.02)):
                step = PoissonSampled(rate, Gaussian(1.5))
                ledger.reserve([Spend("patients", step, client=client, channel="updates", run=run, count=20)])
                scores = [Spend("patients", Laplace(30.0), client, f"sex={g}", "scores", run) for g in "FM"]
                ledger.reserve(scores)
        ledger.register("toy", simulation=True)
        ledger.reserve([Spend("toy", Gaussian(1.0))])
    return address


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_the_json_report(url):
    result = run("--ledger", url, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["fine"]
    assert report["chain"] == {"verified": True, "signatures": "none", "problems_found": 0, "problems": []}
    patients = report["datasets"]["patients"]
    assert (patients["adjacency"], patients["unit"], patients["delta"]) == ("add-or-remove", "record", 1e-5)
    for name, keys in {
        "by_client": {"north", "south"},
        "by_group": {"sex=F", "sex=M"},
        "by_attribute_change": {"sex"},
        "by_channel": {"updates", "scores"},
        "by_run": {"r1", "r2"},
    }.items():
        assert set(patients[name]) == keys
    south = [PoissonSampled(0.02, Gaussian(1.5))] * 40 + [Laplace(30.0)] * 2
    for method in ("rdp", "pld"):
        assert patients["epsilon"][method] == pytest.approx(epsilon(south, 1e-5, method), rel=1e-9)
        assert patients["by_client"]["south"]["epsilon"] == patients["epsilon"]
    assert 0 < patients["budget"]["left"] < 1
    assert patients["burn_down"][-1]["left"] == pytest.approx(patients["budget"]["left"])
    assert report["datasets"]["toy"]["simulation"]
    assert report["datasets"]["toy"]["epsilon"] is None


def test_the_table_for_people(url):
    result = run("--ledger", url, "--no-pld", "--delta", "1e-6")
    assert result.exit_code == 0
    for text in (
        "chain verified",
        "patients",
        "δ = 1e-06",
        "budget ε = 3 at δ = 1e-05",
        "left",
        "sex=F",
        "updates",
        "r2",
    ):
        assert text in result.output
    assert "simulation: noise may be seeded, no ε is claimed" in result.output
    assert max(map(len, result.output.splitlines()[2:])) <= 120


def test_many_clients_are_cut_to_the_dearest(tmp_path):
    address = f"sqlite:///{tmp_path}/l.sqlite"
    with Ledger(address) as ledger:
        ledger.reserve([Spend("d", Gaussian(1.0 + n), client=f"client-{n:02}") for n in range(30)])
    output = run("--ledger", address, "--no-pld").output
    assert "20 more, none larger: --json" in output
    assert "client-00" in output
    assert "client-29" not in output


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, math.inf]), st.sampled_from([0.0, 0.5, 1.0])), max_size=40))
@settings(deadline=None, max_examples=50)
def test_what_is_not_shown_has_no_larger_epsilon_than_what_is(found):
    lines = tuple(Line(f"line {n}", 1, Epsilon(rdp, pld)) for n, (rdp, pld) in enumerate(found))
    table = Table()
    for _ in range(5):
        table.add_column()
    _add_lines(table, "run", lines)
    names = [str(cell) for cell in table.columns[1].cells]
    kept = [line for line in lines if line.name in names]
    assert len(kept) == min(len(lines), SHOWN_LINES) if lines else not names
    for hidden in (line for line in lines if line.name not in names):
        assert all(hidden.epsilon.rdp <= line.epsilon.rdp for line in kept)
    if len(lines) > SHOWN_LINES:
        assert f"… {len(lines) - SHOWN_LINES} more, none larger" in names[-1]


def test_equal_lines_are_not_told_to_be_smaller(tmp_path):
    address = f"sqlite:///{tmp_path}/l.sqlite"
    with Ledger(address) as ledger:
        ledger.reserve([Spend("d", Gaussian(2.0), client=f"client-{n:02}") for n in range(11)])
    output = run("--ledger", address, "--no-pld").output
    assert "smaller" not in output
    assert "1 more, none larger: --json" in output


def test_the_environment_names_the_ledger(url, monkeypatch):
    monkeypatch.setenv("PRIVFAIR_LEDGER", url)
    assert json.loads(run("--json", "--no-pld").stdout)["ledger"] == url


def test_a_missing_ledger_is_bad_input_and_is_not_created(tmp_path, monkeypatch):
    monkeypatch.delenv("PRIVFAIR_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    result = run()
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == (
        "ledger must exist; there is none at 'sqlite:///privfair-ledger.sqlite'. Check the path; nothing was created."
    )
    assert list(tmp_path.iterdir()) == []


def test_an_exceeded_budget_exits_with_one(url):
    with Ledger(url) as ledger:
        ledger.record_past([Spend("patients", Gaussian(0.3))])
    result = run("--ledger", url, "--no-pld")
    assert result.exit_code == 1
    assert "EXCEEDED" in result.output
    report = json.loads(run("--ledger", url, "--no-pld", "--json").stdout)
    assert (report["fine"], report["chain"]["verified"]) == (False, True)
    assert report["datasets"]["patients"]["budget"]["exceeded"]


def test_infinite_epsilon_is_valid_json(url):
    with Ledger(url) as ledger:
        ledger.reserve([Spend("other", NotPrivate())])
    report = json.loads(run("--ledger", url, "--json").stdout)
    assert report["datasets"]["other"]["epsilon"] == {"rdp": "inf", "pld": "inf"}


def test_changed_books_exit_with_one_and_name_the_row(url):
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("DROP TRIGGER entries_no_update")
    connection.execute("UPDATE entries SET count = 1 WHERE sequence = 3")
    connection.commit()
    connection.close()
    result = run("--ledger", url, "--no-pld")
    assert result.exit_code == 1
    assert "THE LEDGER WAS CHANGED" in result.output
    assert "row 3: was changed" in result.output
    report = json.loads(run("--ledger", url, "--no-pld", "--json").stdout)
    assert report["chain"]["problems"][0] == {"row": 3, "what": "was changed: its hash does not fit its content"}


def test_books_without_a_beginning_exit_with_one(url):
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("DROP TRIGGER entries_no_delete")
    connection.execute("DELETE FROM entries WHERE sequence = 1")
    connection.commit()
    connection.close()
    result = run("--ledger", url, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["chain"]["verified"] is False
    assert "The ledger is broken" in run("--ledger", url).output


def test_a_head_noted_in_a_statement(url, tmp_path):
    with Ledger(url) as ledger:
        noted = ledger.head().hash
    statement = tmp_path / "statement.json"
    statement.write_text(json.dumps({"run": "r1", "ledger": {"head": noted}}))
    assert run("--ledger", url, "--no-pld", "--head", str(statement), "--head", noted.upper()).exit_code == 0
    statement.write_text(json.dumps([{"head": "0" * 64}]))
    result = run("--ledger", url, "--no-pld", "--head", str(statement))
    assert result.exit_code == 1
    assert "is not in the ledger" in result.output
    statement.write_text("{}")
    for wrong in (str(statement), "abc"):
        assert isinstance(run("--ledger", url, "--head", wrong).exception, InputError)


def test_a_noted_head_is_told_to_be_found(url):
    with Ledger(url) as ledger:
        noted, rows = ledger.head().hash, ledger.head().sequence
        ledger.reserve([Spend("patients", Gaussian(90.0))])
        newest = ledger.head().hash
    asked = ("--ledger", url, "--no-pld", "--head", noted, "--head", newest)
    output = run(*asked).output
    assert f"noted head {noted}: found, row {rows}; 1 newer" in output
    assert f"noted head {newest}: found, row {rows + 1}, the newest" in output
    assert json.loads(run(*asked, "--json").stdout)["noted_heads"] == [
        {"head": noted, "found": True, "row": rows},
        {"head": newest, "found": True, "row": rows + 1},
    ]
    lost = ("--ledger", url, "--no-pld", "--head", "0" * 64)
    assert f"noted head {'0' * 64}: not in the ledger" in run(*lost).output
    assert json.loads(run(*lost, "--json").stdout)["noted_heads"] == [{"head": "0" * 64, "found": False, "row": None}]
    assert json.loads(run("--ledger", url, "--no-pld", "--json").stdout)["noted_heads"] == []


@pytest.mark.parametrize("missing", ["missing.json", "runs/first/privacy", "."])
def test_a_head_in_a_file_that_does_not_exist(url, missing):
    error = run("--ledger", url, "--head", missing).exception
    assert isinstance(error, InputError)
    assert str(error).startswith(f"--head must be a statement's JSON file that exists; there is none at {missing!r}.")
    assert "must be 64 lower-case hexadecimal digits" in str(run("--ledger", url, "--head", "abc").exception)


def test_signatures_are_checked_with_the_key(tmp_path):
    key = OwnerKey.create(tmp_path / "owner.key")
    address = f"sqlite:///{tmp_path}/l.sqlite"
    with Ledger(address, key=key) as ledger:
        ledger.reserve([Spend("d", Gaussian(2.0))])
    report = json.loads(run("--ledger", address, "--no-pld", "--json", "--key", str(tmp_path / "owner.key")).stdout)
    assert report["chain"]["signatures"] == f"checked with key {key.key_id}"
    other = OwnerKey.create(tmp_path / "other.key")
    wrong = run("--ledger", address, "--no-pld", "--key", str(tmp_path / "other.key")).exception
    assert isinstance(wrong, InputError)
    reported = f"key must be {key.key_id}: this is not the key of this ledger; found '{other.key_id}'."
    assert str(wrong).startswith(reported)
    connection = sqlite3.connect(tmp_path / "l.sqlite")
    connection.execute("DROP TRIGGER entries_no_update")
    connection.execute("UPDATE entries SET count = 5 WHERE sequence = 2")
    connection.commit()
    connection.close()
    changed = run("--ledger", address, "--no-pld", "--key", str(tmp_path / "owner.key"))
    assert changed.exit_code == 1
    assert "row 2: was changed" in changed.output


def test_the_burn_down_figure(url, tmp_path):
    path = tmp_path / "burn-down.png"
    result = run("--ledger", url, "--no-pld", "--figure", str(path), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["figure"] == str(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_axis_of_a_single_moment_is_a_day(tmp_path, monkeypatch):
    from matplotlib.dates import num2date
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (drawn.append(figure), save(figure, *a, **k)))
    address, at = f"sqlite:///{tmp_path}/l.sqlite", datetime(2026, 5, 12, 9, 30, tzinfo=UTC)
    with Ledger(address, clock=lambda: at) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5))
    assert run("--ledger", address, "--no-pld", "--figure", str(tmp_path / "x.png")).exit_code == 0
    with Ledger(address, clock=lambda: at + timedelta(hours=2)) as ledger:
        ledger.reserve([Spend("patients", Gaussian(9.0))])
    assert run("--ledger", address, "--no-pld", "--figure", str(tmp_path / "x.png")).exit_code == 0
    alone, two = ([num2date(end) for end in figure.axes[0].get_xlim()] for figure in drawn)
    assert [alone[0] + timedelta(hours=12), alone[1] - timedelta(hours=12)] == [at, at]
    assert two[1] - two[0] < timedelta(hours=3)


def test_a_figure_that_cannot_be_written_does_not_cost_the_audit(url, tmp_path):
    (tmp_path / "file").write_text("no folder")
    asked = ("--ledger", url, "--no-pld", "--figure", str(tmp_path / "file" / "x.png"))
    result = run(*asked)
    assert isinstance(result.exception, InputError)
    assert "chain verified" in result.output
    assert json.loads(run(*asked, "--json").stdout)["figure"] is None
    with Ledger(url) as ledger:
        ledger.record_past([Spend("patients", Gaussian(0.3))])
    result = run(*asked)
    assert result.exit_code == 1
    assert "EXCEEDED" in result.output


def test_a_figure_of_data_whose_budget_a_release_without_noise_used_up(tmp_path):
    address, path = f"sqlite:///{tmp_path}/l.sqlite", tmp_path / "burn-down.png"
    with Ledger(address) as ledger:
        ledger.reserve([Spend("d", NotPrivate())])
        ledger.set_budget("d", Budget(3.0, 1e-5))
    result = run("--ledger", address, "--no-pld", "--figure", str(path))
    assert result.exit_code == 1
    assert not isinstance(result.exception, TypeError)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_damaged_file_is_a_broken_ledger(tmp_path):
    path = tmp_path / "l.sqlite"
    with Ledger(f"sqlite:///{path}") as ledger:
        for number in range(200):
            ledger.reserve([Spend("d", Gaussian(2.0), run=f"r{number}")])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sources'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(bytes(content))
    result = run("--ledger", f"sqlite:///{path}", "--json")
    assert result.exit_code == 1, result.exception
    assert json.loads(result.stdout)["chain"]["verified"] is False


def test_totals_are_written_again_on_request(url):
    with Ledger(url) as ledger:
        rows = ledger.head().sequence
    assert run("--ledger", url, "--no-pld", "--rebuild-totals").exit_code == 0
    with Ledger(url) as ledger:
        assert ledger.head().sequence == rows + 1
    assert run("--ledger", url, "--no-pld").exit_code == 0


def test_the_command_loads_neither_torch_nor_the_heavy_libraries():
    code = "import sys, privfair.cli.audit, privfair.cli.budget, privfair.cli.calibrate; "
    code += "print([m for m in ('torch', 'scipy', 'pandas', 'matplotlib', 'sqlalchemy', 'numpy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_options_of_an_attack_without_one_are_refused(url):
    for option in (("--channel", "updates"), ("--trials", "100"), ("--minutes", "1")):
        result = run("--ledger", url, *option)
        assert isinstance(result.exception, InputError)
        assert "go with --empirical only" in str(result.exception)


def test_lines_without_pld_are_told(url, monkeypatch):
    reported = "In the others ε (PLD) is RDP's bound"
    assert reported not in " ".join(run("--ledger", url).stdout.split())
    monkeypatch.setattr("accountant.audit.WorstCase", partial(WorstCase, pld_limit=1))
    assert reported in " ".join(run("--ledger", url).stdout.split())
    assert json.loads(run("--ledger", url, "--json").stdout)["datasets"]["patients"]["rdp_for_pld"]


def test_runs_with_an_inferred_schema_are_told(url):
    reported = "Runs with “inferred” in their name"
    assert reported not in " ".join(run("--ledger", url).stdout.split())
    with Ledger(url) as ledger:
        ledger.reserve(
            [Spend("free", Gaussian(9.0), run=run_name("20260101-120000-abcd", "0f", inferred=True, shares=False))]
        )
    assert reported in " ".join(run("--ledger", url).stdout.split())
