"""The Laplace (Abel) kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from privfair.arrays import FloatArray
from privfair.kernels.base import Kernel, require_bandwidth
from privfair.kernels.exponential import ExponentialPolynomial
from privfair.kernels.profile import Profile


@dataclass(frozen=True)
class LaplaceKernel(Kernel):
    """v(d) = exp(−|d|/ℓ), with S(ω) = 2ℓ/(1 + ℓ²ω²). It has a kink at 0."""

    bandwidth: float

    def __post_init__(self) -> None:
        """Refuse a bandwidth that is not above 0."""
        object.__setattr__(self, "bandwidth", require_bandwidth(self.bandwidth))

    @cached_property
    def form(self) -> Profile:
        """e^{−r/ℓ}."""
        return Profile(continuous=ExponentialPolynomial(((1 / Fraction(self.bandwidth), (Fraction(1),)),)))

    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """ln 2ℓ − ln(1 + ℓ²ω²)."""
        return math.log(2 * self.bandwidth) - np.log1p(np.square(self.bandwidth * np.asarray(frequency, dtype=float)))

    def __str__(self) -> str:
        """The form the command line takes."""
        return f"laplace:{self.bandwidth:g}"
