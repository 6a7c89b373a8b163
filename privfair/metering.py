"""Counting what crosses the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from privfair.interfaces import Backend, Memory
from privfair.messages import Answered, Asked
from privfair.terms import Terms


class Metered:
    """A backend that counts the bytes of arrays and numbers in its messages, up (to the server) and down."""

    def __init__(self, backend: Backend) -> None:
        """Start at 0."""
        self.inner = backend
        self.bytes_up = 0
        self.bytes_down = 0

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.inner.clients

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """Ask, and count."""
        requests = {k: request(k) for k in clients}
        replies = self.inner.exchange(clients, requests.__getitem__)
        self.bytes_down += sum(size(r) for r in requests.values())
        self.bytes_up += sum(size(r) for r in replies)
        return replies

    def agreed(self, terms: Terms) -> None:
        """The backend's."""
        self.inner.agreed(terms)

    def client_state(self) -> Memory:
        """The backend's."""
        return self.inner.client_state()

    def restore(self, state: Memory, bytes_up: int, bytes_down: int) -> None:
        """Go on from a checkpoint."""
        self.inner.restore_clients(state)
        self.bytes_up, self.bytes_down = bytes_up, bytes_down

    def restore_clients(self, state: Memory) -> None:
        """The backend's."""
        self.inner.restore_clients(state)


def size(value: Any) -> int:
    """Bytes of the payload: arrays as they are, numbers as 8, texts as UTF-8; names and framing not counted."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, bool | int | float):
        return 8
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, Mapping):
        return sum(size(v) for v in value.values())
    if isinstance(value, tuple | list):
        return sum(size(v) for v in value)
    if is_dataclass(value):
        return sum(size(getattr(value, f.name)) for f in fields(value))
    return 0
