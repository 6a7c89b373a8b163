"""ε of the worst record behind a set of releases, by RDP and by PLD; equal compositions are computed once."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from accountant.accountant import epsilon
from accountant.audit_scan import View
from accountant.bounds import best_order
from accountant.conversion import epsilon_from_rdp
from accountant.errors import InputError
from accountant.events import Composed, Event, Repeated, all_replaced, canonical_json
from accountant.ledger.datasets import event_of
from accountant.rdp import DEFAULT_ORDERS, Array, rdp
from accountant.spending import Client, Payer, Spend, clients, largest_on_change, listable

RunSpec = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Epsilon:
    """ε of one composition. pld: the smaller of both bounds; None when PLD was not asked for."""

    rdp: float
    pld: float | None = None


@dataclass
class WorstCase:
    """Computes ε at one δ, remembering compositions it has seen.

    with_pld: also by privacy loss distributions, which hold for plans fixed before their first release.
    pld_limit: at most so many different compositions by PLD, which takes up to a second each; beyond that
    number, RDP's bound takes its place, and `rdp_for_pld` says so.
    """

    delta: float
    with_pld: bool = True
    pld_limit: int = 12
    rdp_for_pld: bool = False
    _on_grid: dict[RunSpec, float] = field(default_factory=dict)
    _rdp: dict[RunSpec, float] = field(default_factory=dict)
    _pld: dict[RunSpec, float] = field(default_factory=dict)

    def of_worst(self, releases: View, client: str = "", group: str = "") -> Epsilon:
        """ε of the worst record: of all, of one client's, or of one group's.

        Where records can be of too many kinds to go through them, both bounds are that of the largest RDP curve.
        """
        few, many = listable(clients(releases, client, group))
        seen = {_parts(releases, payers) for one in few for payers in one.records()}
        by_rdp, by_pld = self._worst_rdp(seen), self._worst_pld(seen)
        largest = self._largest(releases, many)
        self.rdp_for_pld |= self.with_pld and bool(many)
        return Epsilon(max(by_rdp, largest), None if by_pld is None else max(by_pld, largest))

    def _largest(self, releases: View, many: list[Client]) -> float:
        """ε of the largest curve of any client; the best order is only searched where it can matter."""
        curves = [_largest_curve(releases, client) for client in many]
        on_grid = [epsilon_from_rdp(DEFAULT_ORDERS, curve(DEFAULT_ORDERS), self.delta)[0] for curve in curves]
        worst = 0.0
        for bound, number in sorted(((bound, n) for n, bound in enumerate(on_grid)), reverse=True):
            if bound <= worst:
                break
            worst = max(worst, best_order(curves[number], self.delta)[0])
        return worst

    def rdp(self, parts: RunSpec) -> float:
        """ε by Rényi divergences, at the best order."""
        if parts not in self._rdp:
            self._rdp[parts] = epsilon(as_event(parts), self.delta, method="rdp")
        return self._rdp[parts]

    def _worst_rdp(self, seen: set[RunSpec]) -> float:
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

    def _dearest_first(self, seen: set[RunSpec]) -> list[tuple[float, RunSpec]]:
        return sorted(((self._grid(parts), parts) for parts in seen), key=_size, reverse=True)

    def _grid(self, parts: RunSpec) -> float:
        if parts not in self._on_grid:
            curve = sum_of_curves(Counter({event_of(body): count for body, count in parts}))
            self._on_grid[parts] = epsilon_from_rdp(DEFAULT_ORDERS, curve(DEFAULT_ORDERS), self.delta)[0]
        return self._on_grid[parts]

    def _worst_pld(self, seen: set[RunSpec]) -> float | None:
        """The largest of min(PLD, RDP). Where RDP is already below another's PLD, no PLD is needed."""
        if not self.with_pld:
            return None
        worst = 0.0
        for on_grid, parts in self._dearest_first(seen):
            if on_grid <= worst:
                break
            worst = max(worst, min(self.rdp(parts), self._pld_of(parts)))
        return worst

    def _pld_of(self, parts: RunSpec) -> float:
        if parts not in self._pld:
            if len(self._pld) >= self.pld_limit:
                self.rdp_for_pld = True
                return math.inf
            try:
                self._pld[parts] = epsilon(as_event(parts), self.delta, method="pld")
            except InputError:
                self._pld[parts] = math.inf  # the loss grid cannot resolve these events; RDP stands
        return self._pld[parts]

    def of_changing(self, releases: View, attribute: str) -> float:
        """ε between datasets in which one record is in another group of the attribute; the worst, by RDP."""
        plain = {payer: Counter({event_of(b): n for b, n in bodies.items()}) for payer, bodies in releases.items()}
        replaced = {payer: all_replaced(events) for payer, events in plain.items()}

        def curve_for(client: Client) -> Callable[[tuple[float, ...]], Array]:
            def curve(orders: tuple[float, ...]) -> Array:
                return largest_on_change(
                    client,
                    attribute,
                    lambda payer: sum_of_curves(plain[payer])(orders),
                    lambda payer: sum_of_curves(replaced[payer])(orders),
                    len(orders),
                )

            return curve

        return max(best_order(curve_for(client), self.delta)[0] for client in clients(releases))


def released_epsilon(spends: Iterable[Spend], delta: float, *, with_pld: bool = True) -> Epsilon:
    """ε of the worst record behind these rows: the figure of a run's statement, and of an audit at the same δ."""
    releases: View = {}
    for spend in spends:
        releases.setdefault(spend.payer, Counter())[canonical_json(spend.event)] += spend.count
    if not releases:
        return Epsilon(0.0, 0.0)
    return WorstCase(delta, with_pld, pld_limit=sys.maxsize).of_worst(releases)


def sum_of_curves(costs: Counter[Event]) -> Callable[[tuple[float, ...]], Array]:
    """The RDP curve of all events together, as a function of the orders."""

    def curve(orders: tuple[float, ...]) -> Array:
        total = np.zeros(len(orders))
        for event, count in costs.items():
            total += count * rdp(event, orders)
        return total

    return curve


def _size(item: tuple[float, RunSpec]) -> float:
    return item[0]


def _parts(releases: View, payers: Iterable[Payer]) -> RunSpec:
    total: Counter[str] = Counter()
    for payer in payers:
        total.update(releases[payer])
    return frozenset(total.items())


def _largest_curve(releases: View, client: Client) -> Callable[[tuple[float, ...]], Array]:
    def curve(orders: tuple[float, ...]) -> Array:
        def of_payer(payer: Payer) -> Array:
            return sum_of_curves(Counter({event_of(body): n for body, n in releases[payer].items()}))(orders)

        return client.largest(of_payer, len(orders))

    return curve


def as_event(parts: RunSpec) -> Composed:
    """The composition as one event, in an order that does not depend on chance."""
    return Composed(tuple(Repeated(event_of(body), count) for body, count in sorted(parts)))
