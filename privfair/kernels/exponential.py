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

import numpy as np

from privfair.util import FloatArray

Term = tuple[Fraction, tuple[Fraction, ...]]

_UNDERFLOW = 750.0  # exp(−750) is 0 in double precision
_TAYLOR_TERMS = 24
_TAYLOR_REACH = 0.5  # rate × distance below which the Taylor polynomial at 0 is used: 0.5²⁴/24! is far below 1e-16


@dataclass(frozen=True)
class ExponentialPolynomial:
    """Σ_i p_i(r)·exp(−a_i r); `terms` holds (a_i, coefficients of p_i), one entry per rate, rates increasing."""

    release_plan: tuple[Term, ...] = ()

    @staticmethod
    def collect(release_plan: Iterable[Term]) -> ExponentialPolynomial:
        """The sum of the given terms, equal rates added up, zeros dropped."""
        by_rate: dict[Fraction, list[Fraction]] = {}
        for rate, coefficients in release_plan:
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
        return self.collect(self.release_plan + other.release_plan)

    def times(self, factor: Fraction) -> ExponentialPolynomial:
        """Pointwise multiple."""
        return self.collect((rate, tuple(factor * c for c in p)) for rate, p in self.release_plan)

    def derivative(self, order: int = 1) -> ExponentialPolynomial:
        """The order-th derivative in r on r > 0: (p·e^{−ar})′ = (p′ − a·p)·e^{−ar}."""
        result = self
        for _ in range(order):
            result = self.collect(
                (rate, tuple(slope - rate * c for slope, c in zip(_slope(p), p, strict=True)))
                for rate, p in result.release_plan
            )
        return result

    def at_zero(self) -> Fraction:
        """E(0+), exactly."""
        return sum((p[0] for _, p in self.release_plan), Fraction(0))

    def smoothed_by_laplace(self, scale: Fraction) -> ExponentialPolynomial:
        """E convolved with the Laplace(b) law: the even, not growing solution u of u − b²u″ = E.

        On r > 0 each term p·e^{−ar} gives q·e^{−ar} with (1 − a²b²)q = p + b²(q″ − 2aq′), or, at a = 1/b where the
        left side vanishes, 2aq′ − q″ = p/b². The multiple of e^{−r/b} that makes u′(0) = 0 is added.
        """
        b2, own_rate = scale**2, 1 / scale
        parts: list[Term] = []
        for rate, p in self.release_plan:
            if rate == own_rate:
                parts.append((rate, _resonant(p, rate, b2)))
            else:
                parts.append((rate, _forced(p, rate, b2)))
        particular = self.collect(parts)
        slope_at_zero = particular.derivative().at_zero()
        return self.collect([*particular.release_plan, (own_rate, (scale * slope_at_zero,))])

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
        for term in reversed(self.release_plan):
            if groups and _too_close(groups[-1][0], term):
                groups[-1].append(term)
            else:
                groups.append([term])
        return [_on_common_rate(group, extra) for group in groups]

    @cached_property
    def _evaluation(self) -> tuple[list[tuple[float, FloatArray]], float, FloatArray]:
        """Merged terms, reach of the Taylor polynomial, and its coefficients, for `evaluate`."""
        fastest = max((rate for rate, _ in self.release_plan), default=Fraction(0))
        reach = _TAYLOR_REACH / float(fastest) if fastest else 0.0
        return self.merged(), reach, self.taylor(_TAYLOR_TERMS)

    def taylor(self, count: int) -> FloatArray:
        """The first `count` Taylor coefficients at 0+, each the float nearest to its exact value."""
        coefficients = [Fraction(0)] * count
        for rate, p in self.release_plan:
            for power, c in enumerate(p):
                for j in range(count - power):
                    coefficients[power + j] += c * (-rate) ** j / math.factorial(j)
        return np.array([float(c) for c in coefficients])

    def evaluate(self, r: FloatArray) -> FloatArray:
        """E(r) for distances r ≥ 0; near 0 by the Taylor polynomial, where the terms would cancel."""
        if not self.release_plan:
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
