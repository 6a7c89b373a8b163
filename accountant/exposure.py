"""ε of the worst record behind a set of releases, by RDP and by PLD; equal compositions are computed once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from accountant.accountant import epsilon
from accountant.books import event_of
from accountant.bounds import best_order
from accountant.conversion import epsilon_from_rdp
from accountant.errors import InputError
from accountant.events import Composed, Event, Repeated
from accountant.rdp import DEFAULT_ORDERS, rdp
from accountant.rdp_moments import Array
from accountant.replacement import as_replaced
from accountant.spending import Payer, record_classes
from accountant.tally import View

Parts = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Epsilon:
    """ε of one composition. pld: the smaller of both bounds; None when PLD was not asked for."""

    rdp: float
    pld: float | None = None


@dataclass
class Exposure:
    """Computes ε at one δ, remembering compositions it has seen.

    with_pld: also by privacy loss distributions, which hold for plans fixed before their first release.
    pld_limit: at most so many different compositions by PLD, which takes up to a second each; beyond that
    number, RDP's bound takes its place.
    """

    delta: float
    with_pld: bool = True
    pld_limit: int = 12
    _on_grid: dict[Parts, float] = field(default_factory=dict)
    _rdp: dict[Parts, float] = field(default_factory=dict)
    _pld: dict[Parts, float] = field(default_factory=dict)

    def of_worst(self, releases: View, client: str | None = None, group: str = "") -> Epsilon:
        """ε of the worst record: of all, of one client's, or of one group's."""
        seen = {
            parts
            for owner, payers, parts in classes(releases)
            if client in (None, owner) and (not group or group in {name for _, name in payers})
        }
        if not seen:
            return Epsilon(0.0, 0.0 if self.with_pld else None)
        return Epsilon(self._worst_rdp(seen), self._worst_pld(seen))

    def rdp(self, parts: Parts) -> float:
        """ε by Rényi divergences, at the best order."""
        if parts not in self._rdp:
            self._rdp[parts] = epsilon(as_event(parts), self.delta, method="rdp")
        return self._rdp[parts]

    def _worst_rdp(self, seen: set[Parts]) -> float:
        """The largest ε; the search for the best order is only made where it can matter.

        On the grid of orders ε comes out a little larger, never smaller, so whatever is below another's
        searched value on the grid is below it anyway.
        """
        worst = 0.0
        for on_grid, parts in self._dearest_first(seen):
            if on_grid <= worst:
                break
            worst = max(worst, self.rdp(parts))
        return worst

    def _dearest_first(self, seen: set[Parts]) -> list[tuple[float, Parts]]:
        return sorted(((self._grid(parts), parts) for parts in seen), key=_size, reverse=True)

    def _grid(self, parts: Parts) -> float:
        if parts not in self._on_grid:
            curve = sum_of_curves(Counter({event_of(body): count for body, count in parts}))
            self._on_grid[parts] = epsilon_from_rdp(DEFAULT_ORDERS, curve(DEFAULT_ORDERS), self.delta)[0]
        return self._on_grid[parts]

    def _worst_pld(self, seen: set[Parts]) -> float | None:
        """The largest of min(PLD, RDP). Where RDP is already below another's PLD, no PLD is needed."""
        if not self.with_pld:
            return None
        worst = 0.0
        for on_grid, parts in self._dearest_first(seen):
            if on_grid <= worst:
                break
            worst = max(worst, min(self.rdp(parts), self._pld_of(parts)))
        return worst

    def _pld_of(self, parts: Parts) -> float:
        if parts not in self._pld:
            if len(self._pld) >= self.pld_limit:
                return math.inf
            try:
                self._pld[parts] = epsilon(as_event(parts), self.delta, method="pld")
            except InputError:
                self._pld[parts] = math.inf  # the loss grid cannot resolve these events; RDP stands
        return self._pld[parts]

    def of_changing(self, releases: View, attribute: str) -> float:
        """ε between datasets in which one record is in another group of the attribute; the worst, by RDP.

        The old group's releases see a removal, the new group's an addition. All other releases on the record
        may see it changed, that is replaced. All are Rényi bounds for the same two datasets, so they add.
        """
        groups = {group for _, group in releases if group.partition("=")[0] == attribute}
        worst = 0.0
        seen: set[frozenset[tuple[Event, int]]] = set()
        for client, payers in record_classes(releases):
            for old, new in product({group for _, group in payers} & groups, groups):
                if old == new:
                    continue
                arrivals = [payer for payer in {("", new), (client, new)} if payer in releases]
                costs: Counter[Event] = Counter()
                for payer in (*payers, *arrivals):
                    for body, count in releases[payer].items():
                        event = event_of(body)
                        costs[event if payer[1] in (old, new) else as_replaced(event)] += count
                if (parts := frozenset(costs.items())) not in seen:
                    seen.add(parts)
                    worst = max(worst, best_order(sum_of_curves(costs), self.delta)[0])
        return worst


def sum_of_curves(costs: Counter[Event]) -> Callable[[tuple[float, ...]], Array]:
    """The RDP curve of all events together, as a function of the orders."""

    def curve(orders: tuple[float, ...]) -> Array:
        total = np.zeros(len(orders))
        for event, count in costs.items():
            total += count * rdp(event, orders)
        return total

    return curve


def _size(item: tuple[float, Parts]) -> float:
    return item[0]


def classes(releases: View) -> Iterator[tuple[str, tuple[Payer, ...], Parts]]:
    """(client, payers, composition) for every kind of record."""
    for client, payers in record_classes(releases):
        total: Counter[str] = Counter()
        for payer in payers:
            total.update(releases[payer])
        yield client, payers, frozenset(total.items())


def as_event(parts: Parts) -> Composed:
    """The composition as one event, in an order that does not depend on chance."""
    return Composed(tuple(Repeated(event_of(body), count) for body, count in sorted(parts)))
