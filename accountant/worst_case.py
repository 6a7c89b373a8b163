"""ε of the worst record behind a set of releases: the one routine of `Accountant`, statements and audits.

A record is in one client and, of each attribute, in one group (or in a group that nothing was released about). It
pays for releases from all clients or its client, over all groups or its own: {"", client} × {"", its groups}. Every
kind of record there can be has a composition, and the costliest composition is the worst case. Where there are too
many kinds to list them, only the largest RDP curve of any record is computed, which is never below the worst case.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

import numpy as np

from accountant.bounds import TOLERATED, CurveOf, Method, Spent, best_order, spent
from accountant.conversion import epsilon_from_rdp
from accountant.errors import InputError
from accountant.events import (
    Composed,
    Event,
    Neighbouring,
    Repeated,
    all_replaced,
    canonical_json,
    common_neighbouring,
)
from accountant.rdp import DEFAULT_ORDERS, Array, rdp
from accountant.spending import Payer, Release, Spend, attribute_of, is_side

# So many kinds of records are listed one by one; where there are more, only their largest curve is computed.
MOST_KINDS = 1024

Releases = dict[Payer, Counter[Event]]  # how often each payer made each release
CurveOfPayer = Callable[[Payer], Array]
T = TypeVar("T")


@dataclass(frozen=True)
class Epsilon:
    """ε of one composition. pld: the smaller of both bounds; None when PLD was not asked for."""

    rdp: float
    pld: float | None = None


@dataclass
class WorstCase:
    """Computes the worst record's ε at one δ. Both methods hold for plans fixed before their first release.

    lenient: for audits. RDP's bound takes the place of PLD's where that is larger, cannot be computed, or would be one
    of more than `pld_limit` (PLD takes up to a second for each composition); `rdp_for_pld` reports the last. And events
    add up in the order of their text, so that equal rows have the same ε to the last bit, in whatever order they were
    written. Otherwise they add up in the order in which they were composed, and PLD that cannot be computed raises.
    """

    delta: float
    with_pld: bool = True
    pld_limit: int = 12
    lenient: bool = True
    rdp_for_pld: bool = False
    _pld: dict[Event, Spent] = field(default_factory=dict)

    def of_worst(self, releases: Releases, client: str = "", group: str = "") -> Epsilon:
        """ε of the worst record by both methods: of all, of one client's, or of one group's."""
        by_rdp = self.spent(releases, "rdp", client, group).epsilon
        return Epsilon(by_rdp, self.spent(releases, "pld", client, group).epsilon if self.with_pld else None)

    def spent(self, releases: Releases, method: Method, client: str = "", group: str = "") -> Spent:
        """What the worst record pays: of all, of one client's, or of one group's.

        Where only the largest RDP curve is computed the bound is by RDP, whatever the method; the answer names its own.
        """
        few, many = listable(clients(releases, client, group))
        compositions = [self._composed(releases, payers) for one in few for payers in one.records()]
        slack = TOLERATED if method == "pld" and not self.lenient else 1.0  # PLD may be 1% above RDP
        found = costliest(compositions, self._on_grid, lambda event: self._cost(event, method), slack)
        bounds = [] if found is None else [found[0]]
        if many:
            self.rdp_for_pld |= method == "pld"
            neighbouring = common_neighbouring(event.neighbouring for events in releases.values() for event in events)
            curves = [_largest_curve(releases, one) for one in many]
            bound = costliest(curves, self._on_grid_of, lambda curve: spent_by_curve(curve, self.delta, neighbouring))
            bounds += [] if bound is None else [bound[0]]
        return max(bounds, key=lambda one: one.epsilon)

    def on_change(self, releases: Releases, attribute: str, client: str = "") -> Spent:
        """What distinguishes datasets in which one record is in another group of the attribute; the worst, by RDP."""
        replaced = {payer: all_replaced(events) for payer, events in releases.items()}

        def curve_of(one: Client) -> CurveOf:
            return lambda orders: largest_on_change(
                one,
                attribute,
                lambda payer: sum_of_curves(releases[payer], orders),
                lambda payer: sum_of_curves(replaced[payer], orders),
                len(orders),
            )

        found = [spent_by_curve(curve_of(one), self.delta, None) for one in clients(releases, client)]
        return max(found, key=lambda one: one.epsilon)

    def _composed(self, releases: Releases, payers: Iterable[Payer]) -> Event:
        total: Counter[Event] = Counter()
        for payer in payers:
            total.update(releases[payer])
        events = sorted(total, key=canonical_json) if self.lenient else total
        return Composed(tuple(Repeated(event, total[event]) for event in events))

    def _on_grid(self, event: Event) -> float:
        """ε on a fixed grid of orders, a bound like the searched one; parts are computed once for all compositions."""
        return self._on_grid_of(lambda orders: rdp(event, orders))

    def _on_grid_of(self, curve: CurveOf) -> float:
        return epsilon_from_rdp(DEFAULT_ORDERS, curve(DEFAULT_ORDERS), self.delta)[0]

    def _cost(self, event: Event, method: Method) -> Spent:
        by_rdp = spent(event, self.delta)
        if method == "rdp" or (self.lenient and by_rdp.epsilon == 0):
            return by_rdp
        if not self.lenient:
            return spent(event, self.delta, method)
        if event not in self._pld:
            if len(self._pld) >= self.pld_limit:
                self.rdp_for_pld = True
                return by_rdp
            try:
                self._pld[event] = min(by_rdp, spent(event, self.delta, method), key=lambda one: one.epsilon)
            except InputError:  # the loss grid cannot resolve these events; RDP stands
                self._pld[event] = by_rdp
        return self._pld[event]


def released_epsilon(spends: Iterable[Spend], delta: float, *, with_pld: bool = True) -> Epsilon:
    """ε of the worst record behind these rows: the figure of a run's statement, and of an audit at the same δ."""
    releases = by_payer(spends)
    return WorstCase(delta, with_pld, pld_limit=sys.maxsize).of_worst(releases) if releases else Epsilon(0.0, 0.0)


def by_payer(releases: Iterable[Release | Spend]) -> Releases:
    """How often each payer made each release, in the order of the first of each."""
    found: Releases = {}
    for release in releases:
        found.setdefault(release.payer, Counter())[release.event] += release.count
    return found


def costliest(
    candidates: Iterable[T], at_most: Callable[[T], float], cost: Callable[[T], Spent], slack: float = 1.0
) -> tuple[Spent, T] | None:
    """The largest cost and what has it; None without candidates. Equal candidates are computed once.

    at_most: an upper bound, cheaper than the cost, which is at most 1/slack above it. A cost is only computed where
    its bound leaves room for it to be the largest.
    """
    different = list(dict.fromkeys(candidates))
    if len(different) == 1:
        return cost(different[0]), different[0]
    best: tuple[Spent, T] | None = None
    for bound, candidate in sorted(((at_most(c), c) for c in different), key=lambda one: one[0], reverse=True):
        if best is not None and bound <= slack * best[0].epsilon:
            break
        found = cost(candidate)
        if best is None or found.epsilon > best[0].epsilon:
            best = found, candidate
    return best


def spent_by_curve(curve: CurveOf, delta: float, neighbouring: Neighbouring | None) -> Spent:
    """What an RDP curve stands for at its best order."""
    epsilon, order = best_order(curve, delta)
    return Spent(epsilon, delta, "rdp", neighbouring, order=order)


def sum_of_curves(costs: Mapping[Event, int], orders: tuple[float, ...]) -> Array:
    """The RDP of all events together at these orders."""
    total = np.zeros(len(orders))
    for event, count in costs.items():
        total += count * rdp(event, orders)
    return total


def _largest_curve(releases: Releases, client: Client) -> CurveOf:
    return lambda orders: client.largest(lambda payer: sum_of_curves(releases[payer], orders), len(orders))


@dataclass(frozen=True)
class Client:
    """What the records of one client pay for: `always`, and of each attribute the payers of one of its groups."""

    name: str
    always: tuple[Payer, ...]
    attributes: Mapping[str, tuple[tuple[Payer, ...], ...]]

    @property
    def kinds(self) -> int:
        """How many kinds of records this client can have."""
        return math.prod(len(groups) for groups in self.attributes.values())

    def records(self) -> Iterator[tuple[Payer, ...]]:
        """The payers of every kind of record."""
        for choice in product(*self.attributes.values()):
            yield self.always + tuple(payer for payers in choice for payer in payers)

    def largest(self, curve: CurveOfPayer, size: int) -> Array:
        """At each order the largest RDP of any record: RDP adds, so each attribute has its costliest group.

        Where two records' curves cross, this is above both; it is never below any.
        """
        total = self.sum_of(self.always, curve, size)
        for groups in self.attributes.values():
            total += np.max([self.sum_of(payers, curve, size) for payers in groups], axis=0)
        return total

    @staticmethod
    def sum_of(payers: Iterable[Payer], curve: CurveOfPayer, size: int) -> Array:
        """The RDP of these payers together."""
        total = np.zeros(size)
        for payer in payers:
            total += curve(payer)
        return total


def clients(payers: Iterable[Payer], client: str = "", group: str = "") -> list[Client]:
    """What the records of each client pay for, of those who paid; or of one client, or of one group, only.

    A client or group that none of the payers names still pays for the releases that touch everybody. Without a
    named client there is one without a name: a record has to be somewhere.
    """
    of_owner: dict[str, list[Payer]] = {}
    for payer in payers:
        of_owner.setdefault(payer[0], []).append(payer)
    shared = of_owner.pop("", [])
    names = [client] if client else sorted(of_owner) or [""]
    return [_client(name, sorted(shared + of_owner.get(name, [])), group) for name in names]


def _client(name: str, payers: list[Payer], group: str) -> Client:
    only = attribute_of(group)
    groups: dict[str, dict[str, list[Payer]]] = {only: {group: []}} if group else {}
    for payer in payers:
        attribute = attribute_of(payer[1])
        if payer[1] and (attribute != only or payer[1] == group):
            groups.setdefault(attribute, {}).setdefault(payer[1], []).append(payer)
    return Client(
        name,
        tuple(payer for payer in payers if not payer[1]),
        {attribute: tuple(map(tuple, found.values())) for attribute, found in groups.items()},
    )


def listable(found: Iterable[Client]) -> tuple[list[Client], list[Client]]:
    """(clients whose kinds of records are few enough to be listed, those that have too many)."""
    everyone = list(found)
    room = max(1, MOST_KINDS // max(1, len(everyone)))
    few = [client for client in everyone if client.kinds <= room]
    return few, [client for client in everyone if client.kinds > room]


def largest_on_change(
    client: Client, attribute: str, grouped: CurveOfPayer, replaced: CurveOfPayer, size: int
) -> Array:
    """At each order the largest RDP between datasets in which one record is in another group of the attribute.

    The old group's releases see a removal, the new group's an addition; either may be a group that nothing was
    released about, so of one group alone that group still pays. All other releases on the record may see it
    changed, that is replaced (`replaced`). An attribute that combines this one with others ("sex,race") changes
    too: there both are possible. All are Rényi bounds for the same two datasets, so they add.
    """
    total = client.sum_of(client.always, replaced, size)
    changed = set(attribute.split(","))
    for name, groups in client.attributes.items():
        moved = _two_largest([client.sum_of(payers, grouped, size) for payers in groups])
        if name == attribute:
            total += moved
            continue
        stayed = np.max([client.sum_of(payers, replaced, size) for payers in groups], axis=0)
        # a record that is another may be on the other side of a run's division: removed from one, added to the other
        total += np.maximum(moved, stayed) if is_side(name) or changed & set(name.split(",")) else stayed
    return total


def _two_largest(curves: list[Array]) -> Array:
    """At each order the sum of the two largest; of a single curve, itself."""
    result: Array = np.sum(np.sort(np.array(curves), axis=0)[-2:], axis=0)
    return result
