"""The profile v(d) of a kernel with everything that noise did to it, in one closed family.

    v = [ Σ_n c_n D²ⁿδ  +  E ] ⊛ N(0, s²)

`impulses` are the c_n, E is an exponential polynomial, s² ≥ 0. A Gaussian kernel is an impulse smoothed by its own
bandwidth; Laplace, Matérn and energy kernels are an E with s² = 0. Gaussian noise adds to s² or takes from it;
Laplace noise divides or multiplies the transform by 1 + b²ω². All in exact fractions, so the two undo each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.polynomial import hermite_e

from privfair.arrays import FloatArray
from privfair.kernels.base import Form
from privfair.kernels.exponential import ExponentialPolynomial
from privfair.kernels.smoothing import smooth
from privfair.mechanisms.noise import GaussianNoise, LaplaceNoise, Noise

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
