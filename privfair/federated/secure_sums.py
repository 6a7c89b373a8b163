"""Sums with masks, as a run has them: the protocol's messages, a holder's answers, and the server's side.

The server prepares blocks of sums, names the survivors and takes the left-over masks off; all of that travels through
`ask`, like everything else. A sum for which too few vectors or answers came opens nothing. Its number is dead, a note
says why, and the run goes on.

All sizes in messages follow from the number of holders and of sums in a block, and are checked before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, Refused
from privfair.federated.exchange import Absence, Ask
from privfair.federated.messages import (
    AgreeRequest,
    Asked,
    CountsRequest,
    EmbeddingsRequest,
    EvaluateRequest,
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
    TrainRequest,
    UnmaskSumRequest,
)
from privfair.secure_aggregation import ServerAggregator, Summed, Sums, Totals
from privfair.secure_aggregation.base import WordServer
from privfair.secure_aggregation.ciphertext import Ciphertext
from privfair.secure_aggregation.masked import (
    SEALED_BYTES,
    Arrived,
    MaskedServerAggregator,
    MaskedTotal,
    read_total,
    total_values,
)
from privfair.secure_aggregation.masking import MaskingHolder, MaskingServer, Unopened
from privfair.secure_aggregation.masks import (
    SHARE_BYTES,
    Federation,
    KeyShares,
    MaskingRefused,
    PublicKeys,
    RosterSignature,
    UnmaskRequest,
    UnmaskShares,
)

_KEY, _SIGNATURE, _DIGEST, _TAG = 32, 64, 32, 16


def sum_number(channel: str, round_number: int | None, rounds: int, *, joined: bool = False) -> int:
    """The number of a sum, which no other sum of a run has: counts 0, then features and updates by turns.

    `joined`: the features of all rounds but the first are in the sums of updates, and have no number of their own.
    Sums are made in the order of their numbers, so that a holder deletes the keys of smaller ones.
    """
    if channel == CountsRequest.channel:
        return 0
    if channel == EvaluateRequest.channel:
        return rounds + 2 if joined else 2 * rounds + 1
    if channel not in (EmbeddingsRequest.channel, TrainRequest.channel) or round_number is None:
        raise InputError("sum", "must be of a channel whose contributions add up", channel)
    if channel == TrainRequest.channel:
        return round_number + 2 if joined else 2 * round_number + 2
    if joined and round_number:
        raise InputError("sum of features", "must be in the sum of updates of the round before", round_number)
    return 2 * round_number + 1


# ---- Messages


class MaskMessages:
    """Messages of the protocol for one federation: from its values to bytes, and back."""

    def __init__(self, federation: Federation) -> None:
        """The federation says how many holders and how many sums in a block there are."""
        self.federation = federation
        self._sums = federation.sums_per_block
        self._keys_size = _KEY * (1 + self._sums) + _SIGNATURE
        self._shares_size = SHARE_BYTES * self._sums + _TAG

    # ---- keys

    def keys(self, made: PublicKeys) -> bytes:
        """A holder's keys as bytes."""
        return b"".join((made.encryption, *made.masks, made.signature))

    def all_keys(self, keys: Mapping[int, PublicKeys]) -> tuple[NDArray[np.int64], bytes]:
        """The keys of several holders: who they are, and all bytes."""
        return named(keys), b"".join(self.keys(keys[k]) for k in sorted(keys))

    def read_keys(self, holder: int, block: int, data: bytes) -> PublicKeys:
        """What `keys` wrote."""
        (found,) = split(data, self._keys_size, 1, "keys")
        parts = [found[i : i + _KEY] for i in range(0, _KEY * (1 + self._sums), _KEY)]
        return PublicKeys(holder, block, parts[0], tuple(parts[1:]), found[-_SIGNATURE:])

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
        parts = split(reply.sealed, self._shares_size, len(who), "shares of mask keys")
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
        survivors = np.array(made.survivors, dtype=np.int64)
        return UnmaskSumRequest(made.number, survivors, commitments, signatures, joined(made.sealed))

    def read_unmask_request(self, asked: UnmaskSumRequest, receiver: int) -> UnmaskRequest:
        """What `unmask_request` wrote."""
        survivors = self.holders(asked.survivors)
        others = [k for k in survivors if k != receiver]
        commitments = split(asked.commitments, _DIGEST, len(others), "commitments")
        signatures = split(asked.signatures, _SIGNATURE, len(others), "signatures")
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
    return [bytes(data[i : i + size]) for i in range(0, len(data), size)]


# ---- A holder


class MaskingDesk:
    """A holder's side: it answers what the protocol asks, and nothing else. No record is within its reach."""

    def __init__(self, holder: MaskingHolder) -> None:
        """The holder keeps keys and shares, and answers each thing once."""
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
        return self._answers[type(request)](request)

    def _keys(self, request: MaskKeysRequest) -> MaskKeys:
        if request.block < 0:
            raise MaskingRefused(f"There is no block {request.block}.")
        return MaskKeys(request.block, self._messages.keys(self._holder.keys(request.block)))

    def _shares(self, request: MaskSharesRequest) -> MaskShares:
        keys = self._messages.read_all_keys(request.block, request.holders, request.keys)
        return self._messages.shares(self._holder.shares(request.block, keys))

    def _roster(self, request: RosterRequest) -> RosterSigned:
        keys = self._messages.read_all_keys(request.block, request.holders, request.keys)
        others = [k for k in sorted(keys) if k != self._holder.holder]
        size = len(request.sealed) // max(len(others), 1)
        parts = split(request.sealed, size, len(others), "shares of mask keys")
        signed = self._holder.sign_roster(request.block, keys, dict(zip(others, parts, strict=True)))
        return RosterSigned(request.block, signed.roster, signed.signature)

    def _agree(self, request: AgreeRequest) -> RosterAgreed:
        who = self._messages.holders(request.holders)
        rosters = split(request.rosters, _DIGEST, len(who), "digests of rosters")
        signatures = split(request.signatures, _SIGNATURE, len(who), "signatures")
        parts = zip(who, rosters, signatures, strict=True)
        self._holder.agree(request.block, [RosterSignature(k, request.block, r, s) for k, r, s in parts])
        return RosterAgreed(request.block)

    def _unmask(self, request: UnmaskSumRequest) -> SumUnmasked:
        asked = self._messages.read_unmask_request(request, self._holder.holder)
        return self._messages.unmasked(self._holder.unmask(asked))


# ---- The server


@dataclass(frozen=True)
class _Block:
    """A block of sums that is prepared: the roster's keys, and who agreed to mask for it."""

    keys: Mapping[int, PublicKeys]
    agreed: frozenset[int]


NOTHING = _Block({}, frozenset())


class SecureSums(Sums):
    """Sums of masked contributions: nobody can open a single one."""

    masked = True

    def __init__(
        self, adders: Mapping[str, ServerAggregator], rounds: int, federation: Federation, *, joined: bool = False
    ) -> None:
        """`adders`: who adds the contributions of a channel; `federation`: of the holders that mask.

        `joined`: whether features are in the sums of updates (see `sum_number`).
        """
        super().__init__(adders)
        self._rounds, self._joined = rounds, joined
        self._federation, self._messages = federation, MaskMessages(federation)
        self.smallest = federation.cohort.smallest
        self._blocks: dict[int, _Block] = {}
        self._used: set[int] = set()
        self._notes: list[Absence] = []

    def notes(self) -> tuple[Absence, ...]:
        """Who was left out of which sum since the last call, and why."""
        found, self._notes = tuple(self._notes), []
        return found

    def _number(self, channel: str, round_number: int | None) -> int:
        return sum_number(channel, round_number, self._rounds, joined=self._joined)

    # ---- before contributions are asked for

    def ready(self, channel: str, round_number: int | None, clients: Sequence[int], ask: Ask) -> list[int]:
        """Those of the clients that can contribute to this sum; nobody, where too few of them can."""
        block = self._prepared(self._federation.block_of(self._number(channel, round_number)), ask)
        able = [k for k in clients if k in block.agreed]
        missing = sorted(set(clients) - set(able))
        self._note(missing, channel, round_number, "It is not among those who prepared masks for this sum.")
        if len(able) < self.smallest:
            reason = f"{len(able)} clients could mask for this sum, and {self.smallest} must: nobody is asked."
            self._note(able, channel, round_number, reason)
            return []
        return able

    def _prepared(self, number: int, ask: Ask) -> _Block:
        """The block of this number: keys, shares, signatures on the roster, agreement."""
        if number in self._blocks:
            return self._blocks[number]
        federation, messages = self._federation, self._messages
        replies = _asked(ask, range(federation.cohort.holders), lambda k: MaskKeysRequest(number))
        keys = {k: found for k, r in replies.items() if (found := self._keys(k, number, r)) is not None}
        if len(keys) < self.smallest:
            return NOTHING  # nobody has shared anything: it is tried again with the next sum
        shares_request = MaskSharesRequest(number, *messages.all_keys(keys))
        replies = _asked(ask, sorted(keys), lambda k: shares_request)
        shares = {k: sent for k, r in replies.items() if (sent := self._shares(k, set(keys), r)) is not None}
        roster = {k: keys[k] for k in shares}
        block = NOTHING
        if len(roster) >= self.smallest:
            sealed = {k: joined({j: shares[j][k] for j in roster if j != k}) for k in roster}
            listed = messages.all_keys(roster)
            replies = _asked(ask, sorted(roster), lambda k: RosterRequest(number, *listed, sealed[k]))
            signed = [
                RosterSignature(k, number, r.roster, r.signature)
                for k, r in replies.items()
                if isinstance(r, RosterSigned)
            ]
            if len(signed) >= federation.cohort.threshold:
                agree = messages.agree_request(number, signed)
                replies = _asked(ask, [s.holder for s in signed], lambda k: agree)
                agreed = frozenset(k for k, r in replies.items() if isinstance(r, RosterAgreed))
                block = _Block(roster, agreed)
        self._blocks[number] = block
        return block

    def _keys(self, holder: int, block: int, reply: Any) -> PublicKeys | None:
        """A holder's keys, if they are its own."""
        federation, messages = self._federation, self._messages
        try:
            if not isinstance(reply, MaskKeys) or reply.block != block:
                return None
            keys = messages.read_keys(holder, block, reply.keys)
            federation.require_signed(holder, federation.keys_text(keys), keys.signature, "The key")
        except Refused:
            return None
        return keys

    def _shares(self, holder: int, everyone: set[int], reply: Any) -> Mapping[int, bytes] | None:
        """A holder's shares, if there is one for everybody else."""
        try:
            if not isinstance(reply, MaskShares):
                return None
            sealed = self._messages.read_shares(holder, reply).sealed
        except Refused:
            return None
        return sealed if set(sealed) == everyone - {holder} else None

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
        federation, messages = self._federation, self._messages
        number = self._number(channel, round_number)
        block = self._blocks.get(federation.block_of(number), NOTHING)
        members: list[int] = []
        try:
            if number in self._used:
                raise Unopened(f"Sum {number} was tried before: its number is dead.")
            self._used.add(number)
            server: MaskingServer | None = None
            for k, data in contributions.items():
                try:
                    arrived = read(data, f"contribution of client {k}")
                    masked, vector = arrived.masked, arrived.vector
                    server = server or MaskingServer(
                        federation, number, block.keys, vector.header.length, added_elsewhere=True, terms=self.terms
                    )
                    _require_same(masked.holder == k and vector.header.length == server.length, k)
                    server.check(masked)
                    total.add(vector, f"contribution of client {k}")
                    server.receive(masked)
                except (InputError, Refused) as refused:
                    self._note([k], channel, round_number, str(refused))
                    continue
                members.append(k)
            if server is None:
                raise Unopened(f"Sum {number} has no vectors: nothing opens.")
            requests = {k: messages.unmask_request(r) for k, r in server.close().items()}
            for k, reply in _asked(ask, sorted(block.agreed), requests.__getitem__).items():
                self._answer(server, k, reply)
            return total.total(server.left_over()), tuple(members)
        except Unopened as unopened:
            self._note(members or list(contributions), channel, round_number, str(unopened))
            return None

    def _answer(self, server: MaskingServer, holder: int, reply: Any) -> None:
        """Take a holder's shares; those that are not what was asked for count as absent."""
        try:
            if isinstance(reply, SumUnmasked):
                server.answer(self._messages.read_unmasked(holder, reply))
        except (InputError, Refused):
            return

    def _note(self, clients: Sequence[int], channel: str, round_number: int | None, reason: str) -> None:
        self._notes += [Absence(round_number, k, channel, reason) for k in clients]


def _asked(ask: Ask, clients: Sequence[int], request: Any) -> dict[int, Any]:
    """The replies, by client; `Missing` stays in it."""
    made: dict[int, Asked] = {k: request(k) for k in clients}
    return dict(zip(clients, ask(clients, made.__getitem__), strict=True))


def _require_same(holds: bool, client: int) -> None:
    if not holds:
        raise InputError(f"contribution of client {client}", "must be its own, of as many values as the others", "not")
