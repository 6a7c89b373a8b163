"""Encrypted vectors on the wire: their format, the tags that prove who is in a sum, and what can be wrong with them."""

from __future__ import annotations

import hashlib
import io
import json
import math
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError


class BadCiphertext(InputError):
    """Bytes that cannot be added or opened; the message says whose, what is wrong and what to do."""


class Damaged(BadCiphertext):
    """Cut short, changed on the way, or something else altogether."""


class WrongScheme(BadCiphertext):
    """Made by another scheme than the keys at hand."""


class WrongKey(BadCiphertext):
    """Made under another public key."""


class WrongLength(BadCiphertext):
    """Not as many values as the others, or as promised."""


class WrongEncoding(BadCiphertext):
    """Numbers coded with another range, weight sum or number of contributors."""


class TooMany(BadCiphertext):
    """More additions, or more weight, than the numbers leave room for."""


class Forged(BadCiphertext):
    """Not the sum of the contributions that it names: the tags in it say so, and nothing of it is opened."""


class TooNoisy(BadCiphertext):
    """The noise has reached the numbers: decryption would give wrong values, so it gives none."""


# ---- Tags: who is in a sum. Only key holders can make them; they are checked before a sum is opened.
#
# The server has the public key: it can encrypt anything, and write any header. So every chunk of a contribution
# carries, behind its data v, tags of a linearly homomorphic MAC (Agrawal & Boneh, ACNS 2009) under a key that only
# clients have:
#
#     tag_j = ⟨K_j, v⟩ + F_j(client, nonce)    modulo a prime P, for j = 1 … `count`
#
# K is a pseudo-random vector, the same for all contributions to one chunk of one sum; F is pseudo-random for each
# contribution. Both depend on the run, the channel, the number of the sum, the round, the code, the length and the
# chunk. Tags add up as data do, so a client that opens a sum, which names its contributions, expects
# Σ tag_j = ⟨K_j, Σ v⟩ + Σ F_j.
#
# What it gives. Assume that nobody without the secret key can make anything from ciphertexts but affine combinations of
# their slots ("linear-only" encryption; that covers multiplication by known polynomials, masks among them), and that
# SHAKE-256 is a pseudo-random function. Then a sum that opens is, in every chunk, exactly Σ v of the contributions
# that its header names, but for a probability of P⁻ᶜᵒᵘⁿᵗ in each attempt: 2⁻¹²⁰ for BFV, 2⁻¹³² for CKKS. For if the
# combination does not hold each named tag once and no other, some F_j, uniform and in no other place, must be
# guessed; and if it does while the data differ by d ≠ 0 modulo P, then ⟨K_j, d⟩ must be, which is uniform, because F
# hides K in every tag. Self-made sums, fewer or other contributions, one of them twice, 2A − B, chunks of several
# sums, earlier rounds, other runs and constants added to the data are all refused. It does not stop a client: all of
# them have the key.


NONCE_BYTES = 16
_LIMB = 15  # bits of the parts in which large values are multiplied

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Contributor:
    """One contribution to a sum: whose it is, and a random number of its own."""

    client: int
    nonce: bytes

    @classmethod
    def new(cls, client: int) -> Contributor:
        """For a contribution that is made now."""
        return cls(client, secrets.token_bytes(NONCE_BYTES))


@dataclass(frozen=True)
class Tagging:
    """The public parameters of a scheme's tags. A tag is split into parts of `part_bits` bits, one for each slot."""

    prime: int  # below 2⁴⁵, and above the difference of any two sums
    count: int
    part_bits: int

    @cached_property
    def parts(self) -> int:
        """Slots that one tag takes."""
        return -(-self.prime.bit_length() // self.part_bits)

    @cached_property
    def width(self) -> int:
        """Slots that the tags of a chunk take."""
        return self.count * self.parts

    def data_counts(self, length: int, slots: int) -> Iterator[int]:
        """How many data values each chunk holds."""
        room = slots - self.width
        for start in range(0, length, room):
            yield min(room, length - start)

    def split(self, tags: Sequence[int]) -> Integers:
        """Tags as the values of their slots."""
        mask = (1 << self.part_bits) - 1
        parts = [(tag >> (self.part_bits * i)) & mask for tag in tags for i in range(self.parts)]
        half = self.prime // 2
        centred = [part - self.prime if self.parts == 1 and part > half else part for part in parts]
        return np.array(centred, dtype=np.int64)

    def joined(self, values: Integers) -> list[int]:
        """The tags, or sums of tags, that are in these slots."""
        rows = values.reshape(self.count, self.parts).tolist()
        return [sum(int(part) << (self.part_bits * i) for i, part in enumerate(row)) % self.prime for row in rows]


class TagKey:
    """Makes and checks the tags of one sum."""

    def __init__(self, secret: bytes, tagging: Tagging, about: Sequence[str | int]) -> None:
        """`secret`: the clients' tag key; `about`: all that the tags are bound to, besides chunk and contribution."""
        self._tagging = tagging
        text = json.dumps(list(about)).encode()
        self._key = hashlib.blake2b(text, key=secret, digest_size=64, person=b"privfair sum").digest()

    def tagged(self, vector: Integers, slots: int, contributor: Contributor) -> Integers:
        """A contribution's data, with tags behind those of each chunk."""
        pieces, start = [], 0
        for chunk, count in enumerate(self._tagging.data_counts(len(vector), slots)):
            data = vector[start : start + count]
            pieces += [data, self._tagging.split(self._tags(chunk, data, [contributor]))]
            start += count
        return np.concatenate(pieces) if pieces else vector

    def holds(self, chunk: int, values: Integers, contributors: Sequence[Contributor]) -> bool:
        """Whether the values of a chunk are the sum of what these contributions have there."""
        width = self._tagging.width
        data, tags = values[:-width], values[-width:]
        return self._tagging.joined(tags) == self._tags(chunk, data, contributors)

    def _tags(self, chunk: int, data: Integers, contributors: Sequence[Contributor]) -> list[int]:
        prime, count = self._tagging.prime, self._tagging.count
        keys = _uniform(self._key + b"data" + chunk.to_bytes(4, "little"), count * len(data), prime)
        total = _inner(keys.reshape(count, len(data)), data, prime)
        for one in contributors:
            place = b"mask" + chunk.to_bytes(4, "little") + one.client.to_bytes(8, "little") + one.nonce
            total = [sum(pair) for pair in zip(total, _draw(self._key + place, count, prime).tolist(), strict=True)]
        return [tag % prime for tag in total]


def tag_secret(private_key: bytes) -> bytes:
    """The tag key of all who have this private key."""
    return hashlib.blake2b(private_key, digest_size=64, person=b"privfair tag key").digest()


def _draw(seed: bytes, count: int, prime: int) -> Integers:
    """Numbers below the prime; 64 bits each, so that none is likelier than 1/prime by more than 2⁻¹⁹ of that."""
    stream = np.frombuffer(hashlib.shake_256(seed).digest(8 * count), dtype="<u8")
    return (stream % np.uint64(prime)).astype(np.int64)


_uniform = lru_cache(maxsize=32)(_draw)  # the clients of one process multiply with the same numbers


def _inner(keys: Integers, data: Integers, prime: int) -> list[int]:
    """⟨key, data⟩ modulo the prime for each row of keys, in 64-bit arithmetic that cannot overflow.

    |data| ≤ 2⁴⁴ and prime < 2⁴⁵: Horner's rule on parts of 15 bits keeps products below 2⁶⁰, and a sum of 4096
    remainders below 2⁵⁷.
    """
    if prime < 2**31 and np.abs(data).max(initial=0) < 2**31:
        products = keys * data % prime
    else:
        mask = (1 << _LIMB) - 1
        products = keys * (data >> (2 * _LIMB)) % prime
        for shift in (_LIMB, 0):
            products = ((products << _LIMB) + keys * ((data >> shift) & mask)) % prime
    return [int(total) for total in products.sum(axis=1) % prime]


# ---- The format: a header, then the contributions that it names, then chunks, each with its checksum.
#
# Version 2 names no contributions: the plain scheme, which has nothing to protect. Version 3 does.


MAGIC = b"PFAG"
UNNAMED, VERSION = 2, 3
LARGEST_CHUNK = 2**24  # bytes; a larger one is damage, and is not given memory
_HEADER = struct.Struct("<4sB3x12s16s8sQIId")
_NAMED = struct.Struct("<qI")  # the round, and how many contributions are named
_CONTRIBUTOR = struct.Struct(f"<I{NONCE_BYTES}s")
MOST_NAMED = 2**20  # more is damage, and is not given memory
_CHECKSUM = 16
_AGAIN = "Send it again."
UNCODED = "0" * 16  # the fingerprint where there is no fixed-point code


def require_resumable(scheme: str, version: object) -> None:
    """Raise if a run with encrypted sums was begun with messages of another version: they could not be summed."""
    if scheme != "plain" and version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        began = "a newer privfair, which" if newer else "privfair 0.1.0, which"
        raise InputError(
            "run",
            f"must have been begun with encrypted messages of version {VERSION}, which say whose they are",
            f"version {version or UNNAMED}",
            f"Nothing more was released. Start a new run, or finish this one with {began} began it.",
        )


@dataclass(frozen=True)
class Header:
    """What everybody may know about an encrypted vector."""

    scheme: str
    key_id: str  # fingerprint of the public key, 32 hex digits
    length: int  # number of values
    chunks: int
    additions: int = 0
    weight: float = 0.0  # public weights, summed with the vectors
    encoding: str = UNCODED  # fingerprint of the fixed-point code
    round: int = 0  # in which its contributions were asked for
    contributors: tuple[Contributor, ...] = ()  # whose contributions it is the sum of; none for the plain scheme

    def to_bytes(self) -> bytes:
        """The header and its checksum."""
        packed = _HEADER.pack(
            MAGIC,
            VERSION if self.contributors else UNNAMED,
            self.scheme.encode(),
            bytes.fromhex(self.key_id),
            bytes.fromhex(self.encoding),
            self.length,
            self.chunks,
            self.additions,
            self.weight,
        )
        if self.contributors:
            packed += _NAMED.pack(self.round, len(self.contributors))
            packed += b"".join(_CONTRIBUTOR.pack(one.client, one.nonce) for one in self.contributors)
        return packed + _digest(packed)


@dataclass(frozen=True)
class Ciphertext:
    """An encrypted vector: byte chunks and what everybody may know about them."""

    header: Header
    chunks: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """One message; `from_bytes` notices when any of it is missing or changed by accident."""
        head = self.header.to_bytes()
        pieces = [head]
        for index, chunk in enumerate(self.chunks):
            pieces += [struct.pack("<I", len(chunk)), _digest(head, index, chunk), chunk]
        return b"".join(pieces)

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "ciphertext") -> Ciphertext:
        """What `to_bytes` wrote; `Damaged`, with the given name in it, otherwise."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise Damaged(name, "must be bytes", type(data).__name__, _AGAIN)
        stream = io.BytesIO(data)
        head = _read_head(stream)
        header = _parse(head, name)
        return cls(header, tuple(_read_chunks(stream, head, header.chunks, name)))


def _read_head(stream: BinaryIO) -> bytes:
    """The bytes of a header, as far as they are there."""
    head = stream.read(_HEADER.size)
    if head[len(MAGIC) : len(MAGIC) + 1] == bytes([VERSION]):
        head += stream.read(_NAMED.size)
        if len(head) == _HEADER.size + _NAMED.size:
            _, named = _NAMED.unpack_from(head, _HEADER.size)
            head += stream.read(_CONTRIBUTOR.size * min(named, MOST_NAMED))
    return head + stream.read(_CHECKSUM)


def _read_chunks(stream: BinaryIO, head: bytes, count: int, name: str) -> Iterator[bytes]:
    for index in range(count):
        prefix = stream.read(4 + _CHECKSUM)
        size = struct.unpack("<I", prefix[:4])[0] if len(prefix) == 4 + _CHECKSUM else -1
        chunk = stream.read(size) if 0 <= size <= LARGEST_CHUNK else b""
        if size < 0 or (size <= LARGEST_CHUNK and len(chunk) != size):
            raise Damaged(name, "must be whole", f"cut short in chunk {index + 1} of {count}", _AGAIN)
        if prefix[4:] != _digest(head, index, chunk):
            raise Damaged(name, "must arrive unchanged", f"a wrong checksum in chunk {index + 1} of {count}", _AGAIN)
        yield chunk
    if stream.read(1):
        raise Damaged(name, "must end after its last chunk", "more bytes", _AGAIN)


def _parse(head: bytes, name: str) -> Header:
    if head[: len(MAGIC)] != MAGIC:
        what = "nothing" if not head else "other bytes"
        raise Damaged(name, "must start like an encrypted vector of privfair", what, _AGAIN)
    if len(head) < _HEADER.size + _CHECKSUM:
        raise Damaged(name, "must be whole", "cut short in its header", _AGAIN)
    packed, checksum = head[:-_CHECKSUM], head[-_CHECKSUM:]
    if checksum != _digest(packed):
        raise Damaged(name, "must arrive unchanged", "a wrong checksum in its header", _AGAIN)
    _, version, scheme, key_id, encoding, length, chunks, additions, weight = _HEADER.unpack_from(packed)
    if version not in (UNNAMED, VERSION):
        raise Damaged(name, f"must be of version {UNNAMED} or {VERSION}", version, "Use the same privfair everywhere.")
    if not (math.isfinite(weight) and weight >= 0):
        raise Damaged(name, "must have a finite weight, 0 or above", weight, _AGAIN)
    text = scheme.rstrip(b"\0").decode("ascii", "replace")
    round_number, contributors = _named(packed, name) if version == VERSION else (0, ())
    return Header(text, key_id.hex(), length, chunks, additions, weight, encoding.hex(), round_number, contributors)


def _named(packed: bytes, name: str) -> tuple[int, tuple[Contributor, ...]]:
    """The round and the contributions in a header whose checksum is right."""
    rest = packed[_HEADER.size :]
    round_number, count = _NAMED.unpack_from(rest) if len(rest) >= _NAMED.size else (0, 0)
    if not count or len(rest) != _NAMED.size + count * _CONTRIBUTOR.size:
        raise Damaged(name, "must name its contributions", f"{len(rest)} bytes for {count} of them", _AGAIN)
    named = _CONTRIBUTOR.iter_unpack(rest[_NAMED.size :])
    return round_number, tuple(Contributor(client, nonce) for client, nonce in named)


def _digest(head: bytes, index: int = 0, chunk: bytes = b"") -> bytes:
    # Against accidents, not against forgery: every sender can recompute it. Header and index are in it
    # so that chunks of two messages, or of one, cannot change places.
    # SHA-256 because processors have instructions for it: on small models checksums are a good part of a simulation.
    return hashlib.sha256(b"".join((head, struct.pack("<I", index), chunk))).digest()[:_CHECKSUM]
