"""`privfair sweep` and `privfair reproduce` as a user runs them, on a federation of a few records."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner, Result

import privfair
from accountant import Budget, Ledger
from accountant.errors import InputError, Refused
from privfair.cli.reproduce import reproduce
from privfair.cli.sweep import sweep
from privfair.reports.sweep_page import read_sweep

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


def test_what_is_added_does_not_hide_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "s"
    start = ["sweep", "--set", "run.engine=local", *TINY, "--out", str(out), "--seeds", "1"]
    assert run(*start, "--lambdas", "0,1", "--methods", "fairfed", "--epsilons", "inf,3").exit_code == 0
    result = run(*start, "--lambdas", "2", "--methods", "mmd_fedavg", "--json")
    answer = json.loads(result.stdout)
    # fairfed is refused with privacy
    assert answer["runs"] == {**answer["runs"], "all": 5, "done": 3, "failed": 0, "continued": 2}
    expected = [("mmd_fedavg", 2.0), ("fairfed", 0.0), ("fairfed", 1.0)]
    assert [(p["series"], p["value"]) for p in answer["points"]] == expected
    assert [area["series"] for area in answer["hypervolume"]["series"]] == ["mmd_fedavg", "fairfed"]
    assert answer["failures"] == []
    with (out / "summary.csv").open() as file:
        assert [(row["series"], float(row["value"])) for row in csv.DictReader(file)] == expected
    if "parquet" in answer["files"]:
        assert len(pd.read_parquet(out / "results.parquet")) == 3
    drawn = (out / "frontier.svg").read_text()
    assert all(f"<!-- {series} -->" in drawn for series in ("mmd_fedavg", "fairfed"))
    assert json.loads((out / "sweep.json").read_text())["runs"] == 5
    facts = read_sweep(out, include_private=False)
    assert (facts.planned, len(facts.done), len(facts.failed)) == (5, 3, 2)
    table = run(*start, "--lambdas", "2", "--methods", "mmd_fedavg")
    assert "3 of 5 runs, 2 failed in an earlier call" in " ".join(table.stdout.split())
    assert "fairfed" in table.stdout


def test_a_sweep_without_a_result_leaves_a_header(tmp_path: Path) -> None:
    result = run("sweep", "--lambdas", "1", "--seeds", "1", "--methods", "fairfed", "--epsilons", "3", *TINY,
                 "--out", str(tmp_path))  # fmt: skip
    assert result.exit_code == 1
    header = (
        "series,method,epsilon,value,runs,accuracy,accuracy_se,unfairness,unfairness_se,pareto,pareto_of_series,"
        "same_answer,diverged\n"
    )
    assert (tmp_path / "summary.csv").read_text() == header


def test_options_of_fairness_tracking_do_not_stop_the_others(tmp_path: Path) -> None:
    options = ["--set", "fairness.tracker=embedding", "--set", "fairness.features=6", "--set", "run.engine=local"]
    result = run("sweep", "--lambdas", "1", "--seeds", "1", "--methods", "mmd_fedavg,fedavg", *TINY, *options,
                 "--out", str(tmp_path / "s"), "--json")  # fmt: skip
    assert json.loads(result.stdout)["runs"]["done"] == 2


LONG = ["--set", "data.records=24", "--set", "data.clients=3", "--set", "federation.rounds=40", "--set",
        "federation.local_epochs=20", "--set", "run.engine=local", "--workers", "2"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "first"),
    [
        (["sweep", "--lambdas", "0,1", "--seeds", "40", *LONG], 2),
        (["reproduce", "heterogeneity", "--quick", *LONG], 1),
    ],
    ids=["sweep", "reproduce"],
)
def test_ctrl_c_ends_all_processes_and_tells_how_to_go_on(tmp_path: Path, command: list[str], first: int) -> None:
    results = tmp_path / "s" / "results.csv"
    process = subprocess.Popen(
        [PRIVFAIR, *command, "--out", "s"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    limit = time.monotonic() + 120
    while time.monotonic() < limit and (not results.exists() or results.read_bytes().count(b"\n") <= first):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the workers, too
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    saved, runs = results.read_bytes().count(b"\n") - 1, json.loads((tmp_path / "s" / "sweep.json").read_text())["runs"]
    assert first <= saved < runs
    reported = f"Interrupted. {saved} of {runs} runs are saved. Continue with: privfair {' '.join(command)} --out s"
    assert err.strip() == reported
    limit = time.monotonic() + 20
    while (left := _alive(process.pid)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert left == []


def _alive(group: int) -> list[str]:
    """The processes of a group, but for the dead ones that nobody has asked after."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state != "Z":
            found.append(name)
    return found


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
    reported = " ".join(result.stdout.split())
    assert "Heterogeneity ablation" in reported
    assert "24 of 24 runs" in reported
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
