"""The roles of secure aggregation, as different types: clients encrypt and open, the server only adds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.secure_aggregation.ciphertext import (
    UNCODED,
    BadCiphertext,
    Ciphertext,
    Damaged,
    Header,
    Tagging,
    TooMany,
    WrongEncoding,
    WrongKey,
    WrongLength,
    WrongScheme,
)
from privfair.secure_aggregation.encoding import CKKS_MODULUS

Vector = NDArray[Any]  # int64, except in the scheme that sends plain floats


class Role:
    """What both roles of a scheme know: its name, its public key's fingerprint, its limits."""

    scheme: str
    slots: int  # values in one chunk
    modulus: int | None  # sums of integers are right up to ±(modulus − 1)/2; None: floats
    max_additions: int
    tagging: Tagging | None = None  # how forged sums are detected; None: nothing is hidden, so nothing is tagged

    def __init__(self, key_id: str) -> None:
        """Remember the fingerprint of the public key."""
        self.key_id = key_id

    def chunks_for(self, length: int) -> int:
        """How many chunks carry this number of values: as few as possible."""
        return -(-length // self.slots)

    def check(self, header: Header, name: str) -> None:
        """Raise if these keys cannot work on a vector with this header; the error says why."""
        if header.scheme != self.scheme:
            raise WrongScheme(name, f"must be of scheme {self.scheme}", header.scheme, "Set one scheme for everybody.")
        if header.key_id != self.key_id:
            remedy = "Give every client the same client.key, and the server the server.key made with it."
            raise WrongKey(name, f"must be made under the key {self.key_id[:8]}…", f"{header.key_id[:8]}…", remedy)
        if header.chunks != self.chunks_for(header.length):
            rule = f"must have {self.chunks_for(header.length)} chunks for its {header.length} values"
            raise Damaged(name, rule, header.chunks, "Send it again.")
        if header.additions > self.max_additions:
            rule = f"must have at most {self.max_additions} additions behind it"
            raise TooMany(name, rule, header.additions, "Sum fewer contributions.")

    def counts(self, length: int) -> Iterator[int]:
        """How many values each chunk carries."""
        for start in range(0, length, self.slots):
            yield min(self.slots, length - start)


class ClientKeys(Role, ABC):
    """Can encrypt vectors and open sums. Every client has the same."""

    noise: float = 0.0  # standard deviation of what opening adds to a value, in integer steps
    tag_secret: bytes = b""  # where there are tags: the key that all clients share for them

    @abstractmethod
    def encrypt_chunk(self, values: Vector) -> bytes:
        """The bytes of at most `slots` values."""

    @abstractmethod
    def exact_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The `count` values of a chunk, to be checked; `BadCiphertext` if they cannot be had."""

    def released(self, values: Vector, chunk: bytes) -> Vector:
        """The values of a chunk as they may leave the key holder."""
        return values

    def decrypt_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The `count` values of a chunk; `BadCiphertext` if they cannot be had."""
        return self.released(self.exact_chunk(chunk, count, name), chunk)

    def header(self, length: int, *, weight: float = 0.0, encoding: str = UNCODED) -> Header:
        """The header of a vector of this length."""
        return Header(self.scheme, self.key_id, length, self.chunks_for(length), 0, weight, encoding)

    def encrypt(self, vector: Vector, *, weight: float = 0.0, encoding: str = UNCODED) -> Ciphertext:
        """The whole vector, encrypted."""
        vector = self._checked(vector)
        parts = (vector[start : start + self.slots] for start in range(0, len(vector), self.slots))
        return Ciphertext(
            self.header(len(vector), weight=weight, encoding=encoding), tuple(map(self.encrypt_chunk, parts))
        )

    def decrypt(self, total: Ciphertext, name: str = "sum") -> Vector:
        """All values of an encrypted vector."""
        self.check(total.header, name)
        chunks = zip(total.chunks, self.counts(total.header.length), strict=True)
        parts = [self.decrypt_chunk(chunk, count, name) for chunk, count in chunks]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64 if self.modulus else np.float64)

    def _checked(self, vector: Vector) -> Vector:
        vector = np.asarray(vector)
        if vector.ndim != 1:
            raise InputError(
                "vector", "must have one dimension", f"shape {vector.shape}", "Flatten all parameters into one."
            )
        if self.modulus is None:
            return vector
        if vector.dtype.kind not in "iu":
            raise InputError("vector", "must hold integers", str(vector.dtype), "Use FixedPoint.encode first.")
        most = (self.modulus - 1) // 2
        if len(vector) and (vector.max() > most or vector.min() < -most):
            raise InputError("vector", f"must stay within ±{most}", "larger values", "Use FixedPoint.encode first.")
        return vector


class ServerKeys(Role, ABC):
    """Can add encrypted vectors, and nothing else: no secret key, and none derived from it."""

    @abstractmethod
    def load_chunk(self, chunk: bytes, count: int, name: str) -> Any:
        """A chunk in the form that can be added; `Damaged` if it is none."""

    @abstractmethod
    def add_chunk(self, left: Any, right: Any) -> Any:
        """The sum of two loaded chunks; the left one may be overwritten."""

    @abstractmethod
    def dump_chunk(self, loaded: Any) -> bytes:
        """The bytes of a loaded chunk."""

    def add(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """The encrypted sum of two encrypted vectors."""
        header = self.sum_header(left.header, right.header, "right")
        self.check(left.header, "left")
        pairs = zip(left.chunks, right.chunks, self.counts(header.length), strict=True)
        return Ciphertext(header, tuple(self._add_bytes(a, b, count) for a, b, count in pairs))

    def sum_header(self, total: Header, more: Header, name: str) -> Header:
        """The header of a sum; the error names the newcomer."""
        self.check(more, name)
        if more.length != total.length:
            raise WrongLength(name, f"must have {total.length} values, as the others", more.length, "Same model?")
        if more.encoding != total.encoding:
            remedy = "Give everybody the same range, weight_sum and contributors."
            raise WrongEncoding(name, "must be coded as the others", more.encoding, remedy)
        if more.round != total.round:
            raise BadCiphertext(name, f"must be of round {total.round}, as the others", more.round)
        additions = total.additions + more.additions + 1
        if additions > self.max_additions:
            raise TooMany(name, f"must be within {self.max_additions} additions", additions, "Sum fewer contributions.")
        contributors = total.contributors + more.contributors
        return replace(total, additions=additions, weight=total.weight + more.weight, contributors=contributors)

    def _add_bytes(self, left: bytes, right: bytes, count: int) -> bytes:
        loaded = self.load_chunk(left, count, "left")
        return self.dump_chunk(self.add_chunk(loaded, self.load_chunk(right, count, "right")))


# ---- Aggregation without encryption, behind the same interface.

NO_KEY = "0" * 32
_SLOTS = 4096
_MAX_ADDITIONS = 2**31


class _Integers:
    scheme = "plain"
    slots = _SLOTS
    # The widest code of any scheme, so that every scheme has its exact plain counterpart under the same FixedPoint.
    modulus: int | None = CKKS_MODULUS
    max_additions = _MAX_ADDITIONS
    dtype: np.dtype[Any] = np.dtype("<i8")


class _Floats:
    scheme = "plain-float"
    slots = _SLOTS
    modulus: int | None = None
    max_additions = _MAX_ADDITIONS
    dtype: np.dtype[Any] = np.dtype("<f8")


class PlainClient(_Integers, ClientKeys):
    """Sends integers as they are: with the same `FixedPoint`, the sums of BFV bit for bit."""

    def __init__(self) -> None:
        """There is no key."""
        super().__init__(NO_KEY)

    def encrypt_chunk(self, values: Vector) -> bytes:
        """The values' own bytes."""
        return values.astype(self.dtype).tobytes()

    def exact_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The values."""
        return _values(chunk, count, name, self.dtype).astype(self.dtype.newbyteorder("="))


class PlainServer(_Integers, ServerKeys):
    """Adds integers that it can read."""

    def __init__(self) -> None:
        """There is no key."""
        super().__init__(NO_KEY)

    def load_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The values."""
        return _values(chunk, count, name, self.dtype)

    def add_chunk(self, left: Any, right: Any) -> Vector:
        """The sum."""
        with np.errstate(over="ignore", invalid="ignore"):  # must not raise on data
            return np.asarray(left + right)

    def dump_chunk(self, loaded: Any) -> bytes:
        """The values' own bytes."""
        return bytes(loaded.tobytes())


class PlainFloatClient(_Floats, PlainClient):
    """Sends float64 as they are."""


class PlainFloatServer(_Floats, PlainServer):
    """Adds float64 that it can read."""


def _values(chunk: bytes, count: int, name: str, dtype: np.dtype[Any]) -> Vector:
    if len(chunk) != count * dtype.itemsize:
        raise Damaged(name, f"must have {count * dtype.itemsize} bytes in this chunk", len(chunk), "Send it again.")
    return np.frombuffer(chunk, dtype=dtype)
