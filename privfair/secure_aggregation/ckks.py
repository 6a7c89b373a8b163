"""Noise that drowns what is left of encryption noise in a decrypted value.

Every client opens the same sum and must end with the same model, so the noise cannot be drawn afresh by each. It is a
function of the ciphertext under a secret that all key holders share: SHAKE-256(secret, ciphertext) supplies the
random bits. To anyone without the secret this is as good as fresh noise, as long as SHAKE-256 with a secret key is
a pseudo-random function; different ciphertexts get independent noise, and the same ciphertext always gets the same
noise, so asking again, or asking all clients, averages nothing out.

The law is a discrete Gaussian on the integers, built from integers alone: floating-point noise has holes that show
the value beneath (Mironov 2012), and rounds differently on different machines. Five draws from a table with
σ₀ = 256 are joined as Σ 32ⁱ xᵢ; since σ₀√(2π)/32 ≈ 20 is far above the smoothing parameter of the integers, the sum
is a discrete Gaussian of σ = 256·√(Σ 32²ⁱ) ≈ 1.0005 · 2²⁸ up to e^(−π·20²) (Micciancio & Walter,
CRYPTO 2017) and the 64-bit table.
"""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from privfair.secure_aggregation import tenseal as seal
from privfair.secure_aggregation.base import ClientKeys, Vector
from privfair.secure_aggregation.ciphertext import Tagging, TooNoisy, tag_secret
from privfair.secure_aggregation.encoding import CKKS_MODULUS
from privfair.secure_aggregation.tenseal import SealServer

BASE_SIGMA = 256
STEP = 32
DRAWS = 5
SIGMA = BASE_SIGMA * math.sqrt(sum(STEP ** (2 * i) for i in range(DRAWS)))
SECRET_BYTES = 32
_TAIL = 10 * BASE_SIGMA  # P(|x| > 10σ) ≈ 1.5e-23, below the table's 2⁻⁶⁴


def flood(count: int, secret: bytes, ciphertext: bytes) -> NDArray[np.int64]:
    """So many draws that depend on the secret and the ciphertext only."""
    seed = hashlib.blake2b(ciphertext, key=secret, digest_size=64, person=b"privfair flood").digest()
    stream = hashlib.shake_256(seed).digest(8 * DRAWS * count)
    uniform = np.frombuffer(stream, dtype="<u8").reshape(count, DRAWS)  # by value: a shorter read is a prefix
    base = np.searchsorted(_table(), uniform, side="right") - _TAIL
    powers = np.array([STEP**i for i in range(DRAWS)], dtype=np.int64)
    return np.asarray(base @ powers, dtype=np.int64)


@cache
def _table() -> NDArray[np.uint64]:
    """The cumulative discrete Gaussian of σ₀ in units of 2⁻⁶⁴, without its last entry.

    In decimal arithmetic, which is the same on every machine.
    """
    with localcontext() as context:
        context.prec = 40
        half = [(-Decimal(x * x) / (2 * BASE_SIGMA**2)).exp() for x in range(_TAIL + 1)]
        masses = half[:0:-1] + half
        total = sum(masses)
        cumulative, entries = Decimal(0), []
        for mass in masses[:-1]:
            cumulative += mass
            entries.append(min(int(cumulative / total * 2**64), 2**64 - 1))
    return np.array(entries, dtype=np.uint64)


# ---- CKKS: approximate numbers, used here on integers, with noise flooding before a value leaves the key holder.
#
# A CKKS decryption carries the encryption noise, and that noise gives the secret key away (Li & Micciancio 2021, ePrint
# 2020/1533). Two things stand against it:
#
# 1. Exactness. Clients encrypt integers q as q/2⁴⁴, at scale 2⁸⁴. In the worst case, not on average, encryption adds at
#    most n·N(N + 1)/2·2⁻⁸⁴ to a slot of a sum of n (SEAL divides the noise of a public-key encryption by the last
#    modulus; what stays is its rounding, at most (N + 1)/2 a coefficient): for n ≤ 1025 and N = 8192 that is 2⁻⁴⁹, and
#    float64 transforms add about 2⁻⁵¹ (measured). A unit is 2⁻⁴⁴, so rounding to the nearest integer gives the exact
#    sum, and the decryption noise is gone; a value more than a quarter of a unit from an integer is refused. Rounding
#    alone is no cure for numbers anywhere between; it is one for numbers that are integers, as these are.
# 2. Flooding, for whatever breaks (1): a discrete Gaussian of σ ≈ 2²⁸ units on every value (flooding.py). If an input
#    were not an integer, rounding could move each of the 4096 values of a ciphertext by one unit with the noise: a
#    vector of norm t ≤ 64. After τ opened ciphertexts the statistical distance to an answer without that trace
#    is at most t√τ/2σ = 2⁻²³√τ (Pinsker); in the terms of Li, Micciancio, Schultz & Sorrell (CRYPTO 2022),
#    σ = √(12τ)·2^(s/2)·t: s = 40.4 − log2 τ bits of statistical security. That is 30 bits for a thousand
#    ciphertexts and 20 for a million; it is not 128, and we do not say so.
#
# Both are for a server that follows the protocol. Precision: the flooding noise is 2⁻¹⁵ of range · weight_sum (standard
# deviation), which is what a decrypted sum is exact to. Why not degree 4096: one data modulus of 54 bits leaves
# no room for the unit, the flooding and the sum together.


PARAMETERS = seal.Parameters("ckks", 8192, (45, 45, 46), scale=2.0**84)
UNIT = 2.0**-44
FARTHEST = 0.25  # of a unit, from the nearest integer
TAG_PRIME = 2**44 + 7  # above the difference of any two sums, so that none is 0 modulo it


class _Ckks:
    scheme = "ckks"
    slots = 4096
    modulus: int | None = CKKS_MODULUS
    max_additions = 2**10
    tagging: Tagging | None = Tagging(TAG_PRIME, count=3, part_bits=23)  # sums of parts stay below 2³⁴


class CkksClient(_Ckks, ClientKeys):
    """Encrypts with the public key; opens with the secret one and floods."""

    noise = SIGMA

    def __init__(self, content: bytes, key_id: str, flooding_secret: bytes) -> None:
        """Take the context with both keys, and the secret of the flooding noise."""
        super().__init__(key_id)
        self._context = seal.load_context(content, PARAMETERS, secret=True)
        self.tag_secret = tag_secret(content)
        self._flooding_secret = flooding_secret

    def encrypt_chunk(self, values: Vector) -> bytes:
        """One ciphertext; slots that are left are 0."""
        padded = np.zeros(self.slots)
        padded[: len(values)] = values * UNIT
        return seal.encrypt(self._context, PARAMETERS, padded.tolist())

    def exact_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The sum itself, or `TooNoisy`; only for the check of its tags, and for `released`."""
        return self._exact(chunk, name)[:count]

    def released(self, values: Vector, chunk: bytes) -> Vector:
        """The sum and its flooding noise, in units."""
        return values + flood(len(values), self._flooding_secret, chunk)

    def _exact(self, chunk: bytes, name: str) -> NDArray[np.int64]:
        vector = seal.load(self._context, PARAMETERS, chunk, self.slots, name)
        values = np.array(seal.decrypt(vector)) / UNIT
        nearest = np.rint(values)
        # The message does not tell how far, or where: that would be the noise that flooding hides.
        if not (np.abs(values - nearest) <= FARTHEST).all() or np.abs(nearest).max() > (CKKS_MODULUS - 1) // 2:
            remedy = "Sum fewer contributions; if they were few, it was made under another key."
            raise TooNoisy(name, "must decrypt to integers", "other values", remedy)
        return nearest.astype(np.int64)


class CkksServer(_Ckks, SealServer):
    """Adds ciphertexts; holds the public context only."""

    parameters = PARAMETERS
