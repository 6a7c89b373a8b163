"""From Rényi differential privacy to (ε, δ) and back, and the exact (ε, δ) of one Gaussian release."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accountant.errors import InputError, require_finite

Array = NDArray[np.float64]

# A handful of correctly rounded operations err by less than this factor.
ROUNDING = 1e-14
NODES = 20  # of the quadrature in `gaussian_delta`


def require_delta(delta: float) -> float:
    """The delta as a float in [0, 1), or `InputError`."""
    number = require_finite("delta", delta)
    if not 0 <= number < 1:
        raise InputError("delta", "must be in [0, 1)", delta, "Choose it well below 1 / number of records.")
    return number


def require_epsilon(epsilon: float) -> float:
    """The epsilon as a float, finite and at least 0, or `InputError`."""
    number = require_finite("epsilon", epsilon)
    if number < 0:
        raise InputError("epsilon", "must be at least 0", epsilon)
    return number


def epsilon_from_rdp(orders: ArrayLike, rdp: ArrayLike, delta: float) -> tuple[float, float]:
    """The smallest ε these orders give at this δ, never negative, and the order that gives it.

    ε = r + log(1 − 1/α) − log(αδ)/(α − 1) (Canonne, Kamath, Steinke 2020, arXiv 2004.00010v5, Proposition 12;
    Balle, Barthe, Gaboardi, Hsu, Sato 2020, arXiv 1905.09982v2, Theorem 21). ε = 0 when already the total
    variation is at most δ, by √(1 − e^(−r)) (Bretagnolle, Huber 1979). At the infinite order ε = r.
    """
    epsilons, alphas = _epsilons(orders, rdp, require_delta(delta))
    best = int(np.argmin(epsilons))
    return float(epsilons[best]), float(alphas[best])


def delta_from_rdp(orders: ArrayLike, rdp: ArrayLike, epsilon: float) -> float:
    """The smallest δ these orders give at this ε, at most 1: the same bounds solved for δ."""
    target = require_epsilon(epsilon)
    alphas, curve = _checked(orders, rdp)
    if np.any(np.isinf(alphas) & (curve <= target)):
        return 0.0
    finite = np.isfinite(alphas) & np.isfinite(curve)
    a, r = alphas[finite], curve[finite]
    log_deltas = (a - 1.0) * (r - target + np.log1p(-1.0 / a)) - np.log(a)
    variations = np.sqrt(-np.expm1(-r))
    best = min(
        float(np.min(np.exp(np.minimum(log_deltas, 0.0)), initial=1.0)),
        float(np.min(variations, initial=1.0)),
    )
    return min(1.0, best * (1.0 + 1e-9))


def rdp_capacity(epsilon: float, delta: float, order: float) -> float:
    """The largest RDP at this one order that still converts to at most ε at δ: a Rényi filter's size.

    The bounds of `epsilon_from_rdp` solved for r, rounded down. 0 when nothing fits.
    """
    target, delta = require_epsilon(epsilon), require_delta(delta)
    if not order > 1:
        raise InputError("order", "must be above 1", order)
    if math.isinf(order):
        return max(target, -math.log1p(-delta * delta) * (1.0 - ROUNDING))
    if delta == 0:
        return 0.0
    exact = float(capacities(target, delta, np.array([order]))[0])
    slack = ROUNDING * (target + exact + (math.log(order) - math.log(delta)) / (order - 1.0))
    capacity = exact
    while capacity > 0 and epsilon_from_rdp([order], [capacity], delta)[0] > target:
        capacity, slack = exact - slack, 2.0 * slack
    return max(capacity, 0.0)


def capacities(epsilon: float, delta: float, orders: Array) -> Array:
    """The largest RDP at each order that converts to ε at δ > 0, before rounding; at least 0."""
    converted = epsilon - np.log1p(-1.0 / orders) + (np.log(orders) + math.log(delta)) / (orders - 1.0)
    return np.maximum(converted, -math.log1p(-delta * delta))


def _epsilons(orders: ArrayLike, rdp: ArrayLike, delta: float) -> tuple[Array, Array]:
    alphas, curve = _checked(orders, rdp)
    pure = np.isinf(alphas)
    a = np.where(pure, 2.0, alphas)
    if delta == 0:
        return np.where(pure | (curve == 0), curve, math.inf), alphas
    converted = curve + np.log1p(-1.0 / a) - (np.log(a) + math.log(delta)) / (a - 1.0)
    converted += ROUNDING * (np.abs(converted) + np.abs(math.log(delta)) / (a - 1.0))
    epsilons = np.where(pure, curve, np.maximum(converted, 0.0))
    return np.where(-np.expm1(-curve) <= delta * delta, 0.0, epsilons), alphas


def _checked(orders: ArrayLike, rdp: ArrayLike) -> tuple[Array, Array]:
    alphas, curve = np.asarray(orders, dtype=np.float64), np.asarray(rdp, dtype=np.float64)
    if alphas.ndim != 1 or alphas.shape != curve.shape or alphas.size == 0:
        raise InputError(
            "orders and rdp", "must be lists of the same length", f"shapes {alphas.shape} and {curve.shape}"
        )
    if not np.all(alphas > 1):
        raise InputError("orders", "must be above 1", float(np.min(alphas)))
    if np.any(np.isnan(curve)) or np.any(curve < 0):
        raise InputError("rdp", "must be at least 0 at every order", curve.tolist())
    return alphas, curve


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """δ(ε) = Φ(h/2 − ε/h) − e^ε Φ(−h/2 − ε/h) with h = 1/multiplier (Balle, Wang 2018, arXiv 1805.06530v2, Theorem 8).

    The two terms nearly cancel when h is small. With t = ε/h − h/2 and Mills' ratio M(s) = (1 − Φ(s))/φ(s), and as
    e^ε φ(t + h) = φ(t), the difference is φ(t) (M(t) − M(t + h)), and M' = s M − 1. So

        δ = φ(t) ∫_t^{t+h} (1 − s M(s)) ds,

    whose integrand is positive, and computed to (1 + s²) units in the last place. It is entire: 20 Gauss-Legendre
    nodes leave nothing of note on an interval of length 1. For longer intervals M(t) and M(t + h) are so different
    that subtracting them loses at most two digits. Where φ(t) is a number at all, t² < 1500: more than twelve digits
    are left, for multipliers above 1e-3.
    """
    from scipy.special import erfcx, ndtr

    shift = 1.0 / multiplier
    start = epsilon * multiplier - shift / 2.0
    density = math.exp(-start * start / 2.0) / math.sqrt(2.0 * math.pi)

    def mills(s: Array) -> Array:
        ratio: Array = math.sqrt(math.pi / 2.0) * erfcx(s / math.sqrt(2.0))
        return ratio

    if shift <= 1.0:
        nodes, weights = _gauss_legendre()
        points = start + shift * nodes
        return density * shift * math.fsum(weights * (1.0 - points * mills(points)))
    first = density * float(mills(np.array(start))) if start > 0 else float(ndtr(-start))
    return max(0.0, first - density * float(mills(np.array(start + shift))))


def gaussian_epsilon(separation: float, delta: float) -> float:
    """ε at δ of a Gaussian mechanism whose neighbours are so many standard deviations apart, from below."""
    if separation <= 0 or gaussian_delta(0.0, 1.0 / separation) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(high, 1.0 / separation) > delta:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_delta(middle, 1.0 / separation) > delta else (low, middle)
    return low


@lru_cache
def _gauss_legendre() -> tuple[Array, Array]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (nodes + 1.0) / 2.0, weights / 2.0
