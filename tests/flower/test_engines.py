"""`run.engine`: the same run folder and the same model, whoever carries the run out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.errors import InputError
from privfair.runs.folder import RunDirectory
from tests.end_to_end.federations import toy
from tests.flower.federations import DATA, PLAN, merged

QUANTISED = {"aggregation": {"scheme": "plain", "quantise": True}}
ENCRYPTED = {"aggregation": {"scheme": "bfv"}}


def tree(engine: str, *sections: dict[str, Any]) -> dict[str, Any]:
    made = merged(PLAN, {"data": DATA}, *sections, {"run": {"engine": engine}, "federation": {"rounds": 2}})
    del made["run"]["clients"]  # a trial names its data holders itself
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "scheme"), [("flower-simulation", QUANTISED), ("flower", ENCRYPTED)])
def test_the_same_model_and_history(tmp_path: Path, engine: str, scheme: dict[str, Any]) -> None:
    lines: list[Any] = []
    local = privfair.train(tree("local", QUANTISED), out=tmp_path / "local")
    found = privfair.train(tree(engine, scheme), out=tmp_path / "flower", report=lines.append)
    for name, values in RunDirectory(tmp_path / "local").read_model().items():
        np.testing.assert_array_equal(RunDirectory(tmp_path / "flower").read_model()[name].numpy(), values.numpy())
    assert found.rows == local.rows
    assert lines == list(found.rows[1:])
    assert found.metrics["absent"] == []
    assert found.metrics["engine"] == engine
    assert privfair.load(tmp_path / "flower").predict([[0.0] * 10]) == privfair.load(tmp_path / "local").predict(
        [[0.0] * 10]
    )
    (tmp_path / "flower" / "metrics.json").unlink()  # as if it had been stopped just before the end
    again = privfair.train(resume=tmp_path / "flower")
    assert again.metrics["accuracy"] == found.metrics["accuracy"]
    assert again.rows == found.rows


@pytest.mark.slow
def test_a_private_simulation_is_stated_as_any_other(tmp_path: Path) -> None:
    ledger = {"run": {"ledger": f"sqlite:///{tmp_path}/ledger.sqlite", "wait": 400.0}}  # the actors load slowly
    privacy = {"epsilon": 8.0, "sampling_rate": 0.5, "prediction_rate": 0.5, "min_count": 1, "delta": 1e-3}
    alone = {"privacy": privacy, "aggregation": {"masks": False}}  # rosters of masks are rows, too
    found = privfair.train(tree("flower-simulation", alone, ledger), out=tmp_path / "run")
    stated = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert stated["private"]
    assert 0 < stated["epsilon"]["pld"] <= 8.0
    assert set(stated["by_client"]) == set(found.metrics["data"]["clients"])
    assert set(stated["by_channel"]) == {"counts", "predictions", "updates", "evaluation"}
    assert stated["ledger"]["rows"] == 3 * (
        1 + 2 * 3 + 1
    )  # counts, two rounds of 2 groups' scores and 1 update, a test


@pytest.mark.slow
def test_whole_updates_with_noise_give_the_same_model(tmp_path: Path) -> None:
    """Their sums are in steps of a grid: who opens them must know the step."""
    level = {"updates": "client_level", "counts": "public", "noise_multiplier": 2.0}
    sections = ({"privacy": level}, {"federation": {"method": "fedavg"}}, {"aggregation": {"scheme": "plain"}})
    models = []
    for engine in ("local", "flower-simulation"):
        run = {"run": {"reproducible_noise": True, "ledger": f"sqlite:///{tmp_path}/{engine}.sqlite"}}
        privfair.train(tree(engine, *sections, run), out=tmp_path / engine)
        models.append(RunDirectory(tmp_path / engine).read_model())
    for name, values in models[0].items():
        np.testing.assert_array_equal(models[1][name].numpy(), values.numpy())


def test_data_of_ones_own_making_does_not_travel(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.engine must be local or stacked for data or a notion of your own"):
        privfair.train(tree("flower"), dataset=toy(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_method_without_data_holders_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"federation\.method must have data holders to run on Flower"):
        privfair.train(tree("flower", {"federation": {"method": "centralized"}}))
