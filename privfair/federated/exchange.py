"""Who answered and who did not: the roll of a round, and requests that travel together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from accountant.errors import InputError, Refused
from privfair.federated.interfaces import Absence, Ask, Backend, Memory
from privfair.federated.messages import (
    Answered,
    Asked,
    Bundle,
    BundleReply,
    Missing,
    Reply,
    Request,
)
from privfair.federated.release_plan import ReleasePlan


class Unfinished(Refused):
    """A run that stops before its end, for want of clients: what it has is kept, and it can be continued."""


class ExchangeLog:
    """Asks as `ask` does, and writes down who did not answer."""

    def __init__(self, ask: Ask, round_number: int | None) -> None:
        """Of one round, or of what is asked before the first and after the last."""
        self._ask, self._round = ask, round_number
        self.absent: list[Absence] = []

    def ask(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """The replies, with `Missing` for those who did not answer."""
        requests = {k: request(k) for k in clients}
        replies = self._ask(clients, requests.__getitem__)
        for k, reply in zip(clients, replies, strict=True):
            for asked, answer in zip(singles(requests[k]), _answers(requests[k], reply), strict=True):
                if isinstance(answer, Missing):
                    self.absent.append(Absence(self._round, k, asked.channel, answer.reason))
        return replies


def singles(asked: Asked) -> tuple[Request, ...]:
    """The requests of a bundle; a single one is one of its own."""
    return asked.requests if isinstance(asked, Bundle) else (asked,)


def regrouped(asked: Sequence[Asked], replies: Sequence[Reply]) -> list[Answered]:
    """Replies to the `singles` of all that was asked, in order, as replies to what was asked."""
    rest = iter(replies)
    return [
        BundleReply(tuple(next(rest) for _ in one.requests)) if isinstance(one, Bundle) else next(rest) for one in asked
    ]


def ask_together(
    ask: Ask, first: Mapping[int, Request], second: Mapping[int, Request]
) -> tuple[dict[int, Reply | Missing], dict[int, Reply | Missing]]:
    """What the clients of each mapping answered to it; who is in both is asked once, for both."""
    clients = sorted({*first, *second})

    def request(client: int) -> Asked:
        requests = tuple(part[client] for part in (first, second) if client in part)
        return requests[0] if len(requests) == 1 else Bundle(requests)

    found: tuple[dict[int, Reply | Missing], dict[int, Reply | Missing]] = ({}, {})
    for client, reply in zip(clients, ask(clients, request), strict=True):
        answers = iter(_answers(request(client), reply))
        for part, into in zip((first, second), found, strict=True):
            if client in part:
                into[client] = next(answers)
    return found


def _answers(asked: Asked, reply: Answered) -> tuple[Reply | Missing, ...]:
    """One answer for each single request; who did not answer a bundle did not answer any of it."""
    count = len(singles(asked))
    if isinstance(reply, Missing):
        return (reply,) * count
    answers = reply.replies if isinstance(reply, BundleReply) else (reply,)
    if len(answers) != count or isinstance(reply, BundleReply) != isinstance(asked, Bundle):
        raise InputError("reply", f"must have {count} answers", len(answers))
    return answers


# ---- Counting what crosses the wire.


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
        known: dict[int, int] = {}
        self.bytes_down += sum(size(r, known) for r in requests.values())
        self.bytes_up += sum(size(r, known) for r in replies)
        return replies

    def agreed(self, release_plan: ReleasePlan) -> None:
        """The backend's."""
        self.inner.agreed(release_plan)

    def client_state(self) -> Memory:
        """The backend's."""
        return self.inner.client_state()

    def restore_clients(self, state: Memory) -> None:
        """The backend's."""
        self.inner.restore_clients(state)


def size(value: Any, known: dict[int, int] | None = None) -> int:
    """Bytes of the payload: arrays as they are, numbers as 8, texts as UTF-8; names and framing not counted.

    `known` has by their ids the values that were counted before, for parts that messages share; it must not outlive
    them.
    """
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, bool | int | float):
        return 8
    if isinstance(value, str):
        return len(value.encode())
    if known is None:
        known = {}
    elif id(value) in known:
        return known[id(value)]
    parts: Iterable[Any] = ()
    if isinstance(value, tuple | list):
        parts = value
    elif is_dataclass(value):
        kind: Any = type(value)
        parts = [getattr(value, name) for name in _names(kind)]
    elif isinstance(value, Mapping):
        parts = value.values()
    known[id(value)] = found = sum([size(part, known) for part in parts])
    return found


@lru_cache(maxsize=256)
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(f.name for f in fields(kind))
