"""A data holder's ledger while it answers one message: what it releases is paid for there, and kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from accountant.errors import Refused
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.interfaces import ServerState
from privfair.messages import CountsRequest, Reply, Request, Sealed
from privfair.parts import Parts
from privfair.privacy.books import Books, cell_labels
from privfair.privacy.collusion import collusion
from privfair.privacy.desk import Desk
from privfair.privacy.forecast import count_spends, planned_spends
from privfair.privacy.pricing import EMBEDDINGS, PREDICTIONS, UPDATES, PriceList
from privfair.privacy.statement import account, noise, total_epsilon
from privfair.terms import Terms
from privfair.wire import encode


@dataclass(frozen=True)
class Session:
    """The desk of one holder in one run."""

    books: Books
    desk: Desk
    price: PriceList
    parts: Parts
    me: int

    @property
    def rows(self) -> int:
        """This holder's rows of the run."""
        return sum(spend.client == self.price.client for _, spend in self.books.ledger.spends(run=self.books.run))

    def rounds(self, channel: str) -> list[int]:
        """The rounds for which this holder has rows on a channel."""
        rows = (s for _, s in self.books.ledger.spends(run=self.books.run) if s.client == self.price.client)
        return [s.round for s in rows if s.channel == channel and s.round is not None]

    def answer(self, request: Request, respond: Callable[[Request], Reply]) -> bytes:
        """The message of the answer: the stored one, or one that is made and paid for now."""
        return encode(self.desk.answer([(0, request)], lambda _, asked: respond(asked))[0])

    def released_counts(self) -> bytes | None:
        """The message of the counts that left in this run; None where none did."""
        planner = self.parts.planner
        return None if planner is None else self.desk.stored(0, CountsRequest(planner.count_noise))

    def require_room(self, terms: Terms | None) -> None:
        """Nothing, if the rest of the run fits into the data's budget; before terms, as far as it is known."""
        if not self.books.budgeted or self.parts.planner is None:
            return
        plan, rounds, prices = self.parts.plan, self.parts.config.federation.rounds, {self.me: self.price}
        known = terms or self.parts.planner.terms_beforehand(self.parts.clients)
        state = ServerState(0, Sealed(0, b""), known, {})
        counts = count_spends(known, [self.price]) if terms is None else []
        self.books.ledger.require_room([*counts, *planned_spends(state, plan, rounds, prices)])

    def forget(self, round_number: int) -> None:
        """Let go of the stored messages of a round that is over; their prices stay."""
        for channel in (PREDICTIONS, EMBEDDINGS, UPDATES):
            found = self.books.ledger.reservations(
                run=self.books.run, round=round_number, client=self.price.client, channel=channel
            )
            if found:
                self.books.ledger.discard_message(*(reservation.token for reservation in found))

    def statement(self, terms: Terms) -> dict[str, Any]:
        """What this holder released in the run, and what bounds it: the plan, as long as it was kept.

        Who takes part in which round is not in this holder's hands: nothing less than the plan is claimed.
        """
        planner, ledger, config, claim = self.parts.planner, self.books.ledger, self.parts.config, terms.claim
        if planner is None or claim is None:
            raise ValueError("a run without privacy has no statement")
        mine = [s for _, s in ledger.spends(run=self.books.run) if s.client == self.price.client]
        accountant, prices = account(mine, planner.neighbouring), {self.me: self.price}
        total = total_epsilon(config, terms, mine, plan=self.parts.plan, prices=prices, absent=True)
        spent, head, inferred = accountant.by_channel(claim.delta), ledger.head(), self.parts.schema.inferred
        bounded = math.isfinite(total.pld) and not total.broken
        return {
            "client": self.price.client,
            "private": bounded and not (self.books.seeded or inferred),
            "claim": total.broken,
            "epsilon": {"rdp": _finite(total.rdp), "pld": _finite(total.pld)},
            "epsilon_of": total.of,
            "delta": claim.delta,
            "adjacency": str(planner.adjacency),
            "unit": str(planner.unit),
            "seeded": self.books.seeded,
            "schema_inferred": inferred,
            "beyond_plan": list(total.beyond),
            "spent_by_channel": {channel: _finite(value) for channel, value in spent.items()},
            "noise": noise(terms, config.run.engine),
            "collusion": collusion(terms, planner),
            "ledger": {
                "url": ledger.url,
                "id": ledger.ledger_id,
                "dataset": self.books.dataset,
                "run": self.books.run,
                "rows": len(mine),
                "head": head.hash,
                "head_row": head.sequence,
            },
        }


@contextmanager
def session(
    config: Config, federation: Federation, parts: Parts, me: int, run: str, ledger_id: str | None, rows: int = 0
) -> Iterator[Session]:
    """Open the holder's ledger for a run; one that lacks rows it had before is refused."""
    if parts.planner is None:
        raise ValueError("a run without privacy has no ledger")
    books = Books.open(config, federation, run, ledger_id=ledger_id, without_noise=parts.planner.without_noise)
    try:
        price = PriceList(
            dataset=books.dataset,
            run=run,
            client=federation.clients[0].name,
            labels=cell_labels(parts.cells, parts.schema),
            cells=parts.cells,
            adjacency=parts.planner.adjacency,
            cell_counts=parts.cells.membership(federation.clients[0].train).sum(axis=0),
            unit=parts.planner.unit,
        )
        desk = Desk(
            books.ledger,
            [price],
            run=run,
            fingerprint=books.fingerprint,
            retries=config.privacy.retries,  # the server does not see this ledger: it plans with so many
            unplanned=(),
        )
        found = Session(books, desk, price, parts, me)
        if found.rows < rows:
            raise Refused("The ledger is an older copy: rows of this run are missing. Put the newer one back.")
        yield found
    finally:
        books.ledger.close()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
