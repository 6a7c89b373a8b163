"""The same run in one process and over Flower messages gives the same model, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from privfair.config import Config
from privfair.runs.assembly import build
from privfair.runs.loop import RunOutcome, run
from tests.flower.federations import DATA, PRIVATE, deployment, merged


def in_process(tmp_path: Path, tree: dict[str, Any]) -> RunOutcome:
    ledger = {"run": {"ledger": f"sqlite:///{tmp_path}/local.sqlite"}}
    return run(build(Config.build(merged(tree, {"data": DATA}, ledger))))


QUANTISED = {"aggregation": {"scheme": "plain", "quantise": True}}
ENCRYPTED = {"aggregation": {"scheme": "bfv"}}
LATE: dict[str, Any] = {"fairness": {"tracker": "embedding"}, "federation": {"lagged_scores": True}}
TARGET: dict[str, Any] = {"fairness": {"target": 0.05, "lambda": None, "tracker": "embedding"}}
SUMS = {k: v for k, v in PRIVATE.items() if k != "prediction_rate"} | {"prediction_noise": 5.0}


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"federation": {"lagged_scores": True}},
        {"fairness": {"tracker": "embedding"}},
        {"federation": {"optimizer": "scaffold", "clients_per_round": 2}},
        pytest.param({"federation": {"optimizer": "fedadam", "average_last": 0.5}}, marks=pytest.mark.slow),
        pytest.param({"federation": {"method": "agnostic"}}, marks=pytest.mark.slow),
        pytest.param({"federation": {"method": "fairfed"}}, marks=pytest.mark.slow),
        pytest.param({"federation": {"method": "fedfb"}}, marks=pytest.mark.slow),
        {"privacy": PRIVATE, "run": {"reproducible_noise": True}},
        {"fairness": {"tracker": "embedding"}, "privacy": SUMS, "run": {"reproducible_noise": True}},
        {**LATE, "privacy": SUMS, "run": {"reproducible_noise": True}},
        pytest.param({**LATE, "federation": {"lagged_scores": True, "clients_per_round": 2}}, marks=pytest.mark.slow),
        {**TARGET, "federation": {"rounds": 5, "clients_per_round": 1}},
        pytest.param({**TARGET, "privacy": SUMS, "run": {"reproducible_noise": True}}, marks=pytest.mark.slow),
        {**TARGET, "federation": {"lagged_scores": True, "clients_per_round": 1, "rounds": 5}},
    ],
    ids=[
        *("plain", "lagged", "features", "scaffold", "fedadam", "agnostic", "fairfed", "fedfb", "noise", "noisy sums"),
        *("lagged noisy sums", "lagged features of all, updates of some"),
        *("target, updates of some", "target, noisy sums", "target, lagged, updates of some"),
    ],
)
def test_flower_is_the_same_run(tmp_path: Path, sections: dict[str, Any]) -> None:
    found = deployment(tmp_path, QUANTISED, sections)
    checkpoint = found.serve()
    local = in_process(tmp_path, found.tree)
    assert checkpoint.absent == ()
    for name, values in local.simulation.replica.state().items():
        np.testing.assert_array_equal(checkpoint.replica[name], values, err_msg=name)
    written = load_file(found.out / "model.safetensors")
    for k in range(3):
        for name, values in load_file(found.holder(k) / "model.safetensors").items():
            np.testing.assert_array_equal(values, written[name])
    assert checkpoint.bytes_up >= local.simulation.backend.bytes_up  # with the frames of the messages


@pytest.mark.parametrize("tracker", ["samples", "embedding"])
def test_encrypted_is_the_same_run_and_the_server_has_no_model(tmp_path: Path, tracker: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = deployment(tmp_path / "a", QUANTISED, {"fairness": {"tracker": tracker}}).serve()
    encrypted = deployment(tmp_path / "b", ENCRYPTED, {"fairness": {"tracker": tracker}})
    checkpoint = encrypted.serve()
    assert set(checkpoint.replica) == {"sums"}
    assert not (encrypted.out / "model.safetensors").exists()
    models = [load_file(encrypted.holder(k) / "model.safetensors") for k in range(3)]
    flat = np.concatenate([models[0][name].ravel() for name in models[0]])
    assert sorted(flat) == sorted(plain.replica["parameters"])
    for other in models[1:]:
        for name, values in other.items():
            np.testing.assert_array_equal(values, models[0][name])


def test_released_figures_reach_the_server(tmp_path: Path) -> None:
    privacy = {**PRIVATE, "evaluation": "laplace", "evaluation_noise": 0.1}
    found = deployment(tmp_path, ENCRYPTED, {"privacy": privacy, "run": {"reproducible_noise": True}})
    checkpoint = found.serve()
    local = in_process(tmp_path, found.tree)
    assert checkpoint.released is not None
    assert local.released is not None
    for one, other in zip(checkpoint.released, local.released, strict=True):
        for mine, theirs in zip(one.confusion, other.confusion, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    metrics = json.loads((found.out / "metrics.json").read_text())
    assert 0 <= metrics["released"]["accuracy"] <= 1
