"""Secure sums through the wired path: server, messages, holders. Exact with dropouts, and refused when changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accountant.errors import InputError
from privfair.config import Config
from privfair.federated.exchange import decode_masking, decode_request, encode_masking, encode_request
from privfair.federated.messages import (
    AgreeRequest,
    BlockLost,
    MaskKeysRequest,
    MaskSharesRequest,
    Missing,
    RosterRequest,
    UnmaskSumRequest,
    sum_number,
)
from privfair.federated.secure_sums import MaskingDesk, MaskMessages, SecureSums
from privfair.secure_aggregation import Forged, KeyPair, Summed, Sums, load_client, load_server, new_keys
from privfair.secure_aggregation.base import MODULI, FixedPoint, WholeNumbers, WordServer
from privfair.secure_aggregation.ciphertext import BadCiphertext, Ciphertext, Damaged
from privfair.secure_aggregation.masked import (
    MaskedClientAggregator,
    MaskedServerAggregator,
    Masking,
    TotalsForServer,
    opened_envelope,
)
from privfair.secure_aggregation.masking import MaskingHolder
from privfair.secure_aggregation.masks import (
    CHECKS,
    MODULUS,
    Cohort,
    Federation,
    GroupCode,
    MaskingRefused,
    cohort_of,
    to_words,
)

LENGTH, ROUNDS = 9, 20
STEPS = {
    MaskKeysRequest: "keys",
    MaskSharesRequest: "shares",
    RosterRequest: "roster",
    AgreeRequest: "agree",
    UnmaskSumRequest: "unmask",
}


class Parties:
    """All holders, the server, and what travels between them: as bytes, so that every message is carried."""

    def __init__(
        self, keys: KeyPair, n: int = 5, *, code: Any = None, sums: int = 4, channel: str = "updates", **cohort: int
    ) -> None:
        self.keys, self.n, self.channel = keys, n, channel
        identities = [Ed25519PrivateKey.generate() for _ in range(n)]
        public = tuple(key.public_key().public_bytes_raw() for key in identities)
        about = Federation(Cohort.of(n, **cohort), public, "run", b"plan", sums)
        self.masking = Masking(about, {k: MaskingHolder(about, k, key) for k, key in enumerate(identities)})
        self.code = code or WholeNumbers(n, MODULI["masked"])
        self.client = MaskedClientAggregator(
            keys.client, self.code, self.masking.holders, self.number, run="run", channel=channel
        )
        self.adder = MaskedServerAggregator(keys.server, self.code)
        self.sums = SecureSums({channel: self.adder}, ROUNDS, about)
        self.desks = {k: MaskingDesk(holder) for k, holder in self.masking.holders.items()}
        self.absent: dict[str, set[int]] = {}
        self.change: Callable[[int, Any], Any] = lambda client, request: request
        self.exchanges: list[str] = []

    def number(self, round_number: int) -> int:
        return sum_number(self.channel, round_number, ROUNDS)

    def ask(self, clients: Sequence[int], request: Callable[[int], Any]) -> list[Any]:
        replies = []
        for k in clients:
            asked = self.change(k, request(k))
            if not self.exchanges or self.exchanges[-1] != STEPS[type(asked)]:
                self.exchanges.append(STEPS[type(asked)])
            if k in self.absent.get(STEPS[type(asked)], ()):
                replies.append(Missing(k, "gone"))
            else:
                carried: Any = decode_request(encode_request(asked))
                replies.append(decode_masking(encode_masking(self.desks[k].answer(carried))))
        return replies

    def contributions(self, x: np.ndarray, round_number: int = 0, number: int | None = None) -> dict[int, bytes]:
        ready = self.sums.ready(self.channel, round_number, range(self.n), self.ask)
        silent, number = self.absent.get("mask", ()), round_number + 1 if number is None else number
        return {
            k: self.client.contribute(x[k], 1.0, client=k, number=number, round_number=round_number)
            for k in ready
            if k not in silent
        }

    def sum(self, x: np.ndarray, round_number: int = 0) -> Summed | None:
        return self.sums.add(self.channel, round_number, self.contributions(x, round_number), self.ask)

    def open(self, total: bytes, round_number: int = 0) -> np.ndarray:
        return self.client.open(total, number=round_number + 1)


def vectors(n: int, seed: int, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**20), 2**20, (n, length)).astype(float)


@pytest.fixture(scope="module")
def group_keys() -> KeyPair:
    return new_keys("masked")


@pytest.fixture(params=["masked", "bfv"])
def keys(request: pytest.FixtureRequest, group_keys: KeyPair, bfv_keys: KeyPair) -> KeyPair:
    return group_keys if request.param == "masked" else bfv_keys


# ---- sums


def dropouts(keys: KeyPair, seed: int) -> bool:
    """One sum with random dropouts in every step: exact over who is in it, or nothing; whether it opened."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    parties, x = Parties(keys, n), vectors(n, seed)
    cohort = parties.masking.federation.cohort
    most = n - cohort.smallest
    for step in ("keys", "shares", "roster", "agree", "mask", "unmask"):
        count = int(rng.integers(0, most + 2)) if rng.random() < 0.5 else 0
        parties.absent[step] = set(rng.choice(n, size=count, replace=False).tolist())
    left = {step: set(range(n)) - gone for step, gone in parties.absent.items()}
    roster = left["keys"] & left["shares"] if len(left["keys"]) >= cohort.smallest else set()
    signed = roster & left["roster"] if len(roster) >= cohort.smallest else set()
    agreed = signed & left["agree"] if len(signed) >= cohort.threshold else set()
    sent = agreed & left["mask"] if len(agreed) >= cohort.smallest else set()
    opens = len(sent) >= cohort.smallest and len(agreed & left["unmask"]) >= cohort.threshold
    summed = parties.sum(x)
    assert (summed is not None) == opens
    if summed is None:
        notes = parties.sums.notes()
        assert notes
        assert {note.asked for note in notes} == {"updates"}
        assert parties.sums.notes() == ()
        return False
    assert set(summed.members) == sent
    assert np.array_equal(parties.open(summed.total), x[sorted(sent)].sum(axis=0))
    return True


@pytest.mark.parametrize("part", range(5))
def test_random_dropouts_in_every_step_give_the_exact_sum_or_nothing(group_keys: KeyPair, part: int) -> None:
    opened = [dropouts(group_keys, seed) for seed in range(50 * part, 50 * part + 50)]
    assert 5 < sum(opened) < 45  # both happen


def test_random_dropouts_under_bfv(bfv_keys: KeyPair) -> None:
    opened = [dropouts(bfv_keys, seed) for seed in range(1000, 1012)]
    assert 0 < sum(opened) < 12


def test_the_dropout_test_finds_left_over_masks_of_who_dropped_out(
    group_keys: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privfair.secure_aggregation.masking import MaskingServer

    right = MaskingServer.left_over

    def forgetful(self: MaskingServer) -> np.ndarray:
        self._keys = {k: v for k, v in self._keys.items() if k in self.survivors}  # forgets who dropped out
        return right(self)

    monkeypatch.setattr(MaskingServer, "left_over", forgetful)
    found = 0
    for seed in range(40):
        try:
            dropouts(group_keys, seed)
        except (AssertionError, Forged):
            found += 1
    assert found > 2


def test_several_rounds_and_blocks(keys: KeyPair) -> None:
    """Blocks are prepared when the first of their sums is due, and no more often than that."""
    parties = Parties(keys, 3, sums=4)
    for r in range(4):  # sums 2, 4, 6, 8: blocks 0, 1, 1, 2
        x = vectors(3, r)
        summed = parties.sum(x, r)
        assert summed is not None
        assert np.array_equal(parties.open(summed.total, r), x.sum(axis=0))
    first = ["keys", "shares", "roster", "agree", "unmask"]
    assert parties.exchanges == [*first, *first, *first]  # two unmaskings of one block, one after the other, count once
    assert list(parties.sums._blocks) == [0, 1, 2]


def test_sums_longer_than_a_ciphertext(keys: KeyPair) -> None:
    parties, x = Parties(keys, 3), vectors(3, 1, 5000)
    summed = parties.sum(x)
    assert summed is not None
    assert np.array_equal(parties.open(summed.total), x.sum(axis=0))


def test_unequal_weights_are_those_of_the_fixed_point(keys: KeyPair) -> None:
    code = FixedPoint(8.0, 1.0, 4, MODULI["bfv"])
    parties, weights = Parties(keys, 4, code=code), [0.7, 0.2, 0.1, 0.0]
    x = np.random.default_rng(3).normal(size=(4, LENGTH))
    parties.sums.ready("updates", 0, range(4), parties.ask)
    sent = {k: parties.client.contribute(x[k], weights[k], client=k, number=1) for k in range(4)}
    summed = parties.sums.add("updates", 0, sent, parties.ask)
    assert summed is not None
    expected = code.decode(np.sum([code.encode(x[k], weights[k]) for k in range(4)], axis=0))
    assert np.array_equal(parties.open(summed.total), expected)


def test_a_block_whose_keys_are_too_few_is_tried_again(group_keys: KeyPair) -> None:
    parties, x = Parties(group_keys, 5), vectors(5, 1)
    parties.absent["keys"] = {0, 1}
    assert parties.sum(x, 0) is None
    parties.absent.clear()
    summed = parties.sum(x, 1)
    assert summed is not None
    assert summed.members == (0, 1, 2, 3, 4)


def test_a_number_is_dead_after_it_was_tried(group_keys: KeyPair) -> None:
    parties, x = Parties(group_keys, 5), vectors(5, 1)
    sent = parties.contributions(x)
    few = {k: sent[k] for k in (0, 1, 2)}
    assert parties.sums.add("updates", 0, few, parties.ask) is None
    (reason,) = {note.reason for note in parties.sums.notes()}
    assert "has 3 vectors, and 4 must be: nothing opens" in reason
    assert parties.sums.add("updates", 0, sent, parties.ask) is None
    (reason,) = {note.reason for note in parties.sums.notes()}
    assert "its number is dead" in reason


def test_a_damaged_contribution_is_left_out(keys: KeyPair) -> None:
    parties, x = Parties(keys, 5), vectors(5, 1)
    sent = parties.contributions(x)
    sent[2] = sent[2][:-10] + b"0123456789"
    summed = parties.sums.add("updates", 0, sent, parties.ask)
    assert summed is not None
    assert summed.members == (0, 1, 3, 4)
    assert np.array_equal(parties.open(summed.total), x[[0, 1, 3, 4]].sum(axis=0))
    assert [note.client for note in parties.sums.notes()] == [2]


@pytest.mark.parametrize("place", [0, 5, 40, 130, -1])
def test_a_changed_envelope_is_damage(group_keys: KeyPair, place: int) -> None:
    parties = Parties(group_keys, 3)
    sent = bytearray(parties.contributions(vectors(3, 1))[0])
    sent[place] ^= 1
    with pytest.raises((Damaged, BadCiphertext)):
        parties.adder.read(bytes(sent), "it")
    for cut in (0, 3, 50, 200):
        with pytest.raises(Damaged):
            parties.adder.read(bytes(sent[:cut]), "it")


def test_somebody_elses_contribution_is_left_out(group_keys: KeyPair) -> None:
    parties, x = Parties(group_keys, 5), vectors(5, 1)
    sent = parties.contributions(x)
    sent[1] = sent[0]
    summed = parties.sums.add("updates", 0, sent, parties.ask)
    assert summed is not None
    assert summed.members == (0, 2, 3, 4)


# ---- what a server sees and what it can do


def test_a_contribution_is_not_its_values(group_keys: KeyPair) -> None:
    """Of 2,000 values none is in its place in the message, and the same values look different in the next sum."""

    def seen(parties: Parties, r: int) -> np.ndarray:
        sent = parties.contributions(np.full((3, 2000), 7.0), r)[0]
        (chunk,) = Ciphertext.from_bytes(opened_envelope(sent, "it")[1]).chunks
        return np.frombuffer(chunk, dtype="<u4")[:2000]

    parties = Parties(group_keys, 3)
    one, two = seen(parties, 0), seen(parties, 1)
    assert np.mean(one == 7) < 0.01
    assert np.mean(one == two) < 0.01


def test_that_test_finds_masks_that_are_left_out(group_keys: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    def unmasked(length: int, plus: Any, minus: Any = (), start: Any = None) -> np.ndarray:
        return np.zeros(length, dtype=np.uint32) if start is None else start.copy()

    monkeypatch.setattr("privfair.secure_aggregation.masking.combined", unmasked)
    monkeypatch.setattr("privfair.secure_aggregation.masks.combined", unmasked)
    with pytest.raises(AssertionError):
        test_a_contribution_is_not_its_values(group_keys)


Attack = Callable[[Parties], bytes]


def tampered(parties: Parties, total: bytes, change: np.ndarray) -> bytes:
    """The sum plus a change, as a server can make it."""
    found = Ciphertext.from_bytes(total)
    server: Any = parties.keys.server
    slots, chunks = server.slots, []
    words = to_words(-change.astype(np.int64))
    for i, (chunk, count) in enumerate(zip(found.chunks, server.counts(found.header.length), strict=True)):
        loaded = server.load_chunk(chunk, count, "it")
        chunks.append(server.dump_chunk(server.taken_off(loaded, words[i * slots : i * slots + count])))
    return Ciphertext(found.header, tuple(chunks)).to_bytes()


def honest(parties: Parties, r: int = 0) -> bytes:
    summed = parties.sum(vectors(parties.n, r), r)
    assert summed is not None
    return summed.total


def added_to_a_slot(parties: Parties) -> bytes:
    change = np.zeros(LENGTH + CHECKS)
    change[2] = 1
    return tampered(parties, honest(parties), change)


def added_to_all_check_values_too(parties: Parties) -> bytes:
    change = np.zeros(LENGTH + CHECKS)
    change[0] = change[-CHECKS:] = 5
    return tampered(parties, honest(parties), change)


def made_up(parties: Parties) -> bytes:
    """Under the header of a real sum, something else: zeros, or what the public key encrypts."""
    found = Ciphertext.from_bytes(honest(parties))
    zeros = parties.keys.client.encrypt_chunk(np.zeros(LENGTH + CHECKS, dtype=np.int64))
    return Ciphertext(found.header, (zeros,)).to_bytes()


def without_a_name(parties: Parties) -> bytes:
    found = Ciphertext.from_bytes(honest(parties))
    names = found.header.contributors[:-1]
    header = replace(found.header, contributors=names, additions=len(names) - 1)
    return Ciphertext(header, found.chunks).to_bytes()


def another_name(parties: Parties) -> bytes:
    parties.absent["mask"] = {0}
    found = Ciphertext.from_bytes(honest(parties))
    names = (replace(found.header.contributors[0], client=0), *found.header.contributors[1:])
    return Ciphertext(replace(found.header, contributors=names), found.chunks).to_bytes()


def replayed(parties: Parties) -> bytes:
    """The sum of round 0 in the place of that of round 1."""
    return honest(parties, 0)


def replayed_under_a_new_round(parties: Parties) -> bytes:
    found = Ciphertext.from_bytes(honest(parties, 0))
    return Ciphertext(replace(found.header, round=1), found.chunks).to_bytes()


ATTACKS: list[tuple[Attack, int]] = [
    (added_to_a_slot, 0),
    (added_to_all_check_values_too, 0),
    (made_up, 0),
    (without_a_name, 0),
    (another_name, 0),
    (replayed, 1),
    (replayed_under_a_new_round, 1),
]


def refused(keys: KeyPair, attack: Attack, r: int, n: int = 5) -> bool:
    parties = Parties(keys, n)
    total = attack(parties)
    try:
        parties.open(total, r)
    except Forged:
        return True
    return False


@pytest.mark.parametrize(("attack", "r"), ATTACKS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_a_sum_that_the_server_changed_is_refused(keys: KeyPair, attack: Attack, r: int) -> None:
    assert refused(keys, attack, r)


@pytest.mark.parametrize(("attack", "r"), ATTACKS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_without_check_values_none_would_be_refused(
    keys: KeyPair, attack: Attack, r: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(self: GroupCode, total: np.ndarray, number: int, holders: Sequence[int]) -> np.ndarray:
        opened = self._without_pad(total, number, len(set(holders))) if self._padded else total
        return opened[:-CHECKS]

    monkeypatch.setattr(GroupCode, "decode", unchecked)
    assert not refused(keys, attack, r)


def test_a_swapped_sum_of_another_channel_is_refused(keys: KeyPair) -> None:
    one, other = Parties(keys, 3), Parties(keys, 3, channel="embeddings")
    total = honest(other)
    with pytest.raises(Forged):
        one.client.open(total, number=1)


def test_a_sum_of_fewer_than_the_cohort_is_not_opened(keys: KeyPair) -> None:
    parties = Parties(keys, 5)
    found = Ciphertext.from_bytes(honest(parties))
    names = found.header.contributors[:3]
    header = replace(found.header, contributors=names, additions=2)
    with pytest.raises(BadCiphertext, match="at least 4 contributions"):
        parties.open(Ciphertext(header, found.chunks).to_bytes())


def two_survivor_sets(parties: Parties) -> bool:
    """Whether a holder that answered for one set of survivors answers for another one."""
    kept: list[tuple[int, UnmaskSumRequest]] = []

    def keep(client: int, request: Any) -> Any:
        if isinstance(request, UnmaskSumRequest):
            kept.append((client, request))
        return request

    parties.change = keep
    honest(parties)
    client, request = kept[0]
    messages = MaskMessages(parties.masking.federation)
    asked = messages.read_unmask_request(request, client)
    gone = asked.survivors[-1]
    fewer = replace(
        asked,
        survivors=asked.survivors[:-1],
        commitments={k: v for k, v in asked.commitments.items() if k != gone},
        sealed={k: v for k, v in asked.sealed.items() if k != gone},
    )
    try:
        parties.desks[client].answer(messages.unmask_request(fewer))
    except MaskingRefused as refusal:
        return "Another set of survivors" not in str(refusal)
    return True


def test_two_survivor_sets_through_the_wired_path(group_keys: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not two_survivor_sets(Parties(group_keys, 5))
    right = MaskingHolder.unmask

    def forgetful(self: MaskingHolder, request: Any) -> Any:
        entry = self._sums.get(request.number)
        if entry is not None:
            entry.survivors = entry.answer = None
        return right(self, request)

    monkeypatch.setattr(MaskingHolder, "unmask", forgetful)
    assert two_survivor_sets(Parties(group_keys, 5))


def swapped_keys(keys: KeyPair) -> bool:
    """Whether holders share their mask keys with a key that the server put in the place of a holder's."""
    parties, others = Parties(keys, 3), Parties(keys, 3)
    messages = MaskMessages(parties.masking.federation)
    servers_own = others.masking.holders[2].keys(0)

    def swap(client: int, request: Any) -> Any:
        if not isinstance(request, MaskSharesRequest) or client == 2:
            return request
        known = messages.read_all_keys(0, request.holders, request.keys)
        return MaskSharesRequest(0, *messages.all_keys({**known, 2: servers_own}))

    parties.change = swap
    try:
        parties.sums.ready("updates", 0, range(3), parties.ask)
    except MaskingRefused as refusal:
        return "does not have its signature" not in str(refusal)
    return True


def test_swapped_keys_through_the_wired_path(group_keys: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not swapped_keys(group_keys)
    monkeypatch.setattr(Federation, "require_signed", lambda *_: None)
    assert swapped_keys(group_keys)


def test_keys_of_past_sums_are_deleted(group_keys: KeyPair) -> None:
    parties = Parties(group_keys, 3, sums=16)
    for r in range(3):
        honest(parties, r)
    for holder in parties.masking.holders.values():
        assert min(holder._blocks[0].masks) == parties.number(2)
        with pytest.raises(MaskingRefused, match="serves once"):
            holder.mask(parties.number(1), to_words(np.zeros(3, dtype=np.int64)))


def test_a_desk_answers_nothing_else(group_keys: KeyPair) -> None:
    from privfair.federated.messages import CountsRequest

    desk: Any = Parties(group_keys, 3).desks[0]
    for other in (CountsRequest(), "keys", None):
        with pytest.raises(MaskingRefused, match="no request of the protocol"):
            desk.answer(other)
    lost = desk.answer(MaskSharesRequest(0, np.arange(3), b"short"))  # it has no keys of this block
    assert (type(lost), lost.block) == (BlockLost, 0)
    desk.answer(MaskKeysRequest(0))
    with pytest.raises(MaskingRefused, match="bytes, and must have"):
        desk.answer(MaskSharesRequest(0, np.arange(3), b"short"))
    for holders in ([0, 0, 1], [2, 1, 0], [0, 1, 7], [-1, 0, 1], list(range(100))):
        with pytest.raises(MaskingRefused, match="do not exist, or not in their order"):
            desk.answer(MaskSharesRequest(0, np.array(holders), b""))
    with pytest.raises(MaskingRefused, match="no block"):
        desk.answer(MaskKeysRequest(-1))


# ---- values are reduced, and not cut


def wrapping(keys: KeyPair) -> bool:
    """Whether a sum of whole numbers, one of which is beyond everybody's room, is right modulo m."""
    parties = Parties(keys, 3)
    x = vectors(3, 1)
    x[0, 0], x[1, 1], x[2, 2] = 4e8, -9e9, 1.5 * MODULUS
    summed = parties.sum(x)
    assert summed is not None
    found = parties.open(summed.total)
    return bool(np.array_equal(to_words(found.astype(np.int64)), to_words(np.rint(x).astype(np.int64).sum(axis=0))))


def test_whole_numbers_are_reduced_and_not_cut(keys: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrapping(keys)
    monkeypatch.setattr(WholeNumbers, "wrapped", WholeNumbers.encode)  # cuts after noise
    assert not wrapping(keys)


def test_what_is_no_number_does_not_raise() -> None:
    code = WholeNumbers(3, MODULUS)
    for value in (np.nan, np.inf, -np.inf, 1e300):
        assert abs(int(code.wrapped(np.array([value]), 1.0)[0])) <= MODULUS // 2


# ---- sums that the server opens


def totals(parties: Parties, x: np.ndarray, masked: bool = True) -> Any:
    side = TotalsForServer(parties.masking.holders if masked else None)
    sums = parties.sums if masked else Sums({})
    ready = sums.ready("counts", None, range(parties.n), parties.ask)
    sent = {
        k: side.contribute(x[k].astype(np.int64), client=k, number=sum_number("counts", None, ROUNDS))
        for k in ready
        if k not in parties.absent.get("mask", ())
    }
    return sums.totals("counts", None, sent, parties.ask)


def test_the_server_opens_totals(group_keys: KeyPair) -> None:
    x = vectors(5, 1)
    for masked in (True, False):
        found = totals(Parties(group_keys, 5), x, masked)
        assert np.array_equal(found.values, x.sum(axis=0))
        assert found.members == (0, 1, 2, 3, 4)
    parties = Parties(group_keys, 5)
    parties.absent["mask"] = {3}
    found = totals(parties, x)
    assert np.array_equal(found.values, x[[0, 1, 2, 4]].sum(axis=0))
    parties = Parties(group_keys, 5)
    parties.absent["mask"] = {3, 4}
    assert totals(parties, x) is None
    assert "nothing opens" in parties.sums.notes()[0].reason


def test_totals_travel_masked(group_keys: KeyPair) -> None:
    parties = Parties(group_keys, 3)
    parties.sums.ready("counts", None, range(3), parties.ask)
    values = np.full(2000, 7, dtype=np.int64)
    sent = TotalsForServer(parties.masking.holders).contribute(values, client=0, number=0)
    (chunk,) = Ciphertext.from_bytes(opened_envelope(sent, "it")[1]).chunks
    assert np.mean(np.frombuffer(chunk, dtype="<u4") == 7) < 0.01
    assert len(sent) < 4 * 2000 + 110 * 3 + 200


# ---- numbers, names, keys, configuration


def test_no_two_sums_have_one_number() -> None:
    rounds = 7
    numbers = [sum_number("counts", None, rounds)]
    numbers += [sum_number(c, r, rounds) for r in range(rounds) for c in ("embeddings", "updates")]
    numbers += [sum_number("evaluation", None, rounds)]
    assert numbers == list(range(2 * rounds + 2))
    with pytest.raises(InputError, match="whose contributions add up"):
        sum_number("predictions", 1, rounds)
    joined = [sum_number("counts", None, rounds, joined=True), sum_number("embeddings", 0, rounds, joined=True)]
    joined += [sum_number("updates", r, rounds, joined=True) for r in range(rounds)]
    joined += [sum_number("evaluation", None, rounds, joined=True)]
    assert joined == list(range(rounds + 3))
    with pytest.raises(InputError, match="must be in the sum of updates of the round before"):
        sum_number("embeddings", 1, rounds, joined=True)


def same_pads() -> bool:
    """Whether two masking runs under one name, as before and after a crash, share what hides a sum."""
    config, cohort = Config.build({"aggregation": {"scheme": "masked"}}), Cohort.of(3)
    one, two = (Masking.simulated(cohort, "run", config).federation for _ in range(2))
    pads = [GroupCode(bytes(32), about.run, "updates")._seed("pad", 2) for about in (one, two)]
    return pads[0] == pads[1] or one.identities == two.identities


def test_a_resumed_run_makes_no_pad_or_mask_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not same_pads()
    monkeypatch.setattr("privfair.secure_aggregation.masked.secrets.token_hex", lambda count: "same")
    assert same_pads()


def test_masked_keys_are_saved_and_loaded(tmp_path: Any) -> None:
    pair = new_keys("masked")
    folder = pair.save(tmp_path / "keys")
    assert (folder / "client.key").stat().st_mode & 0o777 == 0o600
    client, server = load_client(folder), load_server(folder)
    assert (client.tag_secret, client.key_id, client.scheme) == (pair.client.tag_secret, pair.client.key_id, "masked")
    assert (server.key_id, server.scheme) == (pair.server.key_id, "masked")
    assert client.tag_secret not in (folder / "server.key").read_bytes()
    assert isinstance(server, WordServer)
    (folder / "client.key").chmod(0o644)
    with pytest.raises(InputError, match="owner only"):
        load_client(folder)


def test_the_cohort_of_a_configuration() -> None:
    def built(**aggregation: Any) -> Config:
        return Config.build({"aggregation": aggregation})

    assert cohort_of(built(), 10) is None
    assert cohort_of(built(scheme="masked"), 10) == Cohort(10, 3, 9)
    assert cohort_of(built(scheme="bfv", masks=True, colluders=1, smallest_cohort=7), 10) == Cohort(10, 1, 7)
    alias = Config.build({"aggregation": {"scheme": "masked"}, "privacy": {"smallest_cohort": 8}})
    assert cohort_of(alias, 10) == Cohort(10, 3, 8)
