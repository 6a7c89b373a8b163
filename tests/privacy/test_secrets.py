"""A reply has one form whatever the data: same kinds, lengths and types; and data never raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfair.channels.base import respond
from privfair.clients.client import Client
from privfair.config import Config
from privfair.datasets.records import ClientData, Records
from privfair.fairness.tracking import NoisyScores, SharedScores
from privfair.federated.exchange import encode
from privfair.federated.messages import (
    CountsRequest,
    EvaluateRequest,
    PrivateWork,
    Reply,
    Request,
    ScoreRelease,
    ScoresRequest,
    Tracked,
    TrainRequest,
)
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import SystemEntropy
from privfair.mechanisms.score_release import ScoreNoise
from privfair.runs.assembly import build
from tests.end_to_end.federations import toy

SETTING = build(Config.build({"aggregation": {"scheme": "bfv"}}), toy(clients=1))
SCHEMA = SETTING.federation.schema
NOISE = ScoreNoise("gaussian", 0.5)

ODD = st.sampled_from([0.0, 1.0, -1.0, 1e30, -1e30, float("nan"), float("inf"), float("-inf"), 1e-40])
NUMBERS = st.one_of(ODD, st.floats(-5, 5, width=32))


@st.composite
def records(draw: st.DrawFn) -> Records:
    """None, one, some; of one group or both; with features that are no numbers."""
    n = draw(st.one_of(st.sampled_from([0, 1, 2]), st.integers(0, 40)))
    features = np.array([[draw(NUMBERS) for _ in range(4)] for _ in range(min(n, 3))], dtype=np.float32)
    seed = draw(st.integers(0, 2**20))
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    x[: len(features)] = features.reshape(-1, 4)
    groups = rng.integers(2, size=(n, 1)) if draw(st.booleans()) else np.full((n, 1), draw(st.integers(0, 1)))
    labels = rng.integers(2, size=n) if draw(st.booleans()) else np.full(n, draw(st.integers(0, 1)))
    return Records(x, labels.astype(np.float32), groups, x[:, :1] > 0)


def client_of(train: Records, test: Records) -> Client:
    return Client(
        0, ClientData("north", train, test), SCHEMA, SETTING.cells, SETTING.model, SETTING.replica, seed=0,
        entropy=lambda channel, number: SystemEntropy(),
    )  # fmt: skip


def model() -> Any:
    return SETTING.server.model_holder.first()


def training(steps: int, rate: float) -> TrainRequest:
    work = PrivateWork(
        steps=steps, sampling_rate=rate, noise_multiplier=1.0, max_grad_norm=1.0, divisor=10.0, learning_rate=0.1
    )
    shared = SharedScores(
        kernel="energy", strength=1.0, scores=(np.array([0.2, 1.4]), np.array([0.8])),
        weights=(np.array([0.5, 0.5]), np.array([1.0])), counts=np.array([20.0, 30.0]), records=50.0, domain=(0.0, 1.0),
        noisy=NoisyScores(NOISE, "none", (-0.1, 0.0)),
    )  # fmt: skip
    return TrainRequest(0, model(), Tracked(shared), work, 0.5)


REQUESTS: dict[str, Request] = {
    "counts, laplace": CountsRequest(CountNoise("laplace", 2.0)),
    "counts, gaussian": CountsRequest(CountNoise("gaussian", 2.0)),
    "scores": ScoresRequest(0, model(), np.array([5, 7]), ScoreRelease(NOISE, np.array([0.5, 1.0]))),
    "scores, a silent cell": ScoresRequest(0, model(), np.array([0, 7]), ScoreRelease(NOISE, np.array([0.0, 0.3]))),
    "scores, public counts": ScoresRequest(0, model(), np.array([5, 7]), ScoreRelease(NOISE, None)),
    "update": training(3, 0.5),
    "update, all records": training(2, 1.0),
    "evaluation": EvaluateRequest(model(), CountNoise("laplace", 2.0)),
}


def form(reply: Reply) -> Any:
    """Everything about a reply but its numbers."""
    import json

    message = encode(reply)
    size = int.from_bytes(message[:8], "little")
    return type(reply).__name__, len(message), json.loads(message[8 : 8 + size])


REFERENCE = client_of(toy(clients=1).clients[0].train, toy(clients=1).clients[0].test)


@pytest.mark.parametrize("name", REQUESTS)
@settings(max_examples=25, deadline=None)
@given(train=records(), test=records())
def test_the_form_of_a_reply_tells_nothing(name: str, train: Records, test: Records) -> None:
    request = REQUESTS[name]
    assert form(respond(client_of(train, test), request)) == form(respond(REFERENCE, request))


@settings(max_examples=25, deadline=None)
@given(train=records())
def test_what_leaves_is_always_a_finite_number(train: Records) -> None:
    """Records that are no numbers neither spoil the sum nor show in the answer."""
    client = client_of(train, train)
    scores: Any = respond(client, REQUESTS["scores"])
    assert all(np.isfinite(cell).all() for cell in scores.cells)
    update: Any = respond(client, REQUESTS["update, all records"])
    adder = SETTING.server.adder
    number = SETTING.replica.round + 1
    opened = SETTING.replica.aggregator.open(adder.add([update.contribution], ["north"]), number=number)
    assert np.isfinite(opened).all()
    # 2 steps of rate 0.1 on (40 records of norm 1 + noise of scale 1)/10, weighed by 0.5; noise at 8σ: 1e-15
    assert np.abs(opened).max() <= 0.5 * 2 * 0.1 * (40 + 8) / 10 + 1e-6
