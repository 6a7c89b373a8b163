"""Whole numbers as they are, in sums that cannot wrap."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.arrays import FloatArray


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
        """The integers, cut to ±`most`: data never raise an error."""
        if weight != 1.0:
            raise InputError("weight", "must be 1 for whole numbers", weight)
        return np.clip(np.rint(np.nan_to_num(values, nan=0.0)), -self.most, self.most).astype(np.int64)

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sum."""
        return np.asarray(total, dtype=np.float64)
