"""Encrypted vectors on the wire: a header, then the contributions that it names, then chunks, each with its checksum.

Version 2 names no contributions: the plain scheme, which has nothing to protect. Version 3 does.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from accountant.errors import InputError
from privfair.aggregation.errors import Damaged
from privfair.aggregation.tags import NONCE_BYTES, Contributor

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

    @property
    def length(self) -> int:
        """Number of values inside."""
        return self.header.length

    @property
    def scheme(self) -> str:
        """The scheme that made it."""
        return self.header.scheme

    @property
    def key_id(self) -> str:
        """Fingerprint of the public key it was made under."""
        return self.header.key_id

    @property
    def additions(self) -> int:
        """How many additions went into it."""
        return self.header.additions

    def to_bytes(self) -> bytes:
        """One message; `from_bytes` notices when any of it is missing or changed by accident."""
        return b"".join(frame(self.header, self.chunks))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "ciphertext") -> Ciphertext:
        """What `to_bytes` wrote; `Damaged`, with the given name in it, otherwise."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise Damaged(name, "must be bytes", type(data).__name__, _AGAIN)
        header, chunks = read_frame(io.BytesIO(data), name)
        return cls(header, tuple(chunks))


def frame(header: Header, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of a message, one chunk at a time."""
    head = header.to_bytes()
    yield head
    for index, chunk in enumerate(chunks):
        yield struct.pack("<I", len(chunk)) + _digest(head, index, chunk)
        yield chunk


def read_frame(stream: BinaryIO, name: str = "ciphertext") -> tuple[Header, Iterator[bytes]]:
    """The header of a message and its chunks, each read and checked when asked for; the end is checked too."""
    head = _read_head(stream)
    header = _parse(head, name)
    return header, _read_chunks(stream, head, header.chunks, name)


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
    # Against accidents, not against forgery: whoever may send may also recompute it. Header and index are in it
    # so that chunks of two messages, or of one, cannot change places.
    # SHA-256 because processors have instructions for it: on small models checksums are a good part of a simulation.
    return hashlib.sha256(b"".join((head, struct.pack("<I", index), chunk))).digest()[:_CHECKSUM]
