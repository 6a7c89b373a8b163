"""Codes for vectors: real numbers, or integers as they are, as integers whose sum cannot wrap."""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite, require_positive
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
from privfair.util import FloatArray

BFV_MODULUS = 1_073_692_673  # 30 bits, prime, 1 modulo 2·4096: one value in each of 4096 slots
CKKS_MODULUS = 2**44 + 1  # not a modulus of CKKS: the span of integers it carries without error (see tenseal.py)
# What to give `FixedPoint` for a scheme; plain takes that of BFV, to give the same numbers.
MODULI = {"bfv": BFV_MODULUS, "ckks": CKKS_MODULUS, "masked": BFV_MODULUS, "plain": BFV_MODULUS}

WORST_RESOLUTION = 2.0**-10  # of the range
WEIGHT_SLACK = 2.0**-30  # weights that should sum to weight_sum do so up to rounding
_MARGIN = 1 - 2.0**-28  # of the scale: more than WEIGHT_SLACK and the rounding of products together


@dataclass(frozen=True)
class FixedPoint:
    """A code for vectors: encode(v, w) = round(w · clip(v, ±range) · scale); the sum of codes decodes to Σ w v.

    scale = ((modulus − 1)/2 − contributors/2 − 1)/(range · weight_sum), a little less for rounding, so that
    |Σ codes| ≤ range · weight_sum · scale + contributors/2 ≤ (modulus − 1)/2: the sum never wraps. Only public values
    enter the scale, so it says nothing about anyone's data. The error of a decoded sum is at most
    contributors/(2 · scale), if no value had to be clipped.
    """

    range: float
    weight_sum: float
    contributors: int
    modulus: int

    def __post_init__(self) -> None:
        """Refuse values that leave no useful resolution."""
        object.__setattr__(self, "range", require_positive("range", self.range))
        object.__setattr__(self, "weight_sum", require_positive("weight_sum", self.weight_sum))
        for name, least in (("contributors", 1), ("modulus", 3)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise InputError(name, f"must be a whole number, at least {least}", value)
            object.__setattr__(self, name, int(value))
        if self.modulus > 2**53:
            raise InputError("modulus", "must be at most 2**53, to be exact in floating point", self.modulus)
        room = (self.modulus - 1) // 2 - self.contributors / 2 - 1
        if room < self.weight_sum / WORST_RESOLUTION:
            raise InputError(
                "fixed point",
                f"must resolve range/{1 / WORST_RESOLUTION:.0f} or better",
                f"weight_sum = {self.weight_sum:g}, contributors = {self.contributors}, modulus = {self.modulus}",
                "Give weights as shares that sum to 1, or fewer contributors.",
            )
        span = self.range * self.weight_sum
        if not (1e-290 < span < 1e290 and 1e-290 < self.range < 1e290):
            raise InputError("range", "must be a number of ordinary size, between 1e-290 and 1e290", self.range)

    @cached_property
    def scale(self) -> float:
        """Integer steps per unit of the weighted sum."""
        room = (self.modulus - 1) // 2 - self.contributors / 2 - 1
        return room / (self.range * self.weight_sum) * _MARGIN

    @property
    def max_error(self) -> float:
        """The largest rounding error of a decoded sum: contributors/(2 · scale)."""
        return self.contributors / (2 * self.scale)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ when any of the four values differs."""
        packed = struct.pack("<ddQQ", self.range, self.weight_sum, self.contributors, self.modulus)
        return hashlib.blake2b(packed, digest_size=8).hexdigest()

    def encode(self, values: FloatArray, weight: float) -> NDArray[np.int64]:
        """Integers for the values; not a number counts as 0 and ±∞ as ±range: records must not raise an error."""
        weight = check_weight(weight)
        if weight > self.weight_sum * (1 + WEIGHT_SLACK):
            raise InputError("weight", f"must be at most weight_sum = {self.weight_sum:g}", weight)
        numbers = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=self.range, neginf=-self.range)
        # weight · scale first: both are public and their product is at most half the modulus over the range
        return np.rint(np.clip(numbers, -self.range, self.range) * (weight * self.scale)).astype(np.int64)

    def wrapped(self, values: FloatArray, weight: float) -> NDArray[np.int64]:
        """As `encode`: what is cut is cut to a public range, and never wraps."""
        return self.encode(values, weight)

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weighted sum that the sum of codes stands for: total/scale."""
        return np.asarray(total, dtype=np.float64) / self.scale


def check_weight(weight: float) -> float:
    """The weight as a float, if it is finite and not negative; weights are public, so an error gives nothing away."""
    number = require_finite("weight", weight)
    if number < 0:
        raise InputError("weight", "must be 0 or above", weight)
    return number


@dataclass(frozen=True)
class WholeNumbers:
    """A code for vectors of integers: every contributor's are cut to ±`most`, so that their sum stays exact."""

    contributors: int
    modulus: int

    def __post_init__(self) -> None:
        """Refuse more contributors than there is room for."""
        if self.contributors < 1 or self.most < 1:
            rule = f"must be between 1 and {(self.modulus - 1) // 2}"
            raise InputError("contributors", rule, self.contributors)

    @property
    def most(self) -> int:
        """What one contributor can add to a value of the sum."""
        return (self.modulus - 1) // 2 // self.contributors

    @property
    def weight_sum(self) -> float:
        """Everybody has weight 1."""
        return float(self.contributors)

    @property
    def scale(self) -> float:
        """Integer steps per unit: one."""
        return 1.0

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ when a value differs, and from those of other codes."""
        packed = b"whole numbers" + struct.pack("<QQ", self.contributors, self.modulus)
        return hashlib.blake2b(packed, digest_size=8).hexdigest()

    def encode(self, values: FloatArray, weight: float) -> NDArray[np.int64]:
        """The integers, cut to ±`most`: records must not raise an error."""
        if weight != 1.0:
            raise InputError("weight", "must be 1 for whole numbers", weight)
        return np.clip(np.rint(np.nan_to_num(values, nan=0.0)), -self.most, self.most).astype(np.int64)

    def wrapped(self, values: FloatArray, weight: float) -> NDArray[np.int64]:
        """The integers modulo m, within ±(m − 1)/2, for sums modulo m: they are not cut.

        Where noise comes in shares, a cut after the noise would not be post-processing of the sum; a remainder is.
        """
        if weight != 1.0:
            raise InputError("weight", "must be 1 for whole numbers", weight)
        whole = np.rint(np.nan_to_num(values, nan=0.0))
        rest = np.fmod(whole, self.modulus).astype(np.int64)  # exact: a remainder of floats is not rounded
        half = (self.modulus - 1) // 2
        return np.where(rest > half, rest - self.modulus, np.where(rest < -half, rest + self.modulus, rest))

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sum."""
        return np.asarray(total, dtype=np.float64)


@dataclass(frozen=True)
class Joined:
    """A code for two vectors, one behind the other, that are added up as one: each half has its own code.

    The last `count` values are whole numbers of weight 1, whatever the weight of the first ones.
    """

    first: FixedPoint | WholeNumbers
    last: WholeNumbers
    count: int

    def __post_init__(self) -> None:
        """Refuse halves whose sums have different rules."""
        same = (self.first.modulus, self.first.contributors) == (self.last.modulus, self.last.contributors)
        if not same or self.count < 1:
            raise InputError("joined vectors", "must have one modulus, and as many contributors", "others")

    @property
    def contributors(self) -> int:
        """Of both halves."""
        return self.first.contributors

    @property
    def modulus(self) -> int:
        """Of both halves."""
        return self.first.modulus

    @property
    def weight_sum(self) -> float:
        """Of the first half."""
        return self.first.weight_sum

    @property
    def scale(self) -> float:
        """Integer steps per unit of the first half."""
        return self.first.scale

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ when a half differs, and from those of other codes."""
        about = f"joined {self.first.fingerprint} {self.last.fingerprint} {self.count}"
        return hashlib.blake2b(about.encode(), digest_size=8).hexdigest()

    def encode(self, values: FloatArray, weight: float) -> NDArray[np.int64]:
        """Each half by its own code."""
        halves = self._halves(values)
        return np.concatenate([self.first.encode(halves[0], weight), self.last.encode(halves[1], 1.0)])

    def wrapped(self, values: FloatArray, weight: float) -> NDArray[np.int64]:
        """Each half by its own code, for sums modulo m."""
        halves = self._halves(values)
        return np.concatenate([self.first.wrapped(halves[0], weight), self.last.wrapped(halves[1], 1.0)])

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Each half by its own code."""
        halves = self._halves(total)
        return np.concatenate([self.first.decode(halves[0]), self.last.decode(halves[1])])

    def _halves(self, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        if len(values) <= self.count:
            raise InputError("joined vectors", f"must have more than {self.count} values", len(values))
        return values[: -self.count], values[-self.count :]


# ---- The roles of secure aggregation, as different types: clients encrypt and open, the server only adds.


Vector = NDArray[Any]  # int64, except in the scheme that sends plain floats


class Role:
    """What both roles of a scheme know: its name, its public key's fingerprint, its limits."""

    scheme: str
    slots: int  # values in one chunk
    modulus: int | None  # sums of integers are right up to ±(modulus − 1)/2; None: floats
    max_additions: int
    tagging: Tagging | None = None  # how forged sums are detected; None: nothing is hidden, so nothing is tagged
    wraps: bool = False  # whether sums are modulo m, and values that are too large are not cut but reduced

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


# ---- Integers modulo m, 4 bytes each: what masks are added to.


class _Words:
    scheme = "words"
    slots = 2**20
    modulus: int | None = BFV_MODULUS
    max_additions = 2**16  # so that sums of 30 bits stay far below 64
    wraps = True


class WordClient(_Words, ClientKeys):
    """Sends integers modulo m as they are; with masks on them they say nothing."""

    def __init__(self, key_id: str = NO_KEY) -> None:
        """There is no key, or somebody else uses it."""
        super().__init__(key_id)

    def encrypt_chunk(self, values: Vector) -> bytes:
        """The remainders, 4 bytes each."""
        return (values % BFV_MODULUS).astype("<u4").tobytes()

    def exact_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The integers of least magnitude that the remainders stand for."""
        numbers = self.words(chunk, count, name).astype(np.int64)
        return np.where(numbers > BFV_MODULUS // 2, numbers - BFV_MODULUS, numbers)

    def words(self, chunk: bytes, count: int, name: str) -> Vector:
        """The remainders."""
        return _remainders(chunk, count, name)


class WordServer(_Words, ServerKeys):
    """Adds integers modulo m."""

    def __init__(self, key_id: str = NO_KEY) -> None:
        """There is no key."""
        super().__init__(key_id)

    def load_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The remainders, with room to add."""
        return _remainders(chunk, count, name).astype(np.int64)

    def add_chunk(self, left: Any, right: Any) -> Vector:
        """The sum, in the place of the left one; it is reduced when it is written."""
        left += right
        return np.asarray(left)

    def dump_chunk(self, loaded: Any) -> bytes:
        """The remainders, 4 bytes each."""
        return bytes((loaded % BFV_MODULUS).astype("<u4").tobytes())

    def taken_off(self, loaded: Any, words: Vector) -> Vector:
        """A loaded chunk less these numbers."""
        loaded[: len(words)] -= words
        return np.asarray(loaded)


class GroupClient(WordClient):
    """The key of scheme "masked": all clients have it, the server does not. Pads and check values follow from it."""

    scheme = "masked"

    def __init__(self, group_key: bytes, key_id: str) -> None:
        """The group key has 32 bytes."""
        super().__init__(key_id)
        if len(group_key) != 32:
            raise InputError("group key", "must have 32 bytes", len(group_key), "Make new keys for everybody.")
        self.tag_secret = group_key


class GroupServer(WordServer):
    """Adds masked vectors; it knows the key's fingerprint alone."""

    scheme = "masked"


def _remainders(chunk: bytes, count: int, name: str) -> Vector:
    """The words of a chunk, all below m."""
    words = _values(chunk, count, name, np.dtype("<u4"))
    if len(words) and int(words.max()) >= BFV_MODULUS:
        raise Damaged(name, f"must have numbers below {BFV_MODULUS}", "larger ones", "Send it again.")
    return words
