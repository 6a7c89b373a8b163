"""Aggregation without encryption, behind the same interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from privfair.secure_aggregation.base import ClientKeys, ServerKeys, Vector
from privfair.secure_aggregation.ciphertext import Damaged
from privfair.secure_aggregation.encoding import CKKS_MODULUS

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
        with np.errstate(over="ignore", invalid="ignore"):  # data never raise
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
