"""Matérn kernels of smoothness 3/2 and 5/2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.kernels.base import Kernel, require_bandwidth
from privfair.kernels.exponential import ExponentialPolynomial
from privfair.kernels.profile import Profile


@dataclass(frozen=True)
class MaternKernel(Kernel):
    """With a = √(2ν)/ℓ: (1 + ar)e^{−ar} for ν = 3/2, (1 + ar + a²r²/3)e^{−ar} for ν = 5/2.

    S(ω) = 4a³/(a² + ω²)² and (16/3)a⁵/(a² + ω²)³ (Rasmussen & Williams 2006, section 4.2.1).
    """

    bandwidth: float
    nu: float = 1.5

    def __post_init__(self) -> None:
        """Refuse a bandwidth that is not above 0, and a smoothness without a closed form here."""
        object.__setattr__(self, "bandwidth", require_bandwidth(self.bandwidth))
        if self.nu not in (1.5, 2.5):
            raise InputError(
                "nu",
                "must be 1.5 or 2.5",
                self.nu,
                "For ν = 1/2 use LaplaceKernel, for ν → ∞ GaussianKernel.",
            )

    @property
    def rate(self) -> float:
        """a = √(2ν)/ℓ."""
        return math.sqrt(2 * self.nu) / self.bandwidth

    @cached_property
    def form(self) -> Profile:
        """The polynomial times e^{−ar}; its slope at 0 is exactly 0."""
        a = Fraction(self.rate)
        p = (Fraction(1), a) if self.nu == 1.5 else (Fraction(1), a, a**2 / 3)
        return Profile(continuous=ExponentialPolynomial(((a, p),)))

    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """The logarithm of 4a³/(a² + ω²)² or (16/3)a⁵/(a² + ω²)³."""
        a = self.rate
        falloff = -np.log1p(np.square(np.asarray(frequency, dtype=float) / a))
        return math.log(4 / a) + 2 * falloff if self.nu == 1.5 else math.log(16 / (3 * a)) + 3 * falloff

    def __str__(self) -> str:
        """The form the command line takes."""
        return f"matern{'32' if self.nu == 1.5 else '52'}:{self.bandwidth:g}"
