"""ε and calibration by PLD, also where its grid cannot resolve the events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accountant.bounds import BoundsDisagree, Method, spent
from accountant.calibration import Channel, calibrate
from accountant.errors import InputError
from accountant.events import Event
from accountant.pld_profiles import TooFine


def by_pld(event: Event, delta: float) -> float:
    """ε of these events by PLD; where noise is too small for its grid, by RDP, which is a bound as well."""
    return pld_or_rdp(lambda method: spent(event, delta, method).epsilon)


def calibrated_factor(channels: Sequence[Channel], epsilon: float, delta: float, method: Method) -> float:
    """What all noise that is not fixed must be multiplied by, for these channels to cost at most ε at δ."""
    try:
        return calibrate(channels, epsilon, delta, method).factor
    except TooFine:
        rule = "must be large enough for the grid of PLD"
        raise InputError("privacy.epsilon", rule, epsilon, 'Or set privacy.target_method = "rdp".') from None


def pld_or_rdp(epsilon: Callable[[Method], float]) -> float:
    """What a function of the method says for "pld", or for "rdp" where the grid of PLD is too fine to be computed."""
    try:
        return epsilon("pld")
    except (TooFine, BoundsDisagree):
        return epsilon("rdp")
