"""Nodes that die, come late, answer late or answer garbage; a server that is started again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from safetensors.numpy import load_file

from privfair.config import Config
from privfair.deployment.flower.link import RECORD, unwrap, wrap
from privfair.deployment.protocol import VERSION
from privfair.federated.exchange import decode_request, singles
from tests.flower.federations import NAMES, PRIVATE, Deployment, deployment, merged, node, write
from tests.flower.memory_grid import Meddle

QUANTISED = {"aggregation": {"scheme": "plain", "quantise": True}}
ENCRYPTED = {"aggregation": {"scheme": "bfv"}}
Reply = Callable[[Message, Callable[[], Message]], Message | None]


def order(message: Message) -> tuple[str, int | None]:
    """(what is asked first, round) of an order; the kind of another message."""
    envelope = unwrap(message)
    assert not isinstance(envelope, str)
    if envelope["kind"] != "order":
        return str(envelope["kind"]), None
    first = singles(decode_request(envelope["request"][0]))[0]  # type: ignore[index, arg-type]
    return first.channel, getattr(first, "round", None)


def at(node_: int, asked: str, number: int | None, reply: Reply) -> Meddle:
    """Something happens to one node's answer at one moment."""

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        return reply(message, answer) if (node, *order(message)) == (node_, asked, number) else answer()

    return meddle


def lost(message: Message, answer: Callable[[], Message]) -> Message | None:
    """The node died before it answered."""
    return None


def late(message: Message, answer: Callable[[], Message]) -> Message | None:
    """It answered, and nobody heard it."""
    answer()
    return None


def failed(message: Message, answer: Callable[[], Message]) -> Message | None:
    return Message(Error(code=1, reason="secret of a record"), reply_to=message)


def garbage(message: Message, answer: Callable[[], Message]) -> Message | None:
    record: dict[str, Any] = {"version": VERSION, "kind": "answer", "replies": [b"garbage"], "reasons": [""], "sums": 1}
    return Message(wrap(record), reply_to=message)


def nonsense(message: Message, answer: Callable[[], Message]) -> Message | None:
    return Message(wrap({"version": VERSION, "kind": "banana"}), reply_to=message)


def damaged(message: Message, answer: Callable[[], Message]) -> Message | None:
    reply = answer()
    record: Any = reply.content[RECORD]
    whole = bytearray(record["replies"][0])
    whole[-20] ^= 1
    record["replies"] = [bytes(whole)]
    return reply


FAULTS: dict[str, tuple[Reply, str]] = {
    "dead": (lost, "It did not answer within"),
    "slow": (late, "It did not answer within"),
    "failed": (failed, "Its node failed (code 1)."),
    "garbage": (garbage, "Its reply could not be used"),
    "nonsense": (nonsense, "Its reply could not be read"),
    "damaged": (damaged, "Its reply could not be used"),
}


@pytest.mark.parametrize(
    "fault", [f if f in ("slow", "damaged") else pytest.param(f, marks=pytest.mark.slow) for f in FAULTS]
)
def test_the_round_goes_on_and_encrypted_is_plain(tmp_path: Path, fault: str) -> None:
    reply, reason = FAULTS[fault]
    results = []
    for name, sections in (("plain", QUANTISED), ("bfv", ENCRYPTED)):
        (tmp_path / name).mkdir()
        found = deployment(tmp_path / name, sections, meddle=at(101, "updates", 1, reply))
        checkpoint = found.serve()
        (absence,) = checkpoint.absent
        assert (absence.round, absence.client, absence.asked) == (1, 1, "updates")
        assert absence.reason.startswith(reason)
        assert "secret" not in absence.reason
        results.append([load_file(found.holder(k) / "model.safetensors") for k in range(3)])
    for holder in range(3):  # the one that was away has caught up
        for name, values in results[0][0].items():
            np.testing.assert_array_equal(results[0][holder][name], values)
            np.testing.assert_array_equal(results[1][holder][name], values)


class Stopped(BaseException):
    """The server's machine goes off."""


@pytest.mark.usefixtures("begun_earlier")
def test_a_server_that_is_started_again_tells_the_same_sum_of_features(tmp_path: Path) -> None:
    """Another sum of that round, without one client, would tell that client's vector, with its own share of noise."""
    noise = {"prediction_noise": 5.0, "count_noise": 0.5, "noise_multiplier": 1.0, "sampling_rate": 0.5, "min_count": 1}
    shares = {"privacy": {**noise, "distributed_noise": True, "smallest_cohort": 3}}
    reported: list[bytes] = []
    again: list[bool] = []

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        what = order(message)
        if what == ("updates", 1) and node == 100:
            (request,) = singles(decode_request(unwrap(message)["request"][0]))  # type: ignore[index, arg-type]
            reported.append(request.objective.shared.total)  # type: ignore[union-attr]
        if what == ("updates", 1) and node == 101 and not again:
            again.append(True)
            raise Stopped  # the first client has heard the sum
        if again and what == ("embeddings", 1) and node == 102:
            return None
        return answer()

    found = deployment(tmp_path, ENCRYPTED, {"fairness": {"tracker": "embedding"}}, shares, meddle=meddle)
    with pytest.raises(Stopped):
        found.serve()
    checkpoint = found.serve()
    assert checkpoint.round == 3
    assert len(reported) == 2
    assert reported[0] == reported[1] != b""


@pytest.mark.parametrize("reply", [lost, late], ids=["dead", "slow"])
def test_nothing_is_released_twice(tmp_path: Path, reply: Reply) -> None:
    found = deployment(tmp_path, ENCRYPTED, {"privacy": PRIVATE}, meddle=at(101, "predictions", 1, reply))
    checkpoint = found.serve()
    assert [(a.round, a.client, a.asked) for a in checkpoint.absent] == [(1, 1, "predictions")]
    for k in range(3):
        places = Counter((s.channel, s.round, s.group) for s in found.spends(k))
        assert set(places.values()) == {1}
        received = {s.round for s in found.spends(k) if s.channel == "predictions"}
        assert received == ({0, 2} if k == 1 and reply is lost else {0, 1, 2})
        assert {s.round for s in found.spends(k) if s.channel == "updates"} == {0, 1, 2}


class Late:
    """A network in which a node is not there before a moment."""

    def __init__(self, asked: str, number: int) -> None:
        self.when = (asked, number)
        self.found: Deployment | None = None

    def __call__(self, node_: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if order(message) == self.when and self.found is not None:
            self.found.grid.nodes[102] = node(self.found.folder, 2)
        return answer()


@pytest.mark.parametrize(
    "sections",
    [pytest.param({}, marks=pytest.mark.slow), {"privacy": PRIVATE}, ENCRYPTED],
    ids=["open", "private", "encrypted"],
)
def test_who_comes_late_is_admitted_from_the_next_round(tmp_path: Path, sections: dict[str, Any]) -> None:
    network = Late("updates", 0)
    found = deployment(tmp_path, QUANTISED, sections, meddle=network)
    network.found = found
    del found.grid.nodes[102]
    server = tmp_path / "server.toml"
    write(server, merged(Config.read(server).as_tables(), {"run": {"min_clients": 2}}))
    checkpoint = found.serve()
    assert [(a.round, a.asked) for a in checkpoint.absent] == [(None, "counts"), (0, "counts")]
    assert checkpoint.uncounted == ()
    assert checkpoint.release_plan.records[2] > 0
    models = [load_file(found.holder(k) / "model.safetensors") for k in (0, 2)]
    for name, values in models[0].items():
        np.testing.assert_array_equal(models[1][name], values)
    if "privacy" in sections:
        assert {s.round for s in found.spends(2) if s.channel == "updates"} == {1, 2}
        assert len({s.event for s in found.spends(2) if s.channel == "updates"} | {
            s.event for s in found.spends(0) if s.channel == "updates"
        }) == 1  # fmt: skip


class Killed(BaseException):
    """The server's process ends."""


@pytest.mark.parametrize("asked", ["predictions", "updates"])
@pytest.mark.parametrize(
    "sections", [pytest.param(QUANTISED, marks=pytest.mark.slow), ENCRYPTED], ids=["plain", "encrypted"]
)
def test_a_server_that_is_started_again_goes_on(tmp_path: Path, asked: str, sections: dict[str, Any]) -> None:
    """Killed in the middle of an exchange, when some have answered; the nodes have other ids afterwards."""
    whole = deployment(_new(tmp_path / "whole"), sections, {"privacy": PRIVATE, "run": {"reproducible_noise": True}})
    whole.serve()

    def killed(node_: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if (node_, *order(message)) == (102, asked, 1):
            raise Killed
        return answer()

    parts = {"privacy": PRIVATE, "run": {"reproducible_noise": True}}
    found = deployment(_new(tmp_path / "parts"), sections, parts, meddle=killed)
    with pytest.raises(Killed):
        found.serve()
    found.grid.meddle = lambda node_, message, answer: answer()
    found.grid.nodes = {500 + k: node(found.folder, k) for k in range(3)}
    checkpoint = found.serve()
    assert checkpoint.absent == ()
    for k in range(3):
        places = Counter((s.channel, s.round, s.group) for s in found.spends(k))
        assert set(places.values()) == {1}
        for name, values in load_file(whole.holder(k) / "model.safetensors").items():
            np.testing.assert_array_equal(load_file(found.holder(k) / "model.safetensors")[name], values)


def _new(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_holder_that_lost_its_folder_catches_up(tmp_path: Path) -> None:
    found = deployment(tmp_path, ENCRYPTED)

    def meddle(node_: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if (node_, *order(message)) == (101, "predictions", 2):
            for path in sorted((tmp_path / "node-1").rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            found.grid.meddle = lambda node_, message, answer: answer()
        return answer()

    found.grid.meddle = meddle
    checkpoint = found.serve()
    assert checkpoint.absent == ()
    models = [load_file(found.holder(k) / "model.safetensors") for k in range(2)]
    for name, values in models[0].items():
        np.testing.assert_array_equal(models[1][name], values)


def test_two_nodes_cannot_speak_for_one_holder(tmp_path: Path) -> None:
    found = deployment(tmp_path, QUANTISED)
    found.grid.nodes[300] = {**node(tmp_path, 0), "folder": str(tmp_path / "elsewhere")}
    checkpoint = found.serve()
    assert checkpoint.absent == ()
    kinds = [order(m)[0] for node_, m in found.grid.sent if node_ == 300]
    assert kinds == ["hello"]


def test_too_few_do_not_begin(tmp_path: Path) -> None:
    found = deployment(tmp_path, QUANTISED)
    del found.grid.nodes[100], found.grid.nodes[101]
    with pytest.raises(RuntimeError, match=r"Not enough data holders came within 1 s: 1 of 3 \(client-3\)"):
        found.serve()
    assert (found.out / "error.json").is_file()
    assert NAMES[2] == "client-3"


def test_the_server_does_not_take_the_secret_key(tmp_path: Path) -> None:
    found = deployment(tmp_path, ENCRYPTED)
    path = tmp_path / "server.toml"
    write(path, merged(Config.read(path).as_tables(), {"aggregation": {"keys": str(tmp_path / "keys")}}))
    with pytest.raises(ValueError, match=r"must be without the secret client\.key at the server"):
        found.serve()


def test_sums_travel_once(tmp_path: Path) -> None:
    """Two exchanges a round, one sum a round to every holder."""
    found = deployment(tmp_path, ENCRYPTED)
    found.serve()
    totals: list[int] = []
    for node_, message in found.grid.sent:
        envelope = unwrap(message)
        assert not isinstance(envelope, str)
        if node_ == 100 and envelope["kind"] in ("order", "end"):
            totals.append(len(envelope["sums"]))  # type: ignore[arg-type]
    assert totals == [0, 0, 0, 1, 0, 1, 0, 1]  # counts; scores and training of three rounds; the end


def test_a_holder_leaves_after_a_sum_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends sums to see which of them open learns of one at most."""
    from privfair.secure_aggregation import ClientAggregator, TooNoisy

    found = deployment(tmp_path, ENCRYPTED)
    opened: list[int] = []
    inner = ClientAggregator.open

    def noisy(self: ClientAggregator, total: bytes, name: str = "sum", **options: Any) -> Any:
        opened.append(1)
        if len(opened) == 2:  # the second holder's first sum
            raise TooNoisy(name, "must have noise below its numbers", "more")
        return inner(self, total, name, **options)

    monkeypatch.setattr(ClientAggregator, "open", noisy)
    checkpoint = found.serve()
    reasons = {(a.client, a.reason) for a in checkpoint.absent}
    assert reasons == {(1, "This data holder has left the run: a sum could not be opened.")}
    assert len(opened) == 2 + 1 + 2 * 2


def test_a_holder_states_what_it_released(tmp_path: Path) -> None:
    found = deployment(tmp_path, ENCRYPTED, {"privacy": PRIVATE}, meddle=at(101, "updates", 1, lost))
    checkpoint = found.serve()
    claim = checkpoint.release_plan.claim
    assert claim is not None
    for k in range(3):
        about = json.loads((found.holder(k) / "privacy.json").read_text())
        assert about["client"] == NAMES[k]
        assert about["epsilon"] == {"rdp": claim.rdp, "pld": claim.pld}
        assert about["beyond_plan"] == []
        assert about["private"]
        assert about["ledger"]["rows"] == len(found.spends(k))
        assert set(about["spent_by_channel"]) == {"counts", "predictions", "updates"}
