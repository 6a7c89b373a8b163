"""Even functions made of polynomials times decaying exponentials of |d|, with exact algebra.

    E(d) = Σ_i p_i(r)·exp(−a_i r),   r = |d|,  a_i ≥ 0

Laplace, Matérn and energy kernels are of this form, Laplace noise keeps them in it, and sums of such functions over
a sorted sample need only prefix sums. Rates and coefficients are exact fractions: smoothing and sharpening by the
same noise cancel exactly, and a kernel's slope at 0 is exactly zero when it should be. Floating point enters last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erfc, erfcx

if TYPE_CHECKING:
    from privfair.util import FloatArray

Term = tuple[Fraction, tuple[Fraction, ...]]

_UNDERFLOW = 750.0  # exp(−750) is 0 in double precision
_TAYLOR_TERMS = 24
_TAYLOR_REACH = 0.5  # rate × distance below which the Taylor polynomial at 0 is used: 0.5²⁴/24! is far below 1e-16


@dataclass(frozen=True)
class ExponentialPolynomial:
    """Σ_i p_i(r)·exp(−a_i r); `terms` holds (a_i, coefficients of p_i), one entry per rate, rates increasing."""

    terms: tuple[Term, ...] = ()

    @staticmethod
    def collect(terms: Iterable[Term]) -> ExponentialPolynomial:
        """The sum of the given terms, equal rates added up, zeros dropped."""
        by_rate: dict[Fraction, list[Fraction]] = {}
        for rate, coefficients in terms:
            total = by_rate.setdefault(rate, [])
            total.extend([Fraction(0)] * (len(coefficients) - len(total)))
            for power, coefficient in enumerate(coefficients):
                total[power] += coefficient
        kept = []
        for rate in sorted(by_rate):
            total = by_rate[rate]
            while total and total[-1] == 0:
                total.pop()
            if total:
                kept.append((rate, tuple(total)))
        return ExponentialPolynomial(tuple(kept))

    def __add__(self, other: ExponentialPolynomial) -> ExponentialPolynomial:
        """Pointwise sum."""
        return self.collect(self.terms + other.terms)

    def times(self, factor: Fraction) -> ExponentialPolynomial:
        """Pointwise multiple."""
        return self.collect((rate, tuple(factor * c for c in p)) for rate, p in self.terms)

    def derivative(self, order: int = 1) -> ExponentialPolynomial:
        """The order-th derivative in r on r > 0: (p·e^{−ar})′ = (p′ − a·p)·e^{−ar}."""
        result = self
        for _ in range(order):
            result = self.collect(
                (rate, tuple(slope - rate * c for slope, c in zip(_slope(p), p, strict=True)))
                for rate, p in result.terms
            )
        return result

    def at_zero(self) -> Fraction:
        """E(0+), exactly."""
        return sum((p[0] for _, p in self.terms), Fraction(0))

    def smoothed_by_laplace(self, scale: Fraction) -> ExponentialPolynomial:
        """E convolved with the Laplace(b) law: the even, not growing solution u of u − b²u″ = E.

        On r > 0 each term p·e^{−ar} gives q·e^{−ar} with (1 − a²b²)q = p + b²(q″ − 2aq′), or, at a = 1/b where the
        left side vanishes, 2aq′ − q″ = p/b². The multiple of e^{−r/b} that makes u′(0) = 0 is added.
        """
        b2, own_rate = scale**2, 1 / scale
        parts: list[Term] = []
        for rate, p in self.terms:
            if rate == own_rate:
                parts.append((rate, _resonant(p, rate, b2)))
            else:
                parts.append((rate, _forced(p, rate, b2)))
        particular = self.collect(parts)
        slope_at_zero = particular.derivative().at_zero()
        return self.collect([*particular.terms, (own_rate, (scale * slope_at_zero,))])

    def sharpened_by_laplace(self, scale: Fraction) -> tuple[ExponentialPolynomial, Fraction]:
        """(1 − b²D²)E as a function on r > 0, and the weight of the impulse at 0 that a kink of E leaves."""
        impulse = -(scale**2) * 2 * self.derivative().at_zero()
        return self + self.derivative(2).times(-(scale**2)), impulse

    # ---- floating point -------------------------------------------------------------------------------------

    def merged(self, extra: int = 40) -> list[tuple[float, FloatArray]]:
        """The terms in floating point, nearly equal rates brought to one rate so that nothing cancels.

        Two rates that differ by a fraction τ come with coefficients of order τ^{1−n} (n: coefficients involved) that
        cancel. Below a τ that depends on n, e^{−cr} = e^{−mr}·Σ_j ((m − c)r)^j/j! with m the larger rate: a series of
        positive terms, cut after `extra` more powers.
        """
        groups: list[list[Term]] = []
        for term in reversed(self.terms):
            if groups and _too_close(groups[-1][0], term):
                groups[-1].append(term)
            else:
                groups.append([term])
        return [_on_common_rate(group, extra) for group in groups]

    @cached_property
    def _evaluation(self) -> tuple[list[tuple[float, FloatArray]], float, FloatArray]:
        """Merged terms, reach of the Taylor polynomial, and its coefficients, for `evaluate`."""
        fastest = max((rate for rate, _ in self.terms), default=Fraction(0))
        reach = _TAYLOR_REACH / float(fastest) if fastest else 0.0
        return self.merged(), reach, self.taylor(_TAYLOR_TERMS)

    def taylor(self, count: int) -> FloatArray:
        """The first `count` Taylor coefficients at 0+, each the float nearest to its exact value."""
        coefficients = [Fraction(0)] * count
        for rate, p in self.terms:
            for power, c in enumerate(p):
                for j in range(count - power):
                    coefficients[power + j] += c * (-rate) ** j / math.factorial(j)
        return np.array([float(c) for c in coefficients])

    def evaluate(self, r: FloatArray) -> FloatArray:
        """E(r) for distances r ≥ 0; near 0 by the Taylor polynomial, where the terms would cancel."""
        if not self.terms:
            return np.zeros_like(r)
        merged, reach, taylor = self._evaluation
        total = np.zeros_like(r)
        for rate, p in merged:
            scaled = np.minimum(rate * r, _UNDERFLOW) if rate else r
            total += horner(p, scaled) * (np.exp(-scaled) if rate else 1.0)
        near = r < reach
        if near.any():
            total[near] = horner(taylor, r[near])
        return total


def _slope(p: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Coefficients of p′, as long as those of p."""
    return (*((k + 1) * p[k + 1] for k in range(len(p) - 1)), Fraction(0))


def _forced(p: tuple[Fraction, ...], rate: Fraction, b2: Fraction) -> tuple[Fraction, ...]:
    """q with (1 − a²b²)q = p + b²(q″ − 2aq′), from the highest power down."""
    q = [Fraction(0)] * (len(p) + 2)
    for k in reversed(range(len(p))):
        q[k] = (p[k] + b2 * ((k + 2) * (k + 1) * q[k + 2] - 2 * rate * (k + 1) * q[k + 1])) / (1 - rate**2 * b2)
    return tuple(q)


def _resonant(p: tuple[Fraction, ...], rate: Fraction, b2: Fraction) -> tuple[Fraction, ...]:
    """q with q(0) = 0 and 2aq′ − q″ = p/b²."""
    slope = [Fraction(0)] * (len(p) + 1)
    for k in reversed(range(len(p))):
        slope[k] = (p[k] / b2 + (k + 1) * slope[k + 1]) / (2 * rate)
    return (Fraction(0), *(slope[k] / (k + 1) for k in range(len(p))))


def _too_close(fast: Term, slow: Term) -> bool:
    """Whether the two terms' coefficients would cancel to fewer than about ten digits."""
    if slow[0] == 0:
        return False
    involved = len(fast[1]) + len(slow[1]) - 1
    return float(1 - slow[0] / fast[0]) < math.pow(1e-5, 1 / involved)


def _on_common_rate(group: list[Term], extra: int) -> tuple[float, FloatArray]:
    """(m, coefficients in powers of m·r, or of r if m = 0) of Σ p(r)e^{−cr} over terms with c ≤ m near m."""
    fastest = group[0][0]
    size = max(len(p) for _, p in group) + (extra if len(group) > 1 else 0)
    total = [Fraction(0)] * size
    for rate, p in group:
        lag = fastest - rate
        for power, c in enumerate(p):
            for j in range(size - power) if lag else (0,):
                total[power + j] += c * lag**j / math.factorial(j)
    unit = fastest or Fraction(1)
    return float(fastest), np.array([float(c / unit**power) for power, c in enumerate(total)])


def horner(coefficients: FloatArray, x: FloatArray) -> FloatArray:
    """Σ_k c_k x^k."""
    total = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total *= x
        total += c
    return total


# ---- Exponential polynomials convolved with a Gaussian, without overflow and without cancellation.
#
# With r = |d|, the building block is
#
#     I_k(d) = ∫₀^∞ t^k e^{−at} N(d − t; s²) dt = (k!/2)(s√2)^k · e^{−d²/2s²} · J_k((as − d/s)/√2)
#
# where J_k(u) = e^{u²}·iᵏerfc(u) is the scaled repeated integral of erfc (DLMF 7.18): J_0 = erfcx,
# J_{k−1} = 2u·J_k + 2(k+1)·J_{k+1} and J_k′ = −2(k+1)·J_{k+1}.

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
