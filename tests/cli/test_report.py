"""`privfair report`, and the reports that `train` and `audit` write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from accountant import Budget, Gaussian, Ledger
from accountant.errors import InputError, Refused
from accountant.spending import Spend
from privfair.cli import audit as audit_command
from privfair.cli import report as command
from privfair.cli import train as train_command
from privfair.reports.pages import is_page


def run(function: object, *arguments: str):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(function)  # type: ignore[type-var]
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A short run, as the command makes it, and what it printed."""
    out = tmp_path_factory.mktemp("train") / "run"
    settings = ("data.clients=2", "data.records=40", "federation.rounds=1", f"run.ledger=sqlite:///{out}.sqlite")
    result = run(train_command.train, *(part for one in settings for part in ("--set", one)), "--out", str(out))
    assert result.exit_code == 0, result.output
    return out, result.stdout


def test_training_ends_with_the_path_of_its_report(trained: tuple[Path, str]) -> None:
    out, printed = trained
    assert printed.rstrip().endswith(f"report  {out}/report.html")
    text = (out / "report.html").read_text()
    assert is_page(out / "report.html")
    assert "do not pass on" not in text
    assert json.loads((out / "metrics.json").read_text())["verdict"]["sentence"] in text


def test_the_json_says_what_was_written(trained: tuple[Path, str]) -> None:
    out, _ = trained
    result = run(command.report, str(out), "--json")
    about = json.loads(result.stdout)
    assert about == {
        "out": str(out / "report.html"), "kind": "run", "figures": "released",
        "bytes": (out / "report.html").stat().st_size,
    }  # fmt: skip


def test_private_figures_are_marked(trained: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = trained
    result = run(command.report, str(out), "--include-private", "--out", str(tmp_path / "mine.html"))
    assert result.exit_code == 0, result.output
    assert "It contains figures that were not released; do not pass it on." in result.stdout
    assert "do not pass on" in (tmp_path / "mine.html").read_text()


def test_private_figures_do_not_replace_the_page_to_pass_on(trained: tuple[Path, str]) -> None:
    out, _ = trained
    before = (out / "report.html").read_bytes()
    about = json.loads(run(command.report, str(out), "--include-private", "--json").stdout)
    assert (about["figures"], about["out"]) == ("private", str(out / "report-private.html"))
    assert (out / "report.html").read_bytes() == before


def test_what_is_neither_a_run_nor_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"folder must have a config.toml \(a run\) or a sweep.json"):
        command.kind_of(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        command.kind_of(tmp_path / "gone")
    (tmp_path / "sweep.json").write_text("{}")
    assert command.kind_of(tmp_path) == "sweep"


def test_a_foreign_file_stays(trained: tuple[Path, str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    result = run(command.report, str(trained[0]), "--out", str(mine))
    assert isinstance(result.exception, InputError)
    assert mine.read_text() == "mine"


def test_a_budget_refuses_exact_figures(
    trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a run that was made without privacy before the budget was set."""
    out, _ = trained
    with Ledger(f"sqlite:///{out}.sqlite") as ledger:
        ledger.set_budget("synthetic", Budget(1.0, 1e-5))
    result = run(command.report, str(out), "--include-private", "--out", str(tmp_path / "x.html"))
    assert isinstance(result.exception, Refused)
    assert "Dataset 'synthetic' has a budget" in str(result.exception)
    assert not (tmp_path / "x.html").exists()


def test_audit_writes_its_page(tmp_path: Path) -> None:
    url, page = f"sqlite:///{tmp_path}/ledger.sqlite", tmp_path / "audit.html"
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5))
        ledger.reserve([Spend("patients", Gaussian(2.0), "north")])
    result = run(audit_command.audit, "--ledger", url, "--html", str(page))
    assert result.exit_code == 0, result.output
    assert f"Page: {page}" in result.stdout.replace("\n", "")
    assert is_page(page)
    assert json.loads(run(audit_command.audit, "--ledger", url, "--html", str(page), "--json").stdout)["html"] == str(
        page
    )
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(1.4, 1e-5), reason="stricter")
    exceeded = run(audit_command.audit, "--ledger", url, "--html", str(page))
    assert exceeded.exit_code == 1
    assert "The budget is exceeded" in page.read_text()
    page.write_text("mine")
    refused = run(audit_command.audit, "--ledger", url, "--html", str(page), "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["html"] is None
    assert page.read_text() == "mine"
