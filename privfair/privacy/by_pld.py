"""ε by PLD, also where its grid cannot resolve the events."""

from __future__ import annotations

from collections.abc import Callable

from accountant.bounds import BoundsDisagree, Method, spent
from accountant.events import Event
from accountant.pld import TooFine


def by_pld(event: Event, delta: float) -> float:
    """ε of these events by PLD; where noise is too small for its grid, by RDP, which is a bound as well."""
    return pld_or_rdp(lambda method: spent(event, delta, method).epsilon)


def pld_or_rdp(epsilon: Callable[[Method], float]) -> float:
    """What a function of the method says for "pld", or for "rdp" where the grid of PLD is too fine to be computed."""
    try:
        return epsilon("pld")
    except (TooFine, BoundsDisagree):
        return epsilon("rdp")
