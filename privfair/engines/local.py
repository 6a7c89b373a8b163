"""All clients in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from privfair.channels.base import ReplyCheck, respond
from privfair.clients.client import Client
from privfair.federated.exchange import Memory, regrouped, singles
from privfair.federated.messages import Answered, Asked, Reply, Request
from privfair.federated.release_plan import ReleasePlan

if TYPE_CHECKING:
    from privfair.privacy.ledger_gateway import LedgerGateway


class InProcess:
    """A simulated federation. With a ledger gateway, every answer is paid for before it is given."""

    def __init__(self, clients: Sequence[Client], check: ReplyCheck, gateway: LedgerGateway | None = None) -> None:
        """The clients, in the order of their numbers."""
        self.members = list(clients)
        self.check = check
        self.gateway = gateway

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.members)

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """Ask each in turn; a client that refuses ends the simulation."""
        asked = [request(k) for k in clients]
        requests = [(k, single) for k, one in zip(clients, asked, strict=True) for single in singles(one)]
        if self.gateway is None:
            return regrouped(asked, [self._answer(k, single) for k, single in requests])
        return regrouped(asked, self.gateway.answer(requests, self._answer))

    def _answer(self, client: int, request: Request) -> Reply:
        return self.check(self.members[client].name, request, respond(self.members[client], request))

    def agreed(self, release_plan: ReleasePlan) -> None:
        """Nothing to do: the clients of a simulation are this process."""

    def client_state(self) -> Memory:
        """The control variates of those who have one."""
        return {str(c.index): c.control for c in self.members if c.control is not None}

    def restore_clients(self, state: Memory) -> None:
        """Give them back."""
        for client in self.members:
            client.control = state.get(str(client.index))
