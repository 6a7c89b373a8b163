"""A federation whose clients are answered by the batched engine: alone, or together with other runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privfair.channels.base import ReplyCheck, channel_of
from privfair.clients.client import Client
from privfair.engines.batched.engine import Asked as Pair
from privfair.engines.batched.engine import Engine
from privfair.engines.batched.lockstep import Failed
from privfair.engines.local import InProcess
from privfair.federated.exchange import regrouped, singles
from privfair.federated.messages import Answered, Bundle, Reply, Request

if TYPE_CHECKING:
    from privfair.privacy.ledger_gateway import Bill, LedgerGateway


@dataclass(frozen=True)
class Exchange:
    """A question: what the clients of one run reply. Where it has a bill, that is to be settled first."""

    asked: list[Pair]
    bill: Bill | None = None

    @property
    def trains(self) -> bool:
        """Whether it is the training of a round: there is one such exchange in each."""
        return any(channel_of(request).phase == "training" for _, request in self.asked)


Answers = Callable[[Exchange], list[Reply | Failed]]


class Stacked(InProcess):
    """The same federation as one client after the other makes; they are asked all at once."""

    def __init__(
        self,
        clients: Sequence[Client],
        check: ReplyCheck,
        gateway: LedgerGateway | None = None,
        answers: Answers | None = None,
        *,
        settles: bool = False,
    ) -> None:
        """`answers` answers many requests at once; by default an engine of these clients alone.

        settles: it also settles bills, with those of other runs.
        """
        super().__init__(clients, check, gateway)
        self._answers, self._settles = answers, settles

    def _released(self, clients: Sequence[int], asked: Sequence[Request | Bundle]) -> list[Answered]:
        """The replies of all of them at once; a client that refuses ends the simulation."""
        requests = [(k, single) for k, one in zip(clients, asked, strict=True) for single in singles(one)]
        if self.gateway is None:
            return regrouped(asked, self._ask(requests))
        if self._settles and self.gateway.begun_anew:
            return regrouped(asked, self._ask(requests, self.gateway.bill(requests)))
        # By client and the request's id: clients may share a request, and all live until the end of this function.
        made: dict[tuple[int, int], Reply] = {}

        def answer(client: int, single: Request) -> Reply:
            if not made:  # the first that is paid for: all of this exchange are, and they are answered together
                made.update(zip(((k, id(r)) for k, r in requests), self._ask(requests), strict=True))
            return made[client, id(single)]

        return regrouped(asked, self.gateway.answer(requests, answer))

    def _ask(self, requests: list[tuple[int, Request]], bill: Bill | None = None) -> list[Reply]:
        replies = []
        if self._answers is None:
            engine = Engine(self.members)
            self._answers = lambda exchange: engine.replies(exchange.asked)
        answers = self._answers(Exchange([(self.members[k], asked) for k, asked in requests], bill))
        for (k, asked), reply in zip(requests, answers, strict=True):
            if isinstance(reply, Failed):
                raise reply.error
            replies.append(self.check(self.members[k].name, asked, reply))
        return replies
