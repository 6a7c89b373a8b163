"""Composes labelled releases and answers for whom, through which channel, and by when epsilon was spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from accountant.bounds import Method, Spent, as_event, best_order, spent, worst
from accountant.conversion import require_delta
from accountant.errors import InputError
from accountant.events import Composed, Event, Nothing, Repeated, count_parts
from accountant.neighbouring import (
    Adjacency,
    Neighbouring,
    NeighbouringMismatch,
    Unit,
    as_adjacency,
    as_unit,
)
from accountant.rdp import rdp
from accountant.rdp_moments import Array
from accountant.replacement import as_replaced
from accountant.spending import Payer, payer_of, record_classes, require_count, require_group, require_name


def epsilon(events: object, delta: float = 1e-5, method: Method = "rdp") -> float:
    """ε of these events together at δ: an event, a list of them, or dp-accounting's (add-or-remove)."""
    return spent(events, delta, method).epsilon


@dataclass(frozen=True)
class Release:
    """One release, or `count` equal ones, and whose it was.

    client "" touches every client's records; group "" touches every group's, otherwise "attribute=value".
    A release without a round happens before the first.
    """

    event: Event
    count: int = 1
    client: str = ""
    group: str = ""
    channel: str = ""
    round: int | None = None

    def __post_init__(self) -> None:
        """Refuse labels that could be read two ways."""
        require_count("count", self.count, at_least=1)
        require_name("client", self.client, empty=True)
        require_name("channel", self.channel, empty=True)
        require_group(self.group)
        if self.round is not None:
            require_count("round", self.round, at_least=0)

    @property
    def payer(self) -> Payer:
        """The client and group whose records pay for it."""
        return payer_of(self.client, self.group, self.event)


class Accountant:
    """Adds up releases on one federation's data, for one notion of neighbours.

    A record is in one client and, of each attribute, in one group: it pays for the releases of its client
    and its groups and for those of everybody. Clients compose in parallel, so the run's ε is the worst
    record's. All figures take the plan as fixed beforehand; adaptive spending goes through `RenyiFilter`.
    """

    def __init__(self, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE, unit: Unit | str = Unit.RECORD) -> None:
        """An accountant with nothing spent."""
        self.neighbouring = Neighbouring(as_adjacency(adjacency), as_unit(unit))
        self._releases: list[Release] = []

    @property
    def releases(self) -> tuple[Release, ...]:
        """Everything composed so far, in order."""
        return tuple(self._releases)

    def why_not(self, event: object) -> InputError | None:
        """Why an event cannot be composed here; None when it can."""
        try:
            converted = as_event(event, self.neighbouring.adjacency, self.neighbouring.unit)
        except InputError as error:
            return error
        if converted.neighbouring in (None, self.neighbouring):
            return None
        remedy = "State the event's sensitivity for this accountant's adjacency and unit."
        rule = f"must be for neighbours that {self.neighbouring}"
        return NeighbouringMismatch("event", rule, str(converted.neighbouring), remedy)

    def supports(self, event: object) -> bool:
        """Whether `compose` would accept the event."""
        return self.why_not(event) is None

    def compose(
        self,
        event: object,
        count: int = 1,
        *,
        client: str = "",
        group: str = "",
        channel: str = "",
        round: int | None = None,
    ) -> Accountant:
        """This accountant, with the release added; unchanged if anything about it is refused."""
        refusal = self.why_not(event)
        if refusal is not None:
            raise refusal
        converted = as_event(event, self.neighbouring.adjacency, self.neighbouring.unit)
        self._releases.append(Release(converted, count, client, group, channel, round))
        return self

    def spent(
        self,
        delta: float = 1e-5,
        method: Method = "rdp",
        *,
        client: str | None = None,
        group: str | None = None,
        channel: str | None = None,
        up_to_round: int | None = None,
    ) -> Spent:
        """The worst record's cost: of the run, of one client, group or channel, of the rounds so far."""
        require_delta(delta)
        chosen = [r for r in self._releases if channel is None or r.channel == channel]
        if up_to_round is not None:
            chosen = [r for r in chosen if r.round is None or r.round <= up_to_round]
        if client is not None:
            self._require_known("client", client, {r.client for r in self._releases})
        if group is not None:
            self._require_known("group", group, {r.group for r in self._releases})
        asked = [
            (owner, event)
            for owner, groups, event in _records(chosen)
            if client in (None, owner, "") and (not group or group in groups)
        ]
        found = worst(asked, delta, method)
        return found[0] if found else spent(Nothing(), delta, method)

    def epsilon(
        self,
        delta: float = 1e-5,
        method: Method = "rdp",
        *,
        client: str | None = None,
        group: str | None = None,
        channel: str | None = None,
        up_to_round: int | None = None,
    ) -> float:
        """ε of the run (its worst record), or of the part that is asked for."""
        found = self.spent(delta, method, client=client, group=group, channel=channel, up_to_round=up_to_round)
        return found.epsilon

    def by_client(self, delta: float = 1e-5, method: Method = "rdp") -> dict[str, float]:
        """ε of every client, of its worst record."""
        clients = sorted({r.client for r in self._releases if r.client}) or [""]
        return {client: self.epsilon(delta, method, client=client) for client in clients}

    def by_group(self, delta: float = 1e-5, method: Method = "rdp", client: str | None = None) -> dict[str, float]:
        """ε of every group's worst record, in one client or in all."""
        groups = sorted({r.group for r in self._releases if r.group and client in (None, r.client, "")})
        return {group: self.epsilon(delta, method, client=client, group=group) for group in groups}

    def by_channel(self, delta: float = 1e-5, method: Method = "rdp", client: str | None = None) -> dict[str, float]:
        """ε of every channel by itself. They do not add up to the total, which composes more tightly."""
        channels = sorted({r.channel for r in self._releases})
        return {channel: self.epsilon(delta, method, client=client, channel=channel) for channel in channels}

    def by_round(self, delta: float = 1e-5, method: Method = "rdp", client: str | None = None) -> dict[int, float]:
        """ε after every round, of the worst record so far."""
        rounds = sorted({r.round for r in self._releases if r.round is not None})
        return {number: self.epsilon(delta, method, client=client, up_to_round=number) for number in rounds}

    def spent_on_changing_group(self, client: str, old: str, new: str, delta: float = 1e-5) -> Spent:
        """What tells apart two datasets in which one person of a client is in another group (RDP).

        The old group's releases see a removal and the new group's an addition: both compose. Releases over
        everybody, and over the person's groups of other attributes, see a record replaced, a removal and an
        addition at once: they are accounted as such (`as_replaced`), each other attribute by its dearest group. All
        are Rényi bounds for the same two datasets, so they add.
        """
        if self.neighbouring != Neighbouring(Adjacency.ADD_OR_REMOVE, Unit.RECORD):
            remedy = "Under replace-one within a group the groups are public and nothing hides who is in which."
            raise InputError("accountant", "must be for add-or-remove one record", str(self.neighbouring), remedy)
        for group in (old, new):
            self._require_known("group", require_group(group), {r.group for r in self._releases})
        if old == new or old.partition("=")[0] != new.partition("=")[0]:
            raise InputError("new", "must be another group of the same attribute", (old, new))
        self._require_known("client", client, {r.client for r in self._releases})
        certain: Counter[Event] = Counter()
        others: dict[str, dict[str, Counter[Event]]] = {}  # other attribute -> its group -> costs
        own = old.partition("=")[0]
        for release in self._releases:
            attribute = release.group.partition("=")[0]
            if release.client not in ("", client) or (attribute == own and release.group not in (old, new)):
                continue
            elsewhere = release.group and attribute != own
            costs = others.setdefault(attribute, {}).setdefault(release.group, Counter()) if elsewhere else certain
            for part, count in count_parts(release.event, release.count).items():
                costs[part if attribute == own else as_replaced(part)] += count

        def curve(orders: tuple[float, ...]) -> Array:
            total = _sum_of_curves(certain.items())(orders)
            for groups in others.values():
                total = total + np.max([_sum_of_curves(costs.items())(orders) for costs in groups.values()], axis=0)
            return total

        worst = best_order(curve, delta)
        return Spent(worst[0], delta, "rdp", None, order=worst[1])

    def _require_known(self, name: str, value: str, known: set[str]) -> None:
        if value and value not in known:
            raise InputError(name, f"must be one of {sorted(known - {''})}", value)


def _records(releases: Iterable[Release]) -> Iterator[tuple[str, set[str], Event]]:
    """(client, groups, everything it pays for) of every kind of record."""
    by_payer: dict[Payer, Counter[Event]] = {}
    for release in releases:
        by_payer.setdefault(release.payer, Counter())[release.event] += release.count
    for client, payers in record_classes(by_payer):
        total: Counter[Event] = Counter()
        for payer in payers:
            total.update(by_payer[payer])
        event = Composed(tuple(Repeated(part, count) for part, count in total.items()))
        yield client, {group for _, group in payers if group}, event


def _sum_of_curves(costs: Iterable[tuple[Event, int]]) -> Callable[[tuple[float, ...]], Array]:
    parts = list(costs)

    def curve(orders: tuple[float, ...]) -> Array:
        total = np.zeros(len(orders))
        for part, count in parts:
            total += count * rdp(part, orders)
        return total

    return curve
