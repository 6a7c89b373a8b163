"""`privfair sweep` and `privfair reproduce` as a user runs them, on a federation of a few records."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import privfair
from accountant import Budget, Ledger
from accountant.errors import InputError, Refused
from privfair.cli.reproduce import reproduce
from privfair.cli.sweep import sweep

PRIVFAIR = Path(sys.executable).parent / "privfair"
TINY = ["--set", "data.records=24", "--set", "data.clients=3", "--set", "federation.rounds=2", "--workers", "1"]
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(sweep)
app.command()(reproduce)


def run(*arguments: str) -> Result:
    """In this process: starting one costs more than the sweep."""
    return CliRunner().invoke(app, list(arguments))


def test_the_command_prints_one_json_object_and_writes_all_files(tmp_path: Path) -> None:
    command = [PRIVFAIR, "sweep", "--lambdas", "0,1", "--seeds", "2", "--methods", "mmd_fedavg,fedavg", *TINY]
    done = subprocess.run(
        [*command, "--out", "there", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["runs"] == {**answer["runs"], "all": 6, "done": 6, "failed": 0, "continued": 0}
    assert {(p["series"], p["value"], p["runs"]) for p in answer["points"]} == {
        ("mmd_fedavg", 0.0, 2), ("mmd_fedavg", 1.0, 2), ("fedavg", None, 2),
    }  # fmt: skip
    assert [area["series"] for area in answer["hypervolume"]["series"]] == ["mmd_fedavg", "fedavg"]
    names = {path.name for path in (tmp_path / "there").iterdir()}
    assert {"results.csv", "summary.csv", "frontier.png", "frontier.svg", "scatter.png", "scatter.svg"} <= names
    with (tmp_path / "there" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    data = {"records": 24, "clients": 3}
    alone = privfair.train(data=data, federation={"rounds": 2}, fairness={"lambda": 1.0}, run={"seed": 1})
    (row,) = [r for r in rows if r["series"] == "mmd_fedavg" and r["value"] == "1.0" and r["seed"] == "1"]
    assert float(row["accuracy"]) == alone.accuracy
    assert row["schema"] == "1"


def test_tables_and_continuation(tmp_path: Path) -> None:
    arguments = ["sweep", "--lambdas", "0,1", "--seeds", "2", "--methods", "mmd_fedavg,local_fairness", *TINY]
    first = run(*arguments, "--out", str(tmp_path / "s"))
    assert first.exit_code == 0, first.output
    for text in ("sweep on synthetic: 8 of 8 runs", "local_fairness", "±", "● all", "Frontiers: area dominated"):
        assert text in first.stdout
    again = run(*arguments, "--out", str(tmp_path / "s"))
    assert "8 of 8 runs are there already" in again.stderr
    more = json.loads(run(*arguments, "--out", str(tmp_path / "s"), "--seeds", "3", "--json").stdout)
    assert (more["runs"]["continued"], more["runs"]["done"]) == (8, 12)


def test_another_configuration_in_the_folder_is_told(tmp_path: Path) -> None:
    arguments = ["sweep", "--lambdas", "1", "--seeds", "1", *TINY, "--out", str(tmp_path / "s")]
    assert run(*arguments).exit_code == 0
    other = run(*arguments, "--set", "federation.learning_rate=0.5")
    assert isinstance(other.exception, InputError)
    assert "found 'federation.learning_rate was 0.05, is 0.5'" in str(other.exception)


def test_failures_are_shown_and_the_others_go_on(tmp_path: Path) -> None:
    arguments = ["sweep", "--lambdas", "1", "--seeds", "1", "--methods", "fairfed", "--epsilons", "inf,3", *TINY]
    result = run(*arguments, "--out", str(tmp_path / "s"))
    assert result.exit_code == 0, result.output
    assert "1 of 2 runs, 1 failed" in result.stdout
    assert "fairfed sends local figures" in " ".join(result.stdout.split())
    assert "hyper-parameters chosen on this data: not covered" in " ".join(result.stdout.split())
    nothing = run("sweep", "--lambdas", "1", "--seeds", "1", "--methods", "fairfed", "--epsilons", "3", *TINY,
                  "--out", str(tmp_path / "t"))  # fmt: skip
    assert nothing.exit_code == 1


def test_quick_is_short(tmp_path: Path) -> None:
    answer = json.loads(
        run("sweep", "--quick", "--set", "data.records=12", "--set", "data.clients=2", "--workers", "1", "--json",
            "--out", str(tmp_path / "s")).stdout
    )  # fmt: skip
    assert answer["runs"]["done"] == 8
    with (tmp_path / "s" / "results.csv").open() as file:
        assert {row["rounds"] for row in csv.DictReader(file)} == {"10"}


SMALL = [
    "--quick", "--seeds", "1", "--set", "data.records=8", "--set", "data.clients=2", "--set", "federation.rounds=1",
    "--set", "federation.local_epochs=1", "--workers", "1",
]  # fmt: skip


def test_reproduce_tells_about_every_claim(tmp_path: Path) -> None:
    out = tmp_path / "h"
    result = run("reproduce", "heterogeneity", *SMALL, "--out", str(out))
    assert result.exit_code == 0, result.output
    told = " ".join(result.stdout.split())
    assert "Heterogeneity ablation" in told
    assert "24 of 24 runs" in told
    claims = (out / "claims.md").read_text(encoding="utf-8")
    assert "Local group fairness suffers in performance." in claims
    assert claims.count("| **") == 5
    assert "Command: `privfair reproduce heterogeneity --quick --seeds 1 --set data.records=8" in claims
    assert "its verdicts are not those of the full run" in claims
    again = json.loads(run("reproduce", "heterogeneity", *SMALL, "--out", str(out), "--json").stdout)
    assert again["runs"]["continued"] == 24
    assert {claim["outcome"] for claim in again["claims"]} <= {"confirmed", "not confirmed", "undecided"}
    assert all(Path(path).is_file() for path in again["files"])


def test_a_ledger_of_its_own_is_no_way_around_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'books.sqlite'}"
    monkeypatch.setenv("PRIVFAIR_LEDGER", url)
    with Ledger(url) as ledger:
        ledger.set_budget("compas", Budget(epsilon=2.0, delta=1e-5), reason="test")
    result = run("reproduce", "private", "--quick", "--out", str(tmp_path / "p"))
    assert isinstance(result.exception, Refused)
    assert "Dataset 'compas' has a lifetime budget of ε = 2" in str(result.exception)
    assert not (tmp_path / "p").exists()


def test_an_unknown_experiment_is_told() -> None:
    result = run("reproduce", "sintetic")
    assert isinstance(result.exception, InputError)
    assert "experiment must be one of synthetic, communities, compas, samples, convergence," in str(result.exception)


@pytest.mark.parametrize("option", ["--lambdas", "--epsilons"])
def test_lists_must_be_numbers(option: str) -> None:
    result = run("sweep", option, "a,b")
    assert isinstance(result.exception, InputError)
    assert f"{option} must be numbers separated by commas; found 'a,b'" in str(result.exception)
