"""Models that are of no use are named: in the terminal, in metrics.json, on pages, in sweeps. Others are not."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import privfair
from privfair.cli.report import write_report
from privfair.fairness.metrics import FAR, output_bounds, parameter_warnings, released_warnings, row_warnings
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import SeededEntropy
from privfair.sweeps.frontiers import points_of, warnings_of
from tests.end_to_end.federations import toy

COMMAND = Path(sys.executable).parent / "privfair"
SAME = "gives everybody the same answer"


def biased(n: int) -> nn.Module:
    """A model that says 1 to everybody, and that no training of a few small steps changes."""
    module = nn.Linear(n, 1)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.fill_(5.0)
    return module


def extreme(n: int) -> nn.Module:
    """The same, so sure of it that its loss is as large as that of a model that diverged."""
    module = biased(n)
    with torch.no_grad():
        module.bias.mul_(10)
    return module


STUCK: dict[str, Any] = {
    "model": {"name": "tests.fairness.test_degenerate:biased"},
    "fairness": {"lambda": 0.0},
    "federation": {"rounds": 1, "local_epochs": 1, "learning_rate": 1e-6},
}


def test_a_constant_answer_is_named_in_the_metrics_and_on_the_page(tmp_path: Path) -> None:
    result = privfair.train(STUCK, dataset=toy(), out=tmp_path / "run")
    (warning,) = result.metrics["warnings"]
    assert f"The model {SAME}: 1 to all " in warning
    assert result.unfairness["statistical_parity"] == 0.0  # which is why it must be said
    page = tmp_path / "page.html"
    write_report(tmp_path / "run", "run", page, include_private=False)
    assert "No verdict on fairness" in page.read_text()
    assert f"The model {SAME}: 1 to all " in page.read_text()
    write_report(tmp_path / "run", "run", page, include_private=True)
    assert f"The model {SAME}: 1 to all " in page.read_text()


def test_a_constant_answer_never_meets_a_target(tmp_path: Path) -> None:
    fairness = {k: v for k, v in STUCK.get("fairness", {}).items() if k != "lambda"} | {"target": 0.5}
    verdict = privfair.train({**STUCK, "fairness": fairness}, dataset=toy(), out=tmp_path / "run").verdict
    assert verdict.answer == "cannot tell"
    assert verdict["sentence"].startswith(f"No verdict on fairness: The model {SAME}")


def test_a_diverged_model_is_named(tmp_path: Path) -> None:
    wild = {"rounds": 3, "local_epochs": 3, "learning_rate": 1e5}
    result = privfair.train(dataset=toy(), federation=wild, fairness={"lambda": 0.0})
    assert any(warning.startswith("Training diverged: the training loss is ") for warning in result.metrics["warnings"])


def test_the_terminal_names_it(tmp_path: Path) -> None:
    sets = ["data.clients=2", "data.records=40", "federation.rounds=2", "federation.learning_rate=1e6"]
    done = subprocess.run(
        [COMMAND, "train", *(part for one in sets for part in ("--set", one)), "--out", "run"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert "warning: Training diverged" in done.stdout


@pytest.mark.parametrize("method", ["mmd_fedavg", "fedavg", "local_fairness", "centralized"])
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_ordinary_runs_are_not_named(method: str, task: str) -> None:
    data = toy(records=150, task=task, **({"label_range": (0.0, 1.0)} if task == "regression" else {}))  # type: ignore[arg-type]
    work = {"rounds": 10, "local_epochs": 3, "method": method}
    assert privfair.train(dataset=data, federation=work, fairness={"lambda": 0.5}).metrics["warnings"] == []


def test_a_private_run_is_judged_by_what_it_released(tmp_path: Path) -> None:
    """Its warning has no exact number in it; a model that decides is not named in spite of noise."""
    private = {
        "privacy": {"epsilon": 8.0, "evaluation": "laplace"},
        "run": {"ledger": f"sqlite:///{tmp_path}/ledger.sqlite"},
        "data": {"clients": 3, "records": 200},
    }
    stuck = privfair.train({**STUCK, **private})
    (warning,) = stuck.metrics["warnings"]
    assert warning == f"The model {SAME}: whatever the features are (within ±10, prepared), it says 1."
    work = {"rounds": 5, "local_epochs": 1}
    assert privfair.train(private, federation=work).metrics["warnings"] == []


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 6), min_size=0, max_size=2), st.floats(0.01, 30))
def test_bounds_of_outputs_hold_for_every_input(seed: int, hidden: list[int], scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = [4, *hidden, 1]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    module = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    bounds = output_bounds(module)
    assert bounds is not None
    x = FAR * (2 * torch.rand((500, 4), generator=generator) - 1)
    corners = FAR * (2.0 * torch.randint(0, 2, (500, 4), generator=generator) - 1)
    outputs = module.double()(torch.cat([x, corners]).double()).detach()
    slack = 1e-9 * (1 + max(abs(bounds[0]), abs(bounds[1])))
    assert bounds[0] - slack <= outputs.min()
    assert outputs.max() <= bounds[1] + slack


def test_layers_without_bounds_are_not_judged_by_them() -> None:
    assert output_bounds(nn.Sequential(nn.Linear(2, 1), nn.Tanh())) is None
    assert parameter_warnings(nn.Sequential(nn.Linear(2, 1), nn.Tanh())) == []


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_released_counts_tell_a_constant_answer_and_nothing_else(kind: str) -> None:
    """200 draws each. A model that says 1 to every twentieth is never named: that is far beyond what noise can hide."""
    noise, entropy = CountNoise(kind, 3.0), SeededEntropy(np.random.default_rng(7))  # type: ignore[arg-type]
    named = {0.0: 0, 0.05: 0}
    for share in named:
        for _ in range(200):
            yes = np.full((2, 2), int(share * 2_000))
            table = np.stack([2_000 - yes, yes], axis=-1)
            replies = [(noise.release(table, entropy),) for _ in range(4)]
            named[share] += bool(released_warnings(replies, noise))
    assert named[0.05] == 0
    assert named[0.0] >= 190


def test_few_records_show_nothing_through_noise() -> None:
    table = np.array([[[10, 0], [10, 0]], [[10, 0], [10, 0]]])
    assert released_warnings([(table,)], CountNoise("laplace", 3.0)) == []


def row(**figures: float | None) -> dict[str, Any]:
    usual = {
        "status": "done", "series": "fedavg", "method": "fedavg", "value": 1.0, "seed": 0, "epsilon_target": math.inf,
        "accuracy": 0.7, "rmse": None, "unfairness": 0.1, "unfairness_statistical_parity": 0.1,
        "unfairness_equal_opportunity": 0.1, "unfairness_predictive_equality": 0.1, "baseline_accuracy": 0.6,
        "train_loss": 0.6,
    }  # fmt: skip
    return {**usual, **figures}


NO_GAPS = {
    "unfairness": 0.0, "unfairness_statistical_parity": 0.0, "unfairness_equal_opportunity": 0.0,
    "unfairness_predictive_equality": 0.0,
}  # fmt: skip


def test_rows_of_a_sweep_are_named_in_its_tables() -> None:
    assert row_warnings(row()) == {"same_answer": False, "diverged": False}
    assert not row_warnings(row(**NO_GAPS))["same_answer"]  # fair, and right more often than a constant answer
    rows = [row(), row(seed=1, **NO_GAPS, accuracy=0.4), row(seed=2, train_loss=133_504.0)]
    assert warnings_of(points_of(rows)) == [
        "fedavg at 1: 1 of 3 runs give everybody the same answer", "fedavg at 1: 1 of 3 runs diverged",
    ]  # fmt: skip


def test_a_sweep_names_them(tmp_path: Path) -> None:
    sets = [
        "data.clients=2", "data.records=40", "federation.rounds=1", "federation.learning_rate=1e-6",
        "model.name=tests.fairness.test_degenerate:extreme",
    ]  # fmt: skip
    arguments = ["sweep", *(part for one in sets for part in ("--set", one)), "--methods", "fedavg", "--seeds", "1"]
    command = [COMMAND, *arguments, "--out", tmp_path / "s"]
    reported = ["fedavg: 1 of 1 runs give everybody the same answer", "fedavg: 1 of 1 runs diverged"]
    root = Path(__file__).parents[2]
    found = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True, cwd=root).stdout)
    assert found["warnings"] == reported
    assert (found["points"][0]["same_answer"], found["points"][0]["diverged"]) == (1, 1)
    again = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)  # of the finished runs
    for line in reported:
        assert f"warning: {line}" in again.stdout
    sweep_page = tmp_path / "page.html"
    write_report(tmp_path / "s", "sweep", sweep_page, include_private=True)
    assert all(line in sweep_page.read_text() for line in reported)
