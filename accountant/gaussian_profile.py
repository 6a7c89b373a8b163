"""δ of one Gaussian release to nearly all digits, also where the textbook formula loses them, and its ε."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from accountant.rdp_moments import Array

NODES = 20


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
