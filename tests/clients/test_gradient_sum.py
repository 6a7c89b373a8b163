"""One step of DP-SGD in whole numbers: a client's whole answer, against numpy, on neighbours, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from accountant.errors import InputError
from privfair.channels.base import ReplyCheck, respond
from privfair.channels.updates import UpdatesChannel
from privfair.clients import training
from privfair.clients.client import Client
from privfair.clients.training import sum_gradients, train_privately
from privfair.datasets.records import ClientData, Schema, SensitiveAttribute
from privfair.engines.batched.engine import Engine
from privfair.engines.batched.lockstep import Failed
from privfair.federated.messages import LocalWork, OwnPenalty, Parameters, Task, TrainRequest, Update
from privfair.federated.model_state import FedAvg, Replica
from privfair.mechanisms.entropy import SystemEntropy
from privfair.mechanisms.vector_release import GradientRelease, UpdateRelease, VectorNoise
from privfair.models import FlatModel
from privfair.per_record import whole_sum
from privfair.secure_aggregation import aggregators
from tests.clients.setting import FEATURES, PRIVATE, client, model, perceptron, request, seeded, subset, tracked
from tests.clients.test_dp_sgd import MODULES, Chosen, gradients

SCHEMA = Schema(tuple("abcd"), "binary", "y", (0.0, 1.0), (SensitiveAttribute("s", ("0", "1")),))
Ints = NDArray[np.int64]


def release(count: int, *, bound: float = 0.5, steps: int = 2**14, room: int = 2**30, noise: float = 1.0) -> Any:
    return GradientRelease(bound, room, VectorNoise(noise, count, steps=steps, inward=True))


def asked(flat: FlatModel, objective: Any = None, **kwargs: Any) -> TrainRequest:
    work = kwargs.pop("work", PRIVATE)
    more = {name: kwargs.pop(name) for name in ("correct", "snapshot_at", "release") if name in kwargs}
    start, made = flat.parameters(), release(flat.flat.numel(), **kwargs)
    return replace(request(work, objective, gradient=made, **more), model=Parameters(start))


def summed(flat: FlatModel, data: Any, objective: Any = None, seed: int = 0, **kwargs: Any) -> Ints:
    start = flat.parameters()
    found = sum_gradients(asked(flat, objective, **kwargs), start, data, flat, seeded(seed))
    np.testing.assert_array_equal(flat.parameters(), start)
    assert (found.steps, found.snapshot) == (1, None)
    assert found.gradients is not None
    assert found.gradients.dtype == np.int64
    return found.gradients


def holder(data: Any, flat: FlatModel, seed: int | None = 0) -> Client:
    replica = Replica(flat.parameters(), FedAvg(), aggregators("plain", None, fixed_point=None)[0])
    entropy: Any = lambda channel, number: SystemEntropy() if seed is None else seeded(seed)  # noqa: E731
    own = ClientData("north", data.records, data.records)
    return Client(0, own, SCHEMA, data.cells, flat, replica, seed=0, entropy=entropy)


def opened(where: Client, reply: Any) -> NDArray[np.float64]:
    assert isinstance(reply, Update)
    return where.replica.aggregator.open(reply.contribution)


# ---- against numpy


def logistic(flat: FlatModel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(records, parameters): (σ(wx + b) − y)·(x, 1)."""
    theta = flat.parameters()
    outputs = x @ theta[:FEATURES] + theta[FEATURES]
    return np.asarray((1 / (1 + np.exp(-outputs)) - y)[:, None] * np.column_stack([x, np.ones(len(x))]))


def oracle(rows: np.ndarray, bound: float, steps: int) -> list[int]:
    """Σ of rounded rows in Python's integers, by the rule as it is written."""
    total = [0] * rows.shape[1]
    for row in rows:
        scaled = row * ((1 - 2.0**-28) * steps / max(bound, math.sqrt(math.fsum(row * row)) + 1e-6))
        whole = [round(v) for v in scaled.tolist()]
        if sum(v * v for v in whole) > steps**2:
            whole = [math.trunc(v) for v in scaled.tolist()]
        total = [t + v for t, v in zip(total, whole, strict=True)]
    return total


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("bound", [0.2, 0.8, 50.0])  # all, some and none are clipped
def test_a_whole_answer_is_that_of_numpy(bound: float, engine: str) -> None:
    """Full sample; the noise is as small as the grid allows, 16 steps of 2¹⁸, and taken off by drawing it again."""
    torch.manual_seed(2)
    flat, data = FlatModel(nn.Linear(FEATURES, 1).double()), client(40)
    where, made = holder(data, flat, seed=3), release(5, bound=bound, steps=2**18, noise=16 / 2**18)
    sent = replace(asked(flat, work=replace(PRIVATE, max_grad_norm=bound), bound=bound), gradient=made)
    reply = respond(where, sent) if engine == "local" else Engine([where]).replies([(where, sent)])[0]
    found = opened(where, reply)
    rows = logistic(flat, data.records.features, data.records.labels)
    noise = seeded(3)
    noise.poisson_mask(40, 1.0)  # the sample is drawn first
    exact = -np.array(oracle(rows, bound, 2**18)) + noise.discrete_gaussian(made.noise.share_scale, 5)
    np.testing.assert_array_equal(found, exact)
    clipped = rows * np.minimum(1, bound / np.linalg.norm(rows, axis=1))[:, None]
    # 40 records are off by a step each, and noise by at most 6 standard deviations of 16 steps
    np.testing.assert_allclose(found * bound / 2**18, -clipped.sum(axis=0), atol=(40 + 96 + 2) * bound / 2**18)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("penalty", [False, True])
def test_the_gradients_are_those_of_dp_sgd(name: str, penalty: bool) -> None:
    """A step of `train_privately` without noise moves by the same sum."""
    torch.manual_seed(1)
    flat, data = FlatModel(MODULES[name]().double()), client(20)
    objective = tracked(data, strength=2.0) if penalty else Task()
    found = summed(flat, data, objective, steps=2**20)
    start = flat.parameters()
    moved = train_privately(request(PRIVATE, objective), start, data, flat, seeded()).parameters - start
    # each of 20 records is off by one of 2²⁰ steps of the bound 0.5, and a little more by today's grid
    np.testing.assert_allclose(-found * 0.5 / 2**20, moved * PRIVATE.divisor, rtol=0, atol=21 * 0.5 / 2**20)


def test_a_full_sample_is_the_sum_of_all_records_in_any_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, data = model(), client(20)
    objective = tracked(data)
    expected = whole_sum(gradients(data, flat, objective).numpy(), 0.5, 2**14)
    np.testing.assert_array_equal(summed(flat, data, objective), expected)
    monkeypatch.setattr(training, "_GRADIENTS_AT_ONCE", 3 * flat.flat.numel())
    np.testing.assert_array_equal(summed(flat, data, objective), expected)


def test_the_sample_is_that_of_the_mask() -> None:
    flat, data = model(), client(5)
    entropy: Any = Chosen([True, False, False, True, False])
    work = replace(PRIVATE, sampling_rate=0.25)
    found = sum_gradients(asked(flat, work=work), flat.parameters(), data, flat, entropy)
    assert (entropy.rates, entropy.choices) == ({0.25}, [])
    assert found.gradients is not None
    np.testing.assert_array_equal(found.gradients, summed(flat, subset(data, [0, 3])))


# ---- neighbours


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.floats(-6, 6),
    st.floats(1e-3, 100),
    st.sampled_from([16, 1000, 2**20]),
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=FEATURES, max_size=FEATURES),
)
def test_one_record_moves_the_sum_by_a_vector_of_the_steps_at_most(
    seed: int, size: float, bound: float, steps: int, record: list
) -> None:
    data, flat = client(8, seed=seed), model()
    flat.load(flat.parameters() * 10**size)
    data.x[7] = torch.tensor(record, dtype=torch.float64)
    objective = tracked(data, strength=50.0)
    work = replace(PRIVATE, max_grad_norm=bound)
    with np.errstate(all="ignore"):
        whole, without, alone = (
            summed(flat, subset(data, part), objective, work=work, bound=bound, steps=steps)
            for part in (list(range(8)), list(range(7)), [7])
        )
    np.testing.assert_array_equal(whole - without, alone)
    assert sum(int(v) ** 2 for v in alone) <= steps**2


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("seed", [0, None], ids=["seeded", "system"])
def test_the_answer_has_one_form_with_and_without_records(engine: str, seed: int | None) -> None:
    flat = FlatModel(nn.Linear(FEATURES, 1).double())
    for records, rate in ((0, 1.0), (1, 1e-9), (30, 1e-9)):
        where = holder(client(records), flat, seed)
        sent = asked(flat, work=replace(PRIVATE, sampling_rate=rate))
        reply = respond(where, sent) if engine == "local" else Engine([where]).replies([(where, sent)])[0]
        found = opened(where, reply)
        assert found.shape == (5,)
        assert np.all(found == np.rint(found))
        assert np.all(np.abs(found) < 8 * 2**14)  # noise of 2¹⁴ steps alone: false alarm below 1e-14
        assert np.all(found != 0) or seed is None


def test_the_sum_is_clamped_and_the_noise_is_not() -> None:
    flat, data = FlatModel(nn.Linear(FEATURES, 1).double()), client(200)
    data = replace(data, records=replace(data.records, labels=np.ones(200)))  # all pull to one side
    where = holder(data, flat)
    free = summed(flat, where.data, bound=0.5)
    room = 2**14
    assert np.abs(free).max() > 2 * room
    found = opened(where, respond(where, asked(flat, room=room)))
    entropy = seeded()
    entropy.poisson_mask(200, 1.0)
    np.testing.assert_array_equal(found, np.clip(-free, -room, room) + entropy.discrete_gaussian(2.0**14, 5))


# ---- what is checked and refused


def test_the_reply_is_accepted_with_the_weight_of_whole_numbers() -> None:
    flat = FlatModel(nn.Linear(FEATURES, 1).double())
    where = holder(client(), flat)
    sent, weights = replace(asked(flat), weight=0.25), []

    class Form(ReplyCheck):
        def require_readable(self, adder: Any, contribution: bytes, weight: float, *about: Any) -> None:
            weights.append(weight)

    form = Form(aggregators("plain", None, fixed_point=None)[1], cells=2, contribution_size=5)
    UpdatesChannel().check_reply(sent, respond(where, sent), "north", form)
    UpdatesChannel().check_reply(replace(sent, gradient=None), respond(where, sent), "north", form)
    assert weights == [1.0, 0.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"work": replace(PRIVATE, steps=2)}, "steps must be 1 where gradients are summed in whole numbers; found 2."),
        ({"work": replace(PRIVATE, steps=0)}, "steps must be 1"),
        ({"work": replace(PRIVATE, optimizer="adam")}, "local optimizer must be sgd"),
        ({"correct": True}, "control variates must be off"),
        ({"snapshot_at": 0.5}, "snapshots must be off"),
        ({"release": UpdateRelease(1.0, 1.0, VectorNoise(1.0, 31))}, "clipping of whole updates must be off"),
        ({"work": replace(PRIVATE, max_grad_norm=0.25)}, "max_grad_norm must be 0.5"),
        ({"gradient": release(30)}, "noise of gradients must be for 31 parameters"),
        ({"work": LocalWork(1, None, 0.1)}, "work must be PrivateWork, for training with privacy"),
        ({"objective": OwnPenalty("energy", 1.0)}, "objective must be a sum of losses of single records"),
    ],
)
def test_what_does_not_go_with_whole_numbers_is_refused(change: dict[str, Any], message: str) -> None:
    flat = FlatModel(perceptron())
    where = holder(client(), flat)
    sent = replace(asked(flat), **change)
    with pytest.raises(InputError) as error:
        respond(where, sent)
    assert str(error.value).startswith(message)
    failed = Engine([where]).replies([(where, sent)])[0]
    assert isinstance(failed, Failed)
    assert str(failed.error) == str(error.value)


def test_a_request_without_a_release_sums_nothing() -> None:
    flat = model()
    with pytest.raises(InputError, match="must say how gradients are summed in whole numbers"):
        sum_gradients(request(PRIVATE), flat.parameters(), client(), flat, seeded())
