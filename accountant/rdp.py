"""Rényi differential privacy of events: a curve over orders that adds up under composition.

From the bottom up: Rényi moments of a pair of distributions given on nodes (`log_moment`); the nodes on which an
expectation over noise is a finite sum, with a proved bound on what the sum leaves out; mechanisms that are not sampled
(`base_rdp`); sampled mechanisms, from their dominating pairs; and any event (`rdp`).

All lengths of nodes are in units of the shift, how far one unit of the data moves the query: noise of multiplier z has
scale z. Write N for the noise, N₊ and N₋ for the noise shifted either way, r = N₊/N. All noises here are symmetric with
a log-concave density or mass, so the ratio of two shifts is monotone and a larger shift dominates a smaller one
(threshold tests are most powerful, and their power grows with the shift).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Mechanism,
    Nothing,
    NotPrivate,
    PoissonSampled,
    count_parts,
)

Array = NDArray[np.float64]

SERIES_TERMS = 14
SERIES_RADIUS = 0.1
MAX_CELLS = 500_000  # of orders times nodes held in memory at once
# Every truncation and quadrature error below is at most exp(-ACCURACY), about 2e-35, of the moment itself.
ACCURACY = 80.0
TAIL = math.sqrt(2.0 * ACCURACY) + 1.0
MAX_NODES = 50_000
PANEL_POINTS = 32
# A handful of correctly rounded operations err by less than this factor; it is added to be on the safe side.
ROUND_UP = 1.0 + 1e-12
# Sums of positive terms in double precision err by far less than this factor.
SAMPLED_ROUND_UP = 1.0 + 1e-9
SMALLEST = 1e-300  # so that a cost too small for a double is still not called nothing


@dataclass(frozen=True)
class Pair:
    """Two distributions P and Q on common nodes: log Q-mass of each node and log(P/Q) there."""

    log_q: Array
    log_ratio: Array

    def joined(self, other: Pair) -> Pair:
        """The nodes of both, as for a sum of two integrals."""
        return Pair(np.append(self.log_q, other.log_q), np.append(self.log_ratio, other.log_ratio))


def log_moment(pair: Pair, orders: Array) -> Array:
    """log E_Q[(P/Q)^α] for every order α > 1.

    Computed as log(1 + E_Q[g(P/Q)]) with g(t) = t^α − 1 − α(t − 1): the two expectations taken off are
    zero and known, and every term that remains is ≥ 0 by convexity, so nothing cancels and a moment of
    1 + 1e-14 keeps its digits. Logarithms keep moments of any size from overflowing.
    """
    rows = max(1, MAX_CELLS // max(1, pair.log_q.size))
    parts = [_log_moment(pair, orders[start : start + rows]) for start in range(0, orders.size, rows)]
    return np.concatenate(parts)


def _log_moment(pair: Pair, orders: Array) -> Array:
    log_terms = pair.log_q + _log_bregman(pair.log_ratio, orders[:, None])
    largest = np.max(log_terms, axis=1)
    scale = np.where(np.isfinite(largest), largest, 0.0)
    totals = np.sum(np.exp(log_terms - scale[:, None]), axis=1)
    log_sum: Array = scale + np.log(np.maximum(totals, 1e-300))  # a total of 0: the two are the same
    large = log_sum > 30.0
    # log(1 + e^x), where for large x the 1 is below rounding but is still added
    return np.where(large, log_sum + 1e-13, np.log1p(np.exp(np.where(large, 0.0, log_sum))))


def _log_bregman(log_ratio: Array, orders: Array) -> Array:
    """log(t^α − 1 − α(t − 1)) for t = exp(log_ratio), −inf at t = 1; one row per order.

    Near t = 1 the binomial series from the quadratic term on; far above, t^α is taken out in logarithms.
    """
    power = orders * log_ratio
    excess = np.expm1(np.minimum(log_ratio, 300.0))  # t − 1; beyond, only the logarithmic branch is used
    near = np.abs(excess) * orders < SERIES_RADIUS
    far = power > 30.0
    with np.errstate(divide="ignore"):
        middle = np.expm1(np.where(far, 0.0, power)) - orders * np.where(far, 0.0, excess)
        result = np.log(np.where(near | far, 1.0, np.maximum(middle, 0.0)))
        if near.any():
            rows, columns = np.nonzero(near)
            result[rows, columns] = np.log(_binomial_tail(excess[columns], orders[rows, 0]))
    if far.any():
        rows, columns = np.nonzero(far)
        alpha, loss, top = orders[rows, 0], log_ratio[columns], power[rows, columns]
        # divided by t^α: 1 − α t^(1−α) + (α − 1) t^(−α)
        small = alpha * np.exp((1.0 - alpha) * loss) - (alpha - 1.0) * np.exp(-top)
        result[rows, columns] = top + np.log1p(-small)
    return result


def _binomial_tail(excess: Array, orders: Array) -> Array:
    """Σ_{k≥2} C(α, k) x^k for |α x| below the series radius; the terms fall at least tenfold each."""
    term = orders * (orders - 1.0) / 2.0 * excess**2
    total = term.copy()
    for k in range(2, SERIES_TERMS):
        term = term * ((orders - k) / (k + 1.0)) * excess
        total += term
    return total


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
    # [0, s] is cut in the middle, where the two densities cross, so that either half can be used alone.
    parts = [(low, 0.0), (0.0, s / 2.0), (s / 2.0, s)][0 if both_shifts else 1 :]
    pieces = [_panels(a, b, half_width) for a, b in parts]
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


@singledispatch
def base_rdp(mechanism: Mechanism, orders: Array) -> Array:
    """RDP of one mechanism at every order (infinite order: its pure epsilon), never rounded down."""
    raise InputError("event", "must be a mechanism with a known RDP", (mechanism, orders.tolist()))


@base_rdp.register
def _gaussian(mechanism: Gaussian, orders: Array) -> Array:
    """α Δ²/(2σ²) (Mironov 2017, arXiv 1702.07476v3, Corollary 3)."""
    return orders * (0.5 / mechanism.noise_multiplier**2) * ROUND_UP


@base_rdp.register
def _discrete_gaussian(mechanism: DiscreteGaussian, orders: Array) -> Array:
    """α Δ²/(2σ²), the continuous bound (Canonne, Kamath, Steinke 2020, arXiv 2004.00010v5, Proposition 5)."""
    return orders * (0.5 / mechanism.noise_multiplier**2) * ROUND_UP


@base_rdp.register
def _laplace(mechanism: Laplace, orders: Array) -> Array:
    """log{α/(2α−1) e^((α−1)s) + (α−1)/(2α−1) e^(−αs)}/(α−1), s = Δ/b.

    Mironov 2017, arXiv 1702.07476v3, Proposition 6.

    A query whose coordinates move by s₁, s₂, … in sum s costs no more than one coordinate that moves by s:
    the bound is convex in s and 0 at 0. (For every hockey-stick divergence too: of two coordinates, the
    log ratio is spread over [−s, s] like that of one coordinate, except that mass has left the two ends.)
    """
    shift = 1.0 / mechanism.noise_multiplier
    finite = np.isfinite(orders)
    a = np.where(finite, orders, 2.0)
    small = (a - 1.0) * shift < 30.0
    up, down = np.where(small, (a - 1.0) * shift, 0.0), np.where(small, a * shift, 0.0)
    moment = (a * _exp_less_linear(up) + (a - 1.0) * _exp_less_linear(-down)) / (2.0 * a - 1.0)
    # far out the second exponential is below e^-60 of the first, and the rounding covers it
    log_moments = np.where(small, np.log1p(moment), np.log(a / (2.0 * a - 1.0)) + (a - 1.0) * shift)
    return np.where(finite, np.minimum(log_moments / (a - 1.0) * ROUND_UP, shift * ROUND_UP), shift * ROUND_UP)


@base_rdp.register
def _discrete_laplace(mechanism: DiscreteLaplace, orders: Array) -> Array:
    """The sum over the grid; for a grid too fine to sum, min(ε, αε²/2) of its pure epsilon.

    The latter is Bun, Steinke 2016 (arXiv 1605.02065v1), Proposition 3.3. Coordinates as for Laplace noise.
    """
    pure = 1.0 / mechanism.noise_multiplier * ROUND_UP
    finite = np.isfinite(orders)
    result = np.where(finite, np.minimum(pure, 0.5 * pure * pure * np.where(finite, orders, 1.0)), pure)
    nodes = discrete_laplace_nodes(mechanism.noise_multiplier, mechanism.sensitivity, False)
    if nodes is not None and finite.any():
        a = orders[finite]
        exact = log_moment(Pair(nodes.log_mass, nodes.plus), a) / (a - 1.0) * (1.0 + 1e-9)
        result[finite] = np.minimum(result[finite], exact)
    return result


def _exp_less_linear(x: Array) -> Array:
    """e^x − 1 − x without cancellation."""
    near = np.abs(x) < 0.1
    small = np.where(near, x, 0.0)
    series = small**2 * sum((small**k / math.factorial(k + 2) for k in range(1, 11)), np.full(x.shape, 0.5))
    return np.where(near, series, np.expm1(x) - x)


def poisson_add_or_remove(mechanism: Mechanism, rate: float, orders: Array) -> Array:
    """RDP under add-or-remove: D_α(M ‖ N) with M = (1−q) N + q N₊.

    (M, N) and (N, M) dominate the removal and the addition (Zhu, Dong, Wang 2022, arXiv 2106.08567v4,
    Theorem 11). The first is the larger at every order (Mironov, Talwar, Zhang 2019, arXiv 1908.10530v1,
    Theorem 5, for densities; the same holds for masses): N₊ and N mirror each other, so
    E f(r) = ½ E[f(r) + r f(1/r)], and with a = 1−q+qr, c = q+(1−q)r the claim is, for every r ≥ 1,
    √a sinh(k ln a) ≥ √(rc) sinh(k ln(r/c)), k = α − ½. At k = ½ both sides are q(r−1), and the ratio of the
    left to the right grows with k because ac ≥ r.
    """

    def pair(nodes: Nodes) -> Pair:
        return Pair(nodes.log_mass, log_mixture(rate, nodes.plus))

    limit = _limit_of(rate, _pure(mechanism))
    fallback = _convexity(rate, base_rdp(mechanism, orders), orders)
    rule = NODE_RULES[type(mechanism)]
    return _by_blocks(
        orders, mechanism.noise_multiplier, limit, fallback, lambda top: rule.one_shift(mechanism, top), pair
    )


def poisson_replace_one(mechanism: Mechanism, presence: float, rate: float, orders: Array) -> Array:
    """RDP under replace-one of a sum around zero: D_α(M₊ ‖ M₋), M± = (1−q) N + q N±, shifts of one presence.

    Given who else is sampled, let μ₀, μ₁, μ₁' be the output without the unit, with it, with its
    replacement. For any test A of size s = μ₀(A), μ₁(A) is at most and μ₁'(A) at least what the one threshold
    test of size s has under N₊ and N₋ (Neyman, Pearson; monotone ratios make one test extreme for both). So
    every hockey-stick divergence of (1−q)μ₀ + qμ₁ from (1−q)μ₀ + qμ₁' is at most that of M₊ from M₋, also
    after averaging over the others, as the power is concave in the size. The pair mirrors itself: one
    direction covers both.
    """

    def pair(nodes: Nodes) -> Pair:
        above, below = log_mixture(rate, nodes.plus), log_mixture(rate, nodes.minus)
        return Pair(nodes.log_mass + below, above - below)

    pure = _pure(mechanism) * presence / mechanism.sensitivity
    limit = math.inf if math.isinf(pure) else (_limit_of(rate, pure) - math.log1p(rate * math.expm1(-pure)))
    fallback = _convexity(rate, base_rdp(mechanism, orders), orders)
    rule = NODE_RULES[type(mechanism)]
    return _by_blocks(
        orders, mechanism.noise_multiplier, limit, fallback, lambda top: rule.two_shifts(mechanism, presence, top), pair
    )


def amplified_replace_one(mechanism: Mechanism, rate: float, orders: Array) -> Array:
    """RDP under replace-one of a sample that has one given unit with probability γ, whatever else it has.

    Fixed-size sampling at γ = sample/population, and Poisson sampling when presence moves the query no
    further than replacement does. For e^ε ≥ 1 the hockey-stick divergence is at most that of (1−γ)N + γN₊
    from N (Balle, Barthe, Gaboardi 2018, arXiv 1807.01647v2, Theorem 9; its proof by advanced joint convexity,
    Theorem 2, needs only that the output with the unit is within the sensitivity of the output with its
    replacement and of some output without it). For e^ε < 1, by symmetry of the relation, it is at most
    that of N from the mixture. A Rényi moment is 1 + α(α−1)∫ t^(α−2) of the hockey-stick divergences at t
    (less the trivial part), which is the sum over nodes with N₊ > N of both moments' terms. It is never
    above Wang, Balle, Kasiviswanathan 2019 (arXiv 1808.00087v2), Theorem 9.
    """

    def pair(nodes: Nodes) -> Pair:
        upper = nodes.plus > 0
        ratio = log_mixture(rate, nodes.plus[upper])
        mass = nodes.log_mass[upper]
        return Pair(mass, ratio).joined(Pair(mass + ratio, -ratio))

    limit = _limit_of(rate, _pure(mechanism))
    fallback = _convexity(rate, base_rdp(mechanism, orders), orders)
    rule = NODE_RULES[type(mechanism)]
    return _by_blocks(orders, mechanism.noise_multiplier, limit, fallback, lambda top: rule.upper(mechanism, top), pair)


def _by_blocks(
    orders: Array,
    multiplier: float,
    limit: float,
    fallback: Array,
    nodes_up_to: Callable[[float], Nodes | None],
    pair: Callable[[Nodes], Pair],
) -> Array:
    """RDP at all orders; orders of one octave share their nodes. Infinite order: the limit.

    Where nodes would be too many (noise far below the sensitivity) the fallback stands.
    """
    lowest = 4.0 if multiplier > 0.3 else 1.0  # few nodes are needed when there is much noise: share them
    result = fallback.copy()
    result[np.isinf(orders)] = limit
    octaves = np.ceil(np.log2(np.where(np.isinf(orders), 1.0, orders)))
    for octave in np.unique(octaves[np.isfinite(orders)]):
        chosen = np.isfinite(orders) & (octaves == octave)
        nodes = nodes_up_to(2.0 ** max(octave, lowest))
        if nodes is not None:
            moments = log_moment(pair(nodes), orders[chosen])
            bound = moments / (orders[chosen] - 1.0) * SAMPLED_ROUND_UP + SMALLEST
            result[chosen] = np.minimum(bound, result[chosen])
    return np.minimum(result, limit)


def _convexity(rate: float, unsampled: Array, orders: Array) -> Array:
    """An upper bound for any sampling: moments are jointly convex, so at most 1 − q + q times the unsampled."""
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = (orders - 1.0) * unsampled
        bound = log_mixture(rate, exponent) / (orders - 1.0) * SAMPLED_ROUND_UP
    finite = np.isfinite(orders) & np.isfinite(unsampled)
    return np.where(finite, np.minimum(bound + SMALLEST, unsampled), unsampled)


def log_mixture(rate: float, log_ratio: Array) -> Array:
    """log(1 − q + q exp(L)), accurate near L = 0 and for L of any size."""
    if rate == 1.0:
        return log_ratio
    small = np.log1p(rate * np.expm1(np.minimum(log_ratio, 30.0)))
    large = log_ratio + math.log(rate) + np.log1p((1.0 - rate) / rate * np.exp(-np.maximum(log_ratio, 30.0)))
    return np.where(log_ratio > 30.0, large, small)


def _limit_of(rate: float, log_ratio: float) -> float:
    if math.isinf(log_ratio):
        return math.inf
    return float(log_mixture(rate, np.array([log_ratio]))[0]) * SAMPLED_ROUND_UP


def _pure(mechanism: Mechanism) -> float:
    return float(base_rdp(mechanism, np.array([math.inf]))[0])


def order_grid(low: float, high: float, per_octave: int) -> tuple[float, ...]:
    """Orders α with α − 1 spaced evenly in logarithm from `low` to `high`."""
    count = round(math.log2(high / low) * per_octave)
    return tuple(1.0 + low * 2.0 ** (i / per_octave) for i in range(count + 1))


# α − 1 from 1/128 to 1024, eight to the octave: between two of them the best ε changes by less than 0.1%.
# At the infinite order RDP is pure differential privacy, so pure epsilons compose here too.
DEFAULT_ORDERS: tuple[float, ...] = (*order_grid(1 / 128, 1024.0, 8), math.inf)


def rdp(event: Event, orders: Iterable[float] = DEFAULT_ORDERS) -> Array:
    """The Rényi-DP curve of an event at these orders, an upper bound; infinite for `NotPrivate`.

    ε(α) bounds D_α(M(D) ‖ M(D')) for all neighbours D, D' of the event's own adjacency, either way round
    (Mironov 2017, arXiv 1702.07476v3, Definition 4). Compositions add (Proposition 1). The array is
    shared and read-only.
    """
    return _rdp(event, orders if isinstance(orders, tuple) else tuple(float(order) for order in orders))


def forget_curves() -> None:
    """Drop all remembered curves and nodes."""
    for remembered in (_rdp, gaussian_nodes, gaussian_upper_nodes, laplace_nodes, discrete_laplace_nodes):
        remembered.cache_clear()


@lru_cache(maxsize=4096)
def _rdp(event: Event, orders: tuple[float, ...]) -> Array:
    array = np.array(orders, dtype=np.float64)
    if array.size == 0 or not np.all(array > 1.0):
        remedy = "RDP of order 1 is a Kullback-Leibler divergence and converts to no useful (ε, δ)."
        raise InputError("orders", "must be numbers above 1", orders, remedy)
    parts = count_parts(event)
    if set(parts) == {event}:
        result = np.array(_rdp_of_part(event, array))
    else:
        result = np.zeros(array.shape)
        for part, count in parts.items():
            result += count * _rdp(part, orders)
    result.flags.writeable = False
    return result


@singledispatch
def _rdp_of_part(event: Event, orders: Array) -> Array:
    raise InputError("event", "must be of a kind with a known RDP", (event, orders.tolist()))


@_rdp_of_part.register
def _nothing(event: Nothing, orders: Array) -> Array:
    return np.zeros(orders.shape)


@_rdp_of_part.register
def _not_private(event: NotPrivate, orders: Array) -> Array:
    return np.full(orders.shape, math.inf)


@_rdp_of_part.register
def _mechanism(event: Mechanism, orders: Array) -> Array:
    return base_rdp(event, orders)


@_rdp_of_part.register
def _poisson_sampled(event: PoissonSampled, orders: Array) -> Array:
    if event.rate == 1.0:
        return base_rdp(event.event, orders)
    if event.moves_both_ways:
        return poisson_replace_one(event.event, event.presence, event.rate, orders)
    if event.event.adjacency is Adjacency.REPLACE_ONE:
        return amplified_replace_one(event.event, event.rate, orders)
    return poisson_add_or_remove(event.event, event.rate, orders)


@_rdp_of_part.register
def _fixed_size_sampled(event: FixedSizeSampled, orders: Array) -> Array:
    if event.rate == 1.0:
        return base_rdp(event.event, orders)
    return amplified_replace_one(event.event, event.rate, orders)
