"""What masks are made of: the cohort and its conditions, uniform numbers, Shamir's shares, messages, check values.

The protocol that uses them is in `masking`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numba import njit
from numpy.typing import NDArray

from accountant.errors import InputError, Refused
from privfair.codec import Payload, unless
from privfair.config import COMPLETE_UP_TO, Config
from privfair.secure_aggregation.base import BFV_MODULUS
from privfair.secure_aggregation.neighbours import Neighbourhood

MODULUS: Final = BFV_MODULUS  # prime: a pad that |U| holders add stays uniform in the sum for every |U| below it
BLOCK: Final = 16_384  # values that are masked at a time: a block of all streams stays in the processor's cache
CHECKS: Final = 3  # check values at the end of a vector
SHARE_BYTES: Final = 33
SEAL_BYTES: Final = 12 + 16  # an encrypted message is longer by its nonce and its tag
KEY_BYTES, SIGNATURE_BYTES = 32, 64
FIELD: Final = 2**256 + 297  # prime: seeds and keys of 32 bytes are elements of the field of Shamir's shares
SUMS_PER_BLOCK: Final = 16  # sums whose mask keys are prepared together


class MaskingRefused(Refused):
    """A holder does not go on, because the server asks for something that the protocol does not have."""


# ---- Who takes part, and how much noise the honest holders must carry


@dataclass(frozen=True)
class Cohort:
    """The public numbers of a secure sum: n holders, at most k of whom collude, and no sum of fewer than c vectors.

    The threshold of the shares is t = c. Two conditions make the sum safe, and are checked here. 2t > n + k: a seed and
    a mask key of the same holder never both open, since the k colluders can answer for two sets of survivors and the
    honest holders for one. And h ≥ 2, where h is the least number of honest vectors in any sum that opens: told
    different sets of survivors, honest holders still open one sum at most, in which

        h = n − k − ⌊(n − k)(n − c)/(t − k)⌋

    of them are present: every set may lack n − c holders, an opening needs t − k honest answers, so at most that many
    honest holders can be missing from all of the answered sets together. It does not matter why a holder is missing.
    Where only some train in a round (`federation.clients_per_round` ≥ c), the others are missing from every set,
    whoever picked them, and all k colluders may be among those who train: n, k, c and h stay what they are.
    """

    holders: int
    colluders: int
    smallest: int

    def __post_init__(self) -> None:
        """Refuse numbers under which a sum would not be safe."""
        n, k, c = self.holders, self.colluders, self.smallest
        for name, value, least in (("clients", n, 3), ("aggregation.colluders", k, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(name, f"must be a whole number, at least {least}, for masks", value)
        if isinstance(c, bool) or not isinstance(c, int) or not 0 < c <= n:
            raise InputError("aggregation.smallest_cohort", f"must be a whole number, at most {n}", c)
        if not 2 * c > n + k:
            rule = f"must be above (clients + colluders)/2 = {(n + k) / 2:g}"
            remedy = f"Take {(n + k) // 2 + 1} or more, or fewer aggregation.colluders."
            raise InputError("aggregation.smallest_cohort", rule, c, remedy)
        if self.honest < 2:
            remedy = "Take a larger aggregation.smallest_cohort, or fewer aggregation.colluders."
            raise InputError("masks", "must leave two honest holders in every sum", self.honest, remedy)

    @classmethod
    def of(cls, holders: int, colluders: int | None = None, smallest: int | None = None) -> Cohort:
        """The cohort with its defaults: k = ⌊n/3⌋ (at least 1), c = n − max(⌊n/10⌋, 1), and c = n below 5 holders."""
        k = max(1, holders // 3) if colluders is None else colluders
        c = (holders if holders < 5 else holders - max(holders // 10, 1)) if smallest is None else smallest
        return cls(holders, k, c)

    @property
    def threshold(self) -> int:
        """t: how many shares open a secret."""
        return self.smallest

    @property
    def among_neighbours(self) -> bool:
        """Whether each holder masks with few others, which is safe only if the server tells all the same survivors."""
        return self.holders > COMPLETE_UP_TO

    @property
    def honest(self) -> int:
        """h: noise is sized so that this many shares carry the claim."""
        n, k, c = self.holders, self.colluders, self.smallest
        return n - k - (n - k) * (n - c) // (c - k)


def cohort_of(config: Config, clients: int) -> Cohort | None:
    """The cohort of a run with so many clients; None where nothing is masked."""
    if not config.masks:
        return None
    sums, privacy = config.aggregation, config.privacy
    smallest = privacy.smallest_cohort if sums.smallest_cohort is None else sums.smallest_cohort
    cohort = Cohort.of(clients, sums.colluders, smallest)
    if cohort.among_neighbours:  # refused here if there are no neighbourhoods for so many colluders
        Neighbourhood.of(cohort.holders, cohort.colluders, cohort.smallest)
    return cohort


# ---- Masks: uniform numbers below the modulus, from AES in counter mode


class MaskStream:
    """The numbers below the modulus that a seed of 32 bytes stands for.

    Words of AES-256 in counter mode are cut to 30 bits, and those that are not below the modulus are dropped, so that
    every number is equally likely. (Larger words modulo m would not be uniform.)
    """

    def __init__(self, seed: bytes) -> None:
        """A seed makes one stream, from its beginning."""
        self._cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def take(self, count: int) -> Words:
        """The next `count` numbers."""
        numbers = np.empty(count, dtype=np.uint32)
        for begin in range(0, count, BLOCK):
            self.fill(numbers[begin : begin + BLOCK])
        return numbers

    def fill(self, numbers: Words) -> None:
        """Write the next numbers into an array of at most `BLOCK`."""
        filled, buffer = 0, bytearray(4 * numbers.size + 15)
        while filled < numbers.size:
            missing = 4 * (numbers.size - filled)
            self._cipher.update_into(_ZEROS[:missing], buffer)
            filled = kept(numbers, filled, np.frombuffer(buffer, dtype="<u4", count=missing // 4))


_ZEROS: Final = memoryview(bytes(4 * BLOCK))


def combined(length: int, plus: Sequence[bytes], minus: Sequence[bytes] = (), start: Words | None = None) -> Words:
    """`start` (or 0) plus the streams of some seeds, minus those of others, modulo m."""
    added, taken = [MaskStream(seed) for seed in plus], [MaskStream(seed) for seed in minus]
    result = np.zeros(length, dtype=np.uint32) if start is None else np.array(start, dtype=np.uint32)
    scratch = np.empty(min(BLOCK, length), dtype=np.uint32)
    for begin in range(0, length, BLOCK):
        part = result[begin : begin + BLOCK]
        numbers = scratch[: part.size]
        for stream in added:
            stream.fill(numbers)
            add(part, numbers)
        for stream in taken:
            stream.fill(numbers)
            subtract(part, numbers)
    return result


def to_words(values: NDArray[np.int64]) -> Words:
    """Integers modulo m; what wraps costs accuracy, and never privacy."""
    integers = np.ascontiguousarray(values, dtype=np.int64)
    return np.asarray(reduced(integers.reshape(-1)).reshape(integers.shape), dtype=np.uint32)


def to_integers(words: Words) -> NDArray[np.int64]:
    """The integers of least magnitude that these numbers stand for."""
    return np.asarray(centred(np.array(words, dtype=np.uint32)), dtype=np.int64)


# ---- Shamir's shares of seeds and keys


def split_secret(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """A share for each holder (by number, from 0); any `threshold` of them give the secret, fewer say nothing."""
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(FIELD) for _ in range(threshold - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % FIELD
        shares[holder] = value.to_bytes(SHARE_BYTES, "big")
    return shares


class Reconstruction:
    """Secrets from the shares of one set of holders: Lagrange's coefficients at 0 are computed once for all of them."""

    def __init__(self, holders: Iterable[int]) -> None:
        """The holders whose shares are used."""
        self.holders = tuple(holders)
        points = [holder + 1 for holder in self.holders]
        self._coefficients = []
        for i, x in enumerate(points):
            others = [point for j, point in enumerate(points) if j != i]
            top = math.prod(others) % FIELD
            bottom = math.prod(point - x for point in others) % FIELD
            self._coefficients.append(top * pow(bottom, -1, FIELD) % FIELD)

    def secret(self, shares: Mapping[int, bytes]) -> bytes:
        """The secret of these shares, or 32 zero bytes if they do not belong together."""
        parts = zip(self._coefficients, self.holders, strict=True)
        value = sum(c * int.from_bytes(shares[holder], "big") for c, holder in parts) % FIELD
        return value.to_bytes(SHARE_BYTES, "big")[1:] if value < 2**256 else bytes(32)


# ---- Messages


def _text(*parts: bytes | str | int) -> bytes:
    """One byte string for several parts; no two sequences of parts have the same."""
    plain = [p if isinstance(p, bytes) else str(p).encode() for p in parts]
    return b"".join(struct.pack(">I", len(p)) + p for p in plain)


@dataclass(frozen=True)
class PublicKeys:
    """A holder's keys for a block of sums, signed: one that encrypts shares, and a mask key for each sum."""

    holder: int
    block: int
    encryption: bytes
    masks: tuple[bytes, ...]
    signature: bytes

    @cached_property
    def digest(self) -> bytes:
        """The digest of everything but the signature."""
        return hashlib.sha256(_text(self.holder, self.block, self.encryption, *self.masks)).digest()

    def to_bytes(self) -> bytes:
        """The keys and their signature, one behind the other."""
        return b"".join((self.encryption, *self.masks, self.signature))

    @staticmethod
    def from_bytes(holder: int, block: int, data: bytes) -> PublicKeys:
        """What `to_bytes` wrote, of a length that was checked."""
        parts = [data[i : i + KEY_BYTES] for i in range(0, len(data) - SIGNATURE_BYTES, KEY_BYTES)]
        return PublicKeys(holder, block, parts[0], tuple(parts[1:]), data[-SIGNATURE_BYTES:])


@dataclass(frozen=True, eq=False)
class Roster:
    """Everybody who masks in a block among neighbours: numbers in their order, and the digests of their keys."""

    holders: NDArray[np.int64]
    digests: bytes

    @staticmethod
    def of(keys: Mapping[int, PublicKeys]) -> Roster:
        """The roster of those who have these keys."""
        return Roster(np.array(sorted(keys), dtype=np.int64), b"".join(keys[k].digest for k in sorted(keys)))

    def place(self, holder: int) -> int | None:
        """Where a holder stands; None if it is not on the roster."""
        at = int(np.searchsorted(self.holders, holder))
        return at if at < len(self.holders) and self.holders[at] == holder else None

    def has(self, keys: PublicKeys) -> bool:
        """Whether the holder is on the roster, with these keys."""
        at = self.place(keys.holder)
        return at is not None and self.digests[32 * at : 32 * (at + 1)] == keys.digest


@dataclass(frozen=True)
class KeyShares:
    """A holder's shares of its mask keys of a block, encrypted for each of the others (or of its neighbours)."""

    holder: int
    block: int
    sealed: Mapping[int, bytes]


@dataclass(frozen=True)
class RosterSignature:
    """A holder's word that it masks for this roster, and for no other, in this block."""

    holder: int
    block: int
    roster: bytes  # digest
    signature: bytes


@dataclass(frozen=True)
class MaskedVector:
    """A holder's masked vector, with the commitment to its seed and that seed's shares for the others."""

    holder: int
    number: int
    values: bytes  # little-endian words of 32 bits
    commitment: bytes
    signature: bytes
    sealed: Mapping[int, bytes]


@dataclass(frozen=True)
class UnmaskRequest:
    """Who survived, and what the receiver needs to answer: its shares of the survivors' seeds."""

    number: int
    survivors: tuple[int, ...]
    commitments: Mapping[int, tuple[bytes, bytes]]  # of each survivor: commitment and signature
    sealed: Mapping[int, bytes]


class Requests(Mapping[int, UnmaskRequest]):
    """A request for everybody on the roster, each made when it is looked up: together they are n² values."""

    def __init__(self, holders: Iterable[int], make: Callable[[int], UnmaskRequest]) -> None:
        """`make`: the request of a holder."""
        self._holders, self._make = tuple(holders), make

    def __getitem__(self, holder: int) -> UnmaskRequest:
        """The request of a holder."""
        return self._make(holder)

    def __iter__(self) -> Iterator[int]:
        """All holders on the roster."""
        return iter(self._holders)

    def __len__(self) -> int:
        """How many they are."""
        return len(self._holders)


@dataclass(frozen=True)
class UnmaskShares:
    """A holder's one answer for a sum: of each survivor the share of its seed, of the others that of their mask key."""

    holder: int
    number: int
    shares: Mapping[int, bytes]


# ---- What a holder writes down


@dataclass(frozen=True)
class KeptBlock:
    """What a holder writes down of a block. Bytes of several holders, or sums, stand one behind the other."""

    number: int
    encryption: Payload  # empty: all sums of the block are over
    sums: tuple[int, ...]  # those that are not over, in their order
    masks: Payload  # private mask keys of these sums
    holders: tuple[int, ...]  # whose public keys are known: the roster, or this holder alone
    keys: Payload
    shared: tuple[int, ...]  # by whom there are shares of mask keys
    shares: Payload  # of each sum in `sums`, of each of them
    receivers: tuple[int, ...]
    sent_for: Payload  # digest of the keys for which shares were made; empty: none were
    sealed: Payload
    roster: Payload
    agreed: bool
    chosen: Annotated[tuple[int, ...], unless(())] = ()
    members: Annotated[Payload, unless(b"")] = b""


@dataclass(frozen=True)
class KeptSum:
    """What a holder writes down of a sum that is not over."""

    number: int
    masked: bool
    seed_share: Payload
    survivors: tuple[int, ...]  # empty: none were answered
    answered: tuple[int, ...]
    shares: Payload


@dataclass(frozen=True)
class KeptMasks:
    """All that a holder needs to go on where it stopped. It is secret, and nobody else ever has it."""

    blocks: tuple[KeptBlock, ...] = ()
    sums: tuple[KeptSum, ...] = ()


# ---- What everybody knows before the first sum


@dataclass(frozen=True)
class Federation:
    """The holders' long-term public keys (Ed25519), their cohort, and the plan and the run that signatures are for."""

    cohort: Cohort
    identities: tuple[bytes, ...]
    run: str
    plan: bytes = b""  # digest of what all holders agreed on
    sums_per_block: int = SUMS_PER_BLOCK
    neighbours: Neighbourhood | None = None  # None: everybody masks with everybody, up to 1,000 holders

    def __post_init__(self) -> None:
        """Refuse a list of keys that is not one for each holder."""
        if len(self.identities) != self.cohort.holders or len(set(self.identities)) != len(self.identities):
            rule = f"must be {self.cohort.holders} different keys"
            raise InputError("identities", rule, f"{len(set(self.identities))} different keys")
        if self.sums_per_block < 1:
            raise InputError("sums_per_block", "must be 1 or more", self.sums_per_block)
        if self.neighbours is None and self.cohort.among_neighbours:
            numbers = self.cohort
            drawn = Neighbourhood.of(numbers.holders, numbers.colluders, numbers.smallest)
            object.__setattr__(self, "neighbours", drawn)
        if self.neighbours is not None and self.neighbours.degree >= self.cohort.holders:
            rule = f"must be below the number of holders, {self.cohort.holders}"
            raise InputError("degree", rule, self.neighbours.degree)

    @property
    def threshold(self) -> int:
        """How many shares open a secret: of everybody's, or of the neighbours'."""
        return self.cohort.threshold if self.neighbours is None else self.neighbours.threshold

    def context(self, kind: str, *parts: bytes | str | int) -> bytes:
        """What is signed, or bound into a derived key: a kind and its parts in this run of this plan."""
        return _text("privfair masks 1", self.run, self.plan, kind, *parts)

    def block_of(self, number: int) -> int:
        """The block that a sum is prepared in."""
        return number // self.sums_per_block

    def numbers(self, block: int) -> range:
        """The sums of a block."""
        return range(block * self.sums_per_block, (block + 1) * self.sums_per_block)

    def require_signed(self, holder: int, text: bytes, signature: bytes, what: str) -> None:
        """Raise unless the holder signed this."""
        if not 0 <= holder < len(self.identities):
            raise MaskingRefused(f"{what} names holder {holder}, and there are {len(self.identities)}.")
        try:
            Ed25519PublicKey.from_public_bytes(self.identities[holder]).verify(signature, text)
        except InvalidSignature:
            raise MaskingRefused(f"{what} of holder {holder} does not have its signature.") from None

    def require_usable(self, keys: PublicKeys) -> None:
        """Raise if one of the keys is a point of low order, with which no key is agreed on: every exchange says so.

        Before anybody signs or pays: whoever found it out when it masks would have paid already.
        """
        for part in (keys.encryption, *keys.masks):
            try:
                _TRIAL.exchange(X25519PublicKey.from_public_bytes(part))
            except ValueError:
                raise MaskingRefused(f"A key of holder {keys.holder} is no key.") from None

    def keys_text(self, keys: PublicKeys) -> bytes:
        """What a holder signs of its keys."""
        return self.context("keys", keys.digest)

    def roster_digest(self, block: int, keys: Mapping[int, PublicKeys]) -> bytes:
        """The digest of a roster and of the keys of everybody in it."""
        members = [part for holder in sorted(keys) for part in (holder, keys[holder].digest)]
        return hashlib.sha256(self.context("roster", block, *members)).digest()

    def digest(self, block: int, keys: Mapping[int, PublicKeys]) -> bytes:
        """The digest of a roster, as all its holders sign it."""
        return (
            self.roster_digest(block, keys) if self.neighbours is None else self.listed_digest(block, Roster.of(keys))
        )

    def listed_digest(self, block: int, roster: Roster) -> bytes:
        """The digest of a roster among neighbours. Holders get its digests, and the keys of their neighbours alone."""
        named = np.ascontiguousarray(roster.holders, dtype="<i8").tobytes()
        return hashlib.sha256(self.context("sparse roster", block, named, roster.digests)).digest()

    def commitment_text(self, holder: int, number: int, roster: bytes, commitment: bytes) -> bytes:
        """What a holder signs of its seed."""
        return self.context("seed", holder, number, roster, commitment)


_TRIAL: Final = X25519PrivateKey.generate()


def commitment_of(seed: bytes) -> bytes:
    """What a holder signs before its seed may be opened."""
    return hashlib.sha256(b"seed" + seed).digest()


def derived(secret: bytes, info: bytes) -> bytes:
    """A key of 32 bytes for one purpose (HKDF with SHA-256)."""
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def pair_seed(
    own: X25519PrivateKey,
    other: bytes,
    federation: Federation,
    number: int,
    pair: tuple[int, int],
    terms: bytes = b"",
) -> bytes:
    """s_ij: of two mask keys, for one sum under these terms. Masks of holders with different terms do not cancel."""
    low, high = sorted(pair)
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise MaskingRefused(f"A mask key for sum {number} is no key.") from None
    return derived(shared, federation.context("pair", number, low, high, terms))


# ---- What holders do to a vector before and after: a pad that hides the sum, and check values


class GroupCode:
    """Hides a sum from a server without the group key, and finds sums that such a server made up or changed.

    Holder i sends x_i + P and, for l = 1, 2, 3, ⟨ρ_l, x_i⟩ + F(i, l) + P_l, all modulo m, where ρ, the pad P and F
    follow from the group key and the number of the sum. A sum over U opens to x = Σ x_i if its check values are
    ⟨ρ_l, x⟩ + Σ F(i, l). Whoever changes a sum without knowing ρ has to guess ⟨ρ_l, change⟩: 2⁻⁹⁰ for three of them.
    """

    def __init__(self, group_key: bytes, run: str, channel: str, *, padded: bool = True) -> None:
        """`run` and `channel`: what the sums belong to. `padded`: false where encryption hides the sum instead."""
        if len(group_key) != 32:
            raise InputError("group key", "must have 32 bytes", len(group_key))
        self._key, self._about, self._padded = group_key, _text(run, channel), padded

    def _seed(self, kind: str, number: int, *parts: int) -> bytes:
        return hmac.digest(self._key, _text("privfair group 1", self._about, kind, number, *parts), "sha256")

    def encode(self, values: Words, number: int, holder: int) -> Words:
        """The vector with its check values, padded."""
        checks = self._checks(values, number)
        own = MaskStream(self._seed("check", number, holder)).take(CHECKS)
        full = np.concatenate([values, to_words(checks + own)])
        return combined(full.size, [self._seed("pad", number)], start=full) if self._padded else full

    def decode(self, total: Words, number: int, holders: Sequence[int]) -> Words:
        """The sum of the vectors of these holders; `MaskingRefused` if it is not that."""
        if total.size < CHECKS:
            raise MaskingRefused(f"Sum {number} has {total.size} values, and must have {CHECKS} check values.")
        opened = self._without_pad(total, number, len(set(holders))) if self._padded else total
        values, found = opened[:-CHECKS], opened[-CHECKS:]
        expected = self._checks(values, number)
        for holder in set(holders):
            expected = expected + MaskStream(self._seed("check", number, holder)).take(CHECKS)
        if not np.array_equal(to_words(expected), found):
            raise MaskingRefused(f"Sum {number} is not the sum of what the named holders sent: it was changed.")
        return values

    def _without_pad(self, total: Words, number: int, count: int) -> Words:
        """The sum less as many pads as it has contributions."""
        pad, result = MaskStream(self._seed("pad", number)), np.array(total, dtype=np.uint32)
        for begin in range(0, total.size, BLOCK):
            part = result[begin : begin + BLOCK]
            subtract_times(part, pad.take(part.size), count)
        return result

    def _checks(self, values: Words, number: int) -> NDArray[np.int64]:
        """⟨ρ_l, x⟩ modulo m."""
        streams = [MaskStream(self._seed("rho", number, check)) for check in range(CHECKS)]
        totals = [0] * CHECKS
        for begin in range(0, values.size, BLOCK):
            part = values[begin : begin + BLOCK]
            for check, stream in enumerate(streams):
                totals[check] = (totals[check] + inner(part, stream.take(part.size))) % MODULUS
        return np.array(totals, dtype=np.int64)


# ---- Arithmetic modulo m on words of 32 bits, compiled: masks are added and check values computed in one pass each.
# In numpy the same takes three to four times as long, and a sum of many holders is little else.

Words = NDArray[np.uint32]
_M: Final = np.uint32(BFV_MODULUS)
_BITS: Final = np.uint32((1 << 30) - 1)
_PIECE: Final = 256  # words that are looked at together: one that is not below m is in 1% of such pieces


@njit(cache=True, nogil=True)
def kept(out: Words, filled: int, words: Words) -> int:
    """Write those of the words, cut to 30 bits, that are below m behind the `filled` first of `out`; how many are then.

    A word is kept with the same probability whatever it is, so that what is kept is uniform.
    """
    for begin in range(0, words.size, _PIECE):
        piece = words[begin : begin + _PIECE]
        target = out[filled : filled + piece.size]
        wrong = 0
        for i in range(piece.size):
            word = np.uint32(piece[i] & _BITS)
            target[i] = word
            wrong += 1 if word >= _M else 0
        if wrong:
            place = 0
            for i in range(piece.size):
                word = np.uint32(piece[i] & _BITS)
                if word < _M:
                    target[place] = word
                    place += 1
        filled += piece.size - wrong
    return filled


@njit(cache=True, nogil=True)
def add(total: Words, words: Words) -> None:
    """total + words modulo m, in place. Both are below m: the smaller of value and value − m modulo 2³² is right."""
    for i in range(total.size):
        value = np.uint32(total[i] + words[i])
        total[i] = min(value, np.uint32(value - _M))


@njit(cache=True, nogil=True)
def subtract(total: Words, words: Words) -> None:
    """total − words modulo m, in place; as `add`, with value + m."""
    for i in range(total.size):
        value = np.uint32(total[i] - words[i])
        total[i] = min(value, np.uint32(value + _M))


@njit(cache=True, nogil=True)
def inner(values: Words, factors: Words) -> int:
    """⟨values, factors⟩ modulo m of at most 2¹⁸ words: halves of 15 bits keep sums of products below 2⁶³."""
    low, high = np.uint64(0), np.uint64(0)
    for i in range(values.size):
        value = np.uint64(values[i])
        low += value * np.uint64(factors[i] & np.uint32(0x7FFF))
        high += value * np.uint64(factors[i] >> np.uint32(15))
    m = np.uint64(_M)
    return int((low % m + ((high % m) << np.uint64(15))) % m)


@njit(cache=True, nogil=True)
def subtract_times(total: Words, words: Words, times: int) -> None:
    """total − times · words modulo m, in place."""
    m, factor = np.uint64(_M), np.uint64(times)
    for i in range(total.size):
        value = np.uint32(total[i] - np.uint32(np.uint64(words[i]) * factor % m))
        total[i] = min(value, np.uint32(value + _M))


@njit(cache=True, nogil=True)
def reduced(values: NDArray[np.int64]) -> Words:
    """The remainders of integers modulo m."""
    words = np.empty(values.size, dtype=np.uint32)
    m = np.int64(_M)
    for i in range(values.size):
        value = values[i]
        if value < -m or value >= m:
            value %= m
        words[i] = np.uint32(value + m if value < 0 else value)
    return words


@njit(cache=True, nogil=True)
def centred(words: Words) -> NDArray[np.int64]:
    """The integers of least magnitude with these remainders."""
    values = np.empty(words.size, dtype=np.int64)
    m = np.int64(_M)
    for i in range(words.size):
        value = np.int64(words[i])
        values[i] = value - m if value > m // 2 else value
    return values
