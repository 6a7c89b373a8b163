"""Gradients in whole numbers on the stacked engine: the same numbers as each client alone, from the same draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from privfair.channels.base import respond
from privfair.clients.client import Client
from privfair.datasets.records import ClientData, Records
from privfair.engines.batched.engine import Engine
from privfair.fairness.notions import Cells, notion_by_name
from privfair.fairness.tracking import EmbeddingPlan, SharedFeatures, SharedScores, equal_weights
from privfair.federated.messages import Parameters, PrivateWork, Task, Tracked, TrainRequest, Update
from privfair.federated.model_state import FedAvg, Replica
from privfair.mechanisms.entropy import SeededEntropy, stream
from privfair.mechanisms.vector_release import GradientRelease, VectorNoise
from privfair.models import FlatModel, build_module
from privfair.secure_aggregation import aggregators
from tests.clients.test_one_record import HALF, SCHEMA, records

SIZES = (60, 1, 0, 23, 130)
STEPS = 2**18
Numbers = NDArray[np.float64]


def clients(name: str, dtype: torch.dtype, seed: int, hidden: tuple[int, ...] = (5, 3)) -> list[Client]:
    flat = FlatModel(build_module(name, 2 * HALF, hidden, seed, dtype))
    cells = Cells.of(notion_by_name("statistical_parity", SCHEMA), SCHEMA)
    replica = Replica(flat.parameters(), FedAvg(), aggregators("plain", None, fixed_point=None)[0])

    def one(index: int, size: int) -> Client:
        rows: Records = records(size, 100 * seed + index)

        def entropy(channel: str, number: int) -> Any:
            return SeededEntropy(stream(seed, channel, number, index))

        data = ClientData(f"client{index}", rows, rows)
        return Client(index, data, SCHEMA, cells, flat, replica, seed=seed, entropy=entropy)

    return [one(index, size) for index, size in enumerate(SIZES)]


def penalty(name: str) -> Any:
    """A penalty on shared scores, or on shared features, of some kernel."""
    tracker, _, kernel = name.partition(" ")
    counts = np.array([90.0, 120.0])
    if tracker == "task":
        return Task()
    if tracker == "scores":
        scores = (np.linspace(0.1, 0.6, 9), np.linspace(0.3, 0.9, 7))
        return Tracked(SharedScores(kernel, 2.0, scores, equal_weights(scores), counts, 210.0, (0.0, 1.0)))
    plan = EmbeddingPlan(kernel, 0.0, 1.0, None)
    means = np.random.default_rng(1).normal(size=(2, plan.unit.count)) / 4
    return Tracked(SharedFeatures(plan, 2.0, means, counts, counts, 210.0))


def request(theta: Any, objective: Any, rate: float, gradient: bool = True) -> TrainRequest:
    made = GradientRelease(0.4, 2**26, VectorNoise(1.0, theta.size, steps=STEPS, inward=True))
    work = PrivateWork(1, rate, 1.0, 0.4, 10.0, 0.1)
    return TrainRequest(2, Parameters(theta), objective, work, 0.2, gradient=made if gradient else None)


def answers(them: list[Client], requests: list[TrainRequest], *, threads: int = 1) -> tuple[Numbers, Numbers]:
    """Of every client alone, and of the stacked engine."""
    opened = them[0].replica.aggregator.open
    engine = Engine(them, threads=threads)
    alone = [respond(c, r) for c, r in zip(them, requests, strict=True)]
    stacked = engine.replies(list(zip(them, requests, strict=True)))
    engine.close()
    found = []
    for replies in (alone, stacked):
        numbers = []
        for reply in replies:
            assert isinstance(reply, Update)
            numbers.append(opened(reply.contribution))
        found.append(np.stack(numbers))
    return found[0], found[1]


PENALTIES = ["task", "scores energy", "scores gaussian:0.3", "features energy", "features gaussian:0.3"]


@pytest.mark.parametrize("objective", PENALTIES)
@pytest.mark.parametrize("name", ["logistic", "mlp"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_the_whole_numbers_are_those_of_each_client_alone(name: str, objective: str, dtype: torch.dtype) -> None:
    """All of them, noise included, with 2¹⁸ steps, in double precision, and in single precision for the task loss.

    In single precision the two engines round the slope of a penalty differently in the last of 24 bits, as in DP-SGD.
    A number of up to 2¹⁸ is then off by 1/16 at most before it is rounded, so a record's by 1; and by 1 more where a
    vector as long as the bound is cut by one engine and rounded by the other.
    """
    apart, most = 0, 0.0
    for seed in range(4):
        them = clients(name, dtype, seed)
        theta = them[0].replica.parameters
        for rate in (0.3, 1.0):
            alone, stacked = answers(them, [request(theta, penalty(objective), rate)] * len(SIZES))
            apart += int((alone != stacked).sum())
            most = max(most, float(np.abs(alone - stacked).max()))
    if dtype is torch.float64 or objective == "task":
        assert apart == 0
    else:
        assert most <= 2 * max(SIZES)


def test_all_kinds_of_requests_go_together() -> None:
    """Whole numbers and DP-SGD of several clients, objectives and rates in one call, on two threads."""
    them = clients("mlp", torch.float64, 7)
    theta = them[0].replica.parameters
    requests = [request(theta, penalty(PENALTIES[i]), 0.2 * (i + 1), gradient=i != 3) for i in range(len(SIZES))]
    alone, stacked = answers(them, requests, threads=2)
    whole = [0, 1, 2, 4]
    assert np.array_equal(alone[whole], stacked[whole])
    assert np.abs(alone[3] - stacked[3]).max() < 1e-12
    assert np.all(stacked[whole] == np.rint(stacked[whole]))


def test_other_models_are_left_to_the_client() -> None:
    them = clients("tests.backends.modules:tanh", torch.float32, 1, ())
    alone, stacked = answers(them, [request(them[0].replica.parameters, Task(), 0.5)] * len(SIZES))
    assert np.array_equal(alone, stacked)


def test_two_runs_of_one_seed_have_the_same_sample_and_the_same_noise() -> None:
    """Which one of them alone would have: draws of one do not move those of the other."""
    first, second = clients("logistic", torch.float64, 3), clients("logistic", torch.float64, 3)
    theta = first[0].replica.parameters
    sent = [request(theta, Task(), 0.5)] * len(SIZES)
    alone, together = answers([*first, *second], sent * 2)
    assert np.array_equal(together[: len(SIZES)], together[len(SIZES) :])
    assert np.array_equal(alone, together)
    drawn = first[2].entropy("updates", 2)  # it has no records: its message is noise alone
    drawn.poisson_mask(0, 0.5)
    assert np.array_equal(together[2], drawn.discrete_gaussian(float(STEPS), theta.size))
