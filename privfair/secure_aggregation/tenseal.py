"""TenSEAL, and nothing else in this package knows it: contexts, vectors, bytes.

Speed: vectors are made with TenSEAL's native class where its Python class would copy every list once more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from accountant.errors import InputError
from privfair.secure_aggregation.base import ServerKeys
from privfair.secure_aggregation.ciphertext import Damaged

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


def add(left: Any, right: Any) -> Any:
    """The left native vector, with the right one added to it."""
    return left.add_(right)


def dump(vector: Any, parameters: Parameters) -> bytes:
    """The bytes of a native vector."""
    return _padded(vector.serialize(), parameters)


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


def decrypt(vector: Any) -> list[Any]:
    """The values of a native vector whose context holds the secret key."""
    values: list[Any] = vector.decrypt()
    return values


# ---- The server's half of a scheme that TenSEAL provides: it adds, and holds the public context only.


class SealServer(ServerKeys):
    """Adds ciphertexts of the scheme whose parameters a subclass names."""

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
        return add(left, right)

    def dump_chunk(self, loaded: Any) -> bytes:
        """The ciphertext's bytes."""
        return dump(loaded, self.parameters)
