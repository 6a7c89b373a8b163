"""Secure aggregation with masks: the server learns the sum of the holders' vectors, and nothing about any one of them.

The protocol is that of Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017, section 4, the setting with an active server). Holder i of n sends, for one sum,

    y_i = x_i + PRG(b_i) + Σ_{j > i} PRG(s_ij) − Σ_{j < i} PRG(s_ij)   mod m,

where s_ij follows from the mask keys of i and j and b_i is a seed of its own. Pairwise masks cancel in the sum. Every
holder has a Shamir share of every mask key and of every seed. When the server has named the survivors U, each holder
answers once: with its share of b_j for j in U, or with its share of the mask key of j for those who dropped out. So the
server can take exactly the left-over masks off the sum over U.

The adversary is the server together with at most k of the n holders (`Cohort.colluders`). The rules below stand against
it; each has a test that fails without it (tests/aggregation/test_masking.py):

- Mask keys and the keys that encrypt shares are different keys: a mask key is revealed when its holder drops out.
- A mask key serves one sum, and a holder masks one vector for it: two vectors under one mask show their difference.
- Nobody masks without t signatures on its own roster: with two rosters a server would split the sum.
- A holder answers for one set of survivors, and never with both shares of one holder. With 2t > n + k two different
  sets cannot open the same vector.
- All keys are signed with long-term keys that everybody knows beforehand, so the server cannot put in its own.
- Masks are for the terms that a holder agreed to (noise, grid, shares). With a finer grid for one holder than for the
  others, their noise would be too little for it; so masks of holders with different terms do not cancel.

Among more than 1,000 holders each has masks and shares with few others (`Neighbourhood`: Bell et al. 2020). Each draws
its neighbours itself, in the answer that has its keys. Signatures of t of its own neighbours stand for those of t of
all holders. What this promises is less: the server must tell all the same survivors, and those must be who sent.

Beyond masks, holders may share a group key (which the server lacks, and a colluder has). Then all of them add the same
pad, which hides the sum from the server, and three check values, which let a holder refuse a sum that the server made
up or changed: additive tampering passes with probability m⁻³ ≈ 2⁻⁹⁰.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from accountant.errors import InputError, Refused
from privfair.secure_aggregation.masks import (
    MODULUS,
    SHARE_BYTES,
    Federation,
    KeptBlock,
    KeptMasks,
    KeptSum,
    KeyShares,
    MaskedVector,
    MaskingRefused,
    PublicKeys,
    Reconstruction,
    Requests,
    Roster,
    RosterSignature,
    UnmaskRequest,
    UnmaskShares,
    Words,
    combined,
    commitment_of,
    derived,
    pair_seed,
    split_secret,
)
from privfair.secure_aggregation.neighbours import Graph

_TRIES = 300  # sets of t shares for one secret
_STREAMS = 1_024  # masks that are taken off in one pass: each has a cipher of its own

# ---- A holder


@dataclass
class _Block:
    """What a holder knows of a block of sums."""

    encryption: X25519PrivateKey | None  # None: all its sums are over
    masks: dict[int, X25519PrivateKey]  # by sum; gone when the sum is over
    keys: dict[int, PublicKeys] = field(default_factory=dict)  # of the roster, once it is signed
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)  # by sum, by holder: of mask keys
    sent: tuple[bytes, KeyShares] | None = None  # its shares, and the digest of the keys that they were made for
    roster: bytes = b""
    agreed: bool = False
    chosen: tuple[int, ...] = ()  # the neighbours that this holder drew; none where all are
    members: bytes = b""  # a bit for each holder: who is on the roster, where its keys are not all known


@dataclass
class _Sum:
    """What a holder did in one sum: each at most once."""

    masked: bool = False
    sent: MaskedVector | None = None  # what was sent, as long as this process lives
    seed_share: bytes = b""  # its own share of its own seed
    survivors: bytes | None = None  # a bit for each holder
    answer: UnmaskShares | None = None
    over: bool = False


class MaskingHolder:
    """One holder's side of the protocol. Every method that could give something away answers once, or refuses."""

    def __init__(self, federation: Federation, holder: int, identity: Ed25519PrivateKey) -> None:
        """`identity`: the private half of the holder's long-term key."""
        public = identity.public_key().public_bytes_raw()
        if not 0 <= holder < federation.cohort.holders or federation.identities[holder] != public:
            raise InputError("identity", f"must be the private key of holder {holder}", "another key")
        self.federation, self.holder, self._identity = federation, holder, identity
        self._blocks: dict[int, _Block] = {}
        self._sums: dict[int, _Sum] = {}
        self.terms = b""
        """Digest of what sums are made under: noise, grid, shares. Masks under different terms do not cancel."""

    # 0 ---- between two messages

    def kept(self) -> KeptMasks:
        """What must be on the disk before any answer leaves."""
        sums = []
        for n, s in sorted(self._sums.items()):
            shares = {} if s.answer is None else s.answer.shares
            who = tuple(sorted(shares))
            if not s.over:
                parts = b"".join(shares[k] for k in who)
                named = () if s.survivors is None else _from_bits(s.survivors)
                sums.append(KeptSum(n, s.masked, s.seed_share, named, who, parts))
        return KeptMasks(tuple(self._kept_block(n, block) for n, block in sorted(self._blocks.items())), tuple(sums))

    def _kept_block(self, number: int, block: _Block) -> KeptBlock:
        sums = sorted(block.masks)
        shared = sorted({k for shares in block.shares.values() for k in shares})
        sent_for, sealed = (b"", {}) if block.sent is None else (block.sent[0], dict(block.sent[1].sealed))
        return KeptBlock(
            number=number,
            encryption=b"" if block.encryption is None else block.encryption.private_bytes_raw(),
            sums=tuple(sums),
            masks=b"".join(block.masks[n].private_bytes_raw() for n in sums),
            holders=tuple(sorted(block.keys)),
            keys=b"".join(block.keys[k].to_bytes() for k in sorted(block.keys)),
            shared=tuple(shared),
            shares=b"".join(block.shares[n][k] for n in sums if n in block.shares for k in shared),
            receivers=tuple(sorted(sealed)),
            sent_for=sent_for,
            sealed=b"".join(sealed[k] for k in sorted(sealed)),
            roster=block.roster,
            agreed=block.agreed,
            chosen=block.chosen,
            members=block.members,
        )

    def restore(self, kept: KeptMasks) -> None:
        """Go on where `kept` was written."""
        for one in kept.blocks:
            masks = _split(one.masks, len(one.sums))
            shares = iter(_split(one.shares, len(one.sums) * len(one.shared)))
            held = zip(one.holders, _split(one.keys, len(one.holders)), strict=True)
            sealed = dict(zip(one.receivers, _split(one.sealed, len(one.receivers)), strict=True))
            self._blocks[one.number] = _Block(
                X25519PrivateKey.from_private_bytes(one.encryption) if one.sums else None,
                {n: X25519PrivateKey.from_private_bytes(m) for n, m in zip(one.sums, masks, strict=True)},
                {k: PublicKeys.from_bytes(k, one.number, keys) for k, keys in held},
                {n: {k: next(shares) for k in one.shared} for n in one.sums} if one.shared else {},
                (one.sent_for, KeyShares(self.holder, one.number, sealed)) if one.sent_for else None,
                one.roster,
                one.agreed,
                one.chosen,
                one.members,
            )
        for s in kept.sums:
            answered = dict(zip(s.answered, _split(s.shares, len(s.answered)), strict=True))
            answer = UnmaskShares(self.holder, s.number, answered) if answered else None
            named = self._bits(s.survivors) if s.survivors else None
            self._sums[s.number] = _Sum(s.masked, None, s.seed_share, named, answer)

    # 1 ---- prepared ahead, without data

    def keys(self, block: int) -> PublicKeys:
        """New keys for a block of sums; asked again, the same."""
        if block in self._blocks:
            if self.holder not in self._blocks[block].keys:
                raise MaskingRefused(f"All sums of block {block} are over.")
            return self._blocks[block].keys[self.holder]
        own = X25519PrivateKey.generate()
        made = _Block(own, {n: X25519PrivateKey.generate() for n in self.federation.numbers(block)})
        masks = tuple(key.public_key().public_bytes_raw() for key in made.masks.values())
        unsigned = PublicKeys(self.holder, block, own.public_key().public_bytes_raw(), masks, b"")
        signature = self._identity.sign(self.federation.keys_text(unsigned))
        made.keys[self.holder] = PublicKeys(self.holder, block, unsigned.encryption, masks, signature)
        if self.federation.neighbours is not None:
            made.chosen = self._drawn(self.federation.neighbours.degree)
        self._blocks[block] = made
        return made.keys[self.holder]

    def _drawn(self, degree: int) -> tuple[int, ...]:
        """So many of the other holders, every set of them with the same probability."""
        drawn = secrets.SystemRandom().sample(range(self.federation.cohort.holders - 1), degree)
        return tuple(sorted(k + (k >= self.holder) for k in drawn))

    def chosen(self, block: int) -> tuple[int, ...] | None:
        """The neighbours that this holder drew with its keys, once for a block; None where everybody is one."""
        return None if self.federation.neighbours is None else self._block(block).chosen

    def shares(self, block: int, keys: Mapping[int, PublicKeys]) -> KeyShares:
        """Shares of this holder's mask keys for everybody who sent keys, encrypted for each; once for a block."""
        mine = self._block(block)
        self._require_keys(block, keys)
        receivers = self.federation.roster_digest(block, keys)
        if mine.sent is not None:
            if mine.sent[0] != receivers:
                raise MaskingRefused(f"Shares of block {block} were made already, for other keys.")
            return mine.sent[1]
        secrets_by_sum = {number: key.private_bytes_raw() for number, key in mine.masks.items()}
        everyone, t = sorted(keys), self.federation.threshold
        if self.federation.neighbours is not None:
            everyone = [k for k in mine.chosen if k in keys]
            if len(everyone) < t or len(everyone) != len(keys) - 1:
                raise MaskingRefused(
                    f"{len(everyone)} of the {len(keys) - 1} others are neighbours that this holder drew, "
                    f"and at least {t} must be, and no others."
                )
        split = {number: split_secret(secret, everyone, t) for number, secret in secrets_by_sum.items()}
        for number, parts in split.items():
            mine.shares[number] = {self.holder: parts[self.holder]} if self.holder in parts else {}
        sealed = {
            other: self._sealed(block, keys[other], "mask keys", b"".join(parts[other] for parts in split.values()))
            for other in everyone
            if other != self.holder
        }
        mine.sent = (receivers, KeyShares(self.holder, block, sealed))
        if self.federation.neighbours is not None:
            mine.keys = dict(keys)  # those of the roster take their place
        return mine.sent[1]

    def sign_roster(
        self, block: int, keys: Mapping[int, PublicKeys], sealed: Mapping[int, bytes], roster: Roster | None = None
    ) -> RosterSignature:
        """Sign the roster: who sent keys, and shares to this holder (`sealed`, by sender). One roster a block.

        Among neighbours, `keys` are those of the neighbours on the `roster`: of whom this holder drew, and who drew it.
        """
        mine, sparse = self._block(block), self.federation.neighbours is not None
        self._require_keys(block, keys)
        if mine.sent is None:
            raise MaskingRefused(f"This holder has not sent its own shares of block {block} yet.")
        missing = sorted(set(keys) - set(sealed) - {self.holder} - set(mine.chosen))
        if missing:
            raise MaskingRefused(f"Holder {missing[0]} is on the roster of block {block}, and sent no shares.")
        if sparse:
            digest = self._listed(block, mine, keys, sealed, roster)
        else:
            digest = self.federation.roster_digest(block, keys)
        if mine.roster and mine.roster != digest:
            raise MaskingRefused(f"Another roster of block {block} is signed already: nobody masks for two.")
        if mine.roster:
            return RosterSignature(self.holder, block, digest, self._identity.sign(self._roster_text(block, digest)))
        numbers = list(self.federation.numbers(block))
        received: dict[int, bytes] = {}
        for other in sorted(sealed if sparse else set(keys) - {self.holder}):
            received[other] = self._opened(block, keys[other], "mask keys", sealed[other])
            if len(received[other]) != SHARE_BYTES * len(numbers):
                raise MaskingRefused(f"The shares of holder {other} are not those of {len(numbers)} mask keys.")
        for i, number in enumerate(numbers):
            place = slice(SHARE_BYTES * i, SHARE_BYTES * (i + 1))
            mine.shares.setdefault(number, {}).update({other: opened[place] for other, opened in received.items()})
        mine.roster, mine.keys = digest, dict(keys)
        if roster is not None and sparse:
            mine.members = self._bits(roster.holders)
        return RosterSignature(self.holder, block, digest, self._identity.sign(self._roster_text(block, digest)))

    def _listed(
        self,
        block: int,
        mine: _Block,
        keys: Mapping[int, PublicKeys],
        sealed: Mapping[int, bytes],
        roster: Roster | None,
    ) -> bytes:
        """The digest of a roster among neighbours, if it is whole and has this holder's own neighbours."""
        if roster is None or len(roster.holders) < self.federation.cohort.smallest:
            raise MaskingRefused(f"The roster of block {block} must name {self.federation.cohort.smallest} holders.")
        named, n = np.asarray(roster.holders), self.federation.cohort.holders
        if named[0] < 0 or named[-1] >= n or np.any(np.diff(named) <= 0) or len(roster.digests) != 32 * len(named):
            raise MaskingRefused(f"The roster of block {block} names holders that do not exist, or not in their order.")
        if not all(roster.has(theirs) for theirs in keys.values()) or not set(sealed) <= set(keys) - {self.holder}:
            raise MaskingRefused(f"The keys of block {block} are not those of the roster.")
        there = [k for k in mine.chosen if roster.place(k) is not None]
        shared = set() if mine.sent is None else set(mine.sent[1].sealed)
        if len(there) < self.federation.threshold or not set(there) <= set(keys) & shared:
            raise MaskingRefused(f"The roster of block {block} lacks neighbours that this holder drew, or their keys.")
        return self.federation.listed_digest(block, roster)

    def has(self, block: int) -> bool:
        """Whether this holder made keys for a block, and knows them."""
        return block in self._blocks

    def agree(self, block: int, signatures: Iterable[RosterSignature]) -> None:
        """Go on with the roster if t holders signed it; without this nothing is masked."""
        mine = self._block(block)
        if not mine.roster:
            raise MaskingRefused(f"The roster of block {block} is not signed by this holder yet.")
        signers: set[int] = set()
        sparse, least = self.federation.neighbours is not None, self.federation.threshold
        asked = set(self._receivers(mine))
        for signed in signatures:
            if sparse and len(signers) >= least:
                break
            if signed.holder in asked and signed.roster == mine.roster:
                text = self._roster_text(block, mine.roster)
                self.federation.require_signed(signed.holder, text, signed.signature, "The roster")
                signers.add(signed.holder)
        if len(signers) < least:
            raise MaskingRefused(
                f"{len(signers)} {'neighbours' if sparse else 'holders'} signed this roster of block {block}, and "
                f"{least} must have: others may have got another."
            )
        mine.agreed = True

    def _receivers(self, mine: _Block) -> list[int]:
        """Who has shares of this holder's secrets: everybody on the roster, or the neighbours that it drew."""
        if self.federation.neighbours is None:
            return sorted(mine.keys)
        return [k for k in mine.chosen if k in mine.keys]

    # 2 ---- mask

    def mask(self, number: int, values: Words) -> MaskedVector:
        """The masked vector of a sum. A mask serves once: a second vector is refused, whatever is in it."""
        self.require_open(number)
        block_number = self.federation.block_of(number)
        mine, entry = self._block(block_number), self._sums.setdefault(number, _Sum())
        seed = secrets.token_bytes(32)
        place = number - self.federation.numbers(block_number).start
        pairs = {
            other: pair_seed(
                mine.masks[number], keys.masks[place], self.federation, number, (self.holder, other), self.terms
            )
            for other, keys in mine.keys.items()
            if other != self.holder
        }
        plus = [seed, *(s for other, s in pairs.items() if other > self.holder)]
        minus = [s for other, s in pairs.items() if other < self.holder]
        words = np.asarray(values, dtype=np.uint32)
        masked = combined(words.size, plus, minus, words)
        receivers = self._receivers(mine)
        parts = split_secret(seed, receivers, self.federation.threshold)
        commitment = commitment_of(seed)
        text = self.federation.commitment_text(self.holder, number, mine.roster, commitment)
        sealed = {
            other: self._sealed(block_number, mine.keys[other], f"seed {number}", parts[other], commitment)
            for other in receivers
            if other != self.holder
        }
        entry.seed_share = parts.get(self.holder, b"")
        entry.masked, entry.sent = (
            True,
            MaskedVector(
                self.holder, number, masked.astype("<u4").tobytes(), commitment, self._identity.sign(text), sealed
            ),
        )
        return entry.sent

    def require_open(self, number: int) -> None:
        """Raise unless this holder can mask its one vector of this sum: asked before a vector is made, or paid for."""
        block = self.federation.block_of(number)
        mine, entry = self._block(block), self._sums.get(number, _Sum())
        if entry.masked or entry.over or number not in mine.masks:
            raise MaskingRefused(f"A vector of sum {number} was masked already: a mask serves once.")
        if not mine.agreed:
            raise MaskingRefused(f"The roster of block {block} is not agreed on yet.")
        if entry.survivors is not None:
            raise MaskingRefused(f"The survivors of sum {number} are named, and nothing is added to it any more.")

    def again(self, number: int) -> MaskedVector:
        """The bytes that were sent for a sum, for a server that lost them."""
        entry = self._sums.get(number)
        if entry is None or entry.sent is None:
            raise MaskingRefused(f"Nothing was masked for sum {number}.")
        return entry.sent

    # 3 ---- unmask

    def unmask(self, request: UnmaskRequest) -> UnmaskShares:
        """The one answer for a sum. Another set of survivors is refused; the same gets the same answer."""
        number, survivors = request.number, frozenset(request.survivors)
        block = self._block(self.federation.block_of(number))
        entry = self._sums.setdefault(number, _Sum())
        if entry.over or (block.agreed and number not in block.masks):
            raise MaskingRefused(f"Sum {number} is over.")
        if entry.survivors is not None:
            if entry.survivors != self._bits(survivors) or entry.answer is None:
                raise MaskingRefused(f"Another set of survivors of sum {number} was answered already.")
            return entry.answer
        if not block.agreed:
            raise MaskingRefused(f"The roster of sum {number} is not agreed on.")
        least, held = self.federation.cohort.smallest, sorted(block.shares.get(number, {}))  # of whom it has shares
        if len(survivors) < least or not self._on_roster(block, survivors):
            raise MaskingRefused(f"Sum {number} names {len(survivors)} survivors of the roster, and {least} must be.")
        if self.holder in survivors and not entry.masked:
            raise MaskingRefused(f"This holder is said to have survived sum {number}, and sent nothing for it.")
        shares = {other: block.shares[number][other] for other in held if other not in survivors}
        for other in held:
            if other in survivors:
                shares[other] = self._seed_share(block, number, other, request, entry)
        entry.survivors = self._bits(survivors)
        entry.answer = UnmaskShares(self.holder, number, shares)
        return entry.answer

    def _seed_share(self, block: _Block, number: int, other: int, request: UnmaskRequest, entry: _Sum) -> bytes:
        """This holder's share of a survivor's seed, which the survivor committed to under this roster."""
        if other == self.holder:
            return entry.seed_share
        if other not in request.commitments or other not in request.sealed:
            raise MaskingRefused(f"The share of survivor {other} is missing.")
        commitment, signature = request.commitments[other]
        text = self.federation.commitment_text(other, number, block.roster, commitment)
        self.federation.require_signed(other, text, signature, "The seed")
        number_of_block = self.federation.block_of(number)
        share = self._opened(number_of_block, block.keys[other], f"seed {number}", request.sealed[other], commitment)
        if len(share) != SHARE_BYTES:
            raise MaskingRefused(f"The share of survivor {other} has a wrong length.")
        return share

    def finish(self, number: int) -> None:
        """Delete what could open a sum that is over: its mask key, seed and shares."""
        block = self._block(self.federation.block_of(number))
        block.masks.pop(number, None)
        block.shares.pop(number, None)
        self._sums[number] = _Sum(over=True)
        if not block.masks:  # what is left of the block says only that it was there
            block.encryption, block.keys, block.sent = None, {}, None

    def finish_before(self, number: int) -> None:
        """Delete what could open any sum of a smaller number: sums are made in the order of their numbers."""
        for block in self._blocks.values():
            for earlier in [n for n in (*block.masks, *block.shares) if n < number]:
                self.finish(earlier)

    # ---- helpers

    def _bits(self, holders: Iterable[int] | NDArray[np.int64]) -> bytes:
        """A bit for each holder of the federation; numbers that are none are no part of it."""
        named, n = np.fromiter(holders, dtype=np.int64), self.federation.cohort.holders
        present = np.zeros(n, dtype=np.bool_)
        present[named[(named >= 0) & (named < n)]] = True
        return np.packbits(present).tobytes()

    def _on_roster(self, block: _Block, holders: frozenset[int]) -> bool:
        """Whether all of these are on the roster of a block."""
        if self.federation.neighbours is None:
            return holders <= set(block.keys)
        if not all(0 <= k < self.federation.cohort.holders for k in holders):
            return False
        named = np.frombuffer(self._bits(holders), dtype=np.uint8)
        return not np.any(named & ~np.frombuffer(block.members, dtype=np.uint8))

    def _block(self, block: int) -> _Block:
        if block not in self._blocks:
            raise MaskingRefused(f"Block {block} was not prepared: its keys are asked for first.")
        return self._blocks[block]

    def _require_keys(self, block: int, keys: Mapping[int, PublicKeys]) -> None:
        """Raise unless these are signed keys of at least c holders, this one among them, with its own keys.

        Among neighbours there are fewer keys, and it is the roster that must name c holders.
        """
        own = self._block(block).keys.get(self.holder)
        if own is None or keys.get(self.holder) != own:
            raise MaskingRefused("The keys that are said to be of this holder are not its own.")
        least = self.federation.cohort.smallest
        if len(keys) < least and self.federation.neighbours is None:
            raise MaskingRefused(f"{len(keys)} holders sent keys, and no sum is of fewer than {least}.")
        for holder, theirs in keys.items():
            if theirs.holder != holder or theirs.block != block or len(theirs.masks) != self.federation.sums_per_block:
                raise MaskingRefused(f"The keys of holder {holder} are not of block {block}.")
            if self._block(block).keys.get(holder) != theirs:  # else they were checked before
                self.federation.require_signed(holder, self.federation.keys_text(theirs), theirs.signature, "The key")
                self.federation.require_usable(theirs)

    def _roster_text(self, block: int, digest: bytes) -> bytes:
        return self.federation.context("sign roster", block, digest)

    def _channel_key(self, block: int, other: PublicKeys, purpose: str, sender: int, receiver: int) -> bytes:
        own = self._block(block).encryption
        if own is None:
            raise MaskingRefused(f"All sums of block {block} are over.")
        try:
            shared = own.exchange(X25519PublicKey.from_public_bytes(other.encryption))
        except ValueError:
            raise MaskingRefused(f"The key of holder {other.holder} is no key.") from None
        return derived(shared, self.federation.context("share", block, purpose, sender, receiver))

    def _sealed(self, block: int, to: PublicKeys, purpose: str, content: bytes, bound: bytes = b"") -> bytes:
        """Content for one receiver, behind its nonce: a folder that was put back seals other content with this key."""
        key, nonce = self._channel_key(block, to, purpose, self.holder, to.holder), secrets.token_bytes(12)
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, bound)

    def _opened(self, block: int, sender: PublicKeys, purpose: str, sealed: bytes, bound: bytes = b"") -> bytes:
        key = self._channel_key(block, sender, purpose, sender.holder, self.holder)
        try:
            return ChaCha20Poly1305(key).decrypt(sealed[:12], sealed[12:], bound)
        except (InvalidTag, ValueError):
            raise MaskingRefused(f"The shares of holder {sender.holder} were changed, or are of another sum.") from None


def _split(data: bytes, count: int) -> list[bytes]:
    """So many equal parts."""
    size = len(data) // max(count, 1)
    return [data[size * i : size * (i + 1)] for i in range(count)]


def _from_bits(bits: bytes) -> tuple[int, ...]:
    return tuple(np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8))).tolist())


# ---- The server


class MaskingServer:
    """The server's side of one sum: it collects masked vectors, names the survivors, and takes the left-over masks off.

    It needs no secret. What it recovers is held against what holders signed, so that a wrong share is found.
    """

    def __init__(
        self,
        federation: Federation,
        number: int,
        keys: Mapping[int, PublicKeys],
        length: int,
        *,
        added_elsewhere: bool = False,
        terms: bytes = b"",
        chosen: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """`keys`: the roster's; `length`: of the vectors, with their check values; `terms`: what holders mask under.

        `chosen`: the neighbours that each holder drew, where not everybody is one.

        `added_elsewhere`: masked vectors come without their values, which somebody else adds (under encryption).
        """
        self.federation, self.number, self.length = federation, number, length
        self._elsewhere, self._terms = added_elsewhere, terms
        self._place = number - federation.numbers(federation.block_of(number)).start
        if (chosen is None) != (federation.neighbours is None):
            raise InputError("chosen", "must be given exactly where holders draw neighbours", chosen is not None)
        block = federation.block_of(number)
        self._keys, self._graph = dict(keys), Graph(keys, chosen)
        self._roster = (
            federation.roster_digest(block, keys)
            if chosen is None
            else federation.listed_digest(block, Roster.of(keys))
        )
        self._arrived: dict[int, MaskedVector] = {}
        self._total = np.zeros(0 if added_elsewhere else length, dtype=np.int64)
        self.survivors: tuple[int, ...] = ()
        self._answers: dict[int, UnmaskShares] = {}
        self._used: Reconstruction | None = None
        self._wrong: set[int] = set()  # whose shares did not fit: they are used last

    def check(self, masked: MaskedVector) -> None:
        """Raise unless this masked vector is of this sum and of its holder."""
        name = f"masked vector of holder {masked.holder}"
        if self.survivors:
            raise InputError(name, "must arrive before the survivors are named", "later", "It stays hidden.")
        if masked.number != self.number or masked.holder not in self._keys or masked.holder in self._arrived:
            raise InputError(name, f"must be the one vector of somebody on the roster of sum {self.number}", "another")
        if len(masked.values) != (0 if self._elsewhere else 4 * self.length):
            raise InputError(name, f"must have {self.length} values of 4 bytes", f"{len(masked.values)} bytes")
        if set(masked.sealed) != set(self._graph.receivers(masked.holder)) - {masked.holder}:
            raise InputError(name, "must come with a share of its seed for everybody else on the roster", "others")
        text = self.federation.commitment_text(masked.holder, self.number, self._roster, masked.commitment)
        self.federation.require_signed(masked.holder, text, masked.signature, "The seed")

    def receive(self, masked: MaskedVector) -> None:
        """Take a masked vector; one that is not of this sum or not of its holder is refused."""
        self.check(masked)
        if not self._elsewhere:
            self._total += np.frombuffer(masked.values, dtype="<u4")
        self._arrived[masked.holder] = replace(masked, values=b"")

    def close(self) -> Mapping[int, UnmaskRequest]:
        """Name the survivors: a request for everybody on the roster. Nothing is taken after this."""
        least = self.federation.cohort.smallest
        if len(self._arrived) < least:
            raise Unopened(f"Sum {self.number} has {len(self._arrived)} vectors, and {least} must be: nothing opens.")
        self.survivors = tuple(sorted(self._arrived))
        return Requests(self._keys, self._request)

    def _request(self, holder: int) -> UnmaskRequest:
        """What a holder needs to answer."""
        given = [k for k in sorted(self._graph.givers(holder)) if k in self._arrived and k != holder]
        about = {k: self._arrived[k] for k in given}
        return UnmaskRequest(
            self.number,
            self.survivors,
            {k: (m.commitment, m.signature) for k, m in about.items()},
            {k: m.sealed[holder] for k, m in about.items()},
        )

    def answer(self, shares: UnmaskShares) -> None:
        """Take a holder's answer."""
        of = set(self._graph.givers(shares.holder)) if shares.holder in self._keys else set()
        whole = set(shares.shares) == of and all(len(s) == SHARE_BYTES for s in shares.shares.values())
        if shares.number != self.number or shares.holder not in self._keys or not whole:
            name = f"answer of holder {shares.holder}"
            raise InputError(name, f"must have a share for everybody on the roster of sum {self.number}", "another")
        self._answers[shares.holder] = shares

    def left_over(self) -> Words:
        """The masks that do not cancel in the sum over the survivors, modulo m."""
        least = self.federation.cohort.threshold
        if len(self._answers) < least:
            raise Unopened(f"Sum {self.number} has {len(self._answers)} answers, and {least} must be: nothing opens.")
        plus: list[bytes] = []
        minus: list[bytes] = []
        for holder in self.survivors:
            seed = self._opened(holder, commitment_of, self._arrived[holder].commitment)
            if seed is None:
                raise Unopened(f"The shares of the seed of holder {holder} do not give what it committed to.")
            plus.append(seed)
        survived = frozenset(self.survivors)
        for holder in sorted(set(self._keys) - survived):
            revealed = self._opened(holder, _public, self._keys[holder].masks[self._place])
            if revealed is None:
                raise Unopened(f"The shares of the mask key of holder {holder} do not give its key.")
            mask_key = X25519PrivateKey.from_private_bytes(revealed)
            for other in sorted(self._graph.neighbours(holder) & survived):
                theirs = self._keys[other].masks[self._place]
                seed = pair_seed(mask_key, theirs, self.federation, self.number, (holder, other), self._terms)
                (plus if holder > other else minus).append(seed)
        left: Words | None = None
        for begin in range(0, max(len(plus), len(minus)), _STREAMS):
            part = slice(begin, begin + _STREAMS)
            left = combined(self.length, plus[part], minus[part], left)
        return np.zeros(self.length, dtype=np.uint32) if left is None else left

    def _opened(self, holder: int, shown: Callable[[bytes], bytes], known: bytes) -> bytes | None:
        """The secret of a holder that was answered for: its seed, or its mask key; None if no shares give it.

        It is the one whose commitment or public key (`shown`) is `known`. Where the first t shares do not give it, one
        of them is wrong: t others are tried, without one, two and more of those who answered, as long as `_TRIES` last.
        """
        t = self.federation.threshold
        who = [k for k in sorted(self._graph.receivers(holder)) if k in self._answers]
        who.sort(key=self._wrong.__contains__)
        if len(who) < t:
            raise Unopened(f"{len(who)} neighbours of holder {holder} answered, and {t} must: nothing opens.")
        left_out = chain.from_iterable(combinations(who[: t + few], few) for few in range(len(who) - t + 1))
        for without in islice(left_out, _TRIES):
            some = tuple(sorted([k for k in who if k not in without][:t]))
            if self._used is None or self._used.holders != some:  # among all holders the same serve for every secret
                self._used = Reconstruction(some)
            secret = self._used.secret({k: self._answers[k].shares[holder] for k in some})
            if shown(secret) == known:
                self._wrong |= set(without)  # no fewer would do: each of them sent a wrong share
                return secret
        return None

    def total(self) -> Words:
        """The sum of the survivors' vectors, modulo m."""
        left = self.left_over()
        return np.asarray((self._total - left) % MODULUS, dtype=np.uint32)


def _public(mask_key: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(mask_key).public_key().public_bytes_raw()


class Unopened(Refused):
    """A sum that nothing opens: too few vectors or answers, or shares that do not fit. It is paid all the same."""
