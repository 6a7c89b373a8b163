"""What a data holder with masks does not let itself be talked into, and what it keeps when it is killed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accountant.errors import InputError, Refused
from accountant.ledger.ledger import Ledger
from privfair.channels.base import Declined
from privfair.config import Config
from privfair.deployment import holder_state
from privfair.deployment.acceptance import require_acceptable
from privfair.deployment.holder import LOST, Holder
from privfair.deployment.protocol import masks_of, schema_from_text, schema_to_text, sealed, shared_plan
from privfair.federated.exchange import decode, decode_masking, encode_request
from privfair.federated.messages import (
    AgreeRequest,
    BlockLost,
    Bundle,
    Counts,
    CountsRequest,
    MaskKeys,
    MaskKeysRequest,
    MaskSharesRequest,
    Missing,
    RosterRequest,
    UnmaskSumRequest,
)
from privfair.federated.secure_sums import MaskMessages, SecureSums
from privfair.privacy.ledger_gateway import RetriesUsedUp
from privfair.privacy.run_ledger import ROSTERS, SURVIVORS
from privfair.runs.keys import own_identity
from privfair.secure_aggregation.keys import new_identity
from privfair.secure_aggregation.masking import MaskingHolder
from privfair.secure_aggregation.masks import UnmaskRequest
from tests.flower.federations import deployment

RUN = "20260101-000000-0123abcd"
PRIVATE: dict[str, Any] = {"count_noise": 6.0, "prediction_noise": 9.0, "noise_multiplier": 3.0, "min_count": 1}
NAMES = [f"client-{k}" for k in range(1, 6)]
PLAN: dict[str, Any] = {
    "model": {"name": "logistic", "hidden": []},
    "fairness": {"tracker": "embedding", "samples": 12},
    "aggregation": {"scheme": "masked", "masks": True},
    "run": {"clients": NAMES},
}
Change = Callable[[int, Any], Any]


class Parties:
    """Five data holders, of whom four must answer and one may collude, and a server that keeps to the protocol.

    `change`: what the server sends instead of what it should. `refusals`: what holders said to that.
    """

    def __init__(self, folder: Path, privacy: dict[str, Any] = PRIVATE) -> None:
        self.folder, self.deployment = folder, deployment(folder, PLAN, {"privacy": privacy})
        self.holders = {k: self.new(k) for k in range(5)}
        self.spec = self.holders[0].spec
        about = masks_of(self.spec.config, RUN, self.spec.schema)
        assert about is not None
        self.about, self.messages = about, MaskMessages(about)
        self.sums = SecureSums({}, self.spec.config.federation.rounds, about)
        self.change: Change = lambda client, request: request
        self.refusals: list[str] = []
        self.kept: list[tuple[int, Any, Any]] = []
        plan = json.dumps(shared_plan(Config.read(folder / "server.toml")))
        for holder in self.holders.values():
            assert holder.handle(sealed("hello", RUN, plan=plan))["kind"] == "here"

    def new(self, k: int) -> Holder:
        """The holder's process, started (again)."""
        return Holder(Config.read(self.folder / f"holder-{k}.toml"), NAMES[k], self.folder / f"node-{k}")

    def state(self, k: int) -> Path:
        return self.folder / f"node-{k}" / RUN

    def one(self, k: int, request: Any) -> Any:
        """A holder's answer, or its refusal as `Missing`."""
        order = sealed("order", RUN, request=[encode_request(request)], terms_id="", terms="", sums=[])
        answer: Any = self.holders[k].handle(order)
        if answer["kind"] == "refused" or not answer["replies"][0]:
            reason = answer["reason"] if answer["kind"] == "refused" else answer["reasons"][0]
            self.refusals.append(reason)
            return Missing(k, reason)
        (message,) = answer["replies"]
        return decode(message) if isinstance(request, CountsRequest) else decode_masking(message)

    def ask(self, clients: Sequence[int], request: Callable[[int], Any]) -> list[Any]:
        found = []
        for k in clients:
            asked = self.change(k, request(k))
            found.append(Missing(k, "gone") if asked is None else self.one(k, asked))
            self.kept.append((k, asked, found[-1]))
        return found

    @property
    def request(self) -> CountsRequest:
        assert self.spec.planner is not None
        return CountsRequest(self.spec.planner.count_noise)

    def contributions(self) -> dict[int, bytes]:
        """The masked counts of everybody who could and would send them."""
        ready = self.sums.ready("counts", None, range(5), self.ask)
        replies = dict(zip(ready, self.ask(ready, lambda k: self.request), strict=True))
        return {k: r.contribution for k, r in replies.items() if isinstance(r, Counts) and r.contribution is not None}

    def totals(self) -> Any:
        return self.sums.totals("counts", None, self.contributions(), self.ask)

    def requests(self, kind: type[Any]) -> dict[int, Any]:
        """The last request of a kind to each holder."""
        return {k: asked for k, asked, _ in self.kept if isinstance(asked, kind)}

    def rows(self, k: int) -> Counter[str]:
        with Ledger(f"sqlite:///{self.folder}/ledger-{k}.sqlite", create=False) as ledger:
            return Counter(s.channel for run in ledger.runs("synthetic") for _, s in ledger.spends(run=run))

    def unmask(self, k: int, survivors: Sequence[int]) -> UnmaskSumRequest:
        """A request for these survivors, with everything that the server has got of them."""
        known: dict[int, tuple[tuple[bytes, bytes], bytes]] = {}
        for other, asked in self.requests(UnmaskSumRequest).items():
            if other == k or not known:
                read: UnmaskRequest = self.messages.read_unmask_request(asked, other)
                known |= {j: (read.commitments[j], read.sealed[j]) for j in read.commitments if other == k}
        who = [j for j in survivors if j != k]
        made = UnmaskRequest(
            0,
            tuple(survivors),
            {j: known[j][0] for j in who if j in known},
            {j: known[j][1] for j in who if j in known},
        )
        return self.messages.unmask_request(made)


def test_totals_open_and_everything_is_in_the_ledger_once(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    totals = parties.totals()
    assert totals.members == (0, 1, 2, 3, 4)
    exact = sum(
        parties.spec.cells.membership(h.federation.clients[0].train).sum(axis=0) for h in parties.holders.values()
    )
    noise = parties.request.noise
    assert noise is not None
    assert np.abs(noise.total(totals.values) - exact).max() < 10 * noise.scale
    assert parties.refusals == []
    for k in range(5):
        assert parties.rows(k) == {ROSTERS: 1, "counts": 1, SURVIVORS: 1}
        assert (parties.state(k) / holder_state.MASKS).stat().st_mode & 0o777 == 0o600


def test_with_two_rosters_nobody_masks(tmp_path: Path) -> None:
    parties = Parties(tmp_path)

    def split(k: int, asked: Any) -> Any:
        if not isinstance(asked, RosterRequest):
            return asked
        gone = 4 if k < 2 else 0 if k > 2 else 3  # each of the three rosters has four holders
        who = [int(j) for j in asked.holders if j != gone]
        if k == gone:
            return None
        keys = parties.messages.read_all_keys(0, asked.holders, asked.keys)
        others = [int(j) for j in asked.holders if j != k]
        size = len(asked.sealed) // len(others)
        shares = {j: asked.sealed[size * i : size * (i + 1)] for i, j in enumerate(others) if j != gone}
        listed = parties.messages.all_keys({j: keys[j] for j in who})
        return RosterRequest(0, *listed, b"".join(shares[j] for j in sorted(shares)))

    parties.change = split
    assert parties.contributions() == {}
    assert any("must have: others may have got another" in reason for reason in parties.refusals)
    parties.refusals.clear()
    for k in range(5):
        parties.one(k, parties.request)
    assert all("is not agreed on yet" in reason for reason in parties.refusals)
    assert len(parties.refusals) == 5
    assert all("counts" not in parties.rows(k) for k in range(5))  # and nobody has paid


def test_a_second_survivor_set_is_refused_and_the_same_gets_the_same_bytes(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    parties.totals()
    for k in range(5):
        again = parties.one(k, parties.requests(UnmaskSumRequest)[k])
        (first,) = (found for j, asked, found in parties.kept if j == k and isinstance(asked, UnmaskSumRequest))
        assert again.shares == first.shares
        survivors = [j for j in range(5) if j != (k + 1) % 5]
        refused = parties.one(k, parties.unmask(k, survivors))
        assert "Another set of survivors" in refused.reason


def test_told_different_survivors_one_sum_opens_at_most_and_no_part_of_it(tmp_path: Path) -> None:
    parties = Parties(tmp_path)

    def another(k: int, asked: Any) -> Any:
        if not isinstance(asked, UnmaskSumRequest):
            return asked
        read = parties.messages.read_unmask_request(asked, k)
        gone = (k + 1) % 5
        commitments = {j: c for j, c in read.commitments.items() if j != gone}
        left = tuple(j for j in read.survivors if j != gone)
        shares = {j: s for j, s in read.sealed.items() if j != gone}
        return parties.messages.unmask_request(UnmaskRequest(0, left, commitments, shares))

    parties.change = another
    totals = parties.totals()
    assert parties.refusals == []  # every holder answered, and for a set of its own
    assert totals.members == (0, 1, 2, 3, 4)  # each was missing from one set, so that four shares of each seed are left
    parties.change = lambda k, asked: asked
    for k, asked in parties.requests(UnmaskSumRequest).items():
        full = parties.unmask(k, [j for j in range(5) if j != (k + 1) % 5])
        assert asked.survivors.tolist() == full.survivors.tolist()
        whole = parties.unmask(k, [j for j in range(5) if j != (k + 2) % 5])
        assert isinstance(parties.one(k, whole), Missing)


def test_a_holder_declared_dead_that_answered_stays_hidden(tmp_path: Path) -> None:
    """The server takes holder 4 for dead, gets its mask key, and does not get its seed any more."""
    parties = Parties(tmp_path)
    everybody = parties.contributions()
    parties.change = lambda k, asked: asked
    few = {k: v for k, v in everybody.items() if k != 4}
    totals = parties.sums.totals("counts", None, few, parties.ask)
    assert totals.members == (0, 1, 2, 3)
    answered = {k: found for k, asked, found in parties.kept if isinstance(asked, UnmaskSumRequest)}
    assert set(answered) == {0, 1, 2, 3, 4}
    for k in range(5):
        reply = parties.one(k, parties.unmask(k, [0, 1, 2, 4] if k != 4 else [0, 1, 2, 3, 4]))
        assert isinstance(reply, Missing)


def test_swapped_keys_are_refused(tmp_path: Path) -> None:
    parties = Parties(tmp_path)

    def swap(k: int, asked: Any) -> Any:
        if not isinstance(asked, MaskSharesRequest) or k == 4:
            return asked
        keys = parties.messages.read_all_keys(0, asked.holders, asked.keys)
        keys[4] = replace(keys[4], masks=keys[3].masks)
        return MaskSharesRequest(0, *parties.messages.all_keys(keys))

    parties.change = swap
    assert parties.contributions() == {}
    assert all("of holder 4 does not have its signature" in reason for reason in parties.refusals)
    assert parties.refusals


def test_a_signed_key_of_low_order_keeps_its_holder_out_and_costs_nobody_a_sum(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    ask = parties.ask

    def forging(clients: Sequence[int], request: Callable[[int], Any]) -> list[Any]:
        found = ask(clients, request)
        for i, k in enumerate(clients):
            if k == 4 and isinstance(found[i], MaskKeys):
                keys = parties.messages.read_keys(4, 0, found[i].keys)
                keys = replace(keys, masks=(bytes(32), *keys.masks[1:]))
                identity = own_identity(parties.holders[4].config, NAMES[4])
                keys = replace(keys, signature=identity.sign(parties.about.keys_text(keys)))
                found[i] = MaskKeys(0, parties.messages.keys(keys))
        return found

    parties.ask = forging  # type: ignore[method-assign]
    assert parties.totals().members == (0, 1, 2, 3)
    assert "counts" not in parties.rows(4)


def test_requests_out_of_turn_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    nobody = np.zeros(0, dtype=np.int64)
    early = {
        "was not prepared": (parties.request, UnmaskSumRequest(0, np.arange(5), b"", b"", b"")),
        "is not signed": (AgreeRequest(0, nobody, b"", b""),),
    }
    assert "was not prepared" in parties.one(0, early["was not prepared"][0]).reason
    assert isinstance(parties.one(0, early["was not prepared"][1]), Missing)
    parties.one(0, MaskKeysRequest(0))
    assert "is not signed" in parties.one(0, early["is not signed"][0]).reason
    assert isinstance(parties.one(0, UnmaskSumRequest(0, nobody, b"", b"", b"")), Missing)
    ready = parties.sums.ready("counts", None, range(5), parties.ask)
    assert len(ready) == 5
    # agreed, and not masked: whoever names holder 0 as a survivor of a sum that it is not in gets nothing
    for number in (0, 3, 99):
        assert isinstance(parties.one(0, UnmaskSumRequest(number, np.arange(5), b"", b"", b"")), Missing)
    assert "counts" not in parties.rows(0)
    assert SURVIVORS not in parties.rows(0)
    # a sum whose survivors are named takes no vector any more, and none is paid for
    parties.change = lambda k, asked: None if k == 0 and isinstance(asked, CountsRequest) else asked
    assert parties.totals().members == (1, 2, 3, 4)
    assert "survivors of sum 0 are named" in parties.one(0, parties.request).reason
    assert "counts" not in parties.rows(0)


def test_the_same_request_is_paid_once_however_often_it_is_asked(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    parties.sums.ready("counts", None, range(5), parties.ask)
    twice = Bundle((parties.request, parties.request))
    order = sealed("order", RUN, request=[encode_request(twice)], terms_id="", terms="", sums=[])
    refused = parties.holders[0].handle(order)
    assert refused["kind"] == "refused"
    assert "asks twice for the same" in str(refused["reason"])
    assert "counts" not in parties.rows(0)
    with parties.holders[0]._run(RUN) as work:
        first = work.answer(parties.request)
        assert work.answer(parties.request) == first
        assert work.gateway is not None
        with pytest.raises(Refused, match="twice at once"):
            work.gateway.answer([(0, parties.request)] * 2, lambda k, asked: pytest.fail("answered"))
    assert parties.rows(0)["counts"] == 1
    with parties.holders[0]._run(RUN) as work:
        gateway: Any = work.gateway
        gateway.ledger.discard_message(*gateway._tokens[NAMES[0], "counts", None])
        with pytest.raises(RetriesUsedUp, match="for, once"):  # though privacy.retries is 1
            gateway.answer([(0, parties.request)], lambda k, asked: pytest.fail("answered"))
    assert parties.rows(0)["counts"] == 1


def test_a_restored_folder_signs_answers_and_masks_nothing_twice(tmp_path: Path) -> None:
    """The state folder of holder 0 is put back to every earlier moment; its ledger is not."""
    parties, states = Parties(tmp_path), tmp_path / "states"
    moments: list[Path] = []

    def snapshot(k: int, asked: Any) -> Any:
        if k == 0:
            moments.append(shutil.copytree(parties.state(0), states / f"{len(moments)}"))
        return asked

    parties.change = snapshot
    assert parties.totals() is not None
    sent = {type(asked): (asked, found) for k, asked, found in parties.kept if k == 0}
    counts: Any = sent[CountsRequest][1]
    fewer = {k: v for k, v in parties.contributions().items() if k != 3} or None
    assert fewer is not None
    for moment in moments:
        shutil.rmtree(parties.state(0))
        shutil.copytree(moment, parties.state(0))
        parties.holders[0] = parties.new(0)
        again = parties.one(0, parties.request)
        assert isinstance(again, Missing) or again.contribution == counts.contribution
        second = parties.one(0, parties.unmask(0, [0, 1, 2, 4]))
        assert isinstance(second, Missing)
        roster: RosterRequest = sent[RosterRequest][0]
        keys = parties.messages.read_all_keys(0, roster.holders, roster.keys)
        others = [int(j) for j in roster.holders if j not in (0, 4)]
        size = len(roster.sealed) // 4
        listed = parties.messages.all_keys({k: v for k, v in keys.items() if k != 4})
        another = RosterRequest(0, *listed, roster.sealed[: size * len(others)])
        assert isinstance(parties.one(0, another), Missing | BlockLost)
        assert parties.rows(0) == {ROSTERS: 1, "counts": 1, SURVIVORS: 1}


@pytest.mark.parametrize("forgotten", ["roster", "survivors"])
def test_without_its_row_in_the_ledger_a_restored_folder_would_answer_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    """The bug, planted: what is settled once is not in the ledger."""
    from privfair.privacy.ledger_gateway import LedgerGateway

    monkeypatch.setattr(LedgerGateway, "settled", lambda self, client, channel, number, content: content)
    parties = Parties(tmp_path)
    kind = RosterRequest if forgotten == "roster" else UnmaskSumRequest
    before = tmp_path / "before"

    def snapshot(k: int, asked: Any) -> Any:
        if k == 0 and isinstance(asked, kind) and not before.exists():
            shutil.copytree(parties.state(0), before)
        return asked

    parties.change = snapshot
    assert parties.totals() is not None
    shutil.rmtree(parties.state(0))
    shutil.copytree(before, parties.state(0))
    if forgotten == "survivors":
        assert not isinstance(parties.one(0, parties.unmask(0, [0, 1, 2, 4])), Missing)
        return
    roster: RosterRequest = parties.requests(RosterRequest)[0]
    keys = parties.messages.read_all_keys(0, roster.holders, roster.keys)
    listed = parties.messages.all_keys({k: v for k, v in keys.items() if k != 4})
    size = len(roster.sealed) // 4
    assert not isinstance(parties.one(0, RosterRequest(0, *listed, roster.sealed[: size * 3])), Missing)


def test_lost_bytes_of_a_masked_answer_are_never_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties = Parties(tmp_path)
    masked: Counter[int] = Counter()
    mask = MaskingHolder.mask

    def counted(self: MaskingHolder, number: int, values: Any) -> Any:
        masked[self.holder] += 1
        return mask(self, number, values)

    monkeypatch.setattr(MaskingHolder, "mask", counted)
    store = Ledger.store_messages

    def dying(self: Ledger, messages: Any) -> None:
        if any(len(message) > 32 for message in messages.values()) and masked == {0: 1}:
            raise MemoryError("killed before the bytes were stored")
        store(self, messages)

    monkeypatch.setattr(Ledger, "store_messages", dying)
    assert parties.totals().members == (1, 2, 3, 4)
    parties.holders[0] = parties.new(0)
    assert parties.one(0, parties.request).reason == LOST
    assert masked == dict.fromkeys(range(5), 1)
    assert parties.rows(0)["counts"] == 1  # paid once


WRITES: list[tuple[Any, str]] = [
    *((Ledger, name) for name in ("reserve_many", "redeem", "store_messages", "spend_many")),
    *((holder_state, name) for name in ("write", "write_masks")),
]


@pytest.mark.parametrize("spared", [True, False], ids=["masks once", "masks and loses it"])
def test_a_holder_killed_before_and_after_every_write_answers_one_thing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, spared: bool
) -> None:
    """Holder 0 dies at each of its writes, is started again, and asked again: the same answer, or none.

    `spared`: it lives while it masks, and is among the survivors; otherwise it dies there, too.
    """
    tried: set[tuple[type, int, str]] = set()
    answering: list[type] = []
    count = 0

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **more: Any) -> Any:
            nonlocal count
            about = str(getattr(arguments[0], "url", arguments[0]))
            if not answering or not ("node-0" in about or "ledger-0" in about):
                return call(*arguments, **more)
            count += 1
            die("before")
            found = call(*arguments, **more)
            die("after")
            return found

        return write

    def die(when: str) -> None:
        point = (answering[-1], count, when)
        if point not in tried and not (spared and answering[-1] is CountsRequest):
            tried.add(point)
            raise MemoryError("killed")

    parties = Parties(tmp_path)
    for owner, name in WRITES:
        monkeypatch.setattr(owner, name, deadly(getattr(owner, name)))
    answers: dict[type, set[bytes]] = {}

    def killed(k: int, asked: Any) -> Any:
        """Ask until it does not die any more, and once again."""
        nonlocal count
        if k != 0:
            return asked
        answering.append(type(asked))
        before = -1
        while before != len(tried):
            before, count = len(tried), 0
            found = parties.one(0, asked)
            parties.holders[0] = parties.new(0)
            if not isinstance(found, Missing):
                content = getattr(found, "contribution", None) or getattr(found, "shares", None) or repr(found).encode()
                answers.setdefault(type(asked), set()).add(content)
        answering.pop()
        return asked

    parties.change = killed
    totals = parties.totals()
    assert totals.members == ((0, 1, 2, 3, 4) if spared else (1, 2, 3, 4))
    assert {kind for kind, _, _ in tried} >= {MaskKeysRequest, MaskSharesRequest, RosterRequest, UnmaskSumRequest}
    assert len(tried) > 10
    assert all(len(contents) == 1 for contents in answers.values())
    assert parties.rows(0) == {ROSTERS: 1, "counts": 1, SURVIVORS: 1}


def test_the_protocols_messages_need_a_plan_with_masks(tmp_path: Path) -> None:
    found = deployment(tmp_path, {"aggregation": {"scheme": "plain", "quantise": True}})
    holder = Holder(Config.read(tmp_path / "holder-0.toml"), "client-1", tmp_path / "node-0")
    plan = json.dumps(shared_plan(Config.read(found.folder / "server.toml")))
    assert holder.handle(sealed("hello", RUN, plan=plan))["kind"] == "here"
    order = sealed("order", RUN, request=[encode_request(MaskKeysRequest(0))], terms_id="", terms="", sums=[])
    assert holder.handle(order)["reason"] == "The plan has no masks."


# ---- keys that sign


def test_a_missing_or_wrong_identity_is_refused_before_anything_is_said(tmp_path: Path) -> None:
    deployment(tmp_path, PLAN, {"privacy": PRIVATE})
    path, keys = tmp_path / "holder-0.toml", tmp_path / "keys"

    def refused(match: str, **aggregation: Any) -> None:
        tree = Config.read(path).as_tables()
        tree["aggregation"] |= aggregation
        with pytest.raises(InputError, match=match):
            Holder(Config.build(tree), "client-1", tmp_path / "node-0")

    public = Config.read(path).aggregation.identities
    assert public is not None
    refused("must name the data holders", identities={k: v for k, v in public.items() if k != "client-5"})
    refused("must be 64 hexadecimal digits", identities={**public, "client-3": "abc"})
    refused("must be a key of its own; found 'that of client-1'", identities={**public, "client-3": public["client-1"]})
    refused("must have the key of client-1 that it signs with; found 'that of client-2'", keys=str(keys / "client-2"))
    stranger = new_identity(tmp_path / "other")
    shutil.copy(keys / "client.key", tmp_path / "other")
    assert stranger not in public.values()
    refused("must have the key of client-1 that it signs with; found 'another key'", keys=str(tmp_path / "other"))
    (keys / "client-1" / "identity.key").chmod(0o640)
    refused("must be readable by its owner only")
    (keys / "client-1" / "identity.key").unlink()
    refused("must have identity.key beside client.key")
    tree = Config.read(path).as_tables()
    del tree["aggregation"]["identities"]
    with pytest.raises(InputError, match="must have every data holder's public key"):
        Holder(Config.build(tree), "client-1", tmp_path / "node-0")


def test_other_public_keys_are_another_plan(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    tree = Config.read(tmp_path / "server.toml").as_tables()
    tree["aggregation"]["identities"]["client-2"] = "ab" * 32
    plan = json.dumps(shared_plan(Config.build(tree)))
    answer = parties.holders[0].handle(sealed("hello", "20260102-000000-0123abcd", plan=plan))
    assert answer["kind"] == "refused"
    assert "The plans differ: aggregation.identities is" in str(answer["reason"])


def test_another_schema_is_another_federation_whose_signatures_are_worth_nothing(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    schema = parties.spec.schema
    other = masks_of(parties.spec.config, RUN, replace(schema, label_range=(0.0, 2.0)))
    same = masks_of(parties.spec.config, RUN, schema_from_text(schema_to_text(schema)))
    assert other is not None
    assert same == parties.about
    assert other.context("keys") != parties.about.context("keys")


def test_no_keys_are_made_for_blocks_that_the_run_does_not_have(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    last = parties.about.block_of(parties.spec.sum_number("evaluation", None))
    assert isinstance(parties.one(0, MaskKeysRequest(last)), MaskKeys)
    for block in (-1, last + 1, 10**9):
        assert f"There is no block {block}" in parties.one(0, MaskKeysRequest(block)).reason
    assert [b.number for b in holder_state.read_masks(parties.state(0)).blocks] == [last]


def test_masks_that_others_can_read_are_refused(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    parties.sums.ready("counts", None, range(5), parties.ask)
    (parties.state(0) / holder_state.MASKS).chmod(0o644)
    assert isinstance(parties.one(0, parties.request), Missing)
    assert "counts" not in parties.rows(0)


# ---- terms that follow from totals


def test_terms_of_totals_are_even_and_their_noise_meets_the_target(tmp_path: Path) -> None:
    parties = Parties(tmp_path, {"epsilon": 3.0, "min_count": 1})
    negotiator: Any = parties.spec.negotiator()
    totals = parties.totals()
    plan = negotiator.settle(negotiator.divided(totals.values, 5, 5))
    require_acceptable(plan, None, parties.spec, 0, None)
    require_acceptable(plan, plan, parties.spec, 0, None)
    uneven = plan.cells.copy()
    uneven[0], uneven[1] = uneven[0] + 2, uneven[1] - 2
    with pytest.raises(Declined, match="do not divide the totals"):
        require_acceptable(replace(plan, cells=uneven), None, parties.spec, 0, None)
    weak = replace(plan, updates=replace(plan.updates, noise_multiplier=plan.updates.noise_multiplier / 2))
    with pytest.raises(Declined):
        require_acceptable(weak, None, parties.spec, 0, None)
    shares = replace(plan, updates=replace(plan.updates, gradient=replace(plan.gradient, room=2**20)))
    with pytest.raises(Declined):
        require_acceptable(shares, None, parties.spec, 0, None)
    more = replace(plan, counting=replace(plan.counting, shares=plan.counting.shares + 1))
    with pytest.raises(Declined):
        require_acceptable(more, None, parties.spec, 0, None)
