"""The schemes that TenSEAL provides, BFV and CKKS; no other module imports TenSEAL.

Speed: vectors are made with TenSEAL's native class where its Python class would copy every list once more.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.secure_aggregation.base import BFV_MODULUS, CKKS_MODULUS, ClientKeys, ServerKeys, Vector
from privfair.secure_aggregation.ciphertext import Damaged, Tagging, TooNoisy, tag_secret

try:
    import tenseal
except ImportError as missing:
    raise InputError(
        "aggregation scheme",
        "needs the package tenseal unless it is plain",
        str(missing),
        "Run: pip install tenseal. Or set scheme = plain.",
    ) from missing

# The most bits of all coefficient moduli together at 128-bit security, ternary secret: Homomorphic Encryption
# Standard (Albrecht et al. 2018), table 1; the same numbers as SEAL's own default.
MOST_BITS_128 = {4096: 109, 8192: 218, 16384: 438}


@dataclass(frozen=True)
class Parameters:
    """Public parameters of a scheme; others than 128-bit ones are refused."""

    scheme: str  # "bfv" or "ckks"
    degree: int
    coefficient_bits: tuple[int, ...]  # the last one is used up by encryption
    plain_modulus: int = 0  # BFV
    scale: float = 0.0  # CKKS
    padded_to: int = 2048  # bytes; see `_padded`

    def __post_init__(self) -> None:
        """Refuse parameters below 128 bits of security."""
        bits, most = sum(self.coefficient_bits), MOST_BITS_128.get(self.degree)
        if most is None or bits > most:
            known = ", ".join(f"{degree}: at most {limit} bits" for degree, limit in MOST_BITS_128.items())
            found = f"degree {self.degree} with {bits} bits"
            raise InputError("parameters", f"must give 128-bit security ({known})", found)


def new_context(parameters: Parameters) -> Any:
    """A context with a fresh secret and public key."""
    bfv = parameters.scheme == "bfv"
    context = tenseal.Context(
        tenseal.SCHEME_TYPE.BFV if bfv else tenseal.SCHEME_TYPE.CKKS,
        parameters.degree,
        parameters.plain_modulus if bfv else None,
        list(parameters.coefficient_bits),
        n_threads=1,  # a chunk is one ciphertext: there is nothing to share out
    )
    if not bfv:
        context.global_scale = parameters.scale
    return context


def context_bytes(context: Any, *, secret: bool) -> bytes:
    """A context without Galois and relinearisation keys, and without the secret key unless asked for."""
    content: bytes = context.serialize(
        save_public_key=True, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return content


def parameters_id(context: Any) -> tuple[int, ...]:
    """SEAL's own hash of scheme, degree and all moduli."""
    return tuple(context.data.seal_context().key_parms_id())


@cache
def _expected_id(parameters: Parameters) -> tuple[int, ...]:
    return parameters_id(new_context(parameters))


def load_context(content: bytes, parameters: Parameters, *, secret: bool) -> Any:
    """The context in the bytes, if it has these parameters and exactly the keys it should have."""
    remedy = "Copy the key file again from where it was made."
    try:
        context = tenseal.Context.load(content, n_threads=1)
        found = parameters_id(context)
    except (ValueError, RuntimeError, TypeError) as error:
        raise InputError("key", "must hold a context of TenSEAL", str(error), remedy) from error
    if found != _expected_id(parameters):
        rule = f"must have the parameters of {parameters.scheme} in this version"
        raise InputError("key", rule, "others", "Make new keys for everybody: privfair keys new DIR")
    if context.has_secret_key() != secret or not context.has_public_key():
        wanted = "the secret key" if secret else "no secret key"
        raise InputError("key", f"must hold the public key and {wanted}", "other keys", remedy)
    if context.has_galois_keys() or context.has_relin_keys():
        raise InputError("key", "must hold no Galois and no relinearisation keys", "such keys", remedy)
    if parameters.scheme == "ckks":
        context.global_scale = parameters.scale
    return context


def encrypt(context: Any, parameters: Parameters, values: list[Any]) -> bytes:
    """The bytes of a full ciphertext of these values."""
    if parameters.scheme == "bfv":
        content: bytes = tenseal._ts_cpp.BFVVector(context.data, values).serialize()
    else:
        content = tenseal._ts_cpp.CKKSVector(context.data, values, parameters.scale).serialize()
    return _padded(content, parameters)


def load(context: Any, parameters: Parameters, content: bytes, slots: int, name: str) -> Any:
    """The native vector in the bytes, if it is one ciphertext of two polynomials with all slots; else `Damaged`."""
    kind = tenseal._ts_cpp.BFVVector if parameters.scheme == "bfv" else tenseal._ts_cpp.CKKSVector
    try:
        vector = kind(context.data, _unpadded(content))
        ciphertexts = vector.ciphertext()
        shape = (vector.size(), len(ciphertexts), ciphertexts[0].size() if ciphertexts else 0)
        scale = ciphertexts[0].scale if ciphertexts and parameters.scheme == "ckks" else 0.0
    except (ValueError, RuntimeError, TypeError, IndexError, struct.error) as error:
        raise Damaged(name, "must hold ciphertexts of these parameters", str(error), "Send it again.") from error
    if shape != (slots, 1, 2) or scale != parameters.scale:
        raise Damaged(name, "must hold fresh or summed ciphertexts only", f"shape {shape}", "Send it again.")
    return vector


def _padded(content: bytes, parameters: Parameters) -> bytes:
    """The content behind its length, filled up with zeros to a round size.

    SEAL compresses, so that sizes vary a little from one encryption to the next; a message should not.
    """
    framed = struct.pack("<I", len(content)) + content
    return framed + bytes(-len(framed) % parameters.padded_to)


def _unpadded(chunk: bytes) -> bytes:
    (size,) = struct.unpack_from("<I", chunk)
    return bytes(chunk[4 : 4 + size])


def noise_budget(context: Any, vector: Any) -> int:
    """Bits between the noise and the first wrong value (BFV); 0: it may be wrong already."""
    return int(context.data.decryptor().invariant_noise_budget(vector.ciphertext()[0]))


class SealServer(ServerKeys):
    """Adds ciphertexts of the scheme whose parameters a subclass names; it holds the public context only."""

    parameters: ClassVar[Parameters]

    def __init__(self, content: bytes, key_id: str) -> None:
        """Take the public context."""
        super().__init__(key_id)
        self.context = load_context(content, self.parameters, secret=False)

    def load_chunk(self, chunk: bytes, count: int, name: str) -> Any:
        """The ciphertext."""
        return load(self.context, self.parameters, chunk, self.slots, name)

    def add_chunk(self, left: Any, right: Any) -> Any:
        """The sum, in the place of the left one."""
        return left.add_(right)

    def dump_chunk(self, loaded: Any) -> bytes:
        """The ciphertext's bytes."""
        return _padded(loaded.serialize(), self.parameters)


# ---- BFV: integers modulo a prime, 4096 in a ciphertext; sums are exact.
#
# Degree 4096, plain modulus 1073692673 (30 bits), coefficient moduli of 54 and 55 bits (109: the most that 128-bit
# security allows). A fresh ciphertext has about 17 bits of noise budget; independent additions of n cost about
# log2(n)/2 of them, so 2¹⁶ leave about 9, and the key holder measures the budget before it believes a value. Exact
# decryption that cannot fail says nothing about the key (Cheon et al., ePrint 2024/127), against a server that follows
# the protocol; BFV itself has no protection against one that sends forged ciphertexts and sees what they decrypt to.
# `TagKey` detects forgeries, and a client leaves the run at the first one.

BFV = Parameters("bfv", 4096, (54, 55), plain_modulus=BFV_MODULUS)
LEAST_BUDGET = 2  # bits


class _Bfv:
    scheme = "bfv"
    slots = 4096
    modulus: int | None = BFV_MODULUS
    max_additions = 2**16
    tagging: Tagging | None = Tagging(BFV_MODULUS, count=4, part_bits=30)


class BfvClient(_Bfv, ClientKeys):
    """Encrypts with the public key and opens with the secret one."""

    def __init__(self, content: bytes, key_id: str) -> None:
        """Take the context with both keys."""
        super().__init__(key_id)
        self._context = load_context(content, BFV, secret=True)
        self.tag_secret = tag_secret(content)

    def encrypt_chunk(self, values: Vector) -> bytes:
        """One ciphertext; slots that are left are 0."""
        padded = np.zeros(self.slots, dtype=np.int64)
        padded[: len(values)] = values
        return encrypt(self._context, BFV, padded.tolist())

    def exact_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The exact values, or `TooNoisy`."""
        vector = load(self._context, BFV, chunk, self.slots, name)
        budget = noise_budget(self._context, vector)
        if budget < LEAST_BUDGET:
            rule = f"must have a noise budget of at least {LEAST_BUDGET} bits"
            remedy = "Sum fewer contributions; if they were few, it was made under another key."
            raise TooNoisy(name, rule, budget, remedy)
        return np.array(vector.decrypt()[:count], dtype=np.int64)


class BfvServer(_Bfv, SealServer):
    """Adds ciphertexts; holds the public context only."""

    parameters = BFV

    def taken_off(self, loaded: Any, words: Vector) -> Any:
        """A loaded ciphertext less these numbers modulo m, which everybody may know."""
        known = np.zeros(self.slots, dtype=np.int64)
        known[: len(words)] = words
        known[known > BFV_MODULUS // 2] -= BFV_MODULUS
        return loaded.sub_plain_(known.tolist())


# ---- Flooding: noise that drowns what is left of encryption noise in a decrypted value.
#
# Every client opens the same sum and must end with the same model, so the noise cannot be drawn afresh by each. It is a
# function of the ciphertext under a secret that all key holders share: SHAKE-256(secret, ciphertext) supplies the
# random bits. To anyone without the secret this is as good as fresh noise, as long as SHAKE-256 with a secret key is
# a pseudo-random function; different ciphertexts get independent noise, and the same ciphertext always gets the same
# noise, so asking again, or asking all clients, averages nothing out.
#
# The law is a discrete Gaussian on the integers, built from integers alone: floating-point noise has holes that show
# the value beneath (Mironov 2012), and rounds differently on different machines. Five draws from a table with
# σ₀ = 256 are joined as Σ 32ⁱ xᵢ; since σ₀√(2π)/32 ≈ 20 is far above the smoothing parameter of the integers, the sum
# is a discrete Gaussian of σ = 256·√(Σ 32²ⁱ) ≈ 1.0005 · 2²⁸ up to e^(−π·20²) (Micciancio & Walter,
# CRYPTO 2017) and the 64-bit table.

BASE_SIGMA = 256
STEP = 32
DRAWS = 5
SIGMA = BASE_SIGMA * math.sqrt(sum(STEP ** (2 * i) for i in range(DRAWS)))
SECRET_BYTES = 32
_TAIL = 10 * BASE_SIGMA  # P(|x| > 10σ) ≈ 1.5e-23, below the table's 2⁻⁶⁴


def flood(count: int, secret: bytes, ciphertext: bytes) -> NDArray[np.int64]:
    """`count` draws that depend on the secret and the ciphertext only."""
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
#    alone does not help for arbitrary numbers; it does for numbers that are integers, as these are.
# 2. Flooding, for whatever breaks (1): a discrete Gaussian of σ ≈ 2²⁸ units on every value (`flood`). If an input
#    were not an integer, rounding could move each of the 4096 values of a ciphertext by one unit with the noise: a
#    vector of norm t ≤ 64. After τ opened ciphertexts the statistical distance to an answer without that trace
#    is at most t√τ/2σ = 2⁻²³√τ (Pinsker); in the terms of Li, Micciancio, Schultz & Sorrell (CRYPTO 2022),
#    σ = √(12τ)·2^(s/2)·t: s = 40.4 − log2 τ bits of statistical security. That is 30 bits for a thousand
#    ciphertexts and 20 for a million; it is not 128, and we do not say so.
#
# Both are for a server that follows the protocol. Precision: the flooding noise is 2⁻¹⁵ of range · weight_sum (standard
# deviation), which is what a decrypted sum is exact to. Why not degree 4096: one data modulus of 54 bits leaves
# no room for the unit, the flooding and the sum together.

CKKS = Parameters("ckks", 8192, (45, 45, 46), scale=2.0**84)
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
        self._context = load_context(content, CKKS, secret=True)
        self.tag_secret = tag_secret(content)
        self._flooding_secret = flooding_secret

    def encrypt_chunk(self, values: Vector) -> bytes:
        """One ciphertext; slots that are left are 0."""
        padded = np.zeros(self.slots)
        padded[: len(values)] = values * UNIT
        return encrypt(self._context, CKKS, padded.tolist())

    def exact_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The sum itself, or `TooNoisy`; only for the check of its tags, and for `released`."""
        return self._exact(chunk, name)[:count]

    def released(self, values: Vector, chunk: bytes) -> Vector:
        """The sum and its flooding noise, in units."""
        return values + flood(len(values), self._flooding_secret, chunk)

    def _exact(self, chunk: bytes, name: str) -> NDArray[np.int64]:
        vector = load(self._context, CKKS, chunk, self.slots, name)
        values = np.array(vector.decrypt()) / UNIT
        nearest = np.rint(values)
        # The message does not say how far, or where: that would be the noise that flooding hides.
        if not (np.abs(values - nearest) <= FARTHEST).all() or np.abs(nearest).max() > (CKKS_MODULUS - 1) // 2:
            remedy = "Sum fewer contributions; if they were few, it was made under another key."
            raise TooNoisy(name, "must decrypt to integers", "other values", remedy)
        return nearest.astype(np.int64)


class CkksServer(_Ckks, SealServer):
    """Adds ciphertexts; holds the public context only."""

    parameters = CKKS
