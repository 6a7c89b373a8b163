"""Spending that is decided as one goes: a Rényi filter of one order, fixed before the first release.

The best-order conversion and privacy loss distributions hold for plans fixed beforehand. When a later
release depends on what earlier ones showed, choosing the order, or the follow-up, afterwards can break
the stated δ. A filter at one fixed order cannot be broken that way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from accountant.conversion import capacities, rdp_capacity, require_delta
from accountant.errors import InputError, require_finite, require_positive
from accountant.events import Event
from accountant.rdp import order_grid, rdp


@dataclass(frozen=True)
class RenyiFilter:
    """Lets releases through as long as their RDP at one fixed order sums to at most the capacity.

    Whatever the releases are, and however they depend on earlier outputs, everything that got through
    together has RDP of at most the capacity at this order (Feldman, Zrnic 2021, arXiv 2008.11193v4,
    Theorems 3.1 and 4.3), hence meets the (ε, δ) the capacity was computed from.
    """

    order: float
    capacity: float

    def __post_init__(self) -> None:
        """Check that the order is above 1 and the capacity a number."""
        if not self.order > 1:
            raise InputError("order", "must be above 1", self.order)
        if not self.capacity >= 0:
            raise InputError("capacity", "must be at least 0", self.capacity)

    @classmethod
    def for_budget(cls, epsilon: float, delta: float, order: float | None = None) -> RenyiFilter:
        """The filter of a lifetime budget (ε, δ); its order comes from the budget alone unless given."""
        chosen = choose_order(epsilon, delta) if order is None else order
        return cls(chosen, rdp_capacity(epsilon, delta, chosen))

    def cost(self, event: Event) -> float:
        """The event's RDP at this filter's order."""
        return float(rdp(event, (self.order,))[0])

    def remaining(self, spent: float) -> float:
        """What is left, in RDP at this order; never below 0."""
        return max(0.0, self.capacity - _require_spent(spent))

    def fits(self, spent: float, event: Event) -> bool:
        """Whether the event may be released after `spent` (RDP at this order)."""
        return _require_spent(spent) + self.cost(event) <= self.capacity

    def how_many_fit(self, spent: float, event: Event) -> float:
        """How many repetitions of the event still fit; `math.inf` for an event that costs nothing."""
        cost = self.cost(event)
        if cost == 0:
            return math.inf
        count = math.floor(self.remaining(spent) / cost)
        while count > 0 and _require_spent(spent) + count * cost > self.capacity:
            count -= 1
        return count


def choose_order(epsilon: float, delta: float) -> float:
    """The order at which a budget of (ε, δ) holds the most Gaussian releases; a public rule of ε and δ alone.

    A Gaussian release costs α/(2z²), so the best order maximises capacity(α)/α. Poisson-sampled releases
    of small rate cost nearly in proportion to α as well, up to the order this rule finds. δ = 0 needs the
    infinite order: pure differential privacy.
    """
    require_positive("epsilon", epsilon)
    if require_delta(delta) == 0:
        return math.inf
    orders = np.array(order_grid(2.0**-10, 2.0**20, 32))
    return float(orders[int(np.argmax(capacities(epsilon, delta, orders) / orders))])


def _require_spent(spent: float) -> float:
    if math.isinf(spent):
        return math.inf
    number = require_finite("spent", spent)
    if number < 0:
        raise InputError("spent", "must be at least 0", spent)
    return number
