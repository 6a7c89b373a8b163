"""Runs with masks over Flower messages: the model of the local engine, whoever is killed in between."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from privfair.config import Config
from privfair.deployment.flower.link import RECORD, GridLink, unwrap
from privfair.deployment.holder_state import MASKS
from privfair.deployment.protocol import masks_of, pack_sums, read_sums
from privfair.federated.exchange import Unfinished, decode_request
from privfair.federated.messages import AgreeRequest, RosterRequest, TrainRequest, UnmaskSumRequest
from privfair.runs.assembly import build
from privfair.runs.loop import run
from privfair.secure_aggregation.ciphertext import Ciphertext
from tests.flower.federations import DATA, Deployment, deployment, merged

NOISE = {"count_noise": 2.0, "prediction_noise": 9.0, "noise_multiplier": 3.0, "min_count": 1}
MASKED: dict[str, Any] = {
    "model": {"name": "logistic", "hidden": []},
    "aggregation": {"scheme": "masked", "masks": True},
    "run": {"reproducible_noise": True},
    "federation": {"rounds": 2},
}
FEATURES = {"fairness": {"tracker": "embedding"}, "privacy": NOISE}
TARGET = {"fairness": {"tracker": "embedding", "target": 0.05, "lambda": None}}
CLIENTS = {"privacy": {"updates": "client_level", "counts": "public", "noise_multiplier": 9.0}}


def local(found: Deployment) -> dict[str, np.ndarray]:
    """The model of the same run in one process."""
    clients = {"data": {**DATA, "clients": len(found.tree["run"]["clients"])}}
    ledger = {"run": {"ledger": f"sqlite:///{found.folder}/local.sqlite"}}
    outcome = run(build(Config.build(merged(found.tree, clients, ledger))))
    return {name: t.numpy() for name, t in outcome.simulation.model.module.state_dict().items()}


def require_same(found: Deployment, expected: dict[str, np.ndarray]) -> None:
    for k in range(len(found.tree["run"]["clients"])):
        for name, values in load_file(found.holder(k) / "model.safetensors").items():
            np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize(
    "sections",
    [
        [
            FEATURES,
            {"federation": {"lagged_scores": True}, "privacy": {"evaluation": "gaussian", "evaluation_noise": 5.0}},
        ],
        [FEATURES, {**TARGET, "federation": {"lagged_scores": True}}],
        pytest.param([FEATURES, {**TARGET, "federation": {"lagged_scores": False}}], marks=pytest.mark.slow),
        pytest.param([FEATURES, {"federation": {"lagged_scores": False}}], marks=pytest.mark.slow),
        pytest.param([FEATURES, {"aggregation": {"scheme": "bfv"}}], marks=pytest.mark.slow),
        pytest.param([FEATURES, {"privacy": {"local_steps": 2, "sampling_rate": 0.5}}], marks=pytest.mark.slow),
        pytest.param([CLIENTS, {"federation": {"method": "fedavg"}}], marks=pytest.mark.slow),
        [{"federation": {"method": "fedavg"}, "run": {"reproducible_noise": False}}],
    ],
    ids=["lagged", "target, lagged", "target", "unlagged", "bfv", "own noise", "whole clients", "not private"],
)
def test_masked_flower_is_the_same_run(tmp_path: Path, sections: list[dict[str, Any]]) -> None:
    lag = {} if "lagged_scores" in str(sections) or "fedavg" in str(sections) else {"lagged_scores": True}
    found = deployment(tmp_path, MASKED, *sections, {"federation": lag})
    checkpoint = found.serve()
    assert checkpoint.absent == ()
    require_same(found, local(found))
    assert not any((found.holder(k) / MASKS).exists() for k in range(3))  # keys and shares are gone with the run
    rounds: Counter[str] = Counter()
    for node, message in found.grid.sent:
        envelope: Any = unwrap(message)
        if node == 100 and envelope["kind"] == "order":
            rounds[type(decode_request(envelope["request"][0])).__name__] += 1
    features = "embedding" in str(sections)
    lagged = features and lag.get("lagged_scores", "True" in str(sections))
    assert rounds["TrainRequest"] == 2
    assert rounds["EmbeddingsRequest"] == (0 if not features else 1 if lagged else 2)


class Killed(BaseException):
    """The process ends here: nothing catches it."""


def serve_until_done(found: Deployment, kill: Callable[[Any], bool], monkeypatch: pytest.MonkeyPatch) -> int:
    """Start the server again and again; how often it was killed, as soon as an exchange is one to `kill`."""
    exchange, killed = GridLink.exchange, 0

    def deadly(self: GridLink, messages: Any, deadline: float) -> Any:
        requests = [decode_request(m["request"][0]) for m in messages.values() if m["kind"] == "order"]
        half = dict(list(messages.items())[: len(messages) // 2 + 1])
        if requests and kill(requests[0]):
            exchange(self, half, deadline)  # some have got the message, and nobody hears their answers
            raise Killed
        return exchange(self, messages, deadline)

    monkeypatch.setattr(GridLink, "exchange", deadly)
    while True:
        try:
            found.serve()
        except Killed:
            killed += 1
            continue
        monkeypatch.setattr(GridLink, "exchange", exchange)
        return killed


def test_a_server_killed_at_any_step_of_a_sum_goes_on_with_the_same_survivors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = deployment(tmp_path, MASKED, FEATURES, {"federation": {"lagged_scores": True}})
    died: Counter[type] = Counter()

    def kill(request: Any) -> bool:
        kind = type(request)
        died[kind] += 1
        return died[kind] == 1 or (kind in (UnmaskSumRequest, TrainRequest) and died[kind] == 3)

    assert serve_until_done(found, kill, monkeypatch) >= 8
    assert {RosterRequest, AgreeRequest, UnmaskSumRequest, TrainRequest} <= set(died)
    assert found.checkpoint().absent == ()
    require_same(found, local(found))
    for k in range(3):
        spends = Counter((s.channel, s.round) for s in found.spends(k) if s.group == "")
        assert set(spends.values()) == {1}


def test_every_answer_is_lost_once(tmp_path: Path) -> None:
    """A node that dies after its answer has gone out of its disk: it is waited for, and sends the same again."""
    seen: set[bytes] = set()

    def losing(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        envelope: Any = unwrap(message)
        key = b"" if envelope["kind"] != "order" else envelope["request"][0]
        reply = answer()
        if node == 101 and key and key not in seen:
            seen.add(key)
            return None
        return reply

    found = deployment(tmp_path, MASKED, FEATURES, {"federation": {"lagged_scores": True}}, meddle=losing)
    found.serve()
    assert len(seen) >= 9
    require_same(found, local(found))


def test_a_holder_that_lost_its_folder_costs_the_others_one_sum_and_comes_back_with_the_next_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three holders all must be in a sum: without one of them nothing opens, and nobody is asked to pay for it."""
    for module in ("server", "holder"):  # blocks: counts, features and round 0; rounds 1 to 3; round 4
        monkeypatch.setattr(
            f"privfair.deployment.{module}.masks_of", lambda *about: replace(masks_of(*about), sums_per_block=3)
        )
    lost: list[int] = []

    def losing(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        envelope: Any = unwrap(message)
        request = decode_request(envelope["request"][0]) if envelope["kind"] == "order" else None
        if node == 101 and not lost and isinstance(request, TrainRequest) and request.round == 1:
            lost.append(node)
            shutil.rmtree(tmp_path / "node-1")
        return answer()

    rounds = {"federation": {"lagged_scores": True, "rounds": 5}}
    found = deployment(tmp_path, MASKED, FEATURES, rounds, meddle=losing)
    checkpoint = found.serve()
    assert lost
    for k in (0, 2):
        paid = sorted(s.round or 0 for s in found.spends(k) if s.channel == "updates")
        assert paid == [0, 1, 4]  # round 1 had left when it came out
    assert {a.round for a in checkpoint.absent if a.client == 0} == {1, 2, 3}
    assert len(list((found.out / "sums").glob("*.npz"))) == 2


def test_a_holder_that_does_not_train_stops_the_run_before_the_others_pay_again(tmp_path: Path) -> None:
    away = [True]

    def silent(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        envelope: Any = unwrap(message)
        request = decode_request(envelope["request"][0]) if envelope["kind"] == "order" else None
        gone = node == 101 and away[0] and isinstance(request, TrainRequest) and request.round == 1
        return None if gone else answer()

    rounds = {"federation": {"lagged_scores": True, "rounds": 3}}
    found = deployment(tmp_path, MASKED, FEATURES, rounds, meddle=silent)
    with pytest.raises(Unfinished, match="Round 2 had 2 of at least 3 clients train"):
        found.serve()
    away[0] = False
    assert found.serve().absent == ()
    require_same(found, local(found))
    for k in range(3):
        assert sorted(s.round or 0 for s in found.spends(k) if s.channel == "updates") == [0, 1, 2]


def test_after_a_dead_round_the_steps_of_a_decaying_rate_are_still_those_of_their_rounds(tmp_path: Path) -> None:
    def silent(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        envelope: Any = unwrap(message)
        request = decode_request(envelope["request"][0]) if envelope["kind"] == "order" else None
        return None if node == 101 and isinstance(request, UnmaskSumRequest) and request.number == 2 else answer()

    decaying = {"federation": {"lagged_scores": True, "rounds": 3, "learning_rate_decay": 0.9}}
    found = deployment(tmp_path, MASKED, FEATURES, decaying, meddle=silent)
    checkpoint = found.serve()  # the updates of the first round, sum 2, do not open
    assert any("nothing opens" in a.reason for a in checkpoint.absent)
    assert checkpoint.round == 3
    assert len(list((found.out / "sums").glob("*.npz"))) == 2
    require_same(found, load_file(found.holder(0) / "model.safetensors"))
    for k in range(3):
        assert sorted(s.round or 0 for s in found.spends(k) if s.channel == "updates") == [0, 1, 2]


def test_a_sum_that_the_server_changed_is_refused_and_the_holder_leaves(tmp_path: Path) -> None:
    def forging(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        record: Any = message.content[RECORD]
        if node == 100 and record.get("kind") in ("order", "end") and record.get("sums"):
            sums = read_sums(record)
            total = Ciphertext.from_bytes(sums[0].total, "sum")
            values = np.frombuffer(total.chunks[0], dtype="<u4").copy()
            values[0] = (values[0] + 2**20) % 1_073_692_673
            changed = replace(total, chunks=(values.tobytes(), *total.chunks[1:])).to_bytes()
            record.update(pack_sums([replace(sums[0], total=changed), *sums[1:]]))
        return answer()

    found = deployment(tmp_path, MASKED, FEATURES, {"federation": {"lagged_scores": True}}, meddle=forging)
    found.serve()
    reasons = {a.reason for a in found.checkpoint().absent if a.client == 0}
    assert any("a sum could not be opened" in reason for reason in reasons)
    assert not (found.holder(0) / "model.safetensors").exists()
    assert not (found.holder(0) / MASKS).exists()
    assert all(s.round in (None, 0) for s in found.spends(0) if s.channel == "updates")
