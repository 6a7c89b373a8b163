"""Runs with two sensitive attributes: what `unfairness` means, whose it is, and that all engines and files agree."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from privfair.datasets.records import ClientData, Federation, Records
from privfair.fairness.notions import EVERYONE, Notion
from tests.end_to_end.federations import toy
from tests.reports.folders import make_two_attributes

KNOWN = ("statistical_parity", "risk_parity", "equal_opportunity", "predictive_equality", "equalized_odds")


def second_is_further_apart(task: str = "binary") -> Federation:
    """The toy federation with its attributes in the other order: records depend on the second one only."""
    base = toy(3, 400, task=task, attributes=2)

    def turned(records: Records) -> Records:
        return replace(records, groups=np.ascontiguousarray(records.groups[:, ::-1]))

    clients = tuple(ClientData(c.name, turned(c.train), turned(c.test)) for c in base.clients)
    return Federation(base.name, base.schema, clients)


def trained(notion: str = "statistical_parity", engine: str = "local", **more: Any) -> privfair.Result:
    return privfair.train(
        dataset=second_is_further_apart(more.pop("task", "binary")), fairness={"notion": notion, "lambda": 0.0},
        federation={"rounds": 3, "learning_rate": 0.5}, run={"engine": engine}, **more,
    )  # fmt: skip


def require_one_meaning(result: privfair.Result) -> None:
    """By notion: the largest gap of all attributes, its attribute, that one's interval, the same in the history."""
    metrics, last = result.metrics, result.rows[-1]
    for name, value in result.unfairness.items():
        if name == "mmd2":
            assert name not in metrics["unfairness_of"]
            continue
        own = {of: about["unfairness"][name] for of, about in metrics["by_attribute"].items()}
        of = metrics["unfairness_of"][name]
        assert own[of] == max(own.values())
        assert value == last[name] == pytest.approx(own[of], rel=1e-12)
        spans = metrics["by_attribute"][of]["confidence_intervals"]
        assert metrics["confidence_intervals"].get(name) == spans.get(name)


@pytest.mark.parametrize("notion", ["statistical_parity", "equal_opportunity", "risk_parity"])
def test_unfairness_means_the_same_whatever_was_trained_for(notion: str) -> None:
    result = trained(notion)
    require_one_meaning(result)
    assert set(result.unfairness) == {*KNOWN, "mmd2"}
    assert result.metrics["unfairness_of"]["statistical_parity"] == "s1"
    low, high = result.metrics["confidence_intervals"]["statistical_parity"]
    assert low <= (result.unfairness["statistical_parity"] or 0.0) <= high
    # λ = 0: the notion changes nothing but MMD², so that the figures are those of any other notion
    assert {n: result.unfairness[n] for n in KNOWN} == pytest.approx({n: trained().unfairness[n] for n in KNOWN})


def test_sets_that_the_data_or_the_user_declare() -> None:
    """They have each attribute's own gap and its interval."""
    conditional = trained("conditional_statistical_parity")
    require_one_meaning(conditional)
    low, high = conditional.metrics["confidence_intervals"]["conditional_statistical_parity"]
    assert low <= conditional.unfairness["conditional_statistical_parity"] <= high
    half = replace(EVERYONE, contains=lambda records: records.features[:, 0] > 0)
    notion = Notion("parity of half", "prediction", (half,))
    own = privfair.train(dataset=second_is_further_apart(), notion=notion, federation={"rounds": 3})
    require_one_meaning(own)
    low, high = own.metrics["confidence_intervals"]["parity of half"]
    assert low <= own.unfairness["parity of half"] <= high


def test_regression() -> None:
    result = trained(task="regression")
    require_one_meaning(result)
    assert result.metrics["unfairness_of"]["statistical_parity"] == "s1"


def test_engines_agree() -> None:
    local, stacked = trained(), trained(engine="stacked")
    require_one_meaning(stacked)
    assert stacked.metrics["unfairness_of"] == local.metrics["unfairness_of"]
    for one, other in zip(local.rows, stacked.rows, strict=True):
        known = {name: value for name, value in one.items() if value is not None}
        assert {name: other[name] for name in known} == pytest.approx(known, rel=1e-3, abs=1e-6)


def test_one_attribute_is_the_attribute_of_all_figures() -> None:
    result = privfair.train(dataset=toy(3, 120), federation={"rounds": 3})
    require_one_meaning(result)
    assert result.metrics["unfairness_of"] == dict.fromkeys(KNOWN, "s0")
    assert result.metrics["confidence_intervals"] == result.metrics["by_attribute"]["s0"]["confidence_intervals"]


def test_the_columns_of_a_sweep_are_those_of_its_runs(tmp_path: Path) -> None:
    from privfair.config import Config
    from privfair.sweeps.jobs import Grid
    from privfair.sweeps.journal import NOTIONS
    from privfair.sweeps.sweep import run_sweep

    data = {"name": "csv", "path": str(make_two_attributes(tmp_path / "two.csv")), "label": "hired", "positive": "yes"}
    config = Config.build({
        "data": {**data, "sensitive": ["sex", "race"], "client": "branch"}, "run": {"engine": "local"},
        "federation": {"rounds": 2, "learning_rate": 5.0}, "fairness": {"notion": "equal_opportunity"},
    })  # fmt: skip
    jobs = Grid((0.0,), 1, ("mmd_fedavg",), (float("inf"),)).jobs(config)
    (row,) = run_sweep(jobs, tmp_path / "sweep", configuration={}, workers=1).rows
    alone = privfair.train(jobs[0].config)
    assert {name: row[f"unfairness_{name}"] for name in NOTIONS} == {name: alone.unfairness[name] for name in NOTIONS}
    assert alone.metrics["unfairness_of"]["statistical_parity"] == "race"


def test_the_terminal_names_the_attribute(tmp_path: Path) -> None:
    path = make_two_attributes(tmp_path / "two.csv")
    settings = (
        "data.name=csv", f"data.path={path}", "data.label=hired", "data.positive=yes", 'data.sensitive=["sex", "race"]',
        "data.client=branch", "fairness.lambda=0", "federation.rounds=2", "federation.learning_rate=5",
    )  # fmt: skip
    command = [str(Path(sys.executable).parent / "privfair"), "train", "--out", "there"]
    for simulation in settings:
        command += ["--set", simulation]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    parity = next(line for line in lines if "unfairness: statistical_parity" in line)
    assert parity.split()[-1] == "race"
    assert "between groups of" in run.stdout
    by_race = next(line for line in lines if line.startswith("unfairness by race: "))
    assert by_race.split()[4].rstrip(",") == parity.split()[2]
    assert any(line.startswith("unfairness by sex: ") for line in lines)
    everybody_was_hired = next(line for line in lines if line.split()[:1] == ["c"])
    assert "–" in everybody_was_hired.split()
    assert "0.000" not in everybody_was_hired
