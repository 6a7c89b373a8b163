"""`privfair calibrate` prices what `privfair train` releases: one planner, the same figures, whatever the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

import privfair
from privfair.cli import app, calibrate
from privfair.numbers import shown
from privfair.runs.summary import summarise
from tests.test_absence import PRIVATE, second_in_round_one, trained
from tests.test_absence import config as absent_config

NOISE = {"count_noise": 12.0, "prediction_noise": 1.5, "noise_multiplier": 2.0}
RATES = {"sampling_rate": 0.25, "prediction_rate": 0.3, "local_steps": 2}
FEDAVG = {"federation": {"method": "fedavg"}}
EMBEDDING = {"fairness": {"tracker": "embedding"}}
CONDITIONED = {"fairness": {"notion": "conditional_statistical_parity"}}
TWO = {"data": {"sensitive": ["sex", "age"]}}
WHOLE = {"counts": "public", "updates": "client_level"}


RUNS: dict[str, dict[str, Any]] = {
    "noise given": {"privacy": NOISE | RATES},
    "noise given, no retries": {"privacy": NOISE | RATES | {"retries": 0}},
    "noise given, two retries, evaluation": {
        "privacy": NOISE | RATES | {"retries": 2, "evaluation": "laplace", "evaluation_noise": 9.0}
    },
    "noise searched": {"privacy": RATES | {"epsilon": 4.0}},
    "by RDP, Laplace scores": {"privacy": RATES | {"epsilon": 4.0, "target_method": "rdp", "predictions": "laplace"}},
    "Gaussian counts and evaluation": {
        "privacy": RATES | {"epsilon": 4.0, "counts": "gaussian", "evaluation": "gaussian", "retries": 2}
    },
    "some noise given": {"privacy": RATES | {"epsilon": 6.0, "noise_multiplier": 3.0, "evaluation": "laplace"}},
    "another share": {"privacy": RATES | {"epsilon": 4.0, "prediction_share": 0.2, "count_share": 0.1}},
    "two attributes": {**TWO, "privacy": RATES | {"epsilon": 6.0, "evaluation": "laplace"}},
    "overlapping sets": {**TWO, **CONDITIONED, "privacy": RATES | {"epsilon": 9.0, "retries": 2}},
    "equal opportunity": {"fairness": {"notion": "equal_opportunity"}, "privacy": RATES | {"epsilon": 6.0}},
    "public counts": {"privacy": {"epsilon": 6.0, "counts": "public", "evaluation": "laplace"}},
    "public counts, rates": {"privacy": RATES | {"epsilon": 6.0, "counts": "public", "equalise_groups": True}},
    "public counts, overlapping sets": {**TWO, **CONDITIONED, "privacy": {"epsilon": 9.0, "counts": "public"}},
    "embedding": {**EMBEDDING, "privacy": {"epsilon": 4.0, "sampling_rate": 0.25, "evaluation": "laplace"}},
    "embedding, noise given, two attributes": {
        **EMBEDDING, **TWO, "privacy": {**NOISE, "prediction_noise": 20.0, "sampling_rate": 0.25, "retries": 0}
    },
    "embedding, public counts": {**EMBEDDING, "privacy": {"epsilon": 6.0, "counts": "public"}},
    "no fairness": {**FEDAVG, "privacy": {"epsilon": 2.0, "sampling_rate": 0.25}},
    "no fairness, two phases": {**FEDAVG, "privacy": {"epsilon": 2.0}},
    "two phases": {"privacy": {"epsilon": 6.0}},
    "two phases by RDP, Gaussian counts, evaluation": {
        "privacy": {"epsilon": 6.0, "target_method": "rdp", "counts": "gaussian", "evaluation": "laplace", "retries": 2}
    },
    "two phases, overlapping sets": {**TWO, **CONDITIONED, "privacy": {"epsilon": 9.0, "retries": 0}},
    "two phases, embedding": {**EMBEDDING, "privacy": {"epsilon": 6.0}},
    "whole clients": {**FEDAVG, "privacy": {**WHOLE, "epsilon": 8.0}},
    "whole clients, features": {**EMBEDDING, "privacy": {**WHOLE, "epsilon": 50.0, "retries": 2}},
    "whole clients, scores": {
        "fairness": {"samples": 4}, "privacy": {**WHOLE, "noise_multiplier": 9.0, "prediction_noise": 3.0}
    },
    "some clients train": {"federation": {"clients_per_round": 2, "rounds": 4}, "privacy": RATES | {"epsilon": 4.0}},
}  # fmt: skip


def table(path: Path) -> Path:
    """Three unequal clients, two attributes of unequal groups, two conditions that overlap."""
    rng = np.random.default_rng(3)
    lines = ["branch,sex,age,senior,long,score,hired"]
    for branch, size in (("north", 180), ("south", 90), ("west", 60)):
        for _ in range(size):
            score = rng.normal()
            row = (
                rng.choice(["F", "M"], p=[0.3, 0.7]), rng.choice(["old", "young"]), rng.integers(2), rng.integers(2),
                f"{score:.3f}", int(score + rng.normal() > 0),
            )  # fmt: skip
            lines.append(",".join([branch, *map(str, row)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def configured(folder: Path, run: dict[str, Any]) -> Path:
    data = {
        "name": "csv", "path": str(table(folder / "people.csv")), "label": "hired", "sensitive": ["sex"],
        "client": "branch", "conditions": {"senior": "senior", "long": "long"},
        "schema": {
            "numeric": {"score": [-4.0, 4.0]}, "positive": "1",
            "categories": {
                "sex": {"values": ["F", "M"], "unknown": "drop"},
                "age": {"values": ["old", "young"], "unknown": "drop"},
                "branch": {"values": ["north", "south", "west"], "unknown": "drop"},
            },
        },
    }  # fmt: skip
    tree = {
        "data": {**data, **run.get("data", {})},
        "fairness": {"samples": 30, **run.get("fairness", {})},
        "federation": {"rounds": 2, "batch_size": 20, **run.get("federation", {})},
        "privacy": run["privacy"],
        "aggregation": {"scheme": "plain"},
        "run": {"ledger": f"sqlite:///{folder}/ledger.sqlite"},
    }
    path = folder / "run.toml"
    path.write_text(tomli_w.dumps(tree))
    return path


def calibrated(*arguments: str, command: str = "calibrate") -> dict[str, Any]:
    result = CliRunner().invoke(app, [command, "--json", *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def noise_of(privacy: dict[str, Any]) -> dict[str, float]:
    return {name: facts.get("scale", facts.get("noise_multiplier")) for name, facts in privacy["noise"].items()}


@pytest.fixture(autouse=True)
def one_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of other choices is tested elsewhere, and takes most of the time."""
    monkeypatch.setattr(calibrate, "FACTORS", (1.0,))


@pytest.mark.parametrize("name", RUNS)
def test_calibrate_prices_what_train_plans(tmp_path: Path, name: str) -> None:
    config = configured(tmp_path, RUNS[name])
    plans: list[dict[str, Any]] = []
    privacy = privfair.train(config, out=tmp_path / "run", planned=plans.append).privacy
    two_phases = privacy["plan"] == "two phases"
    assert two_phases is name.removeprefix("no fairness, ").startswith("two phases")
    counts = ["--counts-of", str(tmp_path / "run")] if two_phases else []
    found = calibrated(str(config), *counts)
    if RUNS[name]["privacy"].get("counts") != "public":
        (tmp_path / "people.csv").unlink()  # neither command opens it: all of it that matters is declared
    before = calibrated(str(config), *counts, command="plan")
    assert {key: before[key] for key in found if key in before} == {k: v for k, v in found.items() if k in before}
    assert set(found) - set(before) == {"other_choices"}
    shown_before = [(row["channel"], row["noise"], row["epsilon"]) for row in before["plans"][0]["channels"]]
    assert shown_before == [(row["channel"], row["noise"], row["epsilon"]) for row in plans[0]["channels"]]
    if two_phases or RUNS[name]["privacy"].get("counts") == "public":
        assert before["plans"][0]["channels"] == plans[0]["channels"]
        assert before["plans"][0]["notes"] == plans[0]["notes"]
    assert found["epsilon_by"] == pytest.approx(privacy["epsilon_of_plan"], rel=1e-9)
    for fact in ("delta", "adjacency", "unit", "plan"):
        assert found[fact] == privacy[fact]
    scales = {channel: facts["noise_scale"] for channel, facts in found["channels"].items()}
    assert scales == pytest.approx(noise_of(privacy), rel=1e-9)
    # the plan that is printed before the first release has the same figures, channel by channel and together
    alone = {row["channel"]: row["epsilon"] for row in plans[0]["channels"] if row["noise"] != "none: public"}
    if found["method"] == "pld" and not two_phases:
        assert alone == pytest.approx({c: facts["epsilon_alone"] for c, facts in found["channels"].items()}, rel=1e-9)
    claim = privacy["epsilon_of_plan"]
    assert f"Together ε = {shown(claim['pld'])} by PLD, {shown(claim['rdp'])} by RDP" in " ".join(plans[0]["notes"])
    audited = json.loads(CliRunner().invoke(app, audit_of(tmp_path)).stdout)
    require_one_figure(privacy, audited)
    # what was released is never more than what was planned
    for method in ("rdp", "pld"):
        assert privacy["epsilon"][method] <= claim[method] * (1 + 1e-9)


def audit_of(folder: Path) -> list[str]:
    statement = str(folder / "run" / "privacy.json")
    return ["audit", "--json", "--ledger", f"sqlite:///{folder}/ledger.sqlite", "--head", statement]


def require_one_figure(privacy: dict[str, Any], audited: dict[str, Any]) -> None:
    """The line of the run has the statement's ε; where that is of the plan, its rows cost no more."""
    (data,), (statement,) = audited["datasets"].values(), audited["statements"]
    line = data["by_run"][privacy["ledger"]["run"]]["epsilon"]
    assert statement["epsilon_of_rows"] == line
    assert (statement["epsilon"], statement["delta"]) == (privacy["epsilon"], privacy["delta"])
    assert statement["epsilon_of"] == privacy["epsilon_of"]
    assert statement["holds"]
    assert audited["fine"]
    if privacy["epsilon_of"] == "releases":
        assert line == pytest.approx(privacy["epsilon"], rel=1e-9)
        assert "the rows of the run give the same" in statement["verdict"]
    else:
        assert all(line[method] <= privacy["epsilon"][method] * (1 + 1e-9) for method in ("rdp", "pld"))
        assert "the bound of its plan" in statement["verdict"]


@pytest.mark.parametrize(
    "choice",
    [
        (),
        ("--retries", "0"),
        ("--retries", "2", "--evaluation", "laplace", "--predictions", "laplace", "--method", "rdp"),
        ("--tracker", "embedding", "--counts", "gaussian", "--evaluation", "gaussian"),
        ("--predictions", "unused", "--fixed", "updates", "--fixed", "counts", "--updates-noise", "0.8"),
        ("--updates", "client_level", "--counts", "public", "--predictions", "unused", "--features", "1"),
        ("--notion", "equal_opportunity"),
    ],
)
def test_what_options_give_is_a_configuration_of_train(tmp_path: Path, choice: tuple[str, ...]) -> None:
    plan = ("--rounds", "2", "--local-steps", "2", "--sampling-rate", "0.2", "--samples-rate", "0.25", "--clients", "3")
    found = calibrated("--epsilon", "5", *plan, *choice)
    tables = found["configuration"]
    if "equal_opportunity" in choice:
        tables.setdefault("fairness", {})["notion"] = "equal_opportunity"
    data = {"name": "synthetic", "clients": 3, "dimensions": 1, "records": 200, "test_fraction": 0.0}
    tables["aggregation"] = {**tables.get("aggregation", {}), "scheme": "plain"}
    ledger = {"ledger": f"sqlite:///{tmp_path}/ledger.sqlite"}
    privacy = privfair.train(data=data, **tables, run=ledger).privacy
    assert found["epsilon_by"] == pytest.approx(privacy["epsilon_of_plan"], rel=1e-9)
    assert {c: facts["noise_scale"] for c, facts in found["channels"].items()} == pytest.approx(noise_of(privacy))


@pytest.mark.parametrize("name", ["two attributes", "public counts", "embedding", "two phases"])
def test_one_figure_at_the_runs_own_delta_also_after_a_resume(tmp_path: Path, name: str) -> None:
    run = {**RUNS[name], "privacy": {**RUNS[name]["privacy"], "delta": 3e-6}}
    config = configured(tmp_path, run)

    class Stopped(Exception):
        """In the middle of a run."""

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            raise Stopped

    with pytest.raises(Stopped):
        privfair.train(config, out=tmp_path / "run", report=stop)
    privacy = privfair.train(resume=tmp_path / "run").privacy
    audited = json.loads(CliRunner().invoke(app, audit_of(tmp_path)).stdout)
    (data,) = audited["datasets"].values()
    assert data["delta"] == 1e-5  # there is no budget, whose δ it would be
    assert data["by_run"][privacy["ledger"]["run"]]["delta"] == 3e-6
    require_one_figure(privacy, audited)
    everything = CliRunner().invoke(app, [*audit_of(tmp_path)[:4], "--delta", "3e-6"])  # of the only run there is
    assert json.loads(everything.stdout)["datasets"]["people"]["epsilon"] == audited["statements"][0]["epsilon_of_rows"]


def test_a_statement_that_says_less_than_its_rows_is_found(tmp_path: Path) -> None:
    config = configured(tmp_path, RUNS["no fairness"])
    privacy = privfair.train(config, out=tmp_path / "run").privacy
    said = {**privacy, "epsilon": {"rdp": privacy["epsilon"]["rdp"] / 2, "pld": privacy["epsilon"]["pld"] / 2}}
    (tmp_path / "run" / "privacy.json").write_text(json.dumps(said))
    result = CliRunner().invoke(app, audit_of(tmp_path))
    assert result.exit_code == 1
    (statement,) = json.loads(result.stdout)["statements"]
    assert not statement["holds"]
    assert "MORE THAN IT SAYS" in statement["verdict"]
    assert "MORE THAN IT SAYS" in " ".join(
        CliRunner().invoke(app, [a for a in audit_of(tmp_path) if a != "--json"]).stdout.split()
    )


def test_a_run_with_clients_that_stayed_away_quotes_its_plan(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    private = {"privacy": {**PRIVATE, "epsilon": 60.0}, "run": {"ledger": url}, "aggregation": {"scheme": "plain"}}
    outcome = trained(absent_config(**private), second_in_round_one)
    privacy = summarise(outcome, None)["privacy"]
    outcome.simulation.close()
    assert privacy["epsilon_of"] == "plan"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "privacy.json").write_text(json.dumps(privacy))
    require_one_figure(privacy, json.loads(CliRunner().invoke(app, audit_of(tmp_path)).stdout))


def test_a_plan_of_two_phases_is_for_counts_and_says_which(tmp_path: Path) -> None:
    config = str(configured(tmp_path, RUNS["two phases"]))
    assumed = calibrated(config)
    assert "900 and 90,000 training records are ASSUMED" in assumed["notes"][0]
    even = calibrated(config, "--records", "300")
    skewed = calibrated(config, "--records", "180,90,30", "--groups", "90,10")
    assert even["epsilon_by"] == skewed["epsilon_by"] == {"rdp": even["epsilon_by"]["rdp"], "pld": 6.0}
    # a small group is sampled at a higher rate, and needs more noise for the same ε
    assert skewed["channels"]["predictions"]["rate"] > even["channels"]["predictions"]["rate"]
    assert skewed["channels"]["predictions"]["noise_scale"] > even["channels"]["predictions"]["noise_scale"]
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilon", "2"), "--epsilon must be left out beside a configuration; found 2.0. Set its key there"),
        (("--records", "12,x"), "--records must be numbers with commas between them"),
        (("--records", "1.5"), "--records must be whole numbers of at least 1"),
        (("--records", "10,10"), "--records must be one number, or one for each of 3 clients"),
        (("--records", "90", "--groups", "1,2,3"), "--groups must be 2 proportions above 0, one for each group"),
        (("--records", "90", "--groups", "1,1", "--groups", "1,1"), "--groups must be given once for each of 1"),
        (("--groups", "1,1"), "--groups goes with --records"),
        (("--records", "90", "--counts-of", "x"), "--records must be left out beside --counts-of"),
    ],
)
def test_bad_input_beside_a_file(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    config = str(configured(tmp_path, RUNS["two phases"]))
    assert message in str(CliRunner().invoke(app, ["calibrate", config, *arguments]).exception)


def test_a_run_without_privacy_has_no_plan_and_no_counts(tmp_path: Path) -> None:
    config = configured(tmp_path, {"privacy": {}})
    assert "privacy.epsilon must be given to plan" in str(CliRunner().invoke(app, ["calibrate", str(config)]).exception)
    privfair.train(config, out=tmp_path / "open")
    private = str(configured(tmp_path, RUNS["two phases"]))
    result = CliRunner().invoke(app, ["calibrate", private, "--counts-of", str(tmp_path / "open")])
    assert "--counts-of must be a private run: others have exact counts" in str(result.exception)


def test_set_goes_with_a_file() -> None:
    assert "--set goes with the file" in str(
        CliRunner().invoke(app, ["calibrate", "--set", "privacy.epsilon=1"]).exception
    )
