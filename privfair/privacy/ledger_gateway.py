"""The desk at a client's door: nothing is answered before its price is in the ledger.

    reserve  ->  redeem  ->  answer, with noise  ->  store the message  ->  hand it over

Every arrow waits for the disk. After a crash the same request gets the stored message, byte for byte; where noise may
have been drawn but no message was stored, the release counts as made and another one is reserved.

Many runs at once (`settle`) begin afresh after a crash, so nothing is stored for them: what all of them are about to
answer is reserved and redeemed in one transaction, and only then answered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accountant.errors import Refused
from accountant.events import Nothing
from accountant.ledger.chain import Progress, Reservation
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend
from privfair.channels.base import PriceList, round_of
from privfair.channels.counts import COUNTS
from privfair.federated.exchange import decode, encode
from privfair.federated.messages import Reply, Request

Answer = Callable[[int, Request], Reply]
Place = tuple[str, str, int | None]  # client, channel, round


class RetriesUsedUp(Refused):
    """A release was lost so often that another one would cost more than the plan allows."""


@dataclass(frozen=True)
class Work:
    """One request on its way: what it costs, and what is known of it from before a crash."""

    client: int
    request: Request
    spends: tuple[Spend, ...]
    place: Place

    @property
    def places(self) -> set[Place]:
        """Where something is released: its own place, and that of what travels with it in the same message."""
        return {self.place, *((self.place[0], spend.channel, spend.round) for spend in self.spends)}


class LedgerGateway:
    """Answers requests for several clients of one process, in as few transactions as possible.

    retries: how many lost releases of one client and channel the plan has room for; None: no target, no limit.
    unplanned: channels without that limit. Counts are one where the plan is made after them, by who sees how often
    they were released; where the planner does not see that, no channel is.
    """

    def __init__(
        self,
        ledger: Ledger,
        prices: Sequence[PriceList],
        *,
        run: str,
        fingerprint: str,
        retries: int | None,
        unplanned: Sequence[str] = (COUNTS,),
        made_anew: Sequence[str] = (),
        once: Callable[[Request], bool] | None = None,
    ) -> None:
        """Look up what the run released before, if it is being resumed.

        `made_anew`: channels whose messages are of no use after a restart, because they were masked under keys that are
        gone. They count as lost releases: they are paid, and made and paid again. `once`: which requests are answered
        once, whatever `retries` says: what is masked serves once, and the plan has it once.
        """
        self._once = once
        self._made_anew, self._run = made_anew, run
        self._ledger, self._prices, self._fingerprint, self._retries = ledger, prices, fingerprint, retries
        self._unplanned = unplanned
        self._tokens: dict[Place, list[str]] = defaultdict(list)
        self._prices_paid: dict[str, list[Spend]] = defaultdict(list)
        for token, spend in ledger.spends(run=run):
            place = (spend.client, spend.channel, spend.round)
            if token not in self._tokens[place]:
                self._tokens[place].append(token)
            self._prices_paid[token].append(spend)
        self.rows = sum(len(spends) for spends in self._prices_paid.values())  # of this run, in the ledger
        self._undelivered = {place for place, tokens in self._tokens.items() if tokens}
        self._stored: list[str] = []

    def releases_of_counts(self) -> int:
        """How often the unluckiest client has released its counts so far."""
        return max((len(tokens) for (_, channel, _), tokens in self._tokens.items() if channel == COUNTS), default=0)

    def answer(self, requests: Sequence[tuple[int, Request]], answer: Answer) -> list[Reply]:
        """The reply to each (client, request): stored ones again, others made and paid for."""
        work = [self._priced(client, request) for client, request in requests]
        if len({w.place for w in work}) < len(work):
            raise Refused("The same release is asked for twice at once.")
        messages = {w.place: message for w in work if (message := self._message(w)) is not None}
        missing = [w for w in work if w.place not in messages]
        if missing:
            tokens = self._reserved(missing)
            self._ledger.redeem(tokens)
            made = {w.place: encode(answer(w.client, w.request)) for w in missing}
            self._ledger.store_messages(dict(zip(tokens, made.values(), strict=True)))
            self._stored += tokens
            messages |= made
        return [decode(messages[w.place]) for w in work]

    def released(self, client: int, request: Request) -> bool:
        """Whether something was, or may have been, released in the place of this request before."""
        return bool(self._tokens.get(self._priced(client, request).place))

    def stored(self, client: int, channel: str, number: int | None) -> bytes | None:
        """The reply on this channel in this round that is in the ledger already, and would be given again."""
        tokens = self._tokens.get((self._prices[client].client, channel, number), [])
        return next((m for token in tokens if (m := self._ledger.message(token)) is not None), None)

    def made(self, client: int, channel: str, number: int | None) -> bool:
        """Whether noise may have been drawn on this channel in this round before."""
        tokens = self._tokens.get((self._prices[client].client, channel, number), [])
        return any(self._ledger.progress(token) is not Progress.RESERVED for token in tokens)

    def settled(self, client: int, channel: str, number: int, content: bytes) -> bytes:
        """What is in the ledger in this place, for good: `content`, unless something else was there before.

        It is no release, and costs nothing. A folder that is put back to an earlier state does not put the ledger back.
        """
        prices = self._prices[client]
        place = (prices.client, channel, number)
        known = self.stored(client, channel, number)
        if known is not None:
            return known
        if not self._tokens[place]:  # a row without content: a crash came between, and nothing has left
            row = Spend(prices.dataset, Nothing(), prices.client, "", channel, self._run, number)
            self._tokens[place] += self._ledger.spend_many([(row,)], fingerprint=self._fingerprint)
            self.rows += 1
        self._ledger.store_message(self._tokens[place][0], content)
        return content

    @property
    def begun_anew(self) -> bool:
        """Whether nothing from before a crash waits here: no message to hand out again, no token to use."""
        return not self._undelivered

    def bill(self, requests: Sequence[tuple[int, Request]]) -> Bill:
        """What these answers cost, to be settled with the bills of other runs."""
        work = [self._priced(client, request) for client, request in requests]
        for w in work:
            self._require_room(w)
        return Bill(self, tuple(work))

    def paid(self, work: Sequence[Work], tokens: Sequence[str]) -> None:
        """Note releases that were reserved and redeemed."""
        for w, token in zip(work, tokens, strict=True):
            self._note(w, token)
            self.rows += len(w.spends)

    def _note(self, work: Work, token: str) -> None:
        for place in work.places:
            self._tokens[place].append(token)
        self._prices_paid[token] = list(work.spends)

    @property
    def account(self) -> tuple[str, str, str]:
        """What bills must agree in to be settled together: ledger, dataset, fingerprint."""
        return self._ledger.ledger_id, self._prices[0].dataset, self._fingerprint

    @property
    def ledger(self) -> Ledger:
        """Where it writes."""
        return self._ledger

    @property
    def prices(self) -> Sequence[PriceList]:
        """Every client's prices."""
        return self._prices

    def delivered(self) -> None:
        """All that was answered so far has arrived and is kept elsewhere: forget the messages, not their prices."""
        before = [token for place in self._undelivered for token in self._tokens[place]]
        if self._stored or before:
            self._ledger.discard_message(*dict.fromkeys(self._stored + before))
        self._stored.clear()
        self._undelivered.clear()

    def _priced(self, client: int, request: Request) -> Work:
        prices = self._prices[client]
        return Work(client, request, prices.spends(request), (prices.client, request.channel, round_of(request)))

    def _message(self, work: Work) -> bytes | None:
        """What was stored for this request, before a crash or since: one release, however often it is asked for."""
        if work.place[1] in self._made_anew:
            return None
        for token in self._tokens.get(work.place, ()):
            message = self._ledger.message(token)
            if message is not None and self._prices_paid[token] != list(work.spends):
                client, channel, _ = work.place
                raise Refused(
                    f"Client {client!r} stored its {channel} under other terms than are asked for now. A run goes on "
                    "with the configuration it was started with; start a new one."
                )
            if message is not None:
                self._stored.append(token)
                return message
        return None

    def _reserved(self, work: Sequence[Work]) -> list[str]:
        """A token for each: one reserved before a crash and never used, or a new one."""
        tokens = {w.place: token for w in work if (token := self._unused(w)) is not None}
        new = [w for w in work if w.place not in tokens]
        for w in new:
            self._require_room(w)
        if new:
            reservations: list[Reservation] = self._ledger.reserve_many(
                [w.spends for w in new], fingerprint=self._fingerprint
            )
            self.rows += sum(len(w.spends) for w in new)
            for w, reservation in zip(new, reservations, strict=True):
                tokens[w.place] = reservation.token
                self._note(w, reservation.token)
        return [tokens[w.place] for w in work]

    def _unused(self, work: Work) -> str | None:
        if work.place in self._undelivered:
            for token in self._tokens[work.place]:
                same = self._prices_paid[token] == list(work.spends)
                if same and self._ledger.progress(token) is Progress.RESERVED:
                    return token
        return None

    def _require_room(self, work: Work) -> None:
        """A lost release is made again only while the plan has room for it, and for all that travels with it."""
        if self._once is not None and self._once(work.request) and self._tokens.get(work.place):
            client, channel, _ = work.place
            raise RetriesUsedUp(f"Client {client!r} masked its {channel} before: that is made, and paid for, once.")
        for place in sorted(work.places, key=str):
            self._require_room_in(place)

    def _require_room_in(self, place: Place) -> None:
        client, channel, _ = place
        if self._retries is None or channel in self._unplanned or not self._tokens[place]:
            return
        lost = sum(len(t) - 1 for (c, ch, _), t in self._tokens.items() if (c, ch) == (client, channel) and t) + 1
        if lost > self._retries:
            raise RetriesUsedUp(
                f"Client {client!r} lost {lost} releases of its {channel} in crashes, and the plan has room for "
                f"{self._retries}: one more would cost more than privacy.epsilon. What was trained so far stays as it "
                "is. Start a new run with a larger privacy.retries."
            )


@dataclass(frozen=True)
class Bill:
    """What the answers of one exchange of one run cost."""

    gateway: LedgerGateway
    work: tuple[Work, ...]


def settle(bills: Sequence[Bill]) -> dict[int, Exception]:
    """Pay the bills of many runs, in one transaction for each ledger and dataset; the paid answers may be made now.

    All of such a group or none: the numbers of those that could not be paid come back, with the reason. They must not
    be answered.
    """
    accounts: dict[tuple[str, str, str], list[int]] = {}
    for number, bill in enumerate(bills):
        accounts.setdefault(bill.gateway.account, []).append(number)
    unpaid: dict[int, Exception] = {}
    for (_, _, fingerprint), numbers in accounts.items():
        work = [w for n in numbers for w in bills[n].work]
        try:
            tokens = iter(
                bills[numbers[0]].gateway.ledger.spend_many([w.spends for w in work], fingerprint=fingerprint)
            )
        except Exception as error:  # noqa: BLE001 - whatever kept it from the disk: none of these runs may answer
            unpaid |= dict.fromkeys(numbers, error)
            continue
        for n in numbers:
            bills[n].gateway.paid(bills[n].work, [next(tokens) for _ in bills[n].work])
    return unpaid
