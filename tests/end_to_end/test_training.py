"""Whole runs: the paper's point, every notion, odd data, files, resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Records
from privfair.fairness.notions import ConditioningSet, Notion
from tests.end_to_end.federations import toy

FAST = {"rounds": 4, "local_epochs": 2, "batch_size": 30}


def test_local_fairness_fails_where_tracking_does_not() -> None:
    """The paper's synthetic experiment in small: at λ = 1 local fairness ruins the model, tracking does not."""
    federation = {"rounds": 30, "local_epochs": 5, "learning_rate": 0.05}
    data = {"name": "synthetic", "clients": 6, "records": 120}
    accuracy, parity = {}, {}
    for method in ("mmd_fedavg", "local_fairness", "centralized"):
        result = privfair.train(data=data, fairness={"lambda": 1.0}, federation={**federation, "method": method})
        accuracy[method], parity[method] = result.accuracy, result.unfairness["statistical_parity"]
    assert accuracy["mmd_fedavg"] >= 0.97
    assert accuracy["centralized"] >= 0.97
    assert accuracy["local_fairness"] <= 0.85


def test_the_centralized_reference_takes_as_many_steps_as_the_federation() -> None:
    """Without fairness it has the gradient of all records, so in as many steps it fits them no worse than FedAvg."""
    data, work = toy(records=300, clients=3), {"rounds": 5, "local_epochs": 2, "batch_size": 20}
    losses = {
        method: privfair.train(dataset=data, fairness={"lambda": 0.0}, federation={**work, "method": method}).metrics[
            "objective"
        ]["train_loss"]
        for method in ("fedavg", "centralized")
    }
    assert losses["centralized"] <= losses["fedavg"] * 1.02  # with one step an epoch it is twice as large


@pytest.mark.skipif(not os.environ.get("PRIVFAIR_DATA"), reason="PRIVFAIR_DATA is not set: no real data files")
@pytest.mark.parametrize(("dataset", "options"), [("compas", {}), ("communities", {"min_communities": 5})])
def test_the_centralized_reference_is_on_a_par_with_fedavg_on_real_data(dataset: str, options: dict[str, int]) -> None:
    shared: dict[str, Any] = {"data": {"name": dataset, **options}, "model": {"name": "mlp", "hidden": [16]}}
    work = {"rounds": 20, "local_epochs": 3, "learning_rate": 0.1}
    found = [
        privfair.train(
            shared, fairness={"lambda": 0.0}, federation={**work, "method": method},
            run={"seed": 300, "evaluate_every": 20},
        )
        for method in ("fedavg", "centralized")
    ]  # fmt: skip
    federated, pooled = (result.metrics["objective"]["train_loss"] for result in found)
    assert pooled <= federated + 0.01
    n = sum(client["test"] for client in found[0].metrics["data"]["clients"].values())
    (first, second) = (result.accuracy for result in found)
    assert first is not None
    assert second is not None
    assert second >= first - 3 * (2 * first * (1 - first) / n) ** 0.5  # independent errors would differ so in 0.13%


@pytest.mark.parametrize(
    "notion",
    [
        "statistical_parity", "equal_opportunity", "equalized_odds", "risk_parity", "conditional_statistical_parity",
        "predictive_equality",
    ],
)  # fmt: skip
def test_every_notion_trains_and_lowers_its_penalty(notion: str) -> None:
    data = toy(groups=3, records=120)
    federation = {"rounds": 15, "local_epochs": 2, "batch_size": 50}
    ends = [
        privfair.train(dataset=data, fairness={"notion": notion, "lambda": strength}, federation=federation)
        for strength in (0.0, 2.0)
    ]
    free, penalised = (r.metrics["objective"]["train_mmd2"] for r in ends)
    assert penalised < free


def test_a_notion_of_ones_own() -> None:
    own = Notion("where b is large", "prediction", (ConditioningSet("b above 0", lambda r: r.features[:, 1] > 0),))
    data = toy(records=120)
    ends = [
        privfair.train(dataset=data, notion=own, fairness={"lambda": strength}, federation={**FAST, "rounds": 15})
        for strength in (0.0, 2.0)
    ]
    free, penalised = (r.metrics["objective"]["train_mmd2"] for r in ends)
    assert penalised < free


@pytest.mark.parametrize(
    "method", ["mmd_fedavg", "fedavg", "local_fairness", "centralized", "agnostic", "fairfed", "fedfb"]
)
def test_every_method_learns(method: str) -> None:
    result = privfair.train(
        data={"clients": 4, "records": 100}, fairness={"lambda": 0.01},
        federation={"method": method, "rounds": 15, "local_epochs": 5},
    )  # fmt: skip
    assert result.accuracy is not None
    assert result.accuracy > 0.9


def test_regression_and_two_attributes() -> None:
    result = privfair.train(dataset=toy(task="regression", attributes=2), federation=FAST)
    assert result.accuracy is None
    assert result.metrics["rmse"] < 3
    assert set(result.metrics["groups"]) == {"s0", "s1"}
    assert result.metrics["by_attribute"]["s1"]["unfairness"]["statistical_parity"] is not None
    assert np.all(result.model.predict(np.full((2, 4), 100.0)) <= 3.0)  # clipped to the stated range


def test_odd_federations() -> None:
    """One client, one record, constant labels, a missing group, a client without records: training goes through."""
    base = toy(2, 20)
    first, second = base.clients
    nothing = first.train.take([])
    one_group = Records(
        second.train.features, np.zeros(len(second.train)), np.zeros_like(second.train.groups), second.train.conditions
    )
    for clients in (
        (first,),
        (ClientData("tiny", first.train.take([0]), nothing), second),
        (first, ClientData("one group, one label", one_group, nothing)),
        (first, ClientData("empty", nothing, nothing)),
    ):
        for optimizer in ("fedavg", "scaffold"):
            result = privfair.train(
                dataset=Federation("odd", base.schema, clients), federation={**FAST, "optimizer": optimizer}
            )
            assert np.isfinite(result.metrics["objective"]["train_objective"])


def test_a_thousand_clients() -> None:
    result = privfair.train(
        data={"clients": 1000, "records": 8},
        federation={"rounds": 1, "clients_per_round": 50},
        fairness={"samples": 50},
    )
    assert result.metrics["rounds"] == 1


def test_same_seed_same_model_other_seed_another() -> None:
    def weights(seed: int) -> np.ndarray:
        result = privfair.train(data={"clients": 3, "records": 40}, federation=FAST, run={"seed": seed})
        return next(iter(result.model.module.parameters())).detach().numpy()

    np.testing.assert_array_equal(weights(1), weights(1))
    assert not np.array_equal(weights(1), weights(2))


def test_global_random_state_is_left_alone() -> None:
    import torch

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    np.random.seed(0)  # noqa: NPY002 - the global state is what is tested
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    privfair.train(data={"clients": 2, "records": 20}, federation={"rounds": 1})
    assert torch.equal(torch.rand(1), expected)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_run_directory_and_loading(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = privfair.train(data={"clients": 3, "records": 60}, federation=FAST, out=out)
    assert {p.name for p in out.iterdir() if not p.name.startswith(".")} == {
        "config.toml", "run.json", "checkpoint.npz", "history.jsonl", "history.csv", "model.safetensors",
        "privacy.json", "metrics.json",
    }  # fmt: skip
    assert json.loads((out / "metrics.json").read_text())["accuracy"] == result.accuracy
    assert len(result.history) == 5
    again = privfair.train(out / "config.toml")
    assert again.metrics["objective"] == result.metrics["objective"]
    x = np.random.default_rng(0).normal(size=(20, 10))
    np.testing.assert_allclose(privfair.load(out).scores(x), result.model.scores(x), atol=1e-7)
    assert set(np.unique(privfair.load(out).predict(x))) <= {0, 1}
    with pytest.raises(InputError, match="X must have 10 columns"):
        privfair.load(out).predict(x[:, :3])
    with pytest.raises(InputError, match="new or empty folder"):
        privfair.train(data={"clients": 3}, federation=FAST, out=out)


def interrupt(out: Path, arguments: list[str], seed: int) -> bool:
    """Start a run and kill it after a while; whether it was killed before it ended."""
    process = subprocess.Popen(
        [Path(sys.executable).parent / "privfair", "train", *arguments, "--out", str(out), "--json"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (out / "checkpoint.npz").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(float(np.random.default_rng(seed).uniform(0, 0.6)))
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("optimizer", ["fedavg", "scaffold"])
def test_resume_after_sigkill_is_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    settings = [
        "data.clients=4", "data.records=100", "federation.rounds=150", "federation.local_epochs=5",
        "federation.batch_size=20", f"federation.optimizer={optimizer}", "federation.clients_per_round=3",
    ]  # fmt: skip
    arguments = [part for s in settings for part in ("--set", s)]
    whole = privfair.train(Config.build({}, settings), out=tmp_path / "whole")
    assert interrupt(tmp_path / "cut", arguments, seed=len(optimizer)), "the run ended before it could be interrupted"
    resumed = privfair.train(resume=tmp_path / "cut")
    for name in ("model.safetensors", "history.csv"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed.metrics["bytes"] == whole.metrics["bytes"]


def test_diverged_training_says_so(tmp_path: Path) -> None:
    wild = {**FAST, "learning_rate": 1e6, "local_epochs": 20}
    with pytest.raises(InputError, match=r"update of client 'client\d+' must be finite.*smaller learning rate"):
        privfair.train(dataset=toy(task="regression"), federation=wild, out=tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").exists()  # what was written stays


def test_custom_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "from torch import nn",
        "def deep(n):",
        "    return nn.Sequential(nn.Linear(n, 3), nn.Tanh(), nn.Linear(3, 1))",
    ]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    result = privfair.train(data={"clients": 2, "records": 40}, model={"name": "mine:deep"}, federation=FAST)
    assert result.metrics["model"]["parameters"] == 10 * 3 + 3 + 3 + 1


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"fairness": {"lamda": 1}}, "fairness.lamda is not a key that is known here.*Did you mean 'lambda'"),
        ({"fairnes": {}}, "fairnes is not a key.*Did you mean 'fairness'"),
        ({"federation": {"rounds": 0}}, "federation.rounds must be greater than or equal to 1; found 0"),
        ({"federation": {"method": "fedsgd"}}, "federation.method must be 'mmd_fedavg', 'fedavg'.*found 'fedsgd'"),
        ({"fairness": {"notion": "parity"}}, "fairness.notion must be a known notion; found 'parity'"),
        ({"fairness": {"kernel": "gauss:1"}}, "kernel must be a known name.*gaussian"),
        ({"data": {"name": "compass"}}, "compas"),
        ({"data": {"clientss": 3}}, "clients"),
        ({"model": {"name": "tree"}}, "model.name must be logistic, mlp or package.module:factory; found 'tree'"),
        ({"model": {"name": "no.such:thing"}}, "model.name must name a factory that can be imported"),
        (
            {"model": {"name": "os:getcwd"}},
            "model.name must name a factory that takes the number of features .TypeError",
        ),
        (
            {"model": {"name": "mlp", "hidden": [100000000, 1000000000]}},
            r"model.hidden must be a model of at most 100,000,000 parameters; found .layers of \[100000000, 10+\]",
        ),
        ({"federation": {"learning_rate": 1e39}}, "federation.learning_rate must be less than or equal to 1000000;"),
        ({"federation": {"proximal": 1e300}}, "federation.proximal must be less than or equal to 1000000;"),
        ({"federation": {"agnostic_step": 1e300}}, "federation.agnostic_step must be less than or equal to 1000000;"),
        ({"federation": {"server_learning_rate": 1e39}}, "server_learning_rate must be less than or equal to 1000000;"),
        ({"federation": {"rounds": 10**10}}, "federation.rounds must be less than or equal to 100000; found 100000000"),
        ({"federation": {"local_epochs": 10**10}}, "federation.local_epochs must be less than or equal to 10000;"),
        ({"federation": {"batch_size": 10**30}}, "federation.batch_size must be less than or equal to 1000000000000;"),
        ({"privacy": {"local_steps": 10**10}}, "privacy.local_steps must be less than or equal to 10000; found 1000"),
        ({"data": {"records": 10**11}}, "records must be at most 100,000,000; found 100000000000"),
        ({"data": {"clients": 10**11}}, "clients must be at most 100,000; found 100000000000"),
        ({"data": {"clients": 10**5, "records": 10**5}}, "synthetic data must have at most 100,000,000 numbers"),
        ({"model": {"hidden": [0]}}, "model.hidden is wrong: widths of hidden layers must be 1 or more"),
        ({"fairness": {"notion": "conditional_statistical_parity"}}, "needs conditioning sets"),
        ({"fairness": {"notion": "risk_parity"}, "federation": {"method": "fedfb"}}, "must be one of .* for fedfb"),
    ],
)
def test_bad_configurations_say_what_is_wrong(
    sections: dict[str, dict[str, object]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        privfair.train(sections, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_command_line(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "privfair", "train"]
    config = tmp_path / "config.toml"
    config.write_text("[data]\nclients = 3\nrecords = 60\n[federation]\nrounds = 3\n[fairness]\nlambda = 0.5\n")
    run = subprocess.run(
        [*command, str(config), "--out", "there"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "mmd_fedavg" in run.stdout
    assert "unfairness: statistical_parity" in run.stdout
    assert "λ = 0.5" in run.stdout
    reported = subprocess.run(
        [*command, "--resume", "there", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    metrics = json.loads(reported.stdout)
    assert {"accuracy", "unfairness", "privacy", "bytes", "seconds", "out"} <= set(metrics)
    assert metrics["unfairness"]["mmd2"] >= 0
    wrong = subprocess.run(
        [*command, "--set", "fairness.lamda=1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "Did you mean 'lambda'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(not os.environ.get("PRIVFAIR_DATA"), reason="PRIVFAIR_DATA does not point to the real datasets")
@pytest.mark.parametrize("name", ["compas", "communities", "adult", "drug"])
def test_real_data_train(name: str) -> None:
    result = privfair.train(data={"name": name}, model={"name": "mlp"}, federation={"rounds": 3, "learning_rate": 0.1})
    objective = result.history["train_objective"]
    assert objective.iloc[-1] < objective.iloc[0]
