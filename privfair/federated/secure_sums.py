"""Sums with masks, as a run has them: the protocol's messages, a holder's answers, and the server's side.

The server prepares blocks of sums, names the survivors and takes the left-over masks off; all of that travels through
`ask`, like everything else. A sum for which too few vectors or answers came opens nothing. Its number is dead, a note
says why, and the run goes on.

All sizes in messages follow from the number of holders and of sums in a block, and are checked before anything is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, Refused
from privfair.codec import Payload, unless
from privfair.federated.exchange import Absence, Ask
from privfair.federated.messages import (
    AgreeRequest,
    Asked,
    BlockLost,
    MaskingReply,
    MaskingRequest,
    MaskKeys,
    MaskKeysRequest,
    MaskShares,
    MaskSharesRequest,
    RosterAgreed,
    RosterRequest,
    RosterSigned,
    SumUnmasked,
    UnmaskSumRequest,
    sum_number,
)
from privfair.secure_aggregation import ServerAggregator, Summed, Sums, Totals
from privfair.secure_aggregation.base import WordServer
from privfair.secure_aggregation.ciphertext import Ciphertext
from privfair.secure_aggregation.masked import (
    SEALED_BYTES,
    Arrived,
    MaskedServerAggregator,
    MaskedTotal,
    envelope,
    opened_envelope,
    read_total,
    total_values,
)
from privfair.secure_aggregation.masking import MaskingHolder, MaskingServer, Unopened
from privfair.secure_aggregation.masks import (
    KEY_BYTES,
    SEAL_BYTES,
    SHARE_BYTES,
    SIGNATURE_BYTES,
    Federation,
    KeyShares,
    MaskingRefused,
    PublicKeys,
    Roster,
    RosterSignature,
    UnmaskRequest,
    UnmaskShares,
)
from privfair.secure_aggregation.neighbours import Graph

_DIGEST = 32
_AT_ONCE = 250  # holders that are asked together where each gets the keys of many neighbours


# ---- Messages


class MaskMessages:
    """Messages of the protocol for one federation: from its values to bytes, and back."""

    def __init__(self, federation: Federation) -> None:
        """The federation says how many holders and how many sums in a block there are."""
        self.federation = federation
        self._sums = federation.sums_per_block
        self._keys_size = KEY_BYTES * (1 + self._sums) + SIGNATURE_BYTES
        self.shares_size = SHARE_BYTES * self._sums + SEAL_BYTES
        self._survivors: tuple[tuple[int, ...], NDArray[np.int64]] | None = None

    # ---- keys

    def keys(self, made: PublicKeys) -> bytes:
        """A holder's keys as bytes."""
        return made.to_bytes()

    def all_keys(self, keys: Mapping[int, PublicKeys]) -> tuple[NDArray[np.int64], bytes]:
        """The keys of several holders: who they are, and all bytes."""
        return named(keys), b"".join(self.keys(keys[k]) for k in sorted(keys))

    def read_keys(self, holder: int, block: int, data: bytes) -> PublicKeys:
        """What `keys` wrote."""
        (found,) = split(data, self._keys_size, 1, "keys")
        return PublicKeys.from_bytes(holder, block, found)

    def read_all_keys(self, block: int, holders: NDArray[np.int64], data: bytes) -> dict[int, PublicKeys]:
        """What `all_keys` wrote."""
        who = self.holders(holders)
        parts = split(data, self._keys_size, len(who), "keys")
        return {k: self.read_keys(k, block, part) for k, part in zip(who, parts, strict=True)}

    # ---- shares, signatures, survivors

    def shares(self, made: KeyShares) -> MaskShares:
        """A holder's shares of its mask keys."""
        return MaskShares(made.block, named(made.sealed), joined(made.sealed))

    def read_shares(self, sender: int, reply: MaskShares) -> KeyShares:
        """What `shares` wrote."""
        who = self.holders(reply.holders)
        parts = split(reply.sealed, self.shares_size, len(who), "shares of mask keys")
        return KeyShares(sender, reply.block, dict(zip(who, parts, strict=True)))

    def agree_request(self, block: int, signed: Sequence[RosterSignature]) -> AgreeRequest:
        """All signatures on the roster."""
        by_holder = {s.holder: s for s in signed}
        rosters = joined({k: s.roster for k, s in by_holder.items()})
        return AgreeRequest(block, named(by_holder), rosters, joined({k: s.signature for k, s in by_holder.items()}))

    def unmask_request(self, made: UnmaskRequest) -> UnmaskSumRequest:
        """Who survived, and what the receiver needs to answer."""
        commitments = joined({k: both[0] for k, both in made.commitments.items()})
        signatures = joined({k: both[1] for k, both in made.commitments.items()})
        if self._survivors is None or self._survivors[0] is not made.survivors:  # one array for all receivers
            self._survivors = made.survivors, np.array(made.survivors, dtype=np.int64)
        of = None if self.federation.neighbours is None else named(made.sealed)
        return UnmaskSumRequest(made.number, self._survivors[1], commitments, signatures, joined(made.sealed), of)

    def read_unmask_request(self, asked: UnmaskSumRequest, receiver: int) -> UnmaskRequest:
        """What `unmask_request` wrote."""
        survivors = self.holders(asked.survivors)
        others = [k for k in survivors if k != receiver] if asked.of is None else self.holders(asked.of)
        commitments = split(asked.commitments, _DIGEST, len(others), "commitments")
        signatures = split(asked.signatures, SIGNATURE_BYTES, len(others), "signatures")
        sealed = split(asked.sealed, SEALED_BYTES, len(others), "shares of seeds")
        both = dict(zip(others, zip(commitments, signatures, strict=True), strict=True))
        return UnmaskRequest(asked.number, tuple(survivors), both, dict(zip(others, sealed, strict=True)))

    def unmasked(self, made: UnmaskShares) -> SumUnmasked:
        """A holder's answer."""
        return SumUnmasked(made.number, named(made.shares), joined(made.shares))

    def read_unmasked(self, holder: int, reply: SumUnmasked) -> UnmaskShares:
        """What `unmasked` wrote."""
        who = self.holders(reply.holders)
        parts = split(reply.shares, SHARE_BYTES, len(who), "shares")
        return UnmaskShares(holder, reply.number, dict(zip(who, parts, strict=True)))

    def drawn(self, holder: int, chosen: NDArray[np.int64] | None) -> tuple[int, ...]:
        """The neighbours that a holder says it drew: as many others as everybody draws, and none where all mask."""
        if self.federation.neighbours is None:
            return ()
        who = [] if chosen is None else self.holders(chosen)
        if len(who) != self.federation.neighbours.degree or holder in who:
            raise MaskingRefused(f"Holder {holder} drew {len(who)} neighbours, or itself.")
        return tuple(who)

    def parts(self, data: bytes, count: int) -> list[bytes]:
        """The equal parts that the server itself put one behind the other."""
        return split(data, len(data) // max(count, 1), count, "parts")

    def holders(self, named: NDArray[np.int64]) -> list[int]:
        """The holders that a message names: different ones of this federation, in their order."""
        who = [int(k) for k in named[: len(self.federation.identities) + 1]]
        if who != sorted(set(who)) or (who and not 0 <= who[0] <= who[-1] < len(self.federation.identities)):
            raise MaskingRefused("A message names holders that do not exist, or not in their order.")
        return who


def named(by_holder: Mapping[int, Any]) -> NDArray[np.int64]:
    """Whose parts `joined` has, in their order."""
    return np.array(sorted(by_holder), dtype=np.int64)


def joined(by_holder: Mapping[int, bytes]) -> bytes:
    """The parts of several holders, one behind the other, in the order of their numbers."""
    return b"".join(by_holder[k] for k in sorted(by_holder))


def split(data: bytes, size: int, count: int, what: str) -> list[bytes]:
    """The `count` parts of `size` bytes each; refused if that is not what the bytes are."""
    if len(data) != size * count:
        raise MaskingRefused(f"The {what} of a message have {len(data)} bytes, and must have {count} × {size}.")
    return [bytes(data[size * i : size * (i + 1)]) for i in range(count)]


# ---- A holder


class MaskingDesk:
    """A holder's side: it answers what the protocol asks, and nothing else. No record is within its reach."""

    def __init__(self, holder: MaskingHolder, last: int | None = None) -> None:
        """The holder keeps keys and shares, and answers each thing once. `last`: the last sum of the run, if known."""
        self._last = last
        self._holder, self._messages = holder, MaskMessages(holder.federation)

    def agreed(self, terms: bytes) -> None:
        """From here on this holder masks under the terms of this digest."""
        self._holder.terms = terms

    @cached_property
    def _answers(self) -> dict[type, Callable[[Any], MaskingReply]]:
        return {
            MaskKeysRequest: self._keys,
            MaskSharesRequest: self._shares,
            RosterRequest: self._roster,
            AgreeRequest: self._agree,
            UnmaskSumRequest: self._unmask,
        }

    def answer(self, request: MaskingRequest) -> MaskingReply:
        """The reply; `MaskingRefused` where the protocol does not have what is asked."""
        if type(request) not in self._answers:
            raise MaskingRefused(f"A {type(request).__name__} is no request of the protocol of masks.")
        if isinstance(request, MaskSharesRequest | RosterRequest | AgreeRequest) and not self._holder.has(
            request.block
        ):
            return BlockLost(request.block)
        return self._answers[type(request)](request)

    def _keys(self, request: MaskKeysRequest) -> MaskKeys:
        last = None if self._last is None else self._holder.federation.block_of(self._last)
        if request.block < 0 or (last is not None and request.block > last):
            raise MaskingRefused(f"There is no block {request.block}.")
        keys, chosen = self._holder.keys(request.block), self._holder.chosen(request.block)
        drawn = None if chosen is None else np.array(chosen, dtype=np.int64)
        return MaskKeys(request.block, self._messages.keys(keys), drawn)

    def _shares(self, request: MaskSharesRequest) -> MaskShares:
        keys = self._messages.read_all_keys(request.block, request.holders, request.keys)
        return self._messages.shares(self._holder.shares(request.block, keys))

    def _roster(self, request: RosterRequest) -> RosterSigned:
        keys = self._messages.read_all_keys(request.block, request.holders, request.keys)
        others, roster = [k for k in sorted(keys) if k != self._holder.holder], None
        if request.senders is not None and request.roster is not None:
            others, roster = self._messages.holders(request.senders), Roster(request.roster, request.digests)
        size = len(request.sealed) // max(len(others), 1)
        parts = split(request.sealed, size, len(others), "shares of mask keys")
        signed = self._holder.sign_roster(request.block, keys, dict(zip(others, parts, strict=True)), roster)
        return RosterSigned(request.block, signed.roster, signed.signature)

    def _agree(self, request: AgreeRequest) -> RosterAgreed:
        who = self._messages.holders(request.holders)
        rosters = split(request.rosters, _DIGEST, len(who), "digests of rosters")
        signatures = split(request.signatures, SIGNATURE_BYTES, len(who), "signatures")
        parts = zip(who, rosters, signatures, strict=True)
        self._holder.agree(request.block, [RosterSignature(k, request.block, r, s) for k, r, s in parts])
        return RosterAgreed(request.block)

    def _unmask(self, request: UnmaskSumRequest) -> SumUnmasked:
        asked = self._messages.read_unmask_request(request, self._holder.holder)
        return self._messages.unmasked(self._holder.unmask(asked))


# ---- The server


@dataclass(frozen=True)
class Block:
    """How far a block of sums is prepared, as the server writes it down.

    What is settled stays: who has sent keys when shares were asked for, and the roster when signatures were. Who did
    not answer may do so later.
    """

    number: int
    holders: tuple[int, ...] = ()  # who sent keys
    keys: Payload = b""
    senders: tuple[int, ...] = ()  # who sent shares
    sealed: Payload = b""  # of each sender, for each of the other holders (or for all that it drew, zeros for absent)
    roster: tuple[int, ...] = ()  # empty: not settled yet
    signers: tuple[int, ...] = ()
    signatures: Payload = b""
    agreed: tuple[int, ...] = ()  # who masks for the roster
    chosen: Annotated[Payload, unless(b"")] = b""  # the neighbours that each of `holders` drew, in words of 32 bits

    def drawn(self) -> dict[int, tuple[int, ...]] | None:
        """The neighbours that each holder drew; None where everybody masks with everybody."""
        if not self.chosen:
            return None
        table = np.frombuffer(self.chosen, dtype="<u4").reshape(len(self.holders), -1)
        return {k: tuple(row) for k, row in zip(self.holders, table.tolist(), strict=True)}


@dataclass(frozen=True)
class NamedSum:
    """A sum whose survivors are named: what the server needs to open it, and asks for it again after a crash."""

    number: int
    members: tuple[int, ...]
    envelopes: tuple[Payload, ...]
    vector: Payload  # the sum of the masked vectors


class MaskMemory:
    """What a server remembers of the blocks and sums of a run: nothing longer than its process lives."""

    def block(self, number: int) -> Block:
        """How far this block is prepared."""
        return Block(number)

    def named(self, number: int) -> NamedSum | None:
        """The sum of this number, if its survivors are named."""
        return None

    def keep(self, state: Block | NamedSum) -> None:
        """Write it down before anything more is asked."""


class SecureSums(Sums):
    """Sums of masked contributions: nobody can open a single one."""

    masked = True

    def __init__(
        self,
        adders: Mapping[str, ServerAggregator],
        rounds: int,
        federation: Federation,
        *,
        joined: bool = False,
        scaled: bool = False,
        memory: MaskMemory | None = None,
    ) -> None:
        """`adders`: who adds the contributions of a channel; `federation`: of the holders that mask.

        `joined`: whether features are in the sums of updates; `scaled`: whether moments are summed (see `sum_number`).
        `memory`: what outlives this object.
        """
        super().__init__(adders)
        self._rounds, self._joined, self._scaled = rounds, joined, scaled
        self._federation, self._messages = federation, MaskMessages(federation)
        self.smallest = federation.cohort.smallest
        self._memory = memory or MaskMemory()
        self._blocks: dict[int, Block] = {}
        self._used: set[int] = set()
        self._sure: dict[int, set[int]] = {}  # by block: who is known to have it still, by what it did last
        self._lost: dict[int, set[int]] = {}  # by block: who said that it has lost it
        self._notes: list[Absence] = []

    def notes(self) -> tuple[Absence, ...]:
        """Who was left out of which sum since the last call, and why."""
        found, self._notes = tuple(self._notes), []
        return found

    def _number(self, channel: str, round_number: int | None) -> int:
        return sum_number(channel, round_number, self._rounds, joined=self._joined, scaled=self._scaled)

    # ---- before contributions are asked for

    def ready(self, channel: str, round_number: int | None, clients: Sequence[int], ask: Ask) -> list[int]:
        """Those of the clients that can contribute to this sum; nobody, where too few of them can."""
        block = self._prepared(self._federation.block_of(self._number(channel, round_number)), ask)
        agreed = frozenset(block.agreed)
        able = [k for k in clients if k in agreed]
        missing = sorted(set(clients) - set(able))
        self._note(missing, channel, round_number, "It is not among those who prepared masks for this sum.")
        if len(able) < self.smallest:
            reason = f"{len(able)} clients could mask for this sum, and {self.smallest} must: nobody is asked."
            self._note(able, channel, round_number, reason)
            return []
        self._sure[block.number] -= set(able)  # until they have sent vectors and shares
        return able

    def lost(self, channel: str, round_number: int | None) -> bool:
        """Whether so many have lost what they prepared for this sum that it can never open."""
        number = self._federation.block_of(self._number(channel, round_number))
        block = self._blocks.get(number) or self._memory.block(number)
        able = set(block.roster or block.holders or range(self._federation.cohort.holders))
        return len(able - self._lost.get(number, set())) < self.smallest

    def named(self, channel: str, round_number: int | None) -> bool:
        """Whether the survivors of this sum were named, so that it is opened without more vectors."""
        return self._memory.named(self._number(channel, round_number)) is not None

    def _prepared(self, number: int, ask: Ask) -> Block:
        """The block of this number: keys, shares, signatures on the roster, agreement.

        Where too few answered to go on, those who did not are asked again before the next sum of the block. Who did not
        do its part of the last sum is asked whether it still masks: else the others would pay for a sum without it.
        """
        sure = self._sure.setdefault(number, set())
        block = self._blocks[number] if number in self._blocks else self._memory.block(number)
        whole = len(block.agreed) >= self.smallest
        if not whole or not sure.issuperset(block.signers):
            preparing = () if whole else (self._with_keys, self._with_shares, self._with_signatures)
            for step in (*preparing, self._with_agreement):
                after = step(block, ask)
                if after is None:
                    break
                if after != block:
                    self._memory.keep(after)
                block = after
        self._blocks[number] = block
        return block

    def _with_keys(self, block: Block, ask: Ask) -> Block | None:
        """Who sends keys: asked anew until they are enough, and settled then."""
        if block.holders:
            return block
        asked = MaskKeysRequest(block.number)
        replies = self._asked(ask, range(self._federation.cohort.holders), lambda k: asked)
        made = {k: found for k, r in replies.items() if (found := self._keys(k, block.number, r)) is not None}
        if len(made) < self.smallest:
            return None
        holders = tuple(sorted(made))
        chosen = np.array([made[k][1] for k in holders], dtype="<u4").tobytes()
        keys = self._messages.all_keys({k: keys for k, (keys, _) in made.items()})[1]
        return replace(block, holders=holders, keys=keys, chosen=chosen)

    def _with_shares(self, block: Block, ask: Ask) -> Block | None:
        """Shares of those who sent keys; when they are enough, their senders are the roster."""
        if block.roster:
            return block
        messages, missing = self._messages, sorted(set(block.holders) - set(block.senders))
        everybody = MaskSharesRequest(block.number, np.array(block.holders, dtype=np.int64), block.keys)
        drawn, present = block.drawn(), frozenset(block.holders)
        listed = dict(zip(block.holders, messages.parts(block.keys, len(block.holders)), strict=True))

        def receivers(k: int) -> list[int]:
            return [j for j in (block.holders if drawn is None else drawn[k]) if j in present and j != k]

        def request(k: int) -> MaskSharesRequest:
            if drawn is None:
                return everybody
            these = {j: listed[j] for j in (*receivers(k), k)}
            return MaskSharesRequest(block.number, named(these), joined(these))

        replies = self._asked(ask, missing, request)
        sealed = dict(zip(block.senders, messages.parts(block.sealed, len(block.senders)), strict=True))
        for k, reply in replies.items():
            if (sent := self._shares(k, set(receivers(k)), reply)) is not None:
                absent = {} if drawn is None else {j: bytes(messages.shares_size) for j in drawn[k]}
                sealed[k] = joined({**absent, **sent})
        senders = tuple(sorted(sealed))
        roster = senders if len(senders) >= self.smallest else ()
        return replace(block, senders=senders, sealed=joined(sealed), roster=roster)

    def _with_signatures(self, block: Block, ask: Ask) -> Block | None:
        """Signatures on the roster."""
        if not block.roster:
            return None
        messages = self._messages
        signed_before = frozenset(block.signers)
        replies = self._asked(ask, [k for k in block.roster if k not in signed_before], self._roster_requests(block))
        signed = {
            k: r.roster + r.signature
            for k, r in replies.items()
            if isinstance(r, RosterSigned) and len(r.roster + r.signature) == _DIGEST + SIGNATURE_BYTES
        }
        signed |= dict(zip(block.signers, messages.parts(block.signatures, len(block.signers)), strict=True))
        return replace(block, signers=tuple(sorted(signed)), signatures=joined(signed))

    def _roster_requests(self, block: Block) -> Callable[[int], RosterRequest]:
        """What each holder is shown of the roster: all keys, or those of its neighbours and the digests of the rest."""
        messages, roster, drawn, size = self._messages, block.roster, block.drawn(), self._messages.shares_size
        sealed = dict(zip(block.senders, messages.parts(block.sealed, len(block.senders)), strict=True))
        places = {
            k: {j: i for i, j in enumerate(others)}
            for k, others in ((k, [j for j in block.holders if j != k]) for k in (roster if drawn is None else ()))
        }

        def share(sender: int, receiver: int) -> bytes:
            at = places[sender][receiver] if drawn is None else bisect_left(drawn[sender], receiver)
            return sealed[sender][size * at : size * (at + 1)]

        keys = self._roster_keys(block)
        if drawn is None:
            listed = messages.all_keys(keys)

            def among_all(k: int) -> RosterRequest:
                return RosterRequest(block.number, *listed, joined({j: share(j, k) for j in roster if j != k}))

            return among_all
        graph, whole = Graph(roster, drawn), Roster.of(keys)

        def among_neighbours(k: int) -> RosterRequest:
            near = messages.all_keys({j: keys[j] for j in (*graph.neighbours(k), k)})
            given = {j: share(j, k) for j in graph.givers(k)}
            return RosterRequest(block.number, *near, joined(given), named(given), whole.holders, whole.digests)

        return among_neighbours

    def _with_agreement(self, block: Block, ask: Ask) -> Block | None:
        """Who masks for the roster, because enough holders signed it."""
        if len(block.signers) < self._federation.cohort.threshold:
            return None
        parts = zip(block.signers, self._messages.parts(block.signatures, len(block.signers)), strict=True)
        signed = {k: RosterSignature(k, block.number, p[:_DIGEST], p[_DIGEST:]) for k, p in parts}
        drawn, sure = block.drawn(), self._sure.setdefault(block.number, set())
        everybody = self._messages.agree_request(block.number, [] if drawn else list(signed.values()))

        def request(k: int) -> AgreeRequest:
            if drawn is None:
                return everybody
            return self._messages.agree_request(block.number, [signed[j] for j in drawn[k] if j in signed])

        replies = self._asked(ask, [k for k in block.signers if k not in sure], request)
        sure |= {k for k, r in replies.items() if isinstance(r, RosterAgreed)}
        return replace(block, agreed=tuple(sorted(sure)))

    def _asked(self, ask: Ask, clients: Sequence[int], request: Callable[[int], Asked]) -> dict[int, Any]:
        """The replies, by client. Among neighbours requests are long, and not all of them are made at once."""
        found: dict[int, Any] = {}
        at_once = max(len(clients), 1) if self._federation.neighbours is None else _AT_ONCE
        for begin in range(0, len(clients), at_once):
            found |= _asked(ask, clients[begin : begin + at_once], request)
        for k, reply in found.items():
            if isinstance(reply, BlockLost):
                self._lost.setdefault(reply.block, set()).add(k)
            elif isinstance(reply, RosterAgreed):
                self._lost.get(reply.block, set()).discard(k)
        return found

    def _roster_keys(self, block: Block) -> dict[int, PublicKeys]:
        """The keys of everybody on the roster."""
        holders = np.array(block.holders, dtype=np.int64)
        keys = self._messages.read_all_keys(block.number, holders, block.keys)
        return {k: keys[k] for k in block.roster}

    def _keys(self, holder: int, block: int, reply: Any) -> tuple[PublicKeys, tuple[int, ...]] | None:
        """A holder's keys, if they are its own, and the neighbours that it drew."""
        federation, messages = self._federation, self._messages
        try:
            if not isinstance(reply, MaskKeys) or reply.block != block:
                return None
            keys = messages.read_keys(holder, block, reply.keys)
            federation.require_signed(holder, federation.keys_text(keys), keys.signature, "The key")
            federation.require_usable(keys)
            chosen = messages.drawn(holder, reply.chosen)
        except Refused:
            return None
        return keys, chosen

    def _shares(self, holder: int, receivers: set[int], reply: Any) -> Mapping[int, bytes] | None:
        """A holder's shares, if there is one for everybody who must have one."""
        try:
            if not isinstance(reply, MaskShares):
                return None
            sealed = self._messages.read_shares(holder, reply).sealed
        except Refused:
            return None
        return sealed if set(sealed) == receivers else None

    # ---- when contributions have arrived

    def add(
        self, channel: str, round_number: int | None, contributions: Mapping[int, bytes], ask: Ask
    ) -> Summed | None:
        """The sum of the contributions, for clients to open; None if nothing opens it."""
        adder = self.adders[channel]
        if not isinstance(adder, MaskedServerAggregator):
            raise TypeError(f"the contributions of {channel} are not masked")
        found = self._unmasked(channel, round_number, contributions, ask, MaskedTotal(adder.keys), adder.read)
        return None if found is None else Summed(found[0].to_bytes(), found[1])

    def totals(
        self, channel: str, round_number: int | None, contributions: Mapping[int, bytes], ask: Ask
    ) -> Totals | None:
        """The sum of whole numbers (`TotalsForServer.contribute`), for the server; None if nothing opens it."""
        found = self._unmasked(channel, round_number, contributions, ask, MaskedTotal(WordServer()), read_total)
        return None if found is None else Totals(total_values(found[0]), found[1])

    def _unmasked(
        self,
        channel: str,
        round_number: int | None,
        contributions: Mapping[int, bytes],
        ask: Ask,
        total: MaskedTotal,
        read: Callable[[bytes, str], Arrived],
    ) -> tuple[Ciphertext, tuple[int, ...]] | None:
        """The sum over the survivors without its masks, and who they are; None, with a note, if nothing opens it."""
        number = self._number(channel, round_number)
        named = self._memory.named(number)
        members: list[int] = []
        try:
            if number in self._used:
                raise Unopened(f"Sum {number} was tried before: its number is dead.")
            self._used.add(number)
            block = self._blocks.get(self._federation.block_of(number)) or self._memory.block(
                self._federation.block_of(number)
            )
            keys = self._roster_keys(block) if block.roster else {}
            if named is not None:  # before a crash: the same survivors, or holders would refuse
                contributions = dict(zip(named.members, named.envelopes, strict=True))
                total.add(Ciphertext.from_bytes(named.vector, "sum"), "sum")
            server: MaskingServer | None = None
            envelopes: list[bytes] = []
            for k, data in contributions.items():
                name = f"contribution of client {k}"
                try:
                    arrived = read(data, name) if named is None else None
                    masked = opened_envelope(data, name)[0] if arrived is None else arrived.masked
                    length = total.length if arrived is None else arrived.vector.header.length
                    server = server or MaskingServer(
                        self._federation,
                        number,
                        keys,
                        length,
                        added_elsewhere=True,
                        terms=self.terms,
                        chosen=block.drawn(),
                    )
                    _require_same(masked.holder == k and length == server.length, k)
                    server.check(masked)
                    if arrived is not None:
                        total.add(arrived.vector, name)
                    server.receive(masked)
                except (InputError, Refused) as refused:
                    self._note([k], channel, round_number, str(refused))
                    continue
                members.append(k)
                envelopes.append(envelope(masked))
            if server is None:
                raise Unopened(f"Sum {number} has no vectors: nothing opens.")
            requests = server.close()
            self._memory.keep(NamedSum(number, tuple(members), tuple(envelopes), total.masked().to_bytes()))
            asked = self._asked(ask, block.agreed, lambda k: self._messages.unmask_request(requests[k]))
            answered = {k for k, reply in asked.items() if self._answer(server, k, reply)}
            self._sure.setdefault(block.number, set()).update(answered.intersection(members))
            return total.total(server.left_over()), tuple(members)
        except Unopened as unopened:
            self._note(members or list(contributions), channel, round_number, str(unopened))
            return None

    def _answer(self, server: MaskingServer, holder: int, reply: Any) -> bool:
        """Take a holder's shares; those that are not what was asked for count as absent."""
        try:
            if isinstance(reply, SumUnmasked):
                server.answer(self._messages.read_unmasked(holder, reply))
                return True
        except (InputError, Refused):
            return False
        return False

    def _note(self, clients: Sequence[int], channel: str, round_number: int | None, reason: str) -> None:
        self._notes += [Absence(round_number, k, channel, reason) for k in clients]


def _asked(ask: Ask, clients: Sequence[int], request: Any) -> dict[int, Any]:
    """The replies, by client; `Missing` stays in it."""
    made: dict[int, Asked] = {k: request(k) for k in clients}
    return dict(zip(clients, ask(clients, made.__getitem__), strict=True))


def _require_same(holds: bool, client: int) -> None:
    if not holds:
        raise InputError(f"contribution of client {client}", "must be its own, of as many values as the others", "not")
