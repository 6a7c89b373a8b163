"""Exponential polynomials convolved with a Gaussian, without overflow and without cancellation.

With r = |d|, the building block is

    I_k(d) = ∫₀^∞ t^k e^{−at} N(d − t; s²) dt = (k!/2)(s√2)^k · e^{−d²/2s²} · J_k((as − d/s)/√2)

where J_k(u) = e^{u²}·iᵏerfc(u) is the scaled repeated integral of erfc (DLMF 7.18): J_0 = erfcx,
J_{k−1} = 2u·J_k + 2(k+1)·J_{k+1} and J_k′ = −2(k+1)·J_{k+1}.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfc, erfcx

from privfair.arrays import FloatArray

_FORWARD_BELOW = 1.0  # the recurrence upwards in k loses digits as u grows; above this, ratios from far out downwards
_SERIES_FROM = 3.0  # as/√2 from which I_k(d) − I_k(−d) is taken from its Taylor series near d = 0
_SERIES_REACH = 0.1
_SERIES_TERMS = 9


def smooth(terms: list[tuple[float, FloatArray]], s: float, r: FloatArray, parity: int) -> FloatArray:
    """(E ⊛ N(0, s²))(r) for r ≥ 0, where E extends Σ p(a·t)e^{−at} from t > 0 evenly (parity +1) or oddly (−1)."""
    total = np.zeros_like(r)
    for rate, p in terms:
        unit = rate or 1.0
        # p is in powers of rate·t (of t where the rate is 0), I_k in powers of t
        weights = [c * unit**k * 0.5 * math.factorial(k) * (s * math.sqrt(2)) ** k for k, c in enumerate(p)]
        total += _one_rate(weights, rate, s, r, parity)
    return total


def _one_rate(weights: list[float], rate: float, s: float, r: FloatArray, parity: int) -> FloatArray:
    """Σ_k w_k·e^{−r²/2s²}·[J_k(x − h) + parity·J_k(x + h)] with x = as/√2 and h = r/(s√2)."""
    x = rate * s / math.sqrt(2)
    if rate:  # beyond this everything is 0 in double precision, and powers of r would overflow
        r = np.minimum(r, 760 / rate + 2 * rate * s * s + 60 * s)
    h = r / (s * math.sqrt(2))
    result = np.empty_like(r)
    gaussian = np.exp(-np.square(np.minimum(h, 1e6)))
    series = (h < _SERIES_REACH * x) if parity < 0 and x > _SERIES_FROM else np.zeros(r.shape, dtype=bool)
    if series.any():
        result[series] = gaussian[series] * _odd_series(weights, x, h[series])
    rest = ~series
    if rest.any():
        near, far = _near_side(weights, rate, s, r[rest], x - h[rest], gaussian[rest]), x + h[rest]
        result[rest] = near + parity * gaussian[rest] * _weighted(weights, _scaled_repeated_erfc(far, len(weights)))
    return result


def _near_side(
    weights: list[float], rate: float, s: float, r: FloatArray, u: FloatArray, gaussian: FloatArray
) -> FloatArray:
    """Σ_k w_k·e^{−r²/2s²}·J_k(u), for u of either sign: below 0 as e^{a²s²/2 − ar}·iᵏerfc(u), which stays finite."""
    result = np.empty_like(u)
    positive = u >= 0
    if positive.any():
        scaled = _scaled_repeated_erfc(u[positive], len(weights))
        result[positive] = gaussian[positive] * _weighted(weights, scaled)
    negative = ~positive
    if negative.any():
        below = u[negative]
        plain = [2 / math.sqrt(math.pi) * np.exp(-np.square(np.maximum(below, -1e6))), erfc(below)]
        for k in range(1, len(weights)):
            plain.append((plain[-2] - 2 * below * plain[-1]) / (2 * k))
        exponent = np.maximum(0.5 * (rate * s) ** 2 - rate * r[negative], -750.0)
        result[negative] = np.exp(exponent) * _weighted(weights, plain[1:])
    return result


def _scaled_repeated_erfc(u: FloatArray, count: int) -> list[FloatArray]:
    """J_0(u), …, J_{count−1}(u) for u ≥ 0."""
    first = erfcx(u)
    values = [first] + [np.empty_like(u) for _ in range(count - 1)]
    small = u < _FORWARD_BELOW
    if small.any():
        below, current = np.full(int(small.sum()), 2 / math.sqrt(math.pi)), first[small]
        for k in range(1, count):
            below, current = current, (below - 2 * u[small] * current) / (2 * k)
            values[k][small] = current
    large = ~small
    if count > 1 and large.any():
        for k, ratio in enumerate(_ratios(u[large], count - 1)):
            values[k + 1][large] = values[k][large] * ratio
    return values


def _ratios(u: FloatArray, count: int) -> list[FloatArray]:
    """J_{k+1}/J_k for k < count and u ≥ 1: the recurrence downwards, ρ_{k−1} = 1/(2u + 2(k+1)ρ_k), which is stable."""
    # Number of steps for full double precision: Gautschi 1961, Recursive computation of the repeated integrals.
    start = math.ceil((math.sqrt(count) + 40 / (2 * math.sqrt(2) * _FORWARD_BELOW)) ** 2)
    ratio = np.zeros_like(u)
    kept: list[FloatArray] = []
    for k in range(start, 0, -1):
        ratio = 1.0 / (2 * u + 2 * (k + 1) * ratio)
        if k <= count:
            kept.append(ratio)
    return kept[::-1]


def _odd_series(weights: list[float], x: float, h: FloatArray) -> FloatArray:
    """Σ_k w_k [J_k(x − h) − J_k(x + h)] = Σ_k w_k · 2 Σ_{n odd} C(k+n, n)(2h)ⁿ J_{k+n}(x)."""
    orders = range(1, 2 * _SERIES_TERMS, 2)
    at_x = [float(j[0]) for j in _scaled_repeated_erfc(np.array([x]), len(weights) + orders[-1])]
    total = np.zeros_like(h)
    for n in reversed(orders):
        c = sum(w * math.comb(k + n, n) * at_x[k + n] for k, w in enumerate(weights))
        total = total * np.square(2 * h) + 2 * c
    return total * 2 * h


def _weighted(weights: list[float], values: list[FloatArray]) -> FloatArray:
    """Σ_k w_k v_k."""
    total = weights[0] * values[0]
    for w, v in zip(weights[1:], values[1:], strict=False):
        total += w * v
    return total
