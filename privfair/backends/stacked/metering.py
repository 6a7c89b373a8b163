"""Counting the bytes of messages, quickly: what the requests of an exchange share is looked through once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from privfair.messages import Answered, Asked
from privfair.metering import Metered, size


class QuickMetered(Metered):
    """As `Metered`, with the same figures."""

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """Ask, and count."""
        requests = {k: request(k) for k in clients}
        replies = self.inner.exchange(clients, requests.__getitem__)
        known: dict[int, int] = {}  # by the object's id: all of them live until the end of this function
        self.bytes_down += sum(shared_size(r, known) for r in requests.values())
        self.bytes_up += sum(shared_size(r, known) for r in replies)
        return replies


def shared_size(value: Any, known: dict[int, int]) -> int:
    """As `size`; a dataclass or a tuple that was met before is not looked through again."""
    kind: Any = type(value)
    if kind is np.ndarray:
        return int(value.nbytes)
    if kind is bytes:
        return len(value)
    if kind is float or kind is int:
        return 8
    found = known.get(id(value))
    if found is None:
        if kind is tuple:
            parts: Any = value
        elif (names := _names(kind)) is not None:
            parts = [getattr(value, name) for name in names]
        else:
            return size(value)
        found = known[id(value)] = sum([shared_size(part, known) for part in parts])
    return found


@lru_cache(maxsize=256)
def _names(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for any other type."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else None
