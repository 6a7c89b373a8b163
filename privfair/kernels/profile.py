"""Exponential polynomials convolved with a Gaussian, without overflow and without cancellation.

With r = |d|, the building block is

    I_k(d) = ∫₀^∞ t^k e^{−at} N(d − t; s²) dt = (k!/2)(s√2)^k · e^{−d²/2s²} · J_k((as − d/s)/√2)

where J_k(u) = e^{u²}·iᵏerfc(u) is the scaled repeated integral of erfc (DLMF 7.18): J_0 = erfcx,
J_{k−1} = 2u·J_k + 2(k+1)·J_{k+1} and J_k′ = −2(k+1)·J_{k+1}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.polynomial import hermite_e
from scipy.special import erfc, erfcx

from privfair.kernels.base import Form
from privfair.kernels.exponential import ExponentialPolynomial
from privfair.mechanisms.noise import GaussianNoise, LaplaceNoise, Noise
from privfair.util import FloatArray

_FORWARD_BELOW = 1.0  # the recurrence upwards in k loses digits as u grows; above this, ratios from far out downwards
_SERIES_FROM = 3.0  # as/√2 from which I_k(d) − I_k(−d) is taken from its Taylor series near d = 0
_SERIES_REACH = 0.1
_SERIES_TERMS = 9


def smooth(release_plan: list[tuple[float, FloatArray]], s: float, r: FloatArray, parity: int) -> FloatArray:
    """(E ⊛ N(0, s²))(r) for r ≥ 0, where E extends Σ p(a·t)e^{−at} from t > 0 evenly (parity +1) or oddly (−1)."""
    total = np.zeros_like(r)
    for rate, p in release_plan:
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


# ---- The profile v(d) of a kernel with everything that noise did to it, in one closed family.
#
#     v = [ Σ_n c_n D²ⁿδ  +  E ] ⊛ N(0, s²)
#
# `impulses` are the c_n, E is an exponential polynomial, s² ≥ 0. A Gaussian kernel is an impulse smoothed by its own
# bandwidth; Laplace, Matérn and energy kernels are an E with s² = 0. Gaussian noise adds to s² or takes from it;
# Laplace noise divides or multiplies the transform by 1 + b²ω². All in exact fractions, so the two undo each other.


_NEAR_RATE_TERMS = 16  # powers kept where nearly equal rates are merged before smoothing: error below 0.1¹⁶


@dataclass(frozen=True)
class Profile(Form):
    """[Σ_n impulses[n]·D²ⁿδ + continuous] ⊛ N(0, variance)."""

    impulses: tuple[Fraction, ...] = ()
    continuous: ExponentialPolynomial = field(default_factory=ExponentialPolynomial)
    variance: Fraction = Fraction(0)

    @property
    def exists(self) -> bool:
        """Whether this is a function: no negative variance, and no impulse left bare."""
        return self.variance > 0 or (self.variance == 0 and not any(self.impulses))

    def convolved(self, noise: Noise) -> Profile:
        """This profile convolved with the noise's law."""
        scale = Fraction(noise.scale)
        if not scale:
            return self
        if isinstance(noise, GaussianNoise):
            return Profile(self.impulses, self.continuous, self.variance + scale**2)
        if isinstance(noise, LaplaceNoise):
            quotient, rest = _divided(self.impulses, scale**2)
            # the rest of the division stands over 1 + b²ω²: that is a Laplace density of this weight
            density = ExponentialPolynomial.collect([(1 / scale, (rest / (2 * scale),))])
            return Profile(quotient, self.continuous.smoothed_by_laplace(scale) + density, self.variance)
        raise TypeError(f"no closed form for {type(noise).__name__}")

    def deconvolved(self, noise: Noise) -> Profile:
        """The profile that `convolved(noise)` turns into this one; ask `exists` whether it is a function."""
        scale = Fraction(noise.scale)
        if not scale:
            return self
        if isinstance(noise, GaussianNoise):
            return Profile(self.impulses, self.continuous, self.variance - scale**2)
        if isinstance(noise, LaplaceNoise):
            sharpened, impulse = self.continuous.sharpened_by_laplace(scale)
            return Profile(_times(self.impulses, scale**2, impulse), sharpened, self.variance)
        raise TypeError(f"no closed form for {type(noise).__name__}")

    def evaluate(self, d: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative of v at d; at d = 0 the mean of the two one-sided limits."""
        impulses, even_or_odd, merged = _differentiated(self.impulses, self.continuous, order)
        r = np.abs(d)
        if self.variance == 0:
            value = even_or_odd.evaluate(r)
        else:
            s = math.sqrt(self.variance)
            value = smooth(merged, s, r, parity=-1 if order % 2 else 1) + _gaussian_part(impulses, s, r)
        return value * np.sign(d) if order % 2 else value

    @property
    def exponential(self) -> ExponentialPolynomial | None:
        """The exponential polynomial itself, while no Gaussian has smoothed it."""
        return self.continuous if self.variance == 0 else None


@lru_cache(maxsize=256)
def _differentiated(
    impulses: tuple[Fraction, ...], continuous: ExponentialPolynomial, order: int
) -> tuple[tuple[float, ...], ExponentialPolynomial, list[tuple[float, FloatArray]]]:
    """Coefficients of Dʲδ, and the function on r > 0 (exact and merged), of the order-th derivative before smoothing.

    A jump 2g(0+) of an odd part g becomes an impulse when it is differentiated.
    """
    shifted = [Fraction(0)] * (2 * len(impulses) + order)
    for n, c in enumerate(impulses):
        shifted[2 * n + order] = c
    for k in range(1, order, 2):
        shifted[order - 1 - k] += 2 * continuous.derivative(k).at_zero()
    function = continuous.derivative(order)
    return tuple(float(c) for c in shifted), function, function.merged(_NEAR_RATE_TERMS)


def _gaussian_part(impulses: tuple[float, ...], s: float, r: FloatArray) -> FloatArray | float:
    """Σ_j c_j Dʲ N(r; s²), by Hermite polynomials: DʲN = (−1)ʲ s^{−j} He_j(r/s) N."""
    if not any(impulses):
        return 0.0
    x = np.minimum(r / s, 60.0)  # exp(−60²/2) is 0 in double precision
    series = [c * (-1 / s) ** j for j, c in enumerate(impulses)]
    value: FloatArray = hermite_e.hermeval(x, series) * np.exp(-0.5 * x * x) / (s * math.sqrt(2 * math.pi))
    return value


def _times(impulses: tuple[Fraction, ...], b2: Fraction, impulse: Fraction) -> tuple[Fraction, ...]:
    """P·(1 − b²X) + impulse, where P = Σ c_n Xⁿ and X stands for D²."""
    result = [*impulses, Fraction(0)]
    for n, c in enumerate(impulses):
        result[n + 1] -= b2 * c
    result[0] += impulse
    return _trimmed(result)


def _divided(impulses: tuple[Fraction, ...], b2: Fraction) -> tuple[tuple[Fraction, ...], Fraction]:
    """Quotient and rest of P : (1 − b²X)."""
    rest = list(impulses)
    quotient = [Fraction(0)] * len(rest)
    for n in range(len(rest) - 1, 0, -1):
        quotient[n - 1] = -rest[n] / b2
        rest[n - 1] -= quotient[n - 1]
    return _trimmed(quotient), rest[0] if rest else Fraction(0)


def _trimmed(coefficients: list[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients without zeros at the end."""
    while coefficients and coefficients[-1] == 0:
        coefficients.pop()
    return tuple(coefficients)
