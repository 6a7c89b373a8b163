"""What a data holder does not let itself be talked into, over the real messages."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from accountant.budget import Budget
from accountant.errors import Refused
from accountant.ledger.chain import Progress
from accountant.ledger.ledger import Ledger
from privfair.channels.updates import UpdatesChannel
from privfair.clients.client import Client
from privfair.config import Config
from privfair.deployment.flower.link import RECORD, unwrap, wrap
from privfair.deployment.holder import WITHHELD, Holder
from privfair.deployment.protocol import sealed, shared_plan
from privfair.federated.exchange import decode_request, encode_request, singles
from privfair.federated.messages import Bundle, LocalWork, PrivateWork, Request, ScoresRequest, TrainRequest
from tests.flower.federations import NAMES, PRIVATE, Deployment, deployment, merged, write
from tests.flower.memory_grid import Meddle

QUANTISED = {"aggregation": {"scheme": "plain", "quantise": True}}
NOISY = {"privacy": PRIVATE, **QUANTISED}


def changing(change: Callable[[Request], Request], kind: type[Request]) -> Meddle:
    """A server whose requests of a kind are other ones than planned, for the first node."""

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        envelope = unwrap(message)
        assert not isinstance(envelope, str)
        if node == 100 and envelope["kind"] == "order":
            asked = decode_request(envelope["request"][0])  # type: ignore[index, arg-type]
            changed = tuple(change(s) if isinstance(s, kind) else s for s in singles(asked))
            forged = Bundle(changed) if isinstance(asked, Bundle) else changed[0]
            message.content[RECORD]["request"] = [encode_request(forged)]  # type: ignore[index]
        return answer()

    return meddle


def less_noise(request: Any) -> Any:
    assert isinstance(request.work, PrivateWork)
    return replace(request, work=replace(request.work, noise_multiplier=request.work.noise_multiplier / 2))


FORGERIES: dict[str, tuple[type[Any], Callable[[Any], Any], str]] = {
    "less noise": (TrainRequest, less_noise, "noise_multiplier is 0.5, and was to be 1.0"),
    "no noise": (
        TrainRequest,
        lambda r: replace(r, work=LocalWork(1, None, 0.1)),
        "The training is not asked for as agreed (DP-SGD, or not).",
    ),
    "more steps": (TrainRequest, lambda r: replace(r, work=replace(r.work, steps=9)), "steps is 9"),
    "another round": (TrainRequest, lambda r: replace(r, round=3), "The plan has 3 rounds, and no round 3."),
    "heavier": (TrainRequest, lambda r: replace(r, weight=1.0), "The weight is not that of the released counts."),
    "naked scores": (ScoresRequest, lambda r: replace(r, release=None), "The scores are not asked for as agreed."),
    "more scores": (
        ScoresRequest,
        lambda r: replace(r, quotas=r.quotas + 1),
        "The scores are not asked for as agreed.",
    ),
    "other rates": (
        ScoresRequest,
        lambda r: replace(r, release=replace(r.release, rates=np.ones_like(r.release.rates))),
        "The scores are not asked for as agreed.",
    ),
}


@pytest.mark.parametrize(
    "name", [n if n in ("less noise", "other rates") else pytest.param(n, marks=pytest.mark.slow) for n in FORGERIES]
)
def test_requests_that_are_not_the_plan_are_refused(tmp_path: Path, name: str) -> None:
    kind, change, reason = FORGERIES[name]
    found = deployment(tmp_path, NOISY, meddle=changing(change, kind))
    checkpoint = found.serve()
    absences = [a for a in checkpoint.absent if a.client == 0]
    assert len(absences) == 3
    assert all(reason in a.reason for a in absences)
    assert all(a.client == 0 for a in checkpoint.absent)
    channel = "updates" if kind is TrainRequest else "predictions"
    assert all(spend.channel != channel for spend in found.spends(0))
    assert sum(spend.channel == channel for spend in found.spends(1)) >= 3


def test_other_terms_are_refused(tmp_path: Path) -> None:
    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        record: Any = message.content[RECORD]
        if node == 100 and record.get("terms"):
            record["terms"] = record["terms"].replace('"noise_multiplier": 1.0', '"noise_multiplier": 0.1')
        return answer()

    checkpoint = deployment(tmp_path, NOISY, meddle=meddle).serve()
    reasons = {a.reason for a in checkpoint.absent if a.client == 0}
    assert len(reasons) == 1
    assert "noise multiplier must be as planned" in reasons.pop()


def test_a_plan_of_its_own_is_kept(tmp_path: Path) -> None:
    found = deployment(tmp_path, NOISY, holder_0={"privacy": {"noise_multiplier": 2.0}})
    path = found.folder / "server.toml"
    write(path, merged(Config.read(path).as_tables(), {"run": {"min_clients": 2}}))
    checkpoint = found.serve()
    assert checkpoint.uncounted == (0,)
    assert not (found.folder / "ledger-0.sqlite").exists()
    reason = "It refused: The plans differ: privacy.noise_multiplier is 1.0 there and 2.0 here."
    assert {(a.client, a.reason) for a in checkpoint.absent} == {(0, reason)}


@pytest.mark.parametrize("package", ["privfair", "torch", "opacus", "numba", "numpy"])
def test_a_server_of_another_version_is_refused_before_anything_is_released(tmp_path: Path, package: str) -> None:
    found = deployment(tmp_path, NOISY)
    config = Config.read(found.folder / "holder-0.toml")
    holder = Holder(config, "client-1", found.folder / "node-0")
    plan = {**shared_plan(Config.read(found.folder / "server.toml")), f"version of {package}": "0.0.9"}
    answer = holder.handle(sealed("hello", "20260101-000000-00000000", plan=json.dumps(plan)))
    reason = f"The plans differ: version of {package} is '0.0.9' there and {version(package).partition('+')[0]!r} here."
    assert answer["kind"] == "refused"
    assert answer["reason"] == reason
    assert not (found.folder / "ledger-0.sqlite").exists()
    assert not list((found.folder / "node-0").glob("2026*"))


OTHERS = {f"holder_{k}": {"privacy": {"require_budget": False}} for k in (1, 2)}  # other data, on the same machine


def test_an_older_ledger_of_a_holder_is_refused_by_the_next_run_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = deployment(tmp_path, NOISY, **OTHERS)
    path, copy = tmp_path / "ledger-0.sqlite", tmp_path / "copy.sqlite"
    with Ledger(f"sqlite:///{path}") as ledger:
        ledger.set_budget("synthetic", Budget(epsilon=1e6, delta=1e-5))
    shutil.copy(path, copy)
    found.serve()
    assert len(found.spends(0)) > 0
    for old in tmp_path.glob("ledger-0.sqlite*"):
        old.unlink()
    shutil.copy(copy, path)
    holder = Holder(Config.read(found.folder / "holder-0.toml"), "client-1", found.folder / "node-0")
    hello = next(e for node, m in found.grid.sent if node == 100 and (e := dict(unwrap(m)))["kind"] == "hello")
    answer = holder.handle({**hello, "run": "20300101-120000-abcdef12"})
    assert answer["kind"] == "refused"
    assert answer["reason"] == WITHHELD
    assert "older copy" in capsys.readouterr().err
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (2,)
    connection.close()


def test_what_is_over_budget_is_refused_before_anything_is_told(tmp_path: Path) -> None:
    found = deployment(tmp_path, NOISY, **OTHERS)

    with Ledger(f"sqlite:///{tmp_path}/ledger-0.sqlite") as ledger:
        ledger.set_budget("synthetic", Budget(epsilon=0.5, delta=1e-5))
    path = found.folder / "server.toml"
    write(path, merged(Config.read(path).as_tables(), {"run": {"min_clients": 2}}))
    checkpoint = found.serve()

    assert checkpoint.uncounted == (0,)
    assert {a.reason for a in checkpoint.absent} == {f"It refused: {WITHHELD}"}  # and nothing of the budget itself
    with Ledger(f"sqlite:///{tmp_path}/ledger-0.sqlite", create=False) as ledger:
        assert ledger.runs("synthetic") == []
    assert len(found.spends(1)) > 0


def resent(found: Deployment, k: int) -> list[Any]:
    """The answers to every order that a node got, sent once more."""
    holder = Holder(Config.read(found.folder / f"holder-{k}.toml"), f"client-{k + 1}", found.folder / f"node-{k}")
    envelopes = [unwrap(m) for node, m in found.grid.sent if node == 100 + k]
    return [holder.handle(e) for e in envelopes if not isinstance(e, str) and e["kind"] == "order"]


@pytest.mark.parametrize("sections", [NOISY, QUANTISED], ids=["private", "not private"])
def test_a_request_sent_again_is_answered_with_the_same_bytes(tmp_path: Path, sections: dict[str, Any]) -> None:
    answers: list[Any] = []

    def twice(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        first, second = answer(), answer()
        one, other = unwrap(first), unwrap(second)
        assert not isinstance(one, str)
        assert not isinstance(other, str)
        answers.append((one["kind"], one.get("replies"), other.get("replies")))
        return second

    found = deployment(tmp_path, sections, meddle=twice)
    checkpoint = found.serve()
    assert checkpoint.absent == ()
    assert all(one == other for kind, one, other in answers if kind == "answer")
    if sections is NOISY:
        for k in range(3):
            spends = found.spends(k)
            places = [(s.channel, s.round, s.group) for s in spends]
            assert len(places) == len(set(places))


def test_rounds_that_are_over_stay_over(tmp_path: Path) -> None:
    """Every order once more, when there is no round left, and after the end."""
    kept: list[tuple[Any, list[Any]]] = []

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if unwrap(message)["kind"] == "end" and not kept:  # type: ignore[index]
            kept.append((found.spends(0), resent(found, 0)))
        return answer()

    found = deployment(tmp_path, NOISY, meddle=meddle)
    found.serve()
    before, again = kept[0]
    assert len(again) == 1 + 2 * 3
    reasons = [reason for a in again for reason in a["reasons"]]
    assert reasons.count("Round 0 is over: round 2 has been answered.") == 2
    assert reasons.count("") == 5  # the stored answers of the counts and of two rounds
    after = resent(found, 0)
    assert {a["reason"] for a in after} == {"The run is over."}
    assert found.spends(0) == before


def test_the_same_place_with_another_content_is_refused(tmp_path: Path) -> None:
    """A server that asks for the same round's update under another model."""

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = answer()
        record: Any = message.content[RECORD]
        if node == 100 and record["kind"] == "order":
            asked: Any = decode_request(record["request"][0])
            if isinstance(asked, TrainRequest):
                model: Any = asked.model
                record["request"] = [encode_request(replace(asked, model=replace(model, values=model.values + 1)))]
                return answer()
        return reply

    found = deployment(tmp_path, NOISY, meddle=meddle)
    checkpoint = found.serve()
    reasons = {a.reason for a in checkpoint.absent if a.client == 0}
    assert reasons == {"The updates were told before, for a request of another content."}
    assert sum(s.channel == "updates" for s in found.spends(0)) == 3  # paid once each, told once each


def test_a_crash_between_payment_and_answer_is_paid_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder dies while it trains; asked again it trains with fresh noise, and that costs a second time."""
    crashes: list[int] = []
    respond = UpdatesChannel.respond

    def dying(self: UpdatesChannel, request: TrainRequest, client: Client, entropy: Any) -> Any:
        if client.index == 0 and request.round == 1 and not crashes:
            crashes.append(1)
            raise MemoryError("killed")
        return respond(self, request, client, entropy)

    monkeypatch.setattr(UpdatesChannel, "respond", dying)

    def again(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = unwrap(answer())
        assert not isinstance(reply, str)
        if reply["kind"] == "refused":
            assert reply["reason"] == "It could not answer; its own log says why."
        return Message(wrap(dict(reply)), reply_to=message) if reply["kind"] != "refused" else answer()

    found = deployment(tmp_path, NOISY, meddle=again)
    checkpoint = found.serve()
    assert crashes == [1]
    assert checkpoint.absent == ()
    updates = [s.round for s in found.spends(0) if s.channel == "updates"]
    assert sorted(updates) == [0, 1, 1, 2]
    with found.ledger(0) as ledger:
        (run,) = ledger.runs("synthetic")
        states = [r.progress() for r in ledger.reservations(run=run, round=1, channel="updates")]
    assert Progress.REDEEMED in states


def test_another_run_needs_a_budget(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = deployment(tmp_path, QUANTISED)
    found.serve()
    again = Deployment(found.folder, found.grid, found.tree)
    for path in sorted(again.out.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(Refused) as refused:
        again.serve()
    said = "It refused: Its budget or its ledger does not allow it; its own log says more."
    assert str(refused.value) == "All data holders refused. " + " ".join(f"{name}: {said}" for name in NAMES)
    assert "took part in the run" in capfd.readouterr().err  # of the holders' own logs
