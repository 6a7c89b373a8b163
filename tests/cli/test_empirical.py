"""`privfair audit --empirical`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import privfair
from accountant import Budget, InputError, Ledger
from accountant.errors import Refused
from accountant.events import Adjacency
from privfair.audit.findings import EVERYBODY, Finding, Findings
from privfair.cli import audit as command
from privfair.cli.audit_empirical import print_findings
from privfair.mechanisms.count_release import CountNoise
from tests.empirical.plans import generator_noise

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command.audit)

CONFIG = """
[federation]
rounds = 1
[privacy]
count_noise = 1.0
prediction_noise = 1.0
prediction_rate = 1.0
noise_multiplier = 2.0
sampling_rate = 1.0
local_steps = 1
"""


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRIVFAIR_LEDGER", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    generator_noise(monkeypatch, 11)
    path = tmp_path / "plan.toml"
    path.write_text(CONFIG)
    return path


def test_the_table_says_who_saw_how_much_and_what_it_does_not_show(config: Path) -> None:
    channels = ("--channel", "counts", "--channel", "predictions")
    result = run("--empirical", str(config), *channels, "--trials", "80", "--figure", "bounds.png")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "a false alarm has a probability of at most 0.001, all tests together" in text
    assert "Consistent: no attack did better" in text or "INCONCLUSIVE: right more often than the claim allows" in text
    assert "VIOLATED" not in text
    assert "a coin in 50; the claim allows at most" in text
    assert '"Consistent" is no proof' in text
    assert "10 clients were attacked in every trial" in text
    assert "Attacking for about 5 minutes (--minutes)" in result.stderr  # beforehand
    assert Path("bounds.png").read_bytes().startswith(b"\x89PNG")
    assert not list(config.parent.glob("*.sqlite"))  # no ledger of anybody's was opened or made


def test_the_json_has_both_bounds_beside_the_claim_and_a_planted_bug_gives_exit_code_1(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--empirical", str(config), "--channel", "counts", "--trials", "90", "--json")
    honest = run(*arguments)
    assert honest.exit_code == 0, honest.output
    reported = json.loads(honest.stdout)
    (counts,) = reported["attacks"]
    assert reported["fine"]
    assert reported["adjacency"] == "add-or-remove"
    assert (reported["confidence"], reported["delta"], counts["trials"]) == (
        0.999,
        1e-5,
        160,
    )  # 80 of each, of 10 clients
    assert counts["epsilon"]["upper"] == pytest.approx(1.0, abs=1e-3)
    assert 0 <= counts["epsilon"]["lower"] <= 1.0
    assert reported["epsilon"]["upper"] > 1.0  # the whole plan
    assert reported["membership"]["coin"] == 50
    monkeypatch.setattr(CountNoise, "release", lambda self, counts, entropy: np.asarray(counts, dtype=np.int64))
    broken = run(*arguments)
    assert broken.exit_code == 1
    reported = json.loads(broken.stdout)
    assert not reported["fine"]
    assert reported["attacks"][0]["contradicts"]
    assert reported["attacks"][0]["epsilon"]["lower"] > 1.0
    assert reported["outcome"] == reported["attacks"][0]["verdict"] == "violated"
    assert reported["attacks"][0]["p_value"] < reported["attacks"][0]["violated_below"] <= 0.0010001
    assert reported["verdict"].startswith("VIOLATED: more can be seen than the claim allows, by counts (server")
    shown = run(*arguments[:-1])
    assert shown.exit_code == 1
    assert "VIOLATED" in shown.stdout
    assert "Consistent:" not in shown.stdout


def a_finding(**changed: object) -> Finding:
    given: dict[str, Any] = {
        **{"channel": "updates", "adversary": "white-box", "about": "", "upper": 4.38, "lower": 1.0},
        **{"without_assumption": 0.5, "if_as_stated": 1.0, "noise_factor": 1.2, "accuracy": 0.68, "guesses": 100},
        **{"allowed_accuracy": 0.69, "trials": 200, "seconds": 1.0, "in_plan": True, "p_value": 1.0, "level": 1e-3},
    }
    return Finding(**(given | changed))


@pytest.mark.parametrize(
    ("changed", "outcome", "word"),
    [
        ({}, "consistent", "Consistent: no attack did better than the claim allows"),
        ({"accuracy": 0.7}, "inconclusive", "INCONCLUSIVE: right more often than the claim allows"),
        (
            {"accuracy": 0.96, "p_value": 1e-9},
            "violated",
            "VIOLATED: more can be seen than the claim allows, by updates",
        ),
        ({"lower": 4.5}, "violated", "VIOLATED"),  # the bound alone
        ({"accuracy": 0.6, "p_value": 1e-4}, "violated", "VIOLATED"),  # rates in a tail: accuracy says nothing
        ({"worst": "north", "p_value": 0.0}, "violated", "by updates (white-box, north)"),
    ],
)
def test_no_success_is_printed_beside_a_line_that_contradicts_it(
    capsys: pytest.CaptureFixture[str], changed: dict[str, object], outcome: str, word: str
) -> None:
    findings = (a_finding(channel="counts"), a_finding(**changed))
    found = Findings(findings, (), 20.0, 1e-5, 0.999, Adjacency.ADD_OR_REMOVE, 1.0)
    print_findings(Console(width=200), found)
    text = capsys.readouterr().out
    assert word in text
    assert found.to_json()["outcome"] == outcome
    assert found.fine == (outcome != "violated")
    assert ("Consistent: no attack" in text) == (outcome == "consistent")
    assert found.to_json()["attacks"][1]["verdict"] == outcome


def test_the_table_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    findings = (
        a_finding(channel="predictions", upper=19.98, trials=4000, accuracy=0.7),
        a_finding(p_value=1e-120),
        a_finding(channel="embeddings", adversary=EVERYBODY, upper=102.98, trials=4000, clients=10, accuracy=0.7),
    )
    print_findings(Console(width=80), Findings(findings, (), 20.0, 1e-5, 0.999, Adjacency.ADD_OR_REMOVE, 1.0))
    text = capsys.readouterr().out
    assert "…" not in text
    assert "inconclusive" in text


@pytest.mark.slow
def test_a_finished_run_is_audited_with_the_noise_it_had(config: Path, tmp_path: Path) -> None:
    privacy = {"epsilon": 4.0, "sampling_rate": 0.5, "local_steps": 1, "prediction_rate": 0.2}
    out = tmp_path / "run"
    result = privfair.train(privacy=privacy, federation={"rounds": 1}, run={"ledger": f"sqlite:///{tmp_path}/l.sqlite"},
                            aggregation={"scheme": "plain"}, out=out)  # fmt: skip
    rows = Path(tmp_path / "l.sqlite").read_bytes()
    reported = json.loads(run("--empirical", str(out), "--channel", "counts", "--trials", "80", "--json").stdout)
    # the plan has room for a release that a crash loses, which this run did not need
    assert result.privacy["epsilon"]["pld"] < reported["epsilon"]["upper"] <= 4.0
    assert reported["attacks"][0]["epsilon"]["upper"] == pytest.approx(
        result.privacy["by_channel"]["counts"]["pld"], rel=1e-3
    )
    assert Path(tmp_path / "l.sqlite").read_bytes() == rows  # the run's own ledger is as it was


@pytest.mark.slow
@pytest.mark.usefixtures("begun_earlier")
def test_a_finished_run_with_noise_in_shares_is_held_against_both_of_its_claims(config: Path, tmp_path: Path) -> None:
    privacy = {"epsilon": 4.0, "sampling_rate": 0.5, "local_steps": 1, "distributed_noise": True, "smallest_cohort": 3}
    out = tmp_path / "run"
    result = privfair.train(privacy=privacy, federation={"rounds": 1}, fairness={"tracker": "embedding"}, out=out,
                            aggregation={"masks": False}, run={"ledger": f"sqlite:///{tmp_path}/l.sqlite"})  # fmt: skip
    options = ("--channel", "embeddings", "--channel", "run", "--trials", "80")
    reported = json.loads(run("--empirical", str(out), *options, "--json").stdout)
    assert [(a["channel"], a["adversary"]) for a in reported["attacks"]] == [
        ("embeddings", "client"),
        ("embeddings", "server and client"),
    ]
    own, pooled = (a["epsilon"]["upper"] for a in reported["attacks"])
    assert own == pytest.approx(result.privacy["by_channel"]["embeddings"]["pld"], rel=1e-3)
    assert own < pooled < reported["collusion"]["upper"]
    stated = result.privacy["collusion"]["server_and_one_client"]["pld"]
    assert reported["collusion"]["upper"] == pytest.approx(stated, rel=1e-3)
    assert "noise comes in shares" in reported["skipped"]["run"]
    shown = run("--empirical", str(out), *options, "--figure", "bounds.png")
    assert shown.exit_code == 0
    assert shown.stdout.count("server and client") >= 2  # the attack, and its row under the whole plan
    assert Path("bounds.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_finished_run_with_masks_is_audited_against_both_of_its_claims(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = privfair.train(privacy={"epsilon": 6.0}, federation={"rounds": 1}, fairness={"tracker": "embedding"},
                            aggregation={"masks": True}, run={"ledger": f"sqlite:///{tmp_path}/l.sqlite"},
                            out=out)  # fmt: skip
    options = ("--channel", "counts", "--channel", "updates", "--trials", "80")
    reported = json.loads(run("--empirical", str(out), *options, "--json").stdout)
    assert [(a["channel"], a["adversary"]) for a in reported["attacks"]] == [
        *(("counts", "colluders"), ("counts", "all others"), ("updates", "colluders"), ("updates", "all others")),
    ]
    for one in reported["attacks"][::2]:
        stated = result.privacy["by_channel"][one["channel"]]["pld"]
        assert one["epsilon"]["upper"] == pytest.approx(stated, rel=1e-3)
    assert reported["collusion"]["upper"] == pytest.approx(
        result.privacy["collusion"]["epsilon_beyond"]["pld"], rel=1e-3
    )
    shown = run("--empirical", str(out), *options)
    assert shown.exit_code == 0
    assert shown.stdout.count("all others") >= 3  # both attacks, and the row under the whole plan
    assert "Colluders: the server with as many data holders as the plan allows for" in shown.stdout


def test_data_with_a_budget_and_wrong_words_are_refused(config: Path) -> None:
    with Ledger("sqlite:///privfair-ledger.sqlite") as ledger:
        ledger.set_budget("synthetic", Budget(3.0, 1e-6))
    result = run("--empirical", str(config))
    assert isinstance(result.exception, Refused)
    assert "Dataset 'synthetic' has a budget" in str(result.exception)
    elsewhere = run("--empirical", str(config), "--ledger", "sqlite:///elsewhere.sqlite")
    assert "data of this name have one, as 'synthetic' in" in str(elsewhere.exception)
    text = config.read_text().replace("[privacy]", "[privacy]\nrequire_budget = false")
    config.write_text(text)
    other = ("--empirical", str(config), "--ledger", "sqlite:///elsewhere.sqlite")
    wrong = run(*other, "--channel", "embedings")
    assert isinstance(wrong.exception, InputError)
    assert "evaluation, canaries, run, holder; found 'embedings'" in str(wrong.exception)
    few = run(*other, "--trials", "3")
    assert "trials must be at least 80; found 3. Fewer show nothing." in str(few.exception)
    both = run("--empirical", str(config), "--delta", "1e-6")
    assert "--empirical goes with --channel, --trials, --minutes, --figure and --ledger only" in str(both.exception)
    missing = run("--empirical", "nowhere.toml")
    assert "config must be a TOML file that exists; found 'nowhere.toml'." in str(missing.exception)
