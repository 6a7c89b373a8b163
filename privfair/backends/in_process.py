"""All clients in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from privfair.clients.client import Client
from privfair.interfaces import Memory
from privfair.messages import Reply, Request


class InProcess:
    """A simulated federation."""

    def __init__(self, clients: Sequence[Client]) -> None:
        """The clients, in the order of their numbers."""
        self._clients = list(clients)

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self._clients)

    def exchange(self, clients: Sequence[int], request: Callable[[int], Request]) -> list[Reply]:
        """Ask each in turn."""
        return [self._clients[k].respond(request(k)) for k in clients]

    def client_state(self) -> Memory:
        """The control variates of those who have one."""
        return {str(c.index): c.control for c in self._clients if c.control is not None}

    def restore_clients(self, state: Memory) -> None:
        """Give them back."""
        for client in self._clients:
            client.control = state.get(str(client.index))
