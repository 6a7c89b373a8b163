"""λ that follows a target, over the real messages: the same at every holder, whoever was away or put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from privfair.deployment import holder_state
from privfair.deployment.flower.link import unwrap
from privfair.federated.exchange import decode_request, singles
from privfair.federated.messages import MaskingRequest, TrainRequest
from privfair.federated.model_state import STRENGTHS
from tests.flower.federations import Deployment, deployment
from tests.flower.memory_grid import Meddle
from tests.flower.test_embedding_messages import NOISE, with_shared
from tests.flower.test_faults import ENCRYPTED, QUANTISED
from tests.flower.test_holder import changing
from tests.flower.test_masked_runs import MASKED

TARGET: dict[str, Any] = {
    "fairness": {"target": 0.05, "lambda": None, "tracker": "embedding"}, "federation": {"rounds": 6},
}  # fmt: skip
ROUNDS = 6


def asked(message: Message) -> tuple[str, int] | None:
    """The channel and the round of an order; None for another message."""
    envelope: Any = unwrap(message)
    if envelope["kind"] != "order":
        return None
    request = decode_request(envelope["request"][0])
    if isinstance(request, MaskingRequest):
        return None
    first: Any = singles(request)[0]
    return first.channel, -1 if getattr(first, "round", None) is None else first.round


def away(node: int, rounds: range) -> Meddle:
    """One holder gets no message of these rounds."""

    def meddle(to: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        order = asked(message) if to == node else None
        return None if order is not None and order[1] in rounds else answer()

    return meddle


def strengths(found: Deployment, holder: int) -> np.ndarray:
    memory = holder_state.read(found.holder(holder))
    assert memory is not None
    assert memory.replica is not None
    return memory.replica[STRENGTHS]


def require_one(found: Deployment, least: int = ROUNDS - 1) -> np.ndarray:
    """λ of all rounds that a holder followed is that of every other; the last one need not have reached those away."""
    followed = sorted((strengths(found, k) for k in range(3)), key=len)
    assert len(followed[0]) >= least
    for one in followed[:-1]:
        np.testing.assert_array_equal(one, followed[-1][: len(one)])
    assert len(np.unique(followed[-1])) > 2
    models = [load_file(found.holder(k) / "model.safetensors") for k in range(3)]
    for model in models[1:]:
        for name, values in model.items():
            np.testing.assert_array_equal(values, models[0][name])
    return followed[-1]


@pytest.mark.parametrize("scheme", [QUANTISED, pytest.param(ENCRYPTED, marks=pytest.mark.slow)], ids=["plain", "bfv"])
@pytest.mark.parametrize("lagged", [False, True])
def test_who_trains_in_some_rounds_follows_all(tmp_path: Path, scheme: dict[str, Any], lagged: bool) -> None:
    about = {"federation": {"clients_per_round": 1, "lagged_scores": lagged}}
    found = deployment(tmp_path, scheme, TARGET, about)
    assert found.serve().absent == ()
    require_one(found, ROUNDS - 2)


@pytest.mark.parametrize("lagged", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_who_was_away_for_some_rounds_catches_up(tmp_path: Path, lagged: bool) -> None:
    about = {"federation": {"lagged_scores": lagged}}
    found = deployment(tmp_path, ENCRYPTED, TARGET, about, meddle=away(101, range(2, 4)))
    absent = found.serve().absent
    assert {(a.client, a.round) for a in absent} == {(1, 2), (1, 3)}
    require_one(found)


def test_under_masks_too_where_features_are_in_the_sum_of_updates(tmp_path: Path) -> None:
    names = [f"client-{k}" for k in range(1, 5)]
    more = {"run": {"clients": names}, "aggregation": {"smallest_cohort": 3}, "privacy": NOISE}
    privacy = {k: v for k, v in NOISE.items() if k != "sampling_rate"}
    tree = {**TARGET, "federation": {"rounds": ROUNDS, "lagged_scores": True}}
    data = {f"holder_{k}": {"data": {"name": "synthetic", "clients": 4, "records": 60}} for k in range(4)}
    found = deployment(tmp_path, MASKED, tree, {**more, "privacy": privacy}, meddle=away(101, range(2, 4)), **data)
    absent = found.serve().absent
    assert {a.client for a in absent} == {1}
    require_one(found)


def test_a_holder_whose_folder_was_put_back_comes_to_the_same_strength(tmp_path: Path) -> None:
    """Its state is that of three rounds earlier: sums of updates and of features are sent again."""
    saved: dict[str, bytes] = {}

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        order = asked(message) if node == 102 else None
        if order == ("embeddings", 1):
            saved["state"] = (found.holder(2) / holder_state.FILE).read_bytes()
        if order == ("embeddings", 4):
            (found.holder(2) / holder_state.FILE).write_bytes(saved["state"])
        return answer()

    found = deployment(tmp_path, ENCRYPTED, TARGET, meddle=meddle)
    found.serve()
    assert saved
    require_one(found)


def test_a_server_that_begins_again_ends_with_the_same_strength(tmp_path: Path) -> None:
    """Its checkpoint is that of two rounds earlier; the sums that were seen stay what they were."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = deployment(tmp_path / "whole", QUANTISED, TARGET)
    expected = whole.serve().replica[STRENGTHS]

    class Killed(BaseException):
        """Nothing catches it."""

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if asked(message) == ("updates", 3) and node == 101 and not killed:
            killed.append(True)
            raise Killed
        return answer()

    killed: list[bool] = []
    cut = deployment(tmp_path / "cut", QUANTISED, TARGET, meddle=meddle)
    with pytest.raises(Killed):
        cut.serve()
    checkpoint = cut.serve()
    assert killed
    np.testing.assert_array_equal(checkpoint.replica[STRENGTHS], expected)
    rows = [row for row in checkpoint.history if row["round"]]
    assert [row["lambda"] for row in rows] == [float(one.max()) for one in expected]
    assert all(0 <= row["tracked_gap"] <= 1 for row in rows)


FORGERIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "less noise of decisions": (
        lambda s: replace(s, steering=replace(s.steering, errors=s.steering.errors / 2)), "noise of the decisions",
    ),
    "no target": (lambda s: replace(s, steering=None), "The penalty is not the agreed one."),
    "test records": (
        lambda s: replace(s, steering=replace(s.steering, tests=s.steering.tests * np.nan)), "are not numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_what_strengths_follow_must_be_the_plan(tmp_path: Path, name: str) -> None:
    change, reason = FORGERIES[name]
    plan = {**TARGET, "privacy": NOISE, "federation": {"rounds": 2}}
    found = deployment(tmp_path, plan, QUANTISED, meddle=changing(with_shared(change), TrainRequest))
    absences = found.serve().absent
    assert {a.client for a in absences} == {0}
    assert all(reason in a.reason for a in absences)


def test_the_server_sends_each_sum_of_features_once(tmp_path: Path) -> None:
    found = deployment(tmp_path, ENCRYPTED, TARGET, {"federation": {"clients_per_round": 1}})
    found.serve()
    sent = [unwrap(message) for node, message in found.grid.sent if node == 100]
    orders: list[Any] = [one for one in sent if not isinstance(one, str) and one["kind"] == "order"]
    assert sum(len(order.get("features", ())) for order in orders) <= ROUNDS
