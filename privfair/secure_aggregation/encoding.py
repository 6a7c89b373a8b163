"""Codes for vectors: real numbers, or integers as they are, as integers whose sum cannot wrap."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite, require_positive
from privfair.util import FloatArray

BFV_MODULUS = 1_073_692_673  # 30 bits, prime, 1 modulo 2·4096: one value in each of 4096 slots
CKKS_MODULUS = 2**44 + 1  # not a modulus of CKKS: the span of integers it carries without error (see tenseal.py)
# What to give `FixedPoint` for a scheme; plain takes that of BFV, to give the same numbers.
MODULI = {"bfv": BFV_MODULUS, "ckks": CKKS_MODULUS, "plain": BFV_MODULUS}

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

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sum."""
        return np.asarray(total, dtype=np.float64)
