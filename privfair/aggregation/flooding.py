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
