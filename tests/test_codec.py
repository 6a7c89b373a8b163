"""Whatever is sent or kept, as bytes, arrays and text, and back; and what somebody else makes of it."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save

from accountant.errors import InputError
from privfair.codec import MOST_HEADER, Codec, FloatArray, IntVector, Tagged
from privfair.deployment import holder_state
from privfair.deployment.holder_state import HolderState
from privfair.deployment.sums import FeatureSums, Sums
from privfair.fairness.tracking import NoisyScores, SealedFeatures, SharedFeatures, SharedScores
from privfair.federated.exchange import (
    Absence,
    decode,
    decode_masking,
    decode_request,
    encode,
    encode_masking,
    encode_request,
)
from privfair.federated.messages import (
    AgreeRequest,
    Asked,
    BlockLost,
    Bundle,
    Counts,
    CountsRequest,
    Embeddings,
    EmbeddingsRequest,
    EvaluateRequest,
    Evaluation,
    LocalWork,
    MaskKeys,
    MaskKeysRequest,
    MaskShares,
    MaskSharesRequest,
    MeasureRequest,
    Measures,
    Model,
    OwnPenalty,
    Parameters,
    PrivateWork,
    Reply,
    Reweighted,
    RosterAgreed,
    RosterRequest,
    RosterSigned,
    ScoreRelease,
    Scores,
    ScoresRequest,
    Sealed,
    SumUnmasked,
    Task,
    Tracked,
    TrainRequest,
    UnmaskSumRequest,
    Update,
)
from privfair.federated.release_plan import (
    RELEASE_PLANS,
    Claim,
    ClientUpdates,
    PrivateEmbedding,
    PrivateUpdates,
    ReleasePlan,
    Sharing,
)
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import UpdateRelease, VectorNoise
from privfair.runs.folder import Checkpoint, RunDirectory
from tests.tampering import put_together, taken_apart

# ---- any value of any type


def tuples(of: Any, least: int = 0, most: int = 4) -> Any:
    return st.lists(of, min_size=least, max_size=most).map(tuple)


def numbers(dtype: Any, dimensions: int) -> Any:
    return arrays.arrays(dtype, arrays.array_shapes(min_dims=dimensions, max_dims=dimensions, min_side=0, max_side=4))


FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(1e-3, 1e3)
WHOLE = st.integers(-(2**63), 2**63 - 1)
VECTORS = st.one_of(numbers(np.float64, 1), numbers(np.float32, 1))
MATRICES = numbers(np.float64, 2)
INDICES = numbers(np.int64, 1)
BYTES = st.binary(max_size=50)
LAWS = st.sampled_from(["laplace", "gaussian"])
COUNT_NOISE = st.builds(CountNoise, LAWS, POSITIVE)
SCORE_NOISE = st.builds(ScoreNoise, LAWS, POSITIVE)
VECTOR_NOISE = st.builds(VectorNoise, st.floats(1, 9), st.integers(1, 99), steps=st.integers(512, 2**20))
MODELS = st.one_of(
    st.builds(Parameters, VECTORS, st.none() | VECTORS, st.none() | VECTORS),
    st.builds(Sealed, WHOLE, BYTES, FINITE, FINITE),
)
SHARED_SCORES = st.builds(
    SharedScores, st.text(), FINITE, tuples(VECTORS), tuples(VECTORS), VECTORS, FINITE,
    st.none() | st.tuples(FINITE, FINITE),
    st.none() | st.builds(NoisyScores, SCORE_NOISE, st.sampled_from(["none", "deconvolve"]), tuples(FINITE)),
)  # fmt: skip
SEALED_FEATURES = st.builds(SealedFeatures, st.text(), FINITE, BYTES, VECTORS, VECTORS, FINITE)
OBJECTIVES = st.one_of(
    st.builds(Task),
    st.builds(Tracked, SHARED_SCORES | SEALED_FEATURES, st.sampled_from(["none", "own", "shared"])),
    st.builds(OwnPenalty, st.text(), FINITE),
    st.builds(Reweighted, MATRICES),
)
OPTIMIZERS = st.sampled_from(["sgd", "adam"])
WORK = st.one_of(
    st.builds(LocalWork, WHOLE, st.none() | WHOLE, FINITE, FINITE, OPTIMIZERS),
    st.builds(PrivateWork, WHOLE, FINITE, FINITE, FINITE, FINITE, FINITE, FINITE, OPTIMIZERS),
)
UPDATE_RELEASE = st.builds(UpdateRelease, POSITIVE, st.floats(0.01, 1), VECTOR_NOISE)
SINGLE = st.one_of(
    st.builds(CountsRequest, st.none() | COUNT_NOISE),
    st.builds(
        ScoresRequest, WHOLE, MODELS, INDICES, st.none() | st.builds(ScoreRelease, SCORE_NOISE, st.none() | VECTORS)
    ),
    st.builds(EmbeddingsRequest, WHOLE, MODELS, INDICES, st.none() | VECTOR_NOISE),
    st.builds(
        TrainRequest, WHOLE, MODELS, OBJECTIVES, WORK, FINITE, FINITE, st.booleans(), st.none() | FINITE,
        st.none() | UPDATE_RELEASE,
    ),
    st.builds(MeasureRequest, MODELS, tuples(st.text()), st.booleans()),
    st.builds(EvaluateRequest, MODELS, COUNT_NOISE),
)  # fmt: skip
MASKING = st.one_of(
    st.builds(MaskKeysRequest, WHOLE),
    st.builds(MaskSharesRequest, WHOLE, INDICES, BYTES),
    st.builds(RosterRequest, WHOLE, INDICES, BYTES, BYTES),
    st.builds(AgreeRequest, WHOLE, INDICES, BYTES, BYTES),
    st.builds(UnmaskSumRequest, WHOLE, INDICES, BYTES, BYTES, BYTES),
)
MASKED = st.one_of(
    st.builds(MaskKeys, WHOLE, BYTES),
    st.builds(MaskShares, WHOLE, INDICES, BYTES),
    st.builds(RosterSigned, WHOLE, BYTES, BYTES),
    st.builds(RosterAgreed, WHOLE),
    st.builds(BlockLost, WHOLE),
    st.builds(SumUnmasked, WHOLE, INDICES, BYTES),
)
REQUESTS = st.one_of(SINGLE, MASKING, st.builds(Bundle, tuples(SINGLE, 0, 3)))
TABLES = st.builds(Evaluation, tuples(numbers(np.int64, 3)))
REPLIES = st.one_of(
    st.builds(Counts, WHOLE, INDICES),
    st.builds(Scores, tuples(VECTORS, most=12)),
    st.builds(Update, BYTES),
    st.builds(Embeddings, BYTES),
    st.builds(Measures, st.dictionaries(st.text(), VECTORS | MATRICES, max_size=4)),
    TABLES,
)
TABLE = arrays.arrays(np.int64, (3, 2))
BOUNDS = st.floats(min_value=0, allow_nan=False)
PLANNED = st.builds(
    ReleasePlan, arrays.arrays(np.int64, 3), TABLE, st.integers(0, 9),
    st.none()
    | st.builds(
        Sharing, SCORE_NOISE, TABLE, st.none() | arrays.arrays(np.float64, (3, 2), elements=FINITE),
        st.sampled_from(["none", "deconvolve"]),
    ),
    st.none() | st.builds(PrivateEmbedding, VECTOR_NOISE, TABLE),
    st.none() | st.builds(PrivateUpdates, WHOLE, FINITE, FINITE, FINITE),
    st.none() | st.builds(ClientUpdates, VECTOR_NOISE, POSITIVE, POSITIVE),
    st.none() | COUNT_NOISE, st.integers(1, 9), st.none() | COUNT_NOISE,
    st.none() | st.builds(Claim, BOUNDS, BOUNDS, FINITE, st.booleans()),
)  # fmt: skip
MEMORY = st.dictionaries(st.text(), VECTORS | INDICES | MATRICES, max_size=4)
STATES = st.builds(
    HolderState, st.none() | st.text(), st.integers(0, 9), WHOLE, st.none() | PLANNED, st.none() | MEMORY,
    st.none() | VECTORS, st.none() | BYTES, st.text(), st.dictionaries(st.text(), st.text(), max_size=3),
    st.dictionaries(st.text(), BYTES, max_size=3),
)  # fmt: skip
ROWS = st.dictionaries(st.text(), st.none() | st.integers(-99, 2**53) | st.floats(), max_size=4)
CHECKPOINTS = st.builds(
    Checkpoint, st.text(), WHOLE, PLANNED, MEMORY, MEMORY, MEMORY, tuples(ROWS), WHOLE, WHOLE, FINITE, WHOLE,
    st.none() | tuples(TABLES), tuples(WHOLE),
    tuples(st.builds(Absence, st.none() | WHOLE, WHOLE, st.text(), st.text())),
)  # fmt: skip


def require_same(one: Any, other: Any) -> None:
    """Types, numbers to the last bit, and everything inside."""
    assert type(one) is type(other)
    if is_dataclass(one):
        for field in fields(one):
            require_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            require_same(mine, theirs)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        require_same(list(one.values()), list(other.values()))
    else:
        assert one == other or (one != one and other != other)  # NaN is not itself


# ---- there and back


@settings(max_examples=200, deadline=None)
@given(reply=REPLIES)
def test_replies_there_and_back(reply: Reply) -> None:
    again = decode(encode(reply))
    require_same(again, reply)
    assert encode(again) == encode(reply)  # byte for byte: what is sent again after a crash


@settings(max_examples=100, deadline=None)
@given(reply=MASKED)
def test_replies_of_the_protocol_of_masks_there_and_back(reply: Any) -> None:
    require_same(decode_masking(encode_masking(reply)), reply)
    with pytest.raises(InputError):
        decode(encode_masking(reply))  # no release: a ledger has none of them


@settings(max_examples=200, deadline=None)
@given(request_=REQUESTS)
def test_requests_there_and_back(request_: Asked) -> None:
    again = decode_request(encode_request(request_))
    require_same(again, request_)
    assert encode_request(again) == encode_request(request_)


@settings(max_examples=100, deadline=None)
@given(plan=PLANNED)
def test_release_plans_there_and_back(plan: ReleasePlan) -> None:
    text = RELEASE_PLANS.to_text(plan)
    require_same(RELEASE_PLANS.from_text(text), plan)
    assert RELEASE_PLANS.to_text(RELEASE_PLANS.from_text(text)) == text  # its digest names the plan


@settings(max_examples=100, deadline=None)
@given(state=STATES)
def test_the_state_of_a_holder_there_and_back(state: HolderState, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("holder")
    holder_state.write(folder, state)
    found = holder_state.read(folder)
    assert found is not None
    require_same(found, state)


@settings(max_examples=60, deadline=None)
@given(checkpoint=CHECKPOINTS)
def test_checkpoints_there_and_back(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    RunDirectory(folder).write_checkpoint(checkpoint)
    found = RunDirectory(folder).read_checkpoint()
    assert found is not None
    require_same(found, checkpoint)


@settings(max_examples=40, deadline=None)
@given(total=BYTES, share=FINITE, step=FINITE, features=SEALED_FEATURES)
def test_sums_there_and_back(
    total: bytes, share: float, step: float, features: SealedFeatures, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sums")
    kept = Sums(folder).keep(3, total, share, step)
    require_same(Sums(folder).get(3), kept)
    kept_features = FeatureSums(folder / "features")
    kept_features.kept(5, lambda: features)
    kept_features.kept(6, lambda: FEATURES)
    require_same(kept_features.kept(5, lambda: pytest.fail("it is there")), features)
    require_same(kept_features.get(6), FEATURES)
    (folder / "features" / "000006.npz").replace(folder / "features.npz")  # the one sum that version 0.2 kept
    require_same(kept_features.get(6), FEATURES)
    assert kept_features.get(7) is None


def test_more_cells_than_digits_would_sort() -> None:
    reply = Scores(tuple(np.array([float(i)]) for i in range(1200)))
    again = decode(encode(reply))
    assert isinstance(again, Scores)
    np.testing.assert_array_equal(np.concatenate(again.cells), np.arange(1200.0))


@dataclass(frozen=True, eq=False)
class HowOld:
    """A request of a channel that is not built in."""

    round: int
    model: Model


@dataclass(frozen=True, eq=False)
class Ages:
    """Its reply."""

    ages: IntVector


def test_the_messages_of_a_further_channel_are_carried() -> None:
    requests, replies = (Codec[Any](Annotated[kinds, Tagged()], "message") for kinds in (Asked, Reply))
    with pytest.raises(InputError, match="must be of a known kind"):
        replies.encode(Ages(np.arange(3)))
    requests.also(HowOld)
    replies.also(Ages)
    require_same(requests.decode(requests.encode(HowOld(3, MODEL))), HowOld(3, MODEL))
    require_same(replies.decode(replies.encode(Ages(np.arange(3)))), Ages(np.arange(3)))
    require_same(replies.decode(encode(Counts(3, np.arange(2)))), Counts(3, np.arange(2)))


def test_what_the_requests_of_a_bundle_share_is_sent_once() -> None:
    model = Parameters(np.zeros(10_000))
    one = TrainRequest(0, model, Task(), LocalWork(1, 10, 0.1), 0.5)
    both = Bundle((one, ScoresRequest(0, model, np.array([3]))))
    assert len(encode_request(both)) < len(encode_request(one)) + 1000


def test_a_text_is_that_of_earlier_versions() -> None:
    """Data holders and servers compare its digest, and a run may have begun with an earlier version."""
    plan = ReleasePlan(
        np.array([20, 0]), np.array([[8, 12], [0, 0]]), 1, counting=CountNoise("laplace", 2.0),
        updates=PrivateUpdates(3, 0.1, 1.1, 1e-5), claim=Claim(math.inf, 1.25, 1e-6),
    )  # fmt: skip
    assert RELEASE_PLANS.to_text(plan) == (
        '{"cells": [[8, 12], [0, 0]], "claim": {"delta": 1e-06, "pld": 1.25, "rdp": Infinity, "two_phases": false}, '
        '"client_updates": null, "count_releases": 1, "counting": {"kind": "laplace", "scale": 2.0}, '
        '"embedding": null, "evaluation": null, "least": 1, "records": [20, 0], "sharing": null, "updates": '
        '{"max_grad_norm": 1e-05, "noise_multiplier": 1.1, "sampling_rate": 0.1, "steps": 3}}'
    )


STORED = [
    ({"counts/records": np.array([7]), "counts/cells": np.array([3, 4])}, Counts(7, np.array([3, 4]))),
    ({f"scores/{i:06d}": np.full(2, i / 3) for i in range(12)}, Scores(tuple(np.full(2, i / 3) for i in range(12)))),
    ({"update/contribution": np.frombuffer(b"sum", np.uint8)}, Update(b"sum")),
    ({"embeddings/contribution": np.frombuffer(b"", np.uint8)}, Embeddings(b"")),
    ({"measures/loss": np.ones(1), "measures/confusion": np.ones((2, 2, 2))},
     Measures({"confusion": np.ones((2, 2, 2)), "loss": np.ones(1)})),
    ({"evaluation/000000": np.ones((2, 2, 2), np.int64)}, Evaluation((np.ones((2, 2, 2), np.int64),))),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "reply"), STORED, ids=lambda part: type(part).__name__)
def test_replies_that_an_earlier_version_stored_are_read(stored: dict[str, Any], reply: Reply) -> None:
    require_same(decode(save(stored)), reply)


# ---- what is no message

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
LATE = EmbeddingsRequest(5, Sealed(0, b""), np.array([1, 0]), VectorNoise(7.5, 8, 1.9, 512, 3))
CLIENTS = UpdateRelease(1.5, 0.3, VectorNoise(7.5, 99_000, 2.0, 2**19, 4))
SENT: list[Asked] = [
    UnmaskSumRequest(4, np.array([0, 2]), b"c" * 32, b"s" * 64, b"x" * 49),
    RosterRequest(0, np.array([0, 2]), b"k" * 8, b"s" * 8),
    CountsRequest(CountNoise("laplace", 2.0)),
    ASK,
    EmbeddingsRequest(4, SEALED, np.array([1, 0]), VectorNoise(7.5, 8, 1.9, 512)),
    TrainRequest(4, SEALED, Tracked(FEATURES, "own"), PRIVATE, 1 / 3),
    replace(TRAIN, objective=Tracked(replace(FEATURES, total=b"", within=2)), features=LATE),
    TRAIN,
    TrainRequest(0, MODEL, Reweighted(np.ones((2, 2))), LocalWork(1, None, 0.1), 0.5, 0.5, True, 0.7),
    TrainRequest(0, Sealed(1, b"s", 1.0, 1e-6), Task(), LocalWork(1, 10, 0.1), 0.5, release=CLIENTS),
    MeasureRequest(MODEL, ("loss", "confusion"), at_snapshot=True),
    EvaluateRequest(SEALED, CountNoise("gaussian", 3.0)),
    Bundle((TRAIN, ASK)),
]
ANSWERED: list[Reply] = [reply for _, reply in STORED]


def tampered(change: Any) -> bytes:
    tree, beside = taken_apart(encode_request(TRAIN))
    change(tree)
    return put_together(tree, beside)


def request_(**changes: Any) -> Any:
    return lambda tree: tree["TrainRequest"].update(changes)


def inner(name: str, **changes: Any) -> Any:
    return lambda tree: next(iter(tree["TrainRequest"][name].values())).update(changes)


CHANGES = {
    "missing": lambda t: t["TrainRequest"].pop("round"),
    "missing, with a default": lambda t: t["TrainRequest"].pop("snapshot_at"),
    "missing, with a default, inside": lambda t: t["TrainRequest"]["model"]["Sealed"].pop("step"),
    "unknown": request_(more=1),
    "unknown, inside": inner("work", more=1),
    "text": request_(round="4"),
    "truth": request_(round=True),
    "fraction": request_(round=4.5),
    "nothing": request_(weight=None),
    "NaN": request_(weight=math.nan),
    "infinite": inner("work", noise_multiplier=math.inf),
    "another kind": request_(work={"Task": {}}),
    "array for a model": request_(model="000001"),
    "two kinds": lambda t: t["TrainRequest"]["model"].update(Parameters={}),
    "no kind": request_(model={}),
    "no optimizer": inner("work", optimizer="none"),
    "no request": lambda t: t.update(Client=t.pop("TrainRequest")),
    "a part": lambda t: (t.clear(), t.update(Task={})),
    "no such array": inner("model", total="nowhere"),
    "numbers for bytes": lambda t: t["TrainRequest"]["model"]["Sealed"].update(
        total=t["TrainRequest"]["objective"]["Tracked"]["shared"]["SharedScores"]["counts"]
    ),
    "bytes for numbers": lambda t: t["TrainRequest"]["objective"]["Tracked"]["shared"]["SharedScores"].update(
        counts=t["TrainRequest"]["model"]["Sealed"]["total"]
    ),
    "a list for an array": lambda t: t["TrainRequest"]["objective"]["Tracked"]["shared"]["SharedScores"].update(
        counts=[3.0, 4.0]
    ),
    "an impossible noise": lambda t: t["TrainRequest"]["objective"]["Tracked"]["shared"]["SharedScores"]["noisy"][
        "noise"
    ].update(scale=-1.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_request_is_refused(name: str) -> None:
    assert decode_request(tampered(lambda tree: None))
    with pytest.raises(InputError, match="message must be a whole request"):
        decode_request(tampered(CHANGES[name]))


@pytest.mark.parametrize("dtype", ["f2", "f8", "i4", "u8", "?"])
@pytest.mark.parametrize("shape", [(2,), (2, 1), (), (2**40, 0)])
def test_counts_of_other_types_and_shapes_are_refused(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="message must be a whole reply"):
        decode(put_together({"Counts": {"records": 3, "cells": "x"}}, {"x": np.zeros(shape, dtype=dtype)}))


def test_what_nobody_names_is_refused() -> None:
    tree, beside = taken_apart(encode(Counts(3, np.arange(2))))
    with pytest.raises(InputError, match=r"whole reply \(there are further arrays\)"):
        decode(put_together(tree, {**beside, "more": np.zeros(9)}))


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 100, encode_request(TRAIN)[:-3], b"garbage", b"\xff" * 8 + b"{}"])
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(InputError, match="message must be a whole request"):
        decode_request(garbage)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"Bundle":' * 50_000, b"9" * 5000, b"null", b"{}", b"", b"\xff"])
def test_nesting_and_digits_have_an_end(text: bytes) -> None:
    for message in (put_together(text, {}), put_together(b'{"Bundle":{"requests":' + text + b"}}", {})):
        with pytest.raises(InputError, match="message must be a whole request"):
            decode_request(message)


def test_sizes_have_an_end() -> None:
    long = put_together(b'{"Counts":{"records":1,"cells":"x"}}' + b" " * MOST_HEADER, {"x": np.arange(2)})
    with pytest.raises(InputError, match=r"whole reply \(its JSON is too long\)"):
        decode(long)
    names = put_together({}, {f"{i:090d}": np.zeros(0) for i in range(9000)})
    with pytest.raises(InputError, match=r"whole reply \(its header is too long\)"):
        decode(names)


@pytest.mark.parametrize("wrong", [None, {"records": 3}, 7, b"bytes", Task(), CountsRequest()])
def test_what_is_no_reply_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InputError, match="reply"):
        encode(wrong)


def test_opened_features_do_not_travel() -> None:
    opened: Any = SharedFeatures.__new__(SharedFeatures)
    with pytest.raises(InputError, match="request must be of a known kind"):
        encode_request(TrainRequest(4, SEALED, Tracked(opened), PRIVATE, 1 / 3))


@pytest.mark.parametrize(
    "change",
    [
        {"records": [1.5, 2]}, {"records": [True, False]}, {"records": [2**63, 0]}, {"records": [[1], [2, 3]]},
        {"records": "000001"}, {"records": [[1, 2]]}, {"cells": [["a", "b"]]}, {"least": 1.0}, {"more": 1},
        {"claim": {"rdp": math.nan, "pld": 1.0, "delta": 1e-6}}, {"claim": {"rdp": 1.0, "pld": 1.0, "delta": math.inf}},
        {"counting": {"kind": "none", "scale": 1.0}}, {"records": None}, {"cells": [[math.nan, 1]]},
    ],
)  # fmt: skip
def test_what_is_no_release_plan_is_refused(change: dict[str, Any]) -> None:
    plan = json.loads(RELEASE_PLANS.to_text(ReleasePlan(np.array([20, 0]), np.array([[8, 12], [0, 0]]))))
    assert RELEASE_PLANS.from_text(json.dumps(plan))
    with pytest.raises(InputError, match="release plan must be a whole release plan"):
        RELEASE_PLANS.from_text(json.dumps({**plan, **change}))


def test_a_text_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privfair.codec.MOST_TEXT", 10)
    with pytest.raises(InputError, match="it is too long"):
        Codec[FloatArray](FloatArray, "list").from_text("[1.0, 2.0, 3.0]")


# ---- fuzzing: nothing but `InputError` is raised, and what is read is a message

WORDS = ["TrainRequest", "Bundle", "Counts", "round", "records", "000001", "about", "", "\x00", "NaN"]
NUMBERS = [0, -1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, math.inf, math.nan, True, None, [], {}, [[]], "x"]


def mutated(message: bytes, random: Random) -> bytes:
    """A message with bits flipped, cut, its lengths, arrays or fields changed, or nested without end."""
    kind = random.choice(["bits", "cut", "length", "join", "tree", "tree", "swap", "nest", "arrays", "text"])
    content = bytearray(message)
    if kind == "bits":
        for _ in range(random.choice([1, 1, 2, 8])):
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        return bytes(content)
    if kind == "cut":
        return bytes(content[: random.randrange(len(content))])
    if kind == "length":
        return random.choice([0, 7, 2**20, 2**31, 2**40, 2**64 - 1]).to_bytes(8, "little") + bytes(content[8:])
    if kind == "join":
        return bytes(content) + bytes(content[random.randrange(len(content)) :])
    tree, beside = taken_apart(message)
    if kind == "text":
        text = bytearray(json.dumps(tree).encode())
        text[random.randrange(len(text))] = random.randrange(256)
        return put_together(bytes(text), beside)
    if kind == "nest":
        opening, closing = random.choice([(b"[", b"]"), (b'{"Bundle":{"requests":[', b"]}}")])
        depth = random.choice([1, 5, 100, 3000])
        return put_together(opening * depth + json.dumps(tree).encode() + closing * depth, beside)
    if kind == "arrays" and beside:
        name = random.choice(list(beside))
        values = beside.pop(name)
        made = [values[None], values[:0], values.astype("f2"), values.astype("u1"), np.repeat(values, 3, axis=0), None]
        other = random.choice(made)
        return put_together(tree, beside if other is None else {**beside, name: other})
    places = list(_places(tree))
    holder, key = random.choice(places)
    if kind == "swap":
        other_holder, other_key = random.choice(places)
        holder[key], other_holder[other_key] = other_holder[other_key], holder[key]
    elif random.random() < 0.3 and isinstance(holder, dict):
        holder[random.choice(WORDS)] = holder.pop(key)
    elif random.random() < 0.3:
        del holder[key]
    else:
        holder[key] = random.choice([*NUMBERS, *WORDS])
    with suppress(ValueError, RecursionError):  # a swap may have put a part into itself
        return put_together(tree, beside)
    return message


def _places(tree: Any) -> Any:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def fuzz(count: int, seed: int) -> int:
    """So many mutated messages; how many of them were read."""
    random = Random(seed)
    requests, replies = [encode_request(r) for r in SENT], [encode(r) for r in ANSWERED]
    read = 0
    for number in range(count):
        mine, read_it, kinds = (requests, decode_request, Asked) if number % 2 else (replies, decode, Reply)
        message = mutated(random.choice(mine), random)
        with suppress(InputError):
            assert isinstance(read_it(message), kinds)  # type: ignore[operator]
            read += 1
    return read


def test_a_few_mutated_messages_are_harmless() -> None:
    assert 0 < fuzz(600, seed=1) < 600


@pytest.mark.slow
def test_many_mutated_messages_are_harmless() -> None:
    assert 0 < fuzz(30_000, seed=2) < 30_000


@settings(max_examples=200, deadline=None)
@given(garbage=st.binary(max_size=300))
def test_random_bytes_are_an_input_error(garbage: bytes) -> None:
    for read in (decode, decode_request):
        with pytest.raises(InputError, match="message must be"):
            read(garbage)


def test_a_damaged_file_is_an_input_error(tmp_path: Path) -> None:
    from privfair.util import read_arrays, write_arrays

    holder_state.write(tmp_path, HolderState(ledger_id="a", counts=b"b"))
    found = read_arrays(tmp_path / holder_state.FILE)
    for broken in ({}, {"about": found["about"][:-1]}, {**found, "about": found["about"].astype(float)}):
        write_arrays(tmp_path / holder_state.FILE, broken)
        with pytest.raises(InputError, match=r"state\.npz must be a whole state of a data holder"):
            holder_state.read(tmp_path)
