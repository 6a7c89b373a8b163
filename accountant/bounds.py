"""Epsilon of one composition, by RDP and by PLD, and how the two are held against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from accountant.conversion import delta_from_rdp, epsilon_from_rdp, require_delta
from accountant.errors import InputError
from accountant.events import Adjacency, Composed, Event, Neighbouring, Unit
from accountant.rdp import DEFAULT_ORDERS, Array, forget_curves, order_grid, rdp

Method = Literal["rdp", "pld"]
CurveOf = Callable[[tuple[float, ...]], Array]
METHODS: tuple[Method, ...] = ("rdp", "pld")

# RDP is above the exact epsilon and PLD meets it up to its grid, so RDP below PLD means too coarse a grid.
REFINEMENTS = 2
TOLERATED = 0.99
COARSEST = 1.0  # spacing of the loss grid; dp-accounting computes with its exponential
COARSE_ORDERS = (*order_grid(1 / 8, 64.0, 2), math.inf)
WIDEST = 2.0**20  # α − 1 that the search for the best order goes up to; down to its inverse


@dataclass(frozen=True)
class Spent:
    """An upper bound on what was spent, and the sentence it is true in."""

    epsilon: float
    delta: float
    method: Method
    neighbouring: Neighbouring | None
    order: float | None = None
    """The Rényi order that gave it (RDP only)."""
    interval: float | None = None
    """The spacing of the loss grid (PLD only)."""

    def __str__(self) -> str:
        """One line for people."""
        whom = f" for neighbours that {self.neighbouring}" if self.neighbouring else ""
        how = f"RDP, order {self.order:.4g}" if self.method == "rdp" else "PLD"
        return f"ε = {self.epsilon:.6g} at δ = {self.delta:g}{whom} ({how})"


class BoundsDisagree(InputError):
    """PLD stays clearly above RDP on the finest grid: a number that cannot be trusted is not given out."""


def as_event(events: object, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE, unit: Unit = Unit.RECORD) -> Event:
    """One event from an event or several, of this package or of dp-accounting.

    Adjacency and unit are for dp-accounting's events, which do not name theirs.
    """
    if isinstance(events, Event):
        return events
    if type(events).__module__.partition(".")[0] == "dp_accounting":
        from accountant.interop import from_dp_event

        return from_dp_event(events, adjacency, unit)
    if isinstance(events, Iterable) and not isinstance(events, str | bytes | dict):
        return Composed(tuple(as_event(event, adjacency, unit) for event in events))
    raise InputError("events", "must be an event or a list of events", f"a {type(events).__name__}")


def spent(events: object, delta: float = 1e-5, method: Method = "rdp") -> Spent:
    """What these events cost together at δ, with the convention it holds under.

    Both methods take the plan as fixed before its first release; for noise chosen as one goes, see
    `accountant.budget`.
    """
    event = as_event(events)
    require_delta(delta)
    if method == "rdp":
        return spent_by_rdp(event, delta)
    if method == "pld":
        return spent_by_pld(event, delta)
    raise InputError("method", f"must be one of {list(METHODS)}", method)


def forget() -> None:
    """Drop all that is remembered of earlier answers, for measuring and for memory."""
    spent_by_rdp.cache_clear()
    spent_by_pld.cache_clear()
    forget_curves()


@lru_cache(maxsize=1024)  # many clients release the same
def spent_by_rdp(event: Event, delta: float) -> Spent:
    """Epsilon at the best Rényi order, searched beyond the default grid and between its points."""
    epsilon, order = best_order(lambda orders: rdp(event, orders), delta)
    return Spent(epsilon, delta, "rdp", event.neighbouring, order=order)


def best_order(curve: CurveOf, delta: float) -> tuple[float, float]:
    """(ε, order) of an RDP curve: a coarse grid, widened while the optimum is at an edge, then refined.

    (α − 1) times the RDP is convex in α, so ε has one valley; and every order gives a valid bound anyway.
    """
    best = _on(curve, COARSE_ORDERS, delta)
    if best[0] == 0 or math.isinf(best[0]) or math.isinf(best[1]):
        return best
    low, high = COARSE_ORDERS[0] - 1.0, COARSE_ORDERS[-2] - 1.0
    while best[1] - 1.0 >= high * 0.99 and high < WIDEST:
        high *= 8.0
        best = min(best, _on(curve, order_grid(high / 8.0, high, 4), delta))
    while best[1] - 1.0 <= low * 1.01 and low > 1.0 / WIDEST:
        low /= 8.0
        best = min(best, _on(curve, order_grid(low, low * 8.0, 4), delta))
    for octaves in (1 / 2, 1 / 8, 1 / 32, 1 / 128):  # sampled noise has a kink near its best order
        middle, step = best[1] - 1.0, 2.0**octaves
        best = min(best, _on(curve, order_grid(middle / step, middle * step, round(4 / octaves)), delta))
    return best


@lru_cache(maxsize=1024)
def spent_by_pld(event: Event, delta: float) -> Spent:
    """Epsilon by PLD; when RDP is below it, the grid is refined tenfold up to twice.

    Both are upper bounds, so the smallest PLD found stands, unless it stays more than 1% above RDP.
    """
    from accountant.pld import INTERVAL, pld_epsilon
    from accountant.pld_profiles import TooFine

    by_rdp = spent_by_rdp(event, delta).epsilon
    if math.isinf(by_rdp) or by_rdp == 0:
        return Spent(by_rdp, delta, "pld", event.neighbouring)
    interval = INTERVAL * max(1.0, by_rdp / 20.0)
    if interval > COARSEST:
        remedy = 'Ask for method "rdp" (--method rdp): at this size the two hardly differ.'
        raise TooFine("ε", f"must be below {20.0 * COARSEST / INTERVAL:g} to be bounded by PLD", by_rdp, remedy)
    best = (pld_epsilon(event, delta, interval), interval)
    for _ in range(REFINEMENTS):
        if by_rdp >= best[0]:
            break
        interval /= 10.0
        try:
            best = min(best, (pld_epsilon(event, delta, interval), interval))
        except TooFine:
            break
    if by_rdp < TOLERATED * best[0]:
        raise BoundsDisagree(
            "the PLD bound",
            f"must not exceed the RDP bound {by_rdp:.6g} by more than 1%",
            best[0],
            'The loss grid cannot resolve these events; the RDP bound holds. Ask for method "rdp" (--method rdp).',
        )
    return Spent(best[0], delta, "pld", event.neighbouring, interval=best[1])


def delta_of(events: object, epsilon: float, method: Method = "rdp") -> float:
    """δ at this ε, an upper bound."""
    event = as_event(events)
    if method == "rdp":
        return delta_from_rdp(DEFAULT_ORDERS, rdp(event, DEFAULT_ORDERS), epsilon)
    if method == "pld":
        from accountant.pld import pld_delta

        return pld_delta(event, epsilon)
    raise InputError("method", f"must be one of {list(METHODS)}", method)


def _on(curve: CurveOf, orders: tuple[float, ...], delta: float) -> tuple[float, float]:
    return epsilon_from_rdp(orders, curve(orders), delta)


def by_pld(event: Event, delta: float) -> float:
    """ε of these events by PLD; where noise is too small for its grid, by RDP, which is a bound as well."""
    return pld_or_rdp(lambda method: spent(event, delta, method).epsilon)


def pld_or_rdp(epsilon: Callable[[Method], float]) -> float:
    """What a function of the method says for "pld", or for "rdp" where the grid of PLD is too fine to be computed."""
    from accountant.pld_profiles import TooFine  # it takes a while to import, as PLD does

    try:
        return epsilon("pld")
    except (TooFine, BoundsDisagree):
        return epsilon("rdp")
