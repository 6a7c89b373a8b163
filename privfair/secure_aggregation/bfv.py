"""BFV: integers modulo a prime, 4096 in a ciphertext; sums are exact.

Degree 4096, plain modulus 1073692673 (30 bits), coefficient moduli of 54 and 55 bits (109: the most that 128-bit
security allows). A fresh ciphertext has about 17 bits of noise budget; independent additions of n cost about
log2(n)/2 of them, so 2¹⁶ leave about 9, and the key holder measures the budget before it believes a value. Exact
decryption that cannot fail tells nothing about the key (Cheon et al., ePrint 2024/127), against a server that follows
the protocol; BFV itself has no protection against one that sends forged ciphertexts and sees what they decrypt to. The
tags (tags.py) refuse forgeries, and a data holder leaves the run at the first one.
"""

from __future__ import annotations

import numpy as np

from privfair.secure_aggregation import tenseal as seal
from privfair.secure_aggregation.base import ClientKeys, Vector
from privfair.secure_aggregation.ciphertext import Tagging, TooNoisy, tag_secret
from privfair.secure_aggregation.encoding import BFV_MODULUS
from privfair.secure_aggregation.tenseal import SealServer

PARAMETERS = seal.Parameters("bfv", 4096, (54, 55), plain_modulus=BFV_MODULUS)
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
        self._context = seal.load_context(content, PARAMETERS, secret=True)
        self.tag_secret = tag_secret(content)

    def encrypt_chunk(self, values: Vector) -> bytes:
        """One ciphertext; slots that are left are 0."""
        padded = np.zeros(self.slots, dtype=np.int64)
        padded[: len(values)] = values
        return seal.encrypt(self._context, PARAMETERS, padded.tolist())

    def exact_chunk(self, chunk: bytes, count: int, name: str) -> Vector:
        """The exact values, or `TooNoisy`."""
        vector = seal.load(self._context, PARAMETERS, chunk, self.slots, name)
        budget = seal.noise_budget(self._context, vector)
        if budget < LEAST_BUDGET:
            rule = f"must have a noise budget of at least {LEAST_BUDGET} bits"
            remedy = "Sum fewer contributions; if they were few, it was made under another key."
            raise TooNoisy(name, rule, budget, remedy)
        return np.array(seal.decrypt(vector)[:count], dtype=np.int64)


class BfvServer(_Bfv, SealServer):
    """Adds ciphertexts; holds the public context only."""

    parameters = PARAMETERS
