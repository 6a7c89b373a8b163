"""The least noise for one release, from its exact δ: nothing is composed, so nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch

import numpy as np

from accountant.conversion import require_delta
from accountant.errors import InputError, require_positive
from accountant.events import (
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Mechanism,
    OnGrid,
    PoissonSampled,
)
from accountant.gaussian_profile import gaussian_delta
from accountant.pld_profiles import grid_pairs

MARGIN = 1e-10  # divergences are computed to about 1e-13 of themselves
TIGHTEST, LOOSEST = 1e-12, 1e12  # noise multipliers searched


def calibrate_release(event: Event, epsilon: float, delta: float = 1e-5) -> Event:
    """The event with the least noise at which one release of it is (ε, δ)-private; its own noise is ignored.

    Unsampled mechanisms by their exact δ. Sampled ones through γ H(log(1 + (e^ε − 1)/γ)) = δ (Balle, Barthe,
    Gaboardi 2018, arXiv 1807.01647v2, Theorems 8 and 9).
    """
    return _calibrated(event, require_positive("epsilon", epsilon), require_delta(delta))


def exact_delta(mechanism: Mechanism, epsilon: float) -> float:
    """δ(ε) of one unsampled release, exactly: a closed form, or the sum over the grid."""
    if isinstance(mechanism, Gaussian):
        return gaussian_delta(epsilon, mechanism.noise_multiplier)
    if isinstance(mechanism, Laplace):
        return -math.expm1(min(0.0, (epsilon - 1.0 / mechanism.noise_multiplier) / 2.0))
    if isinstance(mechanism, OnGrid):
        pair, _ = grid_pairs(mechanism)
        above = pair.log_ratio > epsilon
        mass = np.exp(pair.log_q[above] + pair.log_ratio[above])
        return math.fsum(mass * -np.expm1(epsilon - pair.log_ratio[above]))
    raise InputError("event", "must be a mechanism", mechanism)


@singledispatch
def _calibrated(event: Event, epsilon: float, delta: float) -> Event:
    remedy = "Use calibrate(), which takes any composition."
    raise InputError("event", "must be one release", (event, epsilon, delta), remedy)


@_calibrated.register
def _sampled(event: PoissonSampled | FixedSizeSampled, epsilon: float, delta: float) -> Event:
    if isinstance(event, PoissonSampled) and event.moves_both_ways:
        remedy = "Use calibrate(event, …), which searches with the composed bounds."
        raise InputError("event", "must not be a clipped sum under replace-one", event, remedy)
    if delta >= event.rate:
        remedy = "Releasing a sampled record as it is would meet it. Choose δ far below the rate."
        raise InputError("delta", f"must be below the sampling rate {event.rate:g}", delta, remedy)
    inner = math.log1p(math.expm1(epsilon) / event.rate) if epsilon < 30 else epsilon - math.log(event.rate)
    return replace(event, event=_mechanism(event.event, inner, delta / event.rate))


@_calibrated.register
def _mechanism(event: Mechanism, epsilon: float, delta: float) -> Mechanism:
    """The smallest noise whose exact δ at ε is at most the target: δ falls as noise grows.

    Gaussian: Balle, Wang 2018 (arXiv 1805.06530v2), Algorithm 1, solved by bisection.
    """
    if delta == 0 and isinstance(event, Gaussian):
        raise InputError("delta", "must be above 0 for Gaussian noise", delta, "Use Laplace noise for δ = 0.")

    def enough(multiplier: float) -> bool:
        noisy = replace(event, noise_scale=multiplier * event.sensitivity)
        return exact_delta(noisy, epsilon) <= delta * (1.0 - MARGIN)

    if isinstance(event, Laplace) or (isinstance(event, OnGrid) and delta == 0):
        multiplier = (1.0 + MARGIN) / (epsilon - 2.0 * math.log1p(-delta))  # on a grid: pure, as δ = 0
    else:
        multiplier = _smallest(enough)
    return replace(event, noise_scale=multiplier * event.sensitivity)


def _smallest(enough: Callable[[float], bool]) -> float:
    """The smallest multiplier that is enough, from above, to 1e-10 of itself."""
    high = 1.0
    while not enough(high):
        high *= 2.0
        if high > LOOSEST:
            raise InputError("epsilon and delta", "must be within reach of some noise", high)
    low = high / 2.0
    while enough(low):
        low, high = low / 2.0, low
        if low < TIGHTEST:
            raise InputError("delta", "must be small enough to need noise", low)
    while high / low > 1.0 + 1e-10:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
