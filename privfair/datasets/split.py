"""Which records are for testing, decided for each record by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def held_out(
    contents: Sequence[bytes], *, seed: int, test_fraction: float, together: bool = False
) -> NDArray[np.bool_]:
    """For every record, whether it is a test record; one record more moves no other record.

    A record is tested iff H(content, occurrence) < test_fraction · 2⁶⁴, where H is BLAKE2b keyed with the seed and
    the occurrence numbers identical records 0, 1, 2, … (they are interchangeable, so their order does not matter).
    With `together` there is no occurrence number: equal contents, for example ids of persons, stay on one side.
    """
    key = blake2b(str(seed).encode(), digest_size=32).digest()
    threshold = int(test_fraction * 2**64)
    seen: defaultdict[bytes, int] = defaultdict(int)
    sides = np.empty(len(contents), dtype=np.bool_)
    for row, content in enumerate(contents):
        occurrence = 0 if together else seen[content]
        seen[content] = occurrence + 1
        hashed = blake2b(content + occurrence.to_bytes(8, "big"), digest_size=8, key=key, person=b"privfair split")
        sides[row] = int.from_bytes(hashed.digest(), "big") < threshold
    return sides
