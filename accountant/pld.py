"""Privacy loss distributions through dp-accounting, always on the pessimistic side.

The tightest composition there is, for plans fixed before their first release. Every distribution is
discretised by connecting the dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv 2207.04380v1,
Algorithm 1): its hockey-stick divergences are at least the exact ones at every ε. Composition is by fast
Fourier transform; mass cut from the tails is added back as infinite loss, and what the transform's rounding
can hide of δ is taken off the δ that is asked for.
"""

from __future__ import annotations

import math
from functools import lru_cache, singledispatch
from typing import Any

import numpy as np

from accountant.conversion import require_delta
from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    Event,
    FixedSizeSampled,
    Gaussian,
    Mechanism,
    NotPrivate,
    OnGrid,
    PoissonSampled,
    count_parts,
)
from accountant.pld_profiles import (
    Curve,
    TooFine,
    amplified_curve,
    gaussian_curve,
    grid_pairs,
    poisson_curves,
    replaced_curve,
    unsampled_curve,
)
from accountant.rdp import Pair

INTERVAL = 1e-4
MAX_CELLS = 4_000_000
SMALLEST = 1e-200  # δ is rounded up to this: masses too small to divide by would overflow later


# dp-accounting ships no types: its PrivacyLossDistribution is `Any` here.
Pld = Any


def pld_epsilon(event: Event, delta: float, interval: float = INTERVAL) -> float:
    """ε at this δ for an event whose parts were all fixed beforehand; infinite when a part is not private."""
    require_delta(delta)
    composed = compose(event, interval)
    if composed is None:
        return math.inf
    hidden = rounding(event)
    if hidden >= delta:
        remedy = 'Ask for a larger one, or for method "rdp" (--method rdp).'
        raise TooFine("delta", f"must be above {hidden:.2g}, the rounding of so many releases, for PLD", delta, remedy)
    return float(composed.get_epsilon_for_delta(delta - hidden))


def pld_delta(event: Event, epsilon: float, interval: float = INTERVAL) -> float:
    """δ at this ε, an upper bound; 1 when a part is not private."""
    composed = compose(event, interval)
    return 1.0 if composed is None else min(1.0, float(composed.get_delta_for_epsilon(epsilon)) + rounding(event))


def rounding(event: Event) -> float:
    """How much of δ floating point can hide in the composition of an event.

    A transform's coefficients are right to some units in the last place, their k-th powers to k times that, and
    by Parseval's identity so is the composed mass, in the mean square, relative to what is spread over the grid.
    A unit for every release is a hundred times what is seen against the exact δ of Gaussian releases.
    """
    return math.ulp(1.0) * sum(count_parts(event).values())


def compose(event: Event, interval: float = INTERVAL) -> Pld | None:
    """The composed distribution of all parts; None when one of them is not private.

    Plain Gaussian releases are merged first: their multipliers combine as 1/z² = Σ 1/zᵢ².
    """
    from dp_accounting.pld import privacy_loss_distribution

    parts = count_parts(event)
    if any(isinstance(part, NotPrivate) for part in parts):
        return None
    total = privacy_loss_distribution.identity(value_discretization_interval=interval)
    precision = math.fsum(
        count / part.noise_multiplier**2 for part, count in parts.items() if isinstance(part, Gaussian)
    )
    if precision > 0:
        total = total.compose(_of_gaussian(1.0 / math.sqrt(precision), interval))
    for part, count in parts.items():
        if isinstance(part, Mechanism | PoissonSampled | FixedSizeSampled) and not isinstance(part, Gaussian):
            total = total.compose(_repeated(part, count, interval))
    return total


@lru_cache(maxsize=64)
def _repeated(part: Event, count: int, interval: float) -> Pld:
    single = _single(part, interval)
    if count == 1:
        return single
    # Overflow: in bounds of where to cut tails off, of which those that are not finite are unused.
    with np.errstate(over="ignore"):
        return single.self_compose(count)


@lru_cache(maxsize=64)
def _of_gaussian(multiplier: float, interval: float) -> Pld:
    return _from_curves(interval, gaussian_curve(multiplier))


@lru_cache(maxsize=64)
def _single(part: Event, interval: float) -> Pld:
    return _dispatch(part, interval)


@singledispatch
def _dispatch(part: Event, interval: float) -> Pld:
    raise InputError("event", "must be of a kind with a known privacy loss distribution", (part, interval))


@_dispatch.register
def _continuous(part: Mechanism, interval: float) -> Pld:
    return _from_curves(interval, unsampled_curve(part))


@_dispatch.register
def _on_grid(part: OnGrid, interval: float) -> Pld:
    return _from_pairs(interval, *grid_pairs(part))


@_dispatch.register
def _poisson(part: PoissonSampled, interval: float) -> Pld:
    if part.rate == 1.0:
        return _dispatch(part.event, interval)
    if isinstance(part.event, OnGrid):
        return _from_pairs(interval, *grid_pairs(part))
    if part.moves_both_ways:
        return _from_curves(interval, replaced_curve(part))
    unsampled = unsampled_curve(part.event)
    if part.event.adjacency is Adjacency.REPLACE_ONE:
        return _from_curves(interval, amplified_curve(part.rate, unsampled))
    return _from_curves(interval, *poisson_curves(part.rate, unsampled))


@_dispatch.register
def _fixed_size(part: FixedSizeSampled, interval: float) -> Pld:
    if part.rate == 1.0:
        return _dispatch(part.event, interval)
    if isinstance(part.event, OnGrid):
        return _from_pairs(interval, *grid_pairs(part))
    return _from_curves(interval, amplified_curve(part.rate, unsampled_curve(part.event)))


def _from_curves(interval: float, removal: Curve, addition: Curve | None = None) -> Pld:
    """The distribution of these divergences; with one curve, of both directions alike."""
    return _distribution(*(None if curve is None else _connect_dots(curve, interval) for curve in (removal, addition)))


def _from_pairs(interval: float, removal: Pair, addition: Pair | None = None) -> Pld:
    return _distribution(*(None if pair is None else _split_atoms(pair, interval) for pair in (removal, addition)))


def _distribution(removal: Any, addition: Any) -> Pld:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.PrivacyLossDistribution(removal, addition)


def _connect_dots(curve: Curve, interval: float) -> Any:
    from dp_accounting.pld import pld_pmf

    _refuse_huge(curve.top - curve.bottom, interval)
    bottom, top = math.floor(curve.bottom / interval), math.ceil(curve.top / interval)
    epsilons = np.arange(bottom, top + 1, dtype=np.float64) * interval
    deltas = np.clip(curve.delta(epsilons), SMALLEST, 1.0)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, bottom, top, deltas)


def _split_atoms(pair: Pair, interval: float) -> Any:
    """Each atom's mass moved to the two grid points around its loss, so that both masses are kept.

    The same connect-the-dots distribution, but every term is positive and nothing cancels. Mass missing
    to 1 (cut tails) counts as infinite loss.
    """
    from dp_accounting.pld import pld_pmf

    loss, mass = pair.log_ratio / interval, np.exp(pair.log_q + pair.log_ratio)
    below = np.floor(loss)
    _refuse_huge(float(np.ptp(below)) * interval, interval)
    lower = int(np.min(below))
    to_below = mass * np.clip(np.expm1((below + 1.0 - loss) * interval) / math.expm1(interval), 0.0, 1.0)
    cells = (below - lower).astype(np.int64)
    probs = np.bincount(cells, to_below, minlength=int(cells.max()) + 2)
    probs += np.bincount(cells + 1, mass - to_below, minlength=probs.size)
    infinite = min(1.0, max(0.0, 1.0 - math.fsum(probs)) + 1e-15)
    return pld_pmf.DensePLDPmf(interval, lower, probs, infinite, True)


def _refuse_huge(width: float, interval: float) -> None:
    if width / interval > MAX_CELLS:
        raise TooFine(
            "the privacy loss",
            f"must span at most {MAX_CELLS} grid cells of {interval:g} for PLD",
            round(width / interval),
            "With so little noise epsilon is far beyond any meaning; use method='rdp'.",
        )
