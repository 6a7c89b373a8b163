"""Nodes on which an expectation over noise is a finite sum, with a proved bound on what the sum leaves out.

All lengths are in units of the shift (how far one unit moves the query): noise of multiplier z has scale z.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from accountant.events import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
)
from accountant.rdp_moments import Array

# Every truncation and quadrature error below is at most exp(-ACCURACY), about 2e-35, of the moment itself.
ACCURACY = 80.0
TAIL = math.sqrt(2.0 * ACCURACY) + 1.0
MAX_NODES = 50_000
PANEL_POINTS = 32


@dataclass(frozen=True)
class Nodes:
    """Noise at the nodes: log mass, and log ratio of the density shifted by +1 and by −1 to the unshifted."""

    log_mass: Array
    plus: Array
    minus: Array


@lru_cache(maxsize=256)
def gaussian_nodes(multiplier: float, order: float, powers: float, grid: int = 0) -> Nodes | None:
    """Equally spaced nodes for moments of N(0, z²) up to this order; None when it would take too many.

    The trapezoidal rule with step h on an integrand analytic in the strip |Im x| < a errs by at most
    2M/(exp(2πa/h) − 1), M the largest integral of its modulus along the strip (Trefethen, Weideman 2014,
    SIAM Review 56, Theorem 5.1). On the strip |exp(−x²/2z²)| grows by exp(a²/2z²); a mixture
    1 − q + q exp((x − ½)/z²) stays below its value on the real line and above cos(a/2z²) times it, which
    is raised to a power of at most `powers` where it stands in the denominator. Hence h.

    `grid` > 0 is for the discrete Gaussian with that many grid steps to one shift: the nodes then lie on
    the grid. With a step of 1 the sum is the discrete expectation itself; on a finer grid than the rule
    needs, both the full sum and the thinned one equal the same integral up to the bound above.
    """
    z = multiplier
    quadratic = 1.0 / (2.0 * z * z) + 0.14 * powers / z**4  # −log cos(t/2) ≤ 0.14 t² for t ≤ 1
    widest = 0.95 * math.pi * z * z if powers == 0 else z * z  # the mixture vanishes first at |Im x| = π z²
    strip = min(widest, math.sqrt(ACCURACY / quadratic))
    step = 2.0 * math.pi * strip / (quadratic * strip * strip + ACCURACY)
    if grid:
        step = max(1, math.floor(step * grid)) / grid
    # log-slope of the integrand: −x + α w₊ + (α − 1) w₋ over z², w in [0, 1], so the bulk is in [−1, 2α]
    reach = order if powers == 0 else 2.0 * order
    low, high = math.floor((-1.0 - TAIL * z) / step), math.ceil((reach + 1.0 + TAIL * z) / step)
    if high - low > MAX_NODES:
        return None
    x: Array = np.arange(low, high + 1, dtype=np.float64) * step
    if grid:
        side = np.arange(-math.ceil(TAIL * z / step) - 1, math.ceil(TAIL * z / step) + 2) * step
        log_total = math.log(math.fsum(np.exp(-0.5 * (side / z) ** 2)))
    else:
        log_total = math.log(z * math.sqrt(2.0 * math.pi) / step)
    return Nodes(-0.5 * (x / z) ** 2 - log_total, (x - 0.5) / z**2, (-x - 0.5) / z**2)


@lru_cache(maxsize=256)
def gaussian_upper_nodes(multiplier: float, order: float, grid: int = 0) -> Nodes | None:
    """Nodes for expectations over N(0, z²) restricted to x ≥ ½, where the shifted density is the larger one.

    Gauss-Legendre on panels so short that the integrand changes by at most e^±4 along one and its mixture
    stays away from zero around it; see `_panels`. On a grid, the sum over the grid points themselves.

    With too many of them, the nodes of a continuous Gaussian of scale √(σ² − s²) steps, s = 8, which costs at least
    as much. Rounded at random to k with probability exp(−(k − y)²/2s²)/θ(y), it becomes discrete Gaussian of scale σ
    around the same integer, if θ(y) = Σ_k exp(−(k − y)²/2s²) is constant; it is up to a factor of 1 ± 2e^{−2π²s²},
    1 ± 1e-548. Rounding is post-processing, and the same for both sides of a divergence, mixtures too.
    """
    z = multiplier
    high = order + 1.0 + TAIL * z
    if grid:
        found = gaussian_grid(z, 0.5, high, grid)
        if found is not None or z * grid < 1000.0:
            return found
        z = math.sqrt(z * z - (8.0 / grid) ** 2)
    half_width = min(0.4 * z * z, 4.0 * z * z / (order + high))
    panels = _panels(0.5, high, half_width)
    if panels is None:
        return None
    x, log_width = panels
    log_mass = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2.0 * math.pi)) + log_width
    return Nodes(log_mass, (x - 0.5) / z**2, (-x - 0.5) / z**2)


def gaussian_grid(multiplier: float, low: float, high: float, grid: int, limit: int = MAX_NODES) -> Nodes | None:
    """All grid points of the discrete Gaussian from low to high, `grid` to one shift; None when too many."""
    z, first, last = multiplier, math.ceil(low * grid), math.floor(high * grid)
    if max(last - first, 2.0 * TAIL * z * grid) > limit:
        return None
    x = np.arange(first, last + 1) / grid
    side = math.ceil(TAIL * z * grid) + 1
    log_total = math.log(math.fsum(np.exp(-0.5 * (np.arange(-side, side + 1) / (grid * z)) ** 2)))
    return Nodes(-0.5 * (x / z) ** 2 - log_total, (x - 0.5) / z**2, (-x - 0.5) / z**2)


@lru_cache(maxsize=256)
def laplace_nodes(multiplier: float, order: float, both_shifts: bool) -> Nodes | None:
    """Nodes for moments of Lap(0, b) up to this order: two atoms, and panels in between.

    Left of every kink and right of every kink the ratios are constant, so the two half-lines are atoms of
    their own exact mass. In between the ratio is exp of a linear function.
    """
    s = 1.0 / multiplier  # the shift in units of b
    low = -s if both_shifts else 0.0
    slope = 4.0 * order + 1.0 if both_shifts else 2.0 * order + 1.0
    half_width = min(0.4, 4.0 / slope)
    pieces = [_panels(a, b, half_width) for a, b in ([(low, 0.0)] if both_shifts else []) + _halves(s)]
    if any(piece is None for piece in pieces):
        return None
    found = [piece for piece in pieces if piece is not None]
    y = np.concatenate([[low], *(piece[0] for piece in found), [s]])
    inner = np.concatenate([piece[1] - np.abs(piece[0]) for piece in found])
    log_mass = np.concatenate([[low], inner, [-s]]) - math.log(2.0)
    return Nodes(log_mass, np.abs(y) - np.abs(y - s), np.abs(y) - np.abs(y + s))


@lru_cache(maxsize=256)
def discrete_laplace_nodes(multiplier: float, grid: int, both_shifts: bool, limit: int = MAX_NODES) -> Nodes | None:
    """The grid points between the kinks and the two half-lines beyond them; None when too many."""
    if (2 if both_shifts else 1) * grid > limit:
        return None
    decay = 1.0 / (multiplier * grid)  # of the log mass, per grid step
    k = np.arange(-grid if both_shifts else 0, grid + 1)
    log_mass = -decay * np.abs(k) + math.log(-math.expm1(-decay)) - math.log1p(math.exp(-decay))
    log_mass[[0, -1]] = -decay * np.abs(k[[0, -1]]) - math.log1p(math.exp(-decay))  # half-lines: geometric sums
    plus = decay * (np.abs(k) - np.abs(k - grid))
    return Nodes(log_mass, plus, decay * (np.abs(k) - np.abs(k + grid)))


def forget_nodes() -> None:
    """Drop all remembered nodes."""
    for remembered in (gaussian_nodes, gaussian_upper_nodes, laplace_nodes, discrete_laplace_nodes):
        remembered.cache_clear()


@dataclass(frozen=True)
class NodeRule:
    """How the nodes of one mechanism are found, for the three kinds of sums that sampling needs."""

    one_shift: Callable[[Mechanism, float], Nodes | None]
    """(mechanism, order): the noise and its shift by the sensitivity."""
    two_shifts: Callable[[Mechanism, float, float], Nodes | None]
    """(mechanism, shift, order): the noise and its shifts either way."""
    upper: Callable[[Mechanism, float], Nodes | None]
    """(mechanism, order): at least the part where the shifted density is the larger one."""


NODE_RULES: dict[type[Mechanism], NodeRule] = {
    Gaussian: NodeRule(
        lambda m, order: gaussian_nodes(m.noise_multiplier, order, 0.0),
        lambda m, shift, order: gaussian_nodes(m.noise_scale / shift, order, order),
        lambda m, order: gaussian_upper_nodes(m.noise_multiplier, order),
    ),
    DiscreteGaussian: NodeRule(
        lambda m, order: gaussian_nodes(m.noise_multiplier, order, 0.0, int(m.sensitivity)),
        lambda m, shift, order: gaussian_nodes(m.noise_scale / shift, order, order, int(shift)),
        lambda m, order: gaussian_upper_nodes(m.noise_multiplier, order, int(m.sensitivity)),
    ),
    Laplace: NodeRule(
        lambda m, order: laplace_nodes(m.noise_multiplier, order, False),
        lambda m, shift, order: laplace_nodes(m.noise_scale / shift, order, True),
        lambda m, order: laplace_nodes(m.noise_multiplier, order, False),
    ),
    DiscreteLaplace: NodeRule(
        lambda m, _: discrete_laplace_nodes(m.noise_multiplier, int(m.sensitivity), False),
        lambda m, shift, _: discrete_laplace_nodes(m.noise_scale / shift, int(shift), True),
        lambda m, _: discrete_laplace_nodes(m.noise_multiplier, int(m.sensitivity), False),
    ),
}


def _halves(s: float) -> list[tuple[float, float]]:
    """[0, s] cut in the middle, where the two densities cross, so that either half can be used alone."""
    return [(0.0, s / 2.0), (s / 2.0, s)]


def _panels(low: float, high: float, half_width: float) -> tuple[Array, Array] | None:
    """Gauss-Legendre points and log weights on panels of at most this half width; None when too many.

    With 32 points the error on one panel is at most (64/15) M 3^(−64) (Trefethen, Approximation Theory and
    Approximation Practice, 2013, Theorem 19.3, ρ = 3), M the largest modulus on an ellipse 5/3 as long as
    the panel. Half widths are chosen so that M is at most e^8 times a value on the panel.
    """
    count = max(1, math.ceil((high - low) / (2.0 * half_width)))
    if count * PANEL_POINTS > MAX_NODES:
        return None
    points, weights = _legendre()
    half = (high - low) / (2.0 * count)
    centres = low + half * (2.0 * np.arange(count) + 1.0)
    x = (centres[:, None] + half * points).ravel()
    return x, np.tile(np.log(weights * half), count)


@lru_cache(maxsize=1)
def _legendre() -> tuple[Array, Array]:
    points, weights = np.polynomial.legendre.leggauss(PANEL_POINTS)
    return points, weights
