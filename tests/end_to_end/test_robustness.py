"""What must not depend on chance, scale or circumstance: units, random modules, damaged files, odd data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import privfair
from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Records
from privfair.fairness.notions import ConditioningSet, Notion
from privfair.runs.assembly import build
from privfair.runs.loop import run
from tests.end_to_end.federations import toy

METHODS = ["mmd_fedavg", "fedavg", "local_fairness", "centralized", "agnostic", "fairfed", "fedfb"]
FAST = {"rounds": 4, "local_epochs": 2, "batch_size": 30}


def parameters(result: privfair.Result) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in result.model.module.parameters()])


def test_regression_does_not_depend_on_the_unit_of_the_label() -> None:
    """Money in dollars or in thousands: the same model, and the error in proportion."""
    small, large = (
        privfair.train(
            dataset=toy(task="regression", records=100, label_range=limits), run={"dtype": "float64"},
            federation={"rounds": 20, "local_epochs": 5, "learning_rate": 0.1},
        )
        for limits in ((0.0, 1.0), (1000.0, 51000.0))
    )  # fmt: skip
    np.testing.assert_allclose(parameters(small), parameters(large), atol=1e-4)  # labels are stored in single precision
    assert large.metrics["rmse"] == pytest.approx(50000 * small.metrics["rmse"], rel=1e-3)
    free = privfair.train(
        dataset=toy(task="regression", records=100, label_range=(1000.0, 51000.0)), fairness={"lambda": 0.0},
        federation={"rounds": 30, "local_epochs": 5, "learning_rate": 0.1},
    )  # fmt: skip
    assert free.metrics["rmse"] < 0.05 * 50000  # it does learn


@pytest.mark.parametrize("kernel", ["energy", "laplace:0.2", "gaussian:0.3"])
@pytest.mark.parametrize("drift", ["own", "shared"])
def test_one_client_with_drift_correction_is_centralized_training(kernel: str, drift: str) -> None:
    """A client that holds everything, shares everything and takes full batches follows the exact gradient of F."""
    data = toy(clients=1, records=60)
    shared = {"fairness": {"kernel": kernel, "lambda": 2.0, "samples": 10_000}, "run": {"dtype": "float64"}}
    work = {"rounds": 2, "local_epochs": 10, "learning_rate": 0.1, "batch_size": 1000}
    tracked = privfair.train(shared, dataset=data, federation={**work, "drift_correction": drift})
    exact = privfair.train(shared, dataset=data, federation={**work, "method": "centralized"})
    tolerance = 1e-8 if kernel != "gaussian:0.3" else 1e-6  # smooth kernels are tabulated
    np.testing.assert_allclose(parameters(tracked), parameters(exact), atol=tolerance)


def test_the_order_of_clients_does_not_matter_to_the_random_streams() -> None:
    """Each client draws from its own stream: training one more time elsewhere changes nothing for the others."""
    data = toy(clients=3)
    whole = privfair.train(dataset=data, federation=FAST, fairness={"lambda": 0.0})
    again = privfair.train(dataset=data, federation={**FAST, "clients_per_round": 3}, fairness={"lambda": 0.0})
    np.testing.assert_array_equal(parameters(whole), parameters(again))


def write_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "from torch import nn",
        "def dropping(n):",
        "    return nn.Sequential(nn.Linear(n, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))",
        "def normed(n):",
        "    return nn.Sequential(nn.Linear(n, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))",
        "def wide(n):",
        "    return nn.Linear(n, 2)",
        "def nothing(n):",
        "    return 'a model'",
        "def fixed(n):",
        "    return nn.Linear(3, 1)",
        "def recurrent(n):",
        "    return nn.LSTM(n, 1)",
    ]
    (folder / "user_models.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))


class Stop(Exception):
    """Raised in the middle of a run."""


def stop_after(rounds: int) -> object:
    def report(row: dict[str, object]) -> None:
        if row["round"] == rounds:
            raise Stop

    return report


def test_dropout_is_seeded_resumed_and_off_when_the_model_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_models(tmp_path, monkeypatch)
    sections = {"data": {"clients": 2, "records": 60}, "model": {"name": "user_models:dropping"}, "federation": FAST}
    whole = privfair.train(sections)
    np.testing.assert_array_equal(parameters(whole), parameters(privfair.train(sections)))
    with pytest.raises(Stop):
        privfair.train(sections, out=tmp_path / "run", report=stop_after(2))  # type: ignore[arg-type]
    resumed = privfair.train(resume=tmp_path / "run")
    np.testing.assert_array_equal(parameters(whole), parameters(resumed))
    x = np.ones((3, 10))
    np.testing.assert_array_equal(whole.model.scores(x), whole.model.scores(x))


def test_modules_that_cannot_be_averaged_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_models(tmp_path, monkeypatch)
    for name, message in (
        ("normed", "must keep nothing but parameters.*running_mean.*GroupNorm"),
        ("wide", "must give one number for each record"),
        ("nothing", "returns a torch.nn.Module; found 'str'"),
        ("fixed", "^model must take 10 features for each of 2 records; found 'RuntimeError: mat1 and mat2 shapes"),
        ("recurrent", "^model must give one number for each record; found 'tuple'"),
    ):
        with pytest.raises(InputError, match=message):
            privfair.train(data={"clients": 2, "records": 20}, model={"name": f"user_models:{name}"}, federation=FAST)


def test_resume_refuses_other_data_and_another_notion(tmp_path: Path) -> None:
    own = Notion("mine", "prediction", (ConditioningSet("b above 0", lambda r: r.features[:, 1] > 0),))
    with pytest.raises(Stop):
        privfair.train(dataset=toy(), notion=own, federation=FAST, out=tmp_path / "run", report=stop_after(2))  # type: ignore[arg-type]
    for wrong in ({}, {"dataset": toy(records=44), "notion": own}, {"dataset": toy()}):
        with pytest.raises(InputError, match="must be on the same data and notion as before"):
            privfair.train(resume=tmp_path / "run", **wrong)  # type: ignore[arg-type]
    resumed = privfair.train(resume=tmp_path / "run", dataset=toy(), notion=own)
    np.testing.assert_array_equal(
        parameters(resumed), parameters(privfair.train(dataset=toy(), notion=own, federation=FAST))
    )


def test_evaluating_less_often_changes_no_result(tmp_path: Path) -> None:
    often = privfair.train(dataset=toy(), federation=FAST)
    seldom = privfair.train(dataset=toy(), federation=FAST, run={"evaluate_every": 3})
    np.testing.assert_array_equal(parameters(often), parameters(seldom))
    assert list(seldom.history["round"]) == [0, 3, 4]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    privfair.train(dataset=toy(), federation=FAST, out=out)
    for name, action in (("checkpoint.npz", "resume"), ("model.safetensors", "load"), ("metrics.json", "load")):
        content = (out / name).read_bytes()
        for damage in (content[: len(content) // 2], b""):
            (out / name).write_bytes(damage)
            with pytest.raises(InputError, match=f"{name} must be whole and readable"):
                privfair.load(out) if action == "load" else privfair.train(resume=out, dataset=toy())
        (out / name).write_bytes(content)
    (out / "metrics.json").unlink()
    with pytest.raises(InputError, match=r"run must be finished.*--resume"):
        privfair.load(out)
    assert json.loads(json.dumps(privfair.train(resume=out, dataset=toy()).metrics["accuracy"])) is not None
    with pytest.raises(InputError, match="--out must be a folder that can be written"):
        privfair.train(dataset=toy(), federation=FAST, out="/proc/nowhere")


def single(records: Records, tests: Records, schema: object) -> Federation:
    return Federation("single", schema, (ClientData("only", records, tests),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", ["mmd_fedavg", "fedavg", "local_fairness", "centralized", "agnostic", "fairfed", "fedfb"]
)
def test_one_record_of_each_kind(method: str) -> None:
    base = toy()
    rows = base.clients[0].train
    data = single(rows.take([0]), rows.take([1]), base.schema)
    result = privfair.train(dataset=data, federation={**FAST, "method": method})
    assert result.accuracy in (0.0, 1.0)


@pytest.mark.parametrize("method", ["agnostic", "fairfed", "fedfb", "mmd_fedavg"])
def test_a_client_without_records_stays_out_of_the_way(method: str) -> None:
    base = toy(records=80)
    nothing = base.clients[0].train.take([])
    data = Federation("gap", base.schema, (*base.clients, ClientData("empty", nothing, nothing)))
    federation = {**FAST, "method": method}
    simulation = build(Config.build({"federation": federation}), data)
    outcome = run(simulation)
    assert np.isfinite(simulation.replica.parameters).all()
    weights = simulation.server.algorithm.weights(outcome.state, outcome.state.algorithm)
    if method == "agnostic":
        assert weights[-1] == 0
    assert weights.sum() == pytest.approx(1)


def test_no_training_records_at_all() -> None:
    base = toy()
    nothing = base.clients[0].train.take([])
    with pytest.raises(InputError, match="data must have training records"):
        privfair.train(dataset=single(nothing, base.clients[0].train, base.schema), federation=FAST)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"federation": {"method": "agnostic", "optimizer": "scaffold"}}, "must not be scaffold with agnostic"),
        (
            {"federation": {"optimizer": "scaffold", "local_optimizer": "adam"}},
            "local_optimizer must be sgd with scaffold",
        ),
        ({"federation": {"method": "agnostic", "clients_per_round": 2}}, "must not be set for agnostic"),
        ({"federation": {"method": "fedavg", "drift_correction": "own"}}, "is for mmd_fedavg only"),
        ({"data": {"seed": 3}}, r"data.seed is not an option of a dataset; found 3. Set run.seed\."),
        ({"data": "compas"}, "data must be a table of keys; found 'compas'"),
        ({"model": {"name": ":x"}}, "model.name must be logistic, mlp or package.module:factory"),
    ],
)
def test_combinations_that_make_no_sense(sections: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        privfair.train(sections)


def test_the_reference_group_may_be_absent() -> None:
    """The first declared value that nobody has must not switch FairFed and FedFB off."""
    base = toy(groups=3, records=90)

    def without_first(records: Records) -> Records:
        return Records(records.features, records.labels, np.maximum(records.groups, 1), records.conditions)

    clients = tuple(ClientData(c.name, without_first(c.train), without_first(c.test)) for c in base.clients)
    data = Federation("no first", base.schema, clients)
    for method in ("fairfed", "fedfb"):
        simulation = build(Config.build({"federation": {**FAST, "method": method, "fedfb_step": 1.0}}), data)
        outcome = run(simulation)
        start = simulation.server.algorithm.start(outcome.state.release_plan)["weights"]
        assert not np.allclose(outcome.state.algorithm["weights"], start)
