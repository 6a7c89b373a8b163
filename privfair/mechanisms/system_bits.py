"""Random bits that nobody can repeat, as fast as noise for whole models needs them."""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

_FEW = 1 << 10  # bytes; below this the operating system's own answer is as quick


def system_words(n: int) -> NDArray[np.uint64]:
    """n uniform 64-bit numbers: from the operating system, or, if many, AES-256 in counter mode keyed by it.

    Every call takes a fresh 256-bit key and counter, and keeps nothing: no state to fork, to store or to steal. To
    tell the numbers from random ones is to break AES-256; they are at least as hard to guess as the system's own,
    which come from a cipher too.
    """
    if 8 * n <= _FEW:
        return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)
    cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * n)), dtype=np.uint64)
