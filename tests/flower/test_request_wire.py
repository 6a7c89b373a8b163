"""Requests as bytes and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from accountant.errors import InputError
from privfair.fairness.tracking import NoisyScores, SealedFeatures, SharedScores
from privfair.federated.codec import decode_request, encode_request
from privfair.federated.messages import (
    Asked,
    Bundle,
    CountsRequest,
    EmbeddingsRequest,
    EvaluateRequest,
    LocalWork,
    MeasureRequest,
    Parameters,
    PrivateWork,
    Reweighted,
    ScoreRelease,
    ScoresRequest,
    Sealed,
    Task,
    Tracked,
    TrainRequest,
)
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import UpdateRelease, VectorNoise

SCORES = ScoreNoise("gaussian", 0.3)
SHARED = SharedScores(
    "energy", 1.0, (np.array([0.25, 1.5]), np.zeros(0)), (np.array([0.5, 0.5]), np.zeros(0)), np.array([3.0, 4.0]),
    7.0, (0.0, 1.0), NoisyScores(SCORES, "none", (0.1, 0.0)),
)  # fmt: skip
FEATURES = SealedFeatures("energy", 1.0, b"\x00features", np.array([3.0, 0.0]), np.array([3.0, 4.0]), 7.0)
MODEL = Parameters(np.arange(3, dtype=np.float32), control=np.zeros(3, dtype=np.float32))
SEALED = Sealed(2, b"\x00sum", 0.1 + 0.2)
ASK = ScoresRequest(4, SEALED, np.array([3, 0]), ScoreRelease(SCORES, np.array([0.1, 0.0])))
PRIVATE = PrivateWork(2, 0.1, 1.1, 1.0, 12.5, 0.05)
TRAIN = TrainRequest(4, SEALED, Tracked(SHARED), PRIVATE, 1 / 3)
REQUESTS: list[Asked] = [
    CountsRequest(),
    CountsRequest(CountNoise("laplace", 2.0)),
    ASK,
    ScoresRequest(0, MODEL, np.array([3, 0])),
    EmbeddingsRequest(4, SEALED, np.array([1, 0]), VectorNoise(7.5, 8, 1.9, 512)),
    EmbeddingsRequest(0, MODEL, np.array([1, 1])),
    TrainRequest(4, SEALED, Tracked(FEATURES, "own"), PRIVATE, 1 / 3),
    TRAIN,
    TrainRequest(0, MODEL, Reweighted(np.ones((2, 2))), LocalWork(1, None, 0.1), 0.5, 0.5, True, 0.7),
    TrainRequest(0, MODEL, Task(), LocalWork(1, 10, 0.1), 0.5),
    TrainRequest(
        0,
        Sealed(1, b"s", 1.0, 1e-6),
        Task(),
        LocalWork(1, 10, 0.1),
        0.5,
        release=UpdateRelease(1.5, 0.3, VectorNoise(7.5, 99_000, 2.0, 2**19, 4)),
    ),
    MeasureRequest(MODEL, ("loss", "confusion"), at_snapshot=True),
    EvaluateRequest(SEALED, CountNoise("gaussian", 3.0)),
    Bundle((TRAIN, ASK)),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_there_and_back_is_the_same_bytes(request_: Asked) -> None:
    message = encode_request(request_)
    again = decode_request(message)
    assert type(again) is type(request_)
    assert encode_request(again) == message


def test_numbers_survive_to_the_last_bit() -> None:
    again = decode_request(encode_request(TRAIN))
    assert isinstance(again, TrainRequest)
    assert isinstance(again.model, Sealed)
    assert again.weight == TRAIN.weight
    assert again.model.share == 0.1 + 0.2
    assert again.model.total == b"\x00sum"


def tampered(change: Any) -> bytes:
    arrays = load(encode_request(TRAIN))
    tree = json.loads(arrays["request"].tobytes())
    change(tree)
    return save({**arrays, "request": np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)})


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["fields"].pop("round"),
        lambda t: t["fields"].update(more=1),
        lambda t: t["fields"].update(round="4"),
        lambda t: t["fields"].update(round=True),
        lambda t: t["fields"].update(weight=None),
        lambda t: t["fields"].update(work={"kind": "Task", "fields": {}}),
        lambda t: t["fields"].update(model={"array": "000000"}),
        lambda t: t["fields"]["work"]["fields"].update(optimizer="none"),
        lambda t: t.update(kind="Client"),
        lambda t: t.update(kind="Task", fields={}),
        lambda t: t["fields"].update(objective={"array": "nowhere"}),
    ],
)
def test_what_is_no_request_is_refused(change: Any) -> None:
    with pytest.raises(InputError, match="message must be"):
        decode_request(tampered(change))


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 100, encode_request(TRAIN)[:-3], b"garbage"])
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(InputError, match="message must be a whole request"):
        decode_request(garbage)


def test_nesting_has_an_end() -> None:
    tree: Any = 1
    for _ in range(30):
        tree = {"tuple": [tree]}
    message = save({"request": np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)})
    with pytest.raises(InputError, match="message must be a whole request"):
        decode_request(message)
