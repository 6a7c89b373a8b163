"""Rényi divergence of sampled mechanisms, from their dominating pairs.

Write N for the noise, N₊ and N₋ for the noise shifted by one unit's effect either way, r = N₊/N. All noises
here are symmetric with a log-concave density or mass, so the ratio of two shifts is monotone and a larger
shift dominates a smaller one (threshold tests are most powerful, and their power grows with the shift).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from accountant.events import Mechanism
from accountant.rdp_base import base_rdp
from accountant.rdp_moments import Array, Pair, log_moment
from accountant.rdp_nodes import NODE_RULES, Nodes

# Sums of positive terms in double precision err by far less than this factor.
ROUND_UP = 1.0 + 1e-9
SMALLEST = 1e-300  # so that a cost too small for a double is still not called nothing


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
            bound = moments / (orders[chosen] - 1.0) * ROUND_UP + SMALLEST
            result[chosen] = np.minimum(bound, result[chosen])
    return np.minimum(result, limit)


def _convexity(rate: float, unsampled: Array, orders: Array) -> Array:
    """An upper bound for any sampling: moments are jointly convex, so at most 1 − q + q times the unsampled."""
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = (orders - 1.0) * unsampled
        bound = log_mixture(rate, exponent) / (orders - 1.0) * ROUND_UP
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
    return float(log_mixture(rate, np.array([log_ratio]))[0]) * ROUND_UP


def _pure(mechanism: Mechanism) -> float:
    return float(base_rdp(mechanism, np.array([math.inf]))[0])
