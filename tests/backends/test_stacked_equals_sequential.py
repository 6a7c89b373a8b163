"""The stacked engine gives what the sequential one gives: every method, optimiser, kernel, notion and model."""

from __future__ import annotations

from typing import Any

import pytest

from privfair.runs.assembly import build
from privfair.runs.batched import build_stacked, run_stacked
from privfair.runs.loop import RunOutcome, run
from tests.backends.settings import config, distance, federation, history_distance

CASES: list[dict[str, Any]] = [
    *({"drift_correction": d} for d in ("none", "own", "shared")),
    *({"method": m} for m in ("fedavg", "local_fairness", "centralized", "agnostic", "fairfed", "fedfb")),
    *({"optimizer": o} for o in ("fedprox", "scaffold", "fedadam", "fedavgm")),
    *({"kernel": k} for k in ("gaussian:0.3", "laplace:0.3", "matern32:0.2")),
    *({"kernel": k, "drift_correction": "own"} for k in ("gaussian:0.3", "laplace:0.3")),
    *({"kernel": k, "method": "local_fairness"} for k in ("gaussian:0.3", "laplace:0.3")),
    *({"notion": n} for n in ("equal_opportunity", "equalized_odds", "conditional_statistical_parity")),
    {"notion": "risk_parity"},
    {"notion": "risk_parity", "kernel": "gaussian:0.3"},
    {"notion": "equalized_odds", "method": "fedfb"},
    {"notion": "equalized_odds", "method": "local_fairness"},
    *({"tracker": "embedding", "drift_correction": d} for d in ("none", "own")),
    {"tracker": "embedding", "kernel": "gaussian:0.3", "notion": "equalized_odds"},
    {"tracker": "embedding", "notion": "risk_parity", "score_range": [0.0, 1.5]},
    {"tracker": "embedding", "model": "tests.backends.modules:tanh"},
    *({"tracker": "embedding", "target": 0.05, "drift_correction": d} for d in ("none", "shared")),
    {
        "tracker": "embedding",
        "target": 0.05,
        "kernel": "gaussian:0.3",
        "notion": "equalized_odds",
        "drift_correction": "none",
    },
    {"local_optimizer": "adam"},
    {"local_optimizer": "adam", "optimizer": "fedprox"},
    {"clients_per_round": 2},
    {"clients_per_round": 2, "optimizer": "scaffold"},
    {"learning_rate_decay": 0.9, "lambda": 0.3, "seed": 3},
    {"model": "logistic"},
    {"hidden": [6, 4]},
    {"model": "tests.backends.modules:tanh"},
    {"model": "tests.backends.modules:Gated"},
    {"model": "tests.backends.modules:dropout"},
    {"model": "tests.backends.modules:Branching", "method": "fedfb"},
]
NAMES = [", ".join(str(v) for v in case.values()) for case in CASES]
Both = dict[int, list[tuple[RunOutcome, RunOutcome]]]


@pytest.fixture(scope="module")
def both() -> Both:
    """For 1 round and for a full run: all cases in one stack, and each alone by the sequential engine."""
    data = federation()
    results: Both = {}
    for rounds in (1, 5):
        configs = [config(rounds=rounds, **case) for case in CASES]
        stacked = run_stacked(build_stacked(configs, data), threads=2)
        results[rounds] = [(s, run(build(c, data))) for s, c in zip(stacked, configs, strict=True)]
    return results


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_one_round_is_the_same_to_1e_9(both: Both, case: int) -> None:
    stacked, sequential = both[1][case]
    assert distance(stacked, sequential) <= 1e-9
    assert history_distance(stacked, sequential) <= 1e-9


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_a_full_run_is_the_same_to_1e_5(both: Both, case: int) -> None:
    stacked, sequential = both[5][case]
    assert distance(stacked, sequential) <= 1e-5
    assert history_distance(stacked, sequential) <= 1e-5
    assert stacked.state.round == sequential.state.round == 5
    backends = stacked.simulation.backend, sequential.simulation.backend
    assert backends[0].bytes_up == backends[1].bytes_up
    assert backends[0].bytes_down == backends[1].bytes_down


def test_training_moved_the_model(both: Both) -> None:
    for stacked, _ in both[1]:
        moved = (
            stacked.simulation.replica.parameters - build(stacked.simulation.config, federation()).replica.parameters
        )
        assert abs(moved).max() > 1e-3


@pytest.mark.parametrize("shape", [{"groups": 3}, {"task": "regression"}, {"sizes": (3, 1, 2)}], ids=str)
@pytest.mark.parametrize("method", ["mmd_fedavg", "local_fairness"])
def test_other_data_too(shape: dict[str, Any], method: str) -> None:
    data = federation(**shape)
    configs = [config(rounds=2, method=method, kernel=kernel) for kernel in ("energy", "gaussian:0.3")]
    for stacked, c in zip(run_stacked(build_stacked(configs, data), threads=1), configs, strict=True):
        assert distance(stacked, run(build(c, data))) <= 1e-9


def test_single_precision_is_the_same_to_its_rounding() -> None:
    data = federation()
    configs = [config(rounds=2, dtype="float32", method=m) for m in ("mmd_fedavg", "local_fairness", "fedavg")]
    for stacked, c in zip(run_stacked(build_stacked(configs, data), threads=1), configs, strict=True):
        assert stacked.simulation.replica.parameters.dtype == "float32"
        assert distance(stacked, run(build(c, data))) <= 1e-4


def test_a_mixed_stack_gives_each_run_what_it_gets_alone() -> None:
    data = federation()
    configs = [
        config(rounds=3, seed=seed, method=method, **{"lambda": strength})
        for seed in (0, 5)
        for method, strength in (("mmd_fedavg", 0.0), ("mmd_fedavg", 1.0), ("mmd_fedavg", 0.2), ("fedfb", 0.0))
    ]
    together = run_stacked(build_stacked(configs, data), threads=2)
    for outcome, c in zip(together, configs, strict=True):
        (alone,) = run_stacked(build_stacked([c], data), threads=1)
        assert distance(outcome, alone) <= 1e-12
    values = {round(float(o.simulation.replica.parameters.sum()), 6) for o in together}
    assert len(values) == len(configs)  # no two runs were mixed up
