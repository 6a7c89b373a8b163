"""A digest by which the same data are known again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray


def fingerprint(description: Mapping[str, Any], clients: Iterable[tuple[str, Sequence[NDArray[Any]]]]) -> str:
    """BLAKE2b with 16 bytes, in hexadecimal, of a description and of the named arrays of every client.

    Every part is preceded by its length, and every array by its type and shape, so that different data never make
    the same bytes; arrays are taken in little-endian order, so that all machines make the same ones.
    """
    hasher = blake2b(digest_size=16, person=b"privfair data")

    def add(part: bytes) -> None:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)

    add(json.dumps(description, sort_keys=True).encode())
    for name, arrays in clients:
        add(json.dumps(name).encode())
        for array in arrays:
            portable = np.asarray(array, dtype=array.dtype.newbyteorder("<"))
            add(f"{array.dtype.name} {array.shape}".encode())
            add(portable.tobytes())
    return hasher.hexdigest()
