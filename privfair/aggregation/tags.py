"""Who is in a sum: tags that only key holders can make, in slots of every ciphertext, checked before a sum is opened.

The server has the public key: it can encrypt anything, and write any header. So every chunk of a contribution carries,
behind its data v, tags of a linearly homomorphic MAC (Agrawal & Boneh, ACNS 2009) under a key that only clients have:

    tag_j = ⟨K_j, v⟩ + F_j(client, nonce)    modulo a prime P, for j = 1 … `count`

K is a pseudo-random vector, the same for all contributions to one chunk of one sum; F is pseudo-random for each
contribution. Both depend on the run, the channel, the number of the sum, the round, the code, the length and the chunk.
Tags add up as data do, so whoever opens a sum, which names its contributions, expects Σ tag_j = ⟨K_j, Σ v⟩ + Σ F_j.

What it gives. Assume that whoever has no secret key can make nothing from ciphertexts but affine combinations of their
slots ("linear-only" encryption; that covers multiplication by known polynomials, masks among them), and that SHAKE-256
is a pseudo-random function. Then a sum that opens is, in every chunk, exactly Σ v of the contributions that its header
names, but for a probability of P⁻ᶜᵒᵘⁿᵗ in each attempt: 2⁻¹²⁰ for BFV, 2⁻¹³² for CKKS. For if the combination does
not hold each named tag once and no other, some F_j, uniform and in no other place, must be guessed; and if it does
while the data differ by d ≠ 0 modulo P, then ⟨K_j, d⟩ must be, which is uniform, because F hides K in every tag.
Self-made sums, fewer or other contributions, one of them twice, 2A − B, chunks of several sums, earlier rounds, other
runs and constants added to the data are all refused. It does not stop a client: all of them have the key.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

NONCE_BYTES = 16
_LIMB = 15  # bits of the parts in which large values are multiplied

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Contributor:
    """One contribution to a sum: whose it is, and a random number of its own."""

    client: int
    nonce: bytes

    @classmethod
    def new(cls, client: int) -> Contributor:
        """For a contribution that is made now."""
        return cls(client, secrets.token_bytes(NONCE_BYTES))


@dataclass(frozen=True)
class Tagging:
    """The public parameters of a scheme's tags. A tag is put into slots in parts of so many bits."""

    prime: int  # below 2⁴⁵, and above the difference of any two sums
    count: int
    part_bits: int

    @cached_property
    def parts(self) -> int:
        """Slots that one tag takes."""
        return -(-self.prime.bit_length() // self.part_bits)

    @cached_property
    def width(self) -> int:
        """Slots that the tags of a chunk take."""
        return self.count * self.parts

    def data_counts(self, length: int, slots: int) -> Iterator[int]:
        """How many data values each chunk holds."""
        room = slots - self.width
        for start in range(0, length, room):
            yield min(room, length - start)

    def split(self, tags: Sequence[int]) -> Integers:
        """Tags as the values of their slots."""
        mask = (1 << self.part_bits) - 1
        parts = [(tag >> (self.part_bits * i)) & mask for tag in tags for i in range(self.parts)]
        half = self.prime // 2
        centred = [part - self.prime if self.parts == 1 and part > half else part for part in parts]
        return np.array(centred, dtype=np.int64)

    def joined(self, values: Integers) -> list[int]:
        """The tags, or sums of tags, that are in these slots."""
        rows = values.reshape(self.count, self.parts).tolist()
        return [sum(int(part) << (self.part_bits * i) for i, part in enumerate(row)) % self.prime for row in rows]


class TagKey:
    """Makes and checks the tags of one sum."""

    def __init__(self, secret: bytes, tagging: Tagging, about: Sequence[str | int]) -> None:
        """`secret`: the clients' tag key; `about`: all that the tags are bound to, besides chunk and contribution."""
        self._tagging = tagging
        text = json.dumps(list(about)).encode()
        self._key = hashlib.blake2b(text, key=secret, digest_size=64, person=b"privfair sum").digest()

    def tagged(self, vector: Integers, slots: int, contributor: Contributor) -> Integers:
        """A contribution's data, with tags behind those of each chunk."""
        pieces, start = [], 0
        for chunk, count in enumerate(self._tagging.data_counts(len(vector), slots)):
            data = vector[start : start + count]
            pieces += [data, self._tagging.split(self._tags(chunk, data, [contributor]))]
            start += count
        return np.concatenate(pieces) if pieces else vector

    def holds(self, chunk: int, values: Integers, contributors: Sequence[Contributor]) -> bool:
        """Whether the values of a chunk are the sum of what these contributions have there."""
        width = self._tagging.width
        data, tags = values[:-width], values[-width:]
        return self._tagging.joined(tags) == self._tags(chunk, data, contributors)

    def _tags(self, chunk: int, data: Integers, contributors: Sequence[Contributor]) -> list[int]:
        prime, count = self._tagging.prime, self._tagging.count
        keys = _uniform(self._key + b"data" + chunk.to_bytes(4, "little"), count * len(data), prime)
        total = _inner(keys.reshape(count, len(data)), data, prime)
        for one in contributors:
            place = b"mask" + chunk.to_bytes(4, "little") + one.client.to_bytes(8, "little") + one.nonce
            total = [sum(pair) for pair in zip(total, _draw(self._key + place, count, prime).tolist(), strict=True)]
        return [tag % prime for tag in total]


def tag_secret(private_key: bytes) -> bytes:
    """The tag key of all who have this private key."""
    return hashlib.blake2b(private_key, digest_size=64, person=b"privfair tag key").digest()


def _draw(seed: bytes, count: int, prime: int) -> Integers:
    """Numbers below the prime; 64 bits each, so that none is likelier than 1/prime by more than 2⁻¹⁹ of that."""
    stream = np.frombuffer(hashlib.shake_256(seed).digest(8 * count), dtype="<u8")
    return (stream % np.uint64(prime)).astype(np.int64)


_uniform = lru_cache(maxsize=32)(_draw)  # the clients of one process multiply with the same numbers


def _inner(keys: Integers, data: Integers, prime: int) -> list[int]:
    """⟨key, data⟩ modulo the prime for each row of keys, in 64-bit arithmetic that cannot overflow.

    |data| ≤ 2⁴⁴ and prime < 2⁴⁵: Horner's rule on parts of 15 bits keeps products below 2⁶⁰, and a sum of 4096
    remainders below 2⁵⁷.
    """
    if prime < 2**31 and np.abs(data).max(initial=0) < 2**31:
        products = keys * data % prime
    else:
        mask = (1 << _LIMB) - 1
        products = keys * (data >> (2 * _LIMB)) % prime
        for shift in (_LIMB, 0):
            products = ((products << _LIMB) + keys * ((data >> shift) & mask)) % prime
    return [int(total) for total in products.sum(axis=1) % prime]
