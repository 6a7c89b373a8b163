"""What a claimed release allows a test: its trade-off between hits and false alarms, at every ε at once.

A claim is more than one pair (ε, δ): its events have a whole profile δ(ε), and a test that breaks any of it has refuted
the claim. Where all noise is Gaussian that is the μ-GDP test; sampled and discrete noise have profiles of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from accountant.calibration import scale_noise
from accountant.conversion import delta_from_rdp, epsilon_from_rdp
from accountant.empirical.intervals import Array
from accountant.empirical.rates import gaussian_separation
from accountant.events import Event, Gaussian, PoissonSampled, count_parts
from accountant.gaussian_profile import gaussian_epsilon
from accountant.rdp import DEFAULT_ORDERS, rdp

LARGEST = 18.0  # ε beyond this would need false-alarm rates below 1e-7 to be seen
POINTS = 721
COARSE = 4e-3  # grid of the losses: on the claim's side, and fine enough to lose less than sampling does
FARTHEST = 16.0  # noise is looked for between this fraction and this multiple of what is claimed
FEW_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)  # for a rough size, quickly
_GRID: Array = np.linspace(0.0, LARGEST, POINTS)


@dataclass(frozen=True, eq=False)
class TradeOff:
    """δ at every ε of a grid; larger ones are never claimed than hold between its points."""

    epsilons: Array
    deltas: Array

    @staticmethod
    def of(event: Event) -> TradeOff:
        """Of everything that an event says was released."""
        return _trade_off(event)

    def most_hits(self, alarm: ArrayLike) -> Array:
        """The largest hit rate that the claim allows at a false-alarm rate."""
        rate = np.asarray(alarm, dtype=np.float64)[..., None]
        first = np.exp(self.epsilons) * rate + self.deltas
        second = 1.0 - np.exp(-self.epsilons) * (1.0 - rate - self.deltas)
        found: Array = np.clip(np.minimum(first, second).min(axis=-1), 0.0, 1.0)
        return found

    def least_alarms(self, hit: float) -> float:
        """The smallest false-alarm rate at which the claim allows this hit rate: the inverse of `most_hits`.

        The curve is that of both directions, so its inverse is its mirror image.
        """
        return max(0.0, 1.0 - float(self.most_hits(1.0 - hit)))

    @property
    def most_accuracy(self) -> float:
        """How often at most somebody guesses right whether the record is there, where a coin is right half the time."""
        return min(1.0, 0.5 * (1.0 + float(self.deltas[0])))


@lru_cache(maxsize=256)
def _trade_off(event: Event) -> TradeOff:
    bound = float(epsilon_from_rdp(FEW_ORDERS, rdp(event, FEW_ORDERS), 1e-5)[0])
    if bound == 0:
        return TradeOff(_GRID, np.zeros_like(_GRID))
    if math.isinf(bound):
        return TradeOff(_GRID, np.ones_like(_GRID))
    composed = composed_losses(event, bound)
    if composed is None:
        curve = rdp(event, DEFAULT_ORDERS)
        deltas = np.array([delta_from_rdp(DEFAULT_ORDERS, curve, float(epsilon)) for epsilon in _GRID])
    else:
        deltas = np.asarray(composed.get_delta_for_epsilon(_GRID), dtype=np.float64)
    return TradeOff(_GRID, np.clip(deltas, 0.0, 1.0))


def composed_losses(event: Event, bound: float) -> Any | None:
    """The distribution of an event's privacy loss, on a grid that suits an ε of about `bound`; None if it cannot be."""
    from accountant.pld import compose
    from accountant.pld_profiles import TooFine

    try:
        return compose(event, COARSE * max(1.0, bound / 20.0))
    except TooFine:
        return None


def scaled_epsilon(event: Event, factor: float, delta: float) -> float:
    """ε at δ of an event with its noise multiplied, to about a thousandth of itself. Infinite noise: 0."""
    if math.isinf(factor):
        return 0.0
    gaussian = gaussian_multiplier(event)
    if gaussian is not None:
        return gaussian_epsilon(1.0 / (gaussian * factor), delta)
    scaled = scale_noise(event, factor)
    bound = float(epsilon_from_rdp(FEW_ORDERS, rdp(scaled, FEW_ORDERS), delta)[0])
    composed = None if bound == 0 or math.isinf(bound) else composed_losses(scaled, bound)
    return bound if composed is None else min(bound, float(composed.get_epsilon_for_delta(delta)))


def implied_factor(event: Event, hit: float, alarm: float) -> float:
    """How many times the claimed noise there is at most, if a test has these rates and the noise is of the stated law.

    Below 1 the claim is refuted, with no assumption at all: no release within its profile allows such a test. The size
    of the factor rests on the law; it is found to within 0.3%, rounded up. Infinite where such a test could be had for
    nothing.
    """

    def allowed(factor: float) -> bool:
        return bool(TradeOff.of(scale_noise(event, factor)).most_hits(alarm) >= hit)

    if hit <= alarm:
        return math.inf
    gaussian = gaussian_multiplier(event)
    if gaussian is not None:  # the same question, in closed form
        return 1.0 / (gaussian * gaussian_separation(hit, alarm))
    low = high = 1.0
    if allowed(1.0):
        while allowed(high):
            low, high = high, 2.0 * high
            if high > FARTHEST:
                return math.inf
    else:
        while not allowed(low):
            low, high = 0.5 * low, low
            if low < 1.0 / FARTHEST:
                return high
    while high / low > 1.003:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return high


def gaussian_multiplier(event: Event) -> float | None:
    """The noise multiplier of all releases together, if every one is Gaussian in the reals and takes every record."""
    precision = 0.0
    for part, count in count_parts(event).items():
        one = part.event if isinstance(part, PoissonSampled) and part.rate == 1.0 else part
        if not isinstance(one, Gaussian):
            return None
        precision += count / one.noise_multiplier**2
    return 1.0 / math.sqrt(precision) if precision else None
