"""Federated optimisers: one step by hand, and what they have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import privfair
from privfair.config import Config
from privfair.federated.model_state import FedAdam, FedAvg, FedAvgM
from privfair.federated.round import begin, run_round
from privfair.runs.assembly import build

THETA, DELTA = np.array([1.0, -2.0]), np.array([0.5, 0.25])


def test_fedavg_step() -> None:
    np.testing.assert_allclose(FedAvg(2.0).step(THETA, DELTA, None, {})[0], THETA + 2 * DELTA)


def test_fedavgm_two_steps() -> None:
    optimizer = FedAvgM(1.0, momentum=0.5)
    first, memory = optimizer.step(THETA, DELTA, None, optimizer.start(THETA))
    second, _ = optimizer.step(first, DELTA, None, memory)
    np.testing.assert_allclose(second, THETA + DELTA + 1.5 * DELTA)


def test_fedadam_first_step() -> None:
    optimizer = FedAdam(0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    moved, _ = optimizer.step(THETA, DELTA, None, optimizer.start(THETA))
    m, v = 0.1 * DELTA, 0.99 * 1e-6 + 0.01 * DELTA**2
    np.testing.assert_allclose(moved, THETA + 0.1 * m / (np.sqrt(v) + 1e-3))


def small(optimizer: str, **federation: object) -> Config:
    return Config.build(
        {
            "data": {"clients": 4, "records": 60},
            "federation": {"optimizer": optimizer, "rounds": 3, "local_epochs": 2, "batch_size": 20, **federation},
            "run": {"dtype": "float64"},
        }
    )


def test_scaffold_server_control_is_the_weighted_mean_of_the_clients() -> None:
    """c = Σ ν_k c_k after every round, also when only some clients train."""
    config = small("scaffold", clients_per_round=2)
    simulation = build(config)
    state = begin(simulation.server)
    for _ in range(4):
        state = run_round(state, simulation.server)
    mean = np.zeros_like(simulation.replica.parameters)
    for k, control in simulation.backend.client_state().items():
        mean += state.release_plan.weights[int(k)] * control
    np.testing.assert_allclose(simulation.replica.memory["control"], mean, atol=1e-12)


def test_scaffold_with_one_client_is_fedavg() -> None:
    """One client's control variate is the server's: the correction vanishes."""
    one = {"data": {"clients": 1, "records": 80}, "run": {"dtype": "float64"}}
    results = [
        privfair.train(one, federation={"optimizer": name, "rounds": 3, "local_epochs": 2, "batch_size": 20})
        for name in ("fedavg", "scaffold")
    ]
    first, second = (next(iter(r.model.module.parameters())).detach().numpy() for r in results)
    np.testing.assert_allclose(first, second, atol=1e-10)


def test_fedprox_pulls_to_the_start() -> None:
    """A large μ keeps clients at the start; μ = 0 is FedAvg."""

    def distance(optimizer: str, proximal: float) -> float:
        simulation = build(small(optimizer, proximal=proximal, learning_rate=0.01, rounds=1))
        start = simulation.replica.parameters
        run_round(begin(simulation.server), simulation.server)
        return float(np.linalg.norm(simulation.replica.parameters - start))

    assert distance("fedprox", 0.0) == pytest.approx(distance("fedavg", 0.0))
    assert distance("fedprox", 50.0) < 0.7 * distance("fedavg", 0.0)


def test_sampled_clients_are_unbiased() -> None:
    """The mean update over cohorts of 2 of 4 clients is the update of all (1 local step; 5 standard errors)."""

    def update(round_number: int, clients: int | None) -> np.ndarray:
        simulation = build(small("fedavg", clients_per_round=clients, local_epochs=1, batch_size=1000))
        state, start = begin(simulation.server), simulation.replica.state()
        moved = []
        for r in range(round_number):
            simulation.replica.restore(start)
            run_round(replace(state, round=r), simulation.server)
            moved.append(simulation.replica.parameters - start["parameters"])
        return np.array(moved)

    whole = update(60, None).mean(axis=0)
    sampled = update(400, 2)
    error = sampled.std(axis=0, ddof=1) / np.sqrt(400) + update(60, None).std(axis=0, ddof=1) / np.sqrt(60)
    assert np.all(np.abs(sampled.mean(axis=0) - whole) <= 5 * error)


@pytest.mark.parametrize("optimizer", ["fedavg", "fedprox", "scaffold", "fedadam", "fedavgm"])
def test_tracking_makes_every_optimiser_fairer(optimizer: str) -> None:
    """On data where the label depends on the group, λ = 3 ends with less MMD² than λ = 0."""
    rng = np.random.default_rng(0)
    from privfair.datasets.records import ClientData, Federation, Records, Schema, SensitiveAttribute

    def holder(name: str, share: float) -> ClientData:
        group = (rng.random(150) < share).astype(int)
        x = rng.normal(size=(150, 3)) + group[:, None] * [1.0, 0.0, 0.0]
        y = (x[:, 0] + 0.5 * rng.normal(size=150) > 0.5).astype(int)
        records = Records(x, y, group[:, None], np.zeros((150, 0), dtype=bool))
        return ClientData(name, records.take(np.arange(100)), records.take(np.arange(100, 150)))

    schema = Schema(("a", "b", "c"), "binary", "y", (0, 1), (SensitiveAttribute("g", ("0", "1")),))
    data = Federation("toy", schema, (holder("one", 0.3), holder("two", 0.7)))
    ends = {}
    for strength in (0.0, 3.0):
        result = privfair.train(
            dataset=data, fairness={"lambda": strength},
            federation={"optimizer": optimizer, "rounds": 30, "local_epochs": 2, "batch_size": 50},
        )  # fmt: skip
        ends[strength] = result.metrics["objective"]["train_mmd2"]
    assert ends[3.0] < 0.7 * ends[0.0]
