"""How many must be there, who refuses and why, and what the server may read of it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from accountant.budget import Budget
from accountant.errors import InputError, Refused
from accountant.ledger.ledger import Ledger
from privfair.config import Config
from privfair.deployment import holder_state as memory
from privfair.deployment import remote
from privfair.deployment import server as coordinator
from privfair.deployment.flower.link import RECORD, unwrap
from privfair.deployment.flower.server_app import _in_plain_words
from privfair.deployment.holder import WITHHELD
from privfair.deployment.protocol import pack_sums, read_sums
from privfair.federated.exchange import Unfinished, decode
from privfair.federated.messages import Update
from privfair.secure_aggregation.ciphertext import Ciphertext
from privfair.util import write_json
from tests.flower.federations import NAMES, Deployment, deployment, merged, write
from tests.flower.test_faults import ENCRYPTED, QUANTISED, at, lost, order
from tests.flower.test_holder import NOISY


def server(found: Deployment, **run: Any) -> None:
    path = found.folder / "server.toml"
    write(path, merged(Config.read(path).as_tables(), {"run": run}))


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for."""

    def sleep(seconds: float) -> None:
        raise AssertionError(f"waits {seconds} s")

    for module in (remote, coordinator):
        monkeypatch.setattr(module.time, "sleep", sleep)


@pytest.mark.parametrize("sections", [QUANTISED, ENCRYPTED, NOISY], ids=["plain", "encrypted", "private"])
def test_a_run_in_which_nobody_trains_stops_and_can_be_continued(tmp_path: Path, sections: dict[str, Any]) -> None:
    away = {"now": True}

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        what, number = order(message)
        return None if away["now"] and what == "updates" and number else answer()

    found = deployment(tmp_path, sections, meddle=meddle)
    server(found, wait=0.1)
    with pytest.raises(
        Unfinished, match=r"stopped after round 1 of 3.*Round 2 had 0 of at least 1 clients train"
    ) as stop:
        found.serve()
    assert "start it again with the same folder" in str(stop.value)
    assert json.loads((found.out / "error.json").read_text())["kind"] == "unfinished"
    assert not (found.out / "metrics.json").exists()
    assert found.checkpoint().round == 1
    away["now"] = False
    checkpoint = found.serve()
    assert checkpoint.round == int(checkpoint.replica["sums"][0]) == 3
    if sections is NOISY:
        for k in range(3):
            assert sorted(s.round for s in found.spends(k) if s.channel == "updates") == [0, 1, 2]


def test_min_clients_holds_in_every_round(tmp_path: Path) -> None:
    found = deployment(tmp_path, QUANTISED, meddle=at(102, "updates", 1, lost))
    server(found, wait=0.1, min_clients=3)
    with pytest.raises(Unfinished, match="Round 2 had 2 of at least 3 clients train"):
        found.serve()
    checkpoint = found.checkpoint()
    assert (checkpoint.round, int(checkpoint.replica["sums"][0])) == (1, 1)


def test_a_node_that_goes_is_waited_for_before_anybody_releases_more(tmp_path: Path) -> None:
    found = deployment(tmp_path, NOISY)

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if order(message) == ("updates", 0):
            found.grid.nodes.pop(102, None)
        return answer()

    found.grid.meddle = meddle
    server(found, wait=0.1, min_clients=3)
    with pytest.raises(Unfinished, match=r"stopped after round 0 of 3"):
        found.serve()
    assert {s.round for s in found.spends(0)} == {None, 0}


def test_a_run_begins_when_so_many_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = deployment(tmp_path, QUANTISED)
    del found.grid.nodes[101]
    server(found, wait=3600.0, min_clients=2)
    never(monkeypatch)
    checkpoint = found.serve()
    assert checkpoint.round == 3
    assert {(a.client, a.reason) for a in checkpoint.absent} == {(1, "It has not come.")}


def test_a_corrected_holder_is_admitted(tmp_path: Path) -> None:
    found = deployment(tmp_path, QUANTISED, holder_0={"fairness": {"lambda": 0.25}})
    path, wrong = tmp_path / "holder-0.toml", "fairness.lambda is 0.5 there and 0.25 here"

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if order(message) == ("updates", 0):
            write(path, merged(Config.read(path).as_tables(), {"fairness": {"lambda": 0.5}}))
        return answer()

    found.grid.meddle = meddle
    server(found, wait=0.001, min_clients=2)
    checkpoint = found.serve()
    assert checkpoint.uncounted == ()
    assert checkpoint.release_plan.records[0] > 0
    assert {a.client for a in checkpoint.absent} == {0}
    assert {a.round for a in checkpoint.absent} == {None, 0}
    assert all(wrong in a.reason for a in checkpoint.absent)


def test_when_all_refuse_the_server_stops_at_once_with_all_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other = {"privacy": {"noise_multiplier": 3.0}}
    found = deployment(tmp_path, NOISY, holder_1=other, holder_2=other)
    with Ledger(f"sqlite:///{tmp_path}/ledger-0.sqlite") as ledger:
        ledger.set_budget("synthetic", Budget(epsilon=0.4321, delta=1e-5))
    server(found, wait=3600.0)
    never(monkeypatch)
    with pytest.raises(Refused) as refused:
        found.serve()
    said, apart = (
        str(refused.value),
        "It refused: The plans differ: privacy.noise_multiplier is 1.0 there and 3.0 here.",
    )
    assert (
        said == f"All data holders refused. {NAMES[0]}: It refused: {WITHHELD} {NAMES[1]}: {apart} {NAMES[2]}: {apart}"
    )
    log = capfd.readouterr().err
    assert f"privfair: data holder {NAMES[1]}: {apart}" in log  # the server's
    assert f"privfair: {NAMES[1]} refused: The plans differ" in log  # the holder's own
    assert "0.4321" in log  # of the holder that has this budget
    assert "0.4321" not in said
    assert str(tmp_path) not in said


def test_a_budget_that_ends_on_the_way_is_not_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever the ledger says when it refuses, the server reads that it refused, and no more."""
    from privfair.privacy.ledger_gateway import LedgerGateway

    secret = "0.1234 of ε = 9.8 are left of /home/somebody/ledger.sqlite"

    def refuse(self: LedgerGateway, *arguments: Any) -> Any:
        raise Refused(secret)

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        with monkeypatch.context() as patch:
            if node == 100 and order(message)[0] == "updates":
                patch.setattr(LedgerGateway, "answer", refuse)
            return answer()

    checkpoint = deployment(tmp_path, NOISY, meddle=meddle).serve()
    assert {(a.client, a.reason) for a in checkpoint.absent} == {(0, WITHHELD)}
    assert secret in capfd.readouterr().err


def test_errors_in_our_words_are_logged_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("privfair-test")
    logger.addFilter(_in_plain_words)
    for error in (Refused("All refused."), InputError("run.wait", "must be above 0", 0), KeyError("x")):
        try:
            raise error
        except type(error):
            logger.error("ServerApp raised an exception", exc_info=sys.exc_info())
    first, second, third = caplog.records
    assert (first.getMessage(), first.exc_info) == ("privfair: All refused.", None)
    assert (second.getMessage(), second.exc_info) == ("privfair: run.wait must be above 0; found 0.", None)
    assert third.exc_info is not None


# ---- a server that sends other sums than those it claims


def test_a_forged_sum_is_refused_and_the_holder_leaves(tmp_path: Path) -> None:
    """One client's update under the header of everybody's sum: what a client could not tell before."""
    updates: list[bytes] = []

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        record: Any = message.content[RECORD]
        if node == 102 and record.get("sums") and updates:
            sums = read_sums(record)
            honest, single = Ciphertext.from_bytes(sums[0].total), Ciphertext.from_bytes(updates[0])
            forged = replace(honest, chunks=single.chunks).to_bytes()
            record.update(pack_sums([replace(sums[0], total=forged), *sums[1:]]))
        reply = answer()
        if node == 100 and order(message) == ("updates", 0):
            sent = decode(unwrap(reply)["replies"][0])  # type: ignore[index, arg-type]
            assert isinstance(sent, Update)
            updates.append(sent.contribution)
        return reply

    checkpoint = deployment(tmp_path, ENCRYPTED, meddle=meddle).serve()
    assert {(a.client, a.reason) for a in checkpoint.absent} == {
        (2, "This data holder has left the run: a sum could not be opened.")
    }
    assert [a.round for a in checkpoint.absent][:2] == [1, 1]


def test_a_run_of_the_version_before_is_not_continued(tmp_path: Path) -> None:
    found = deployment(tmp_path, ENCRYPTED, meddle=at(100, "updates", 1, lost))
    server(found, wait=0.1, min_clients=3)
    with pytest.raises(Unfinished):
        found.serve()
    about = found.out / "run.json"
    whole = json.loads(about.read_text())
    assert whole["messages"] == 3
    sent = len(found.grid.sent)
    write_json(about, {"run": whole["run"]})
    with pytest.raises(InputError, match="run must have been begun with encrypted messages of version 3"):
        found.serve()
    assert len(found.grid.sent) == sent  # before anybody is asked
    write_json(about, whole)
    for k in range(3):  # and at the holders, if it is theirs that is older
        kept = memory.read(found.holder(k))
        assert kept is not None
        memory.write(found.holder(k), replace(kept, messages=0))
    with pytest.raises(Refused, match=r"All data holders refused\..*begun with encrypted messages of version 3"):
        found.serve()
