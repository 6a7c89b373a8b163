"""Stacked DP-SGD: clipped gradients are those of Opacus, draws those of each client alone, noise of the right law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privfair.backends.stacked import build_stacked, run_stacked
from privfair.backends.stacked.private_draws import Draws, private_draws
from privfair.clients.opacus_engine import NoisyMean
from privfair.config import Config
from privfair.experiment import run
from privfair.mechanisms.entropy import SystemEntropy
from privfair.messages import PrivateWork
from privfair.setting import build
from tests.backends.settings import config, distance, federation, history_distance
from tests.clients.setting import seeded

WORK = PrivateWork(steps=1, sampling_rate=1.0, noise_multiplier=0.0, max_grad_norm=0.5, divisor=1.0, learning_rate=1.0)
SIZES = (50, 31, 23, 0, 36)


def test_draws_are_those_of_the_client_alone() -> None:
    work = replace(WORK, steps=250, sampling_rate=0.3, noise_multiplier=2.0)
    order, noise = private_draws(100, 90, work, seeded(4))  # neither 163 masks nor 182 noises fit 250 steps
    from privfair.clients.dp_sgd import _minibatches

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
        assert outcome.setting.private is not None
        assert alone.setting.private is not None
        spends = [o.setting.private.books.ledger.spends(run=o.setting.private.books.run) for o in (outcome, alone)]  # type: ignore[union-attr]
        prices = [sorted((s.client, s.channel, s.round or 0, str(s.event)) for _, s in rows) for rows in spends]
        assert prices[0] == prices[1]
        assert prices[0]
        for setting in (outcome.setting, alone.setting):
            setting.private.close()  # type: ignore[union-attr]
