"""Composes labelled releases and answers for whom, through which channel, and by when epsilon was spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from accountant.bounds import Method, Spent, as_event, best_order, spent, worst
from accountant.conversion import require_delta
from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    Composed,
    Event,
    Neighbouring,
    NeighbouringMismatch,
    Nothing,
    Repeated,
    Unit,
    all_replaced,
    as_adjacency,
    as_unit,
    common_neighbouring,
)
from accountant.rdp import Array, rdp
from accountant.spending import (
    Client,
    Payer,
    attribute_of,
    clients,
    largest_on_change,
    listable,
    payer_of,
    require_count,
    require_group,
    require_name,
    require_one_spelling,
)


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
        self._spellings: dict[str, dict[str, str]] = {"client": {}, "group": {}}

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
        release = Release(converted, count, client, group, channel, round)
        labels = {"client": client, "group": group}
        new = {kind: require_one_spelling(kind, [label], self._spellings[kind]) for kind, label in labels.items()}
        for kind, spelling in new.items():
            self._spellings[kind].update(spelling)
        self._releases.append(release)
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
        """The worst record's cost: of the run, of one client, group or channel, of the rounds so far.

        Where records can be of too many kinds to go through them (many attributes), the bound is by RDP, from the
        largest curve of any record, whatever the method asked for; the answer names its method.
        """
        require_delta(delta)
        chosen = [r for r in self._releases if channel is None or r.channel == channel]
        if up_to_round is not None:
            chosen = [r for r in chosen if r.round is None or r.round <= up_to_round]
        if client is not None:
            self._require_known("client", client, {r.client for r in self._releases})
        if group is not None:
            self._require_known("group", group, {r.group for r in self._releases})
        return _worst_record(chosen, client or "", group or "", delta, method)

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
        groups = sorted({r.group for r in self._releases if r.group})
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

        The old group's releases see a removal and the new group's an addition: both compose. A group that nothing
        was released about may be either. Releases over everybody, and over the person's groups of other attributes,
        see a record replaced (`all_replaced`), each other attribute by its dearest group (see `largest_on_change`).
        """
        if self.neighbouring != Neighbouring(Adjacency.ADD_OR_REMOVE, Unit.RECORD):
            remedy = "Under replace-one within a group the groups are public and nothing hides who is in which."
            raise InputError("accountant", "must be for add-or-remove one record", str(self.neighbouring), remedy)
        attribute = attribute_of(require_group(old))
        if old == new or not old or attribute_of(require_group(new)) != attribute:
            raise InputError("new", "must be another group of the same attribute", (old, new))
        known = {r.group for r in self._releases}
        if new not in known:
            self._require_known("group", old, known)
        self._require_known("client", client, {r.client for r in self._releases})
        paid = _by_payer(r for r in self._releases if attribute_of(r.group) != attribute or r.group in (old, new))

        def curve(orders: tuple[float, ...]) -> Array:
            def grouped(payer: Payer) -> Array:
                return _sum_of_curves(paid[payer], orders)

            def replaced(payer: Payer) -> Array:
                return _sum_of_curves(all_replaced(paid[payer]), orders)

            size = len(orders)
            found = [largest_on_change(one, attribute, grouped, replaced, size) for one in clients(paid, client)]
            largest: Array = np.max(found, axis=0)
            return largest

        worst = best_order(curve, delta)
        return Spent(worst[0], delta, "rdp", None, order=worst[1])

    def _require_known(self, name: str, value: str, known: set[str]) -> None:
        if value and value not in known:
            raise InputError(name, f"must be one of {sorted(known - {''})}", value)


def _by_payer(releases: Iterable[Release]) -> dict[Payer, Counter[Event]]:
    paid: dict[Payer, Counter[Event]] = {}
    for release in releases:
        paid.setdefault(release.payer, Counter())[release.event] += release.count
    return paid


def _worst_record(releases: Iterable[Release], client: str, group: str, delta: float, method: Method) -> Spent:
    """What the worst record pays for these releases: of one client and group, or of all ("")."""
    paid = _by_payer(releases)
    few, many = listable(clients(paid, client, group))
    found = worst(((one.name, _together(paid, payers)) for one in few for payers in one.records()), delta, method)
    worst_case = found[0] if found else spent(Nothing(), delta, method)
    for one in many:

        def curve(orders: tuple[float, ...], one: Client = one) -> Array:
            return one.largest(lambda payer: _sum_of_curves(paid[payer], orders), len(orders))

        bound, order = best_order(curve, delta)
        if bound > worst_case.epsilon:
            neighbouring = common_neighbouring(event.neighbouring for events in paid.values() for event in events)
            worst_case = Spent(bound, delta, "rdp", neighbouring, order=order)
    return worst_case


def _together(paid: Mapping[Payer, Counter[Event]], payers: Iterable[Payer]) -> Event:
    total: Counter[Event] = Counter()
    for payer in payers:
        total.update(paid[payer])
    return Composed(tuple(Repeated(event, count) for event, count in total.items()))


def _sum_of_curves(costs: Mapping[Event, int], orders: tuple[float, ...]) -> Array:
    total = np.zeros(len(orders))
    for event, count in costs.items():
        total += count * rdp(event, orders)
    return total
