"""The Gaussian kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from privfair.arrays import FloatArray
from privfair.kernels.base import Kernel, require_bandwidth
from privfair.kernels.profile import Profile


@dataclass(frozen=True)
class GaussianKernel(Kernel):
    """v(d) = exp(−d²/2ℓ²), with S(ω) = ℓ√2π·exp(−ℓ²ω²/2)."""

    bandwidth: float

    def __post_init__(self) -> None:
        """Refuse a bandwidth that is not above 0."""
        object.__setattr__(self, "bandwidth", require_bandwidth(self.bandwidth))

    @cached_property
    def form(self) -> Profile:
        """An impulse of weight ℓ√2π smoothed by N(0, ℓ²)."""
        ell = self.bandwidth
        return Profile(impulses=(Fraction(math.sqrt(2 * math.pi) * ell),), variance=Fraction(ell) ** 2)

    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """ln(ℓ√2π) − ℓ²ω²/2."""
        ell = self.bandwidth
        return math.log(ell * math.sqrt(2 * math.pi)) - 0.5 * np.square(ell * np.asarray(frequency, dtype=float))

    def __str__(self) -> str:
        """The form the command line takes."""
        return f"gaussian:{self.bandwidth:g}"
