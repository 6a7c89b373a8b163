"""All clients in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from accountant.errors import InputError
from privfair.channels.base import ReplyCheck, channel_of, respond
from privfair.channels.updates import UPDATES
from privfair.clients.client import Client
from privfair.federated.exchange import Memory, regrouped, singles
from privfair.federated.messages import Answered, Asked, Bundle, MaskingRequest, Reply, Request
from privfair.federated.release_plan import ReleasePlan, terms_digest
from privfair.federated.secure_sums import MaskingDesk

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
        """Ask each in turn; a client that refuses ends the simulation.

        What the protocol of masks asks is no release: a client's masking desk answers it, which has no records. All
        else passes the ledger gateway.
        """
        asked = [(k, request(k)) for k in clients]
        others = [(k, one) for k, one in asked if not isinstance(one, MaskingRequest)]
        self._follow([(k, single) for k, one in others for single in singles(one)])
        released = iter(self._released([k for k, _ in others], [one for _, one in others]))
        return [self._desk(k).answer(one) if isinstance(one, MaskingRequest) else next(released) for k, one in asked]

    def _follow(self, requests: Sequence[tuple[int, Request]]) -> None:
        """Open the features that λ follows: also where the answers are stored ones, for which nobody opens them."""
        for k, request in requests:
            if request.channel == UPDATES and self.members[k].replica.controller is not None:
                channel_of(request).opened(request, self.members[k])
                return  # all clients of this process have one λ

    def _released(self, clients: Sequence[int], asked: Sequence[Request | Bundle]) -> list[Answered]:
        """Replies to requests that have a price."""
        requests = [(k, single) for k, one in zip(clients, asked, strict=True) for single in singles(one)]
        if not requests:
            return []
        if self.gateway is None:
            return regrouped(asked, [self._answer(k, single) for k, single in requests])
        return regrouped(asked, self.gateway.answer(requests, self._answer))

    def _desk(self, client: int) -> MaskingDesk:
        desk = self.members[client].masking
        if desk is None:
            raise InputError("request", "must be of a run with masks", "masks")
        return desk

    def _answer(self, client: int, request: Request) -> Reply:
        return self.check(self.members[client].name, request, respond(self.members[client], request))

    def agreed(self, release_plan: ReleasePlan) -> None:
        """The clients of a simulation are this process: they scale their features, and mask under these terms."""
        if release_plan.scaled:
            for client in self.members:
                client.scale(release_plan.scaling)
        desks = [client.masking for client in self.members if client.masking is not None]
        terms = terms_digest(release_plan) if desks else b""
        for desk in desks:
            desk.agreed(terms)

    def client_state(self) -> Memory:
        """The control variates of those who have one."""
        return {str(c.index): c.control for c in self.members if c.control is not None}

    def restore_clients(self, state: Memory) -> None:
        """Give them back."""
        for client in self.members:
            client.control = state.get(str(client.index))
