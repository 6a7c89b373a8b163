"""Stacked DP-SGD: clipped gradients are those of Opacus, draws those of each client alone, noise of the right law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privfair.clients.opacus_engine import NoisyMean
from privfair.config import Config
from privfair.engines.batched.engine import Draws, private_draws
from privfair.federated.messages import EvaluateRequest, Evaluation, Parameters, PrivateWork
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import SystemEntropy
from privfair.runs.assembly import build
from privfair.runs.batched import build_stacked, run_stacked
from privfair.runs.loop import run
from tests.backends.settings import config, distance, federation, history_distance
from tests.clients.setting import seeded

WORK = PrivateWork(steps=1, sampling_rate=1.0, noise_multiplier=0.0, max_grad_norm=0.5, divisor=1.0, learning_rate=1.0)
SIZES = (50, 31, 23, 0, 36)


def test_draws_are_those_of_the_client_alone() -> None:
    work = replace(WORK, steps=250, sampling_rate=0.3, noise_multiplier=2.0)
    order, noise = private_draws(100, 90, work, seeded(4))  # neither 163 masks nor 182 noises fit 250 steps
    from privfair.clients.training import _minibatches

    entropy = seeded(4)
    theirs = NoisyMean(90, work, entropy)._noise
    for step, positions in enumerate(_minibatches(100, work, entropy)):
        assert order.positions[step, : order.sizes[step]].tolist() == positions.tolist()
        assert noise[step].tolist() == next(theirs).tolist()


def test_draws_are_shared_between_equal_seeds_alone() -> None:
    draws, work = Draws(), replace(WORK, steps=3, sampling_rate=0.5, noise_multiplier=1.0)
    first, again, other = (draws.of(20, 5, work, seeded(seed))[1] for seed in (1, 1, 2))
    assert again.tolist() == first.tolist() == private_draws(20, 5, work, seeded(1))[1].tolist()
    assert other.tolist() != first.tolist()
    assert draws.of(20, 5, replace(work, noise_multiplier=2.0), seeded(1))[1].tolist() == (2 * first).tolist()
    system = [draws.of(20, 5, work, SystemEntropy())[1].tolist() for _ in range(2)]
    assert system[0] != system[1]


def test_the_noise_of_the_system_has_its_law() -> None:
    work = replace(WORK, steps=400, sampling_rate=0.25, noise_multiplier=1.5, max_grad_norm=2.0)
    order, noise = private_draws(50, 40, work, SystemEntropy())
    count = noise.size
    # 6 standard errors: false alarm below 1e-8 each
    assert abs(noise.mean()) <= 6 * 3.0 / count**0.5
    assert abs(noise.var() - 9.0) <= 6 * 9.0 * (2 / count) ** 0.5
    assert abs(order.sizes.mean() - 12.5) <= 6 * (50 * 0.25 * 0.75 / 400) ** 0.5


def private_config(tmp_path: Path, **case: Any) -> Config:
    privacy = {
        "count_noise": 2.0,
        "prediction_noise": 0.3,
        "noise_multiplier": 0.7,
        "sampling_rate": 0.4,
        "prediction_rate": 0.5,
    }
    privacy |= case.pop("privacy", {})
    tables = config(rounds=case.pop("rounds", 1), **case).as_tables()
    tables["privacy"] = {"min_count": 3, **privacy}
    tables["run"] |= {"reproducible_noise": True, "ledger": f"sqlite:///{tmp_path}/ledger.sqlite"}
    tables["aggregation"] = {"scheme": "plain"}
    return Config.build(tables)


CASES: list[dict[str, Any]] = [
    {},
    {"privacy": {"kernel_correction": "deconvolve", "predictions": "laplace"}, "kernel": "matern32:0.5"},
    {"optimizer": "fedprox", "local_optimizer": "adam", "seed": 3, "lambda": 0.2},
]
MORE: list[dict[str, Any]] = [
    {"privacy": {"predictions": "laplace"}},
    {"privacy": {"counts": "public", "dataset": "with public counts"}},
    {"kernel": "gaussian:0.3", "model": "logistic"},
    {"method": "fedavg", "model": "tests.backends.modules:tanh"},
    {"privacy": {"updates": "none"}, "rounds": 3},
]


@pytest.mark.parametrize("cases", [CASES, pytest.param(MORE, marks=pytest.mark.slow)], ids=["some", "more"])
def test_private_runs_are_those_of_the_sequential_engine(cases: list[dict[str, Any]], tmp_path: Path) -> None:
    data = federation(sizes=SIZES)
    for folder in ("stacked", "alone"):
        (tmp_path / folder).mkdir()
    configs = [private_config(tmp_path / "stacked", **{**case}) for case in cases]
    outcomes = run_stacked(build_stacked(configs, data), threads=2)
    for case, outcome in zip(cases, outcomes, strict=True):
        alone = run(build(private_config(tmp_path / "alone", **{**case}), data))
        assert distance(outcome, alone) <= 1e-9, case
        assert history_distance(outcome, alone) <= 1e-9, case
        assert outcome.simulation.run_ledger is not None
        assert alone.simulation.run_ledger is not None
        spends = [o.simulation.run_ledger.ledger.spends(run=o.simulation.run_ledger.run) for o in (outcome, alone)]  # type: ignore[union-attr]
        prices = [sorted((s.client, s.channel, s.round or 0, str(s.event)) for _, s in rows) for rows in spends]
        assert prices[0] == prices[1]
        assert prices[0]
        for simulation in (outcome.simulation, alone.simulation):
            simulation.close()  # type: ignore[union-attr]


# parameters after three rounds in single precision, as version 0.1.0 (one matrix product over all records) had them
BEFORE: dict[str, tuple[dict[str, Any], list[float]]] = {
    "scores": (
        {},
        [
            -0.236654863,
            0.255307317,
            -0.15724282,
            -0.0781818777,
            0.339337915,
            -0.245673954,
            0.13423717,
            -0.101476997,
            0.40882054,
            -0.391114265,
            0.130059049,
            0.40219447,
            0.303064734,
            0.110821828,
            -0.210620403,
            -0.460558832,
            0.467526913,
            0.353106737,
            -0.458212405,
            0.405940682,
            0.178743258,
            -0.31478712,
            -0.148479775,
            -0.124217667,
            0.291682899,
            -0.0851046368,
            0.392679662,
            0.358266771,
            0.381856352,
            0.0734182298,
            0.281142265,
        ],
    ),
    "features": (
        {
            "tracker": "embedding",
            "kernel": "gaussian:0.3",
            "model": "logistic",
            "privacy": {"prediction_rate": None, "prediction_noise": 2.0},
        },
        [0.121090584, 0.435877383, -0.048081208, 0.0878452957, 0.295462728],
    ),
}


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("name", BEFORE)
def test_runs_agree_with_the_version_before_to_single_precision(name: str, engine: str, tmp_path: Path) -> None:
    case, before = BEFORE[name]
    asked = private_config(tmp_path, dtype="float32", rounds=3, **{**case})
    data = federation(sizes=SIZES)
    outcome = run(build(asked, data)) if engine == "local" else run_stacked(build_stacked([asked], data))[0]
    # 5 steps a round: the gradient of a step, clipped to 1 and a mean, has sums of up to 5 terms in single precision on
    # its way forward and back, and steps are a tenth of it; a model below 1 is rounded once a round
    error = 3 * (5 * 0.1 * 2 * 5 * 2.0**-24 + 2.0**-24)
    found = outcome.simulation.replica.parameters
    assert np.abs(found - np.array(before)).max() <= error
    outcome.simulation.close()


def test_every_client_reports_its_own_evaluation(tmp_path: Path) -> None:
    """Through the ledger gateway, as the sequential engine has it; also where all clients are sent one request."""
    data, released = federation(sizes=SIZES), {}
    for engine in ("local", "stacked"):
        (tmp_path / engine).mkdir()
        tables = private_config(
            tmp_path / engine, privacy={"evaluation": "laplace", "evaluation_noise": 1.5}
        ).as_tables()
        tables["run"] |= {"engine": engine}
        simulation = build(Config.build(tables), data)
        released[engine] = [e.confusion[0].tolist() for e in run(simulation).released or ()]
    assert released["stacked"] == released["local"]
    assert len({str(table) for table in released["local"]}) == len(SIZES)
    shared = EvaluateRequest(Parameters(simulation.replica.result), CountNoise("laplace", 1.5))
    (tmp_path / "shared").mkdir()
    again = build(
        private_config(tmp_path / "shared").model_copy(
            update={
                "run": simulation.config.run.model_copy(update={"ledger": f"sqlite:///{tmp_path}/shared/ledger.sqlite"})
            }
        ),
        data,
    )
    replies = again.backend.exchange(range(len(SIZES)), lambda _: shared)
    assert [r.confusion[0].tolist() for r in replies if isinstance(r, Evaluation)] == released["local"]
