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
    kind = type(value)
    if kind is np.ndarray or kind is bytes or kind is float or kind is int or kind is str:
        return size(value)
    if kind is tuple:
        parts: Any = value
    elif is_dataclass(kind):
        parts = [getattr(value, name) for name in _names(kind)]
    else:
        return size(value)
    if id(value) not in known:
        known[id(value)] = sum(shared_size(part, known) for part in parts)
    return known[id(value)]


@lru_cache(maxsize=64)
def _names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))
