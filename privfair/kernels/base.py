"""What every kernel can do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.optimize import brentq

from accountant.errors import InputError, require_finite, require_positive
from privfair.arrays import FloatArray
from privfair.kernels.elementwise import apply, difference
from privfair.kernels.exponential import ExponentialPolynomial
from privfair.mechanisms.noise import Noise

if TYPE_CHECKING:
    from privfair.kernels.combination import SumKernel


def require_bandwidth(bandwidth: float) -> float:
    """The bandwidth as a float, if kernels can be computed with it; otherwise `InputError`."""
    remedy = "It is the distance over which scores count as alike; scores in [0, 1] want something like 0.1 to 1."
    number = require_positive("bandwidth", bandwidth, remedy)
    if not 1e-50 <= number <= 1e50:
        raise InputError("bandwidth", "must be between 1e-50 and 1e50", bandwidth, remedy)
    return number


class NoDeconvolution(InputError):
    """No kernel exists that the noise would turn into the one asked for."""


class Form(ABC):
    """How a kernel's profile is computed once all its noise is known; the mathematics behind `Kernel`."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether this is a function at all."""

    @abstractmethod
    def convolved(self, noise: Noise) -> Form:
        """The form with this noise on it."""

    @abstractmethod
    def deconvolved(self, noise: Noise) -> Form:
        """The form that this noise turns into the present one; it may not exist."""

    @abstractmethod
    def evaluate(self, d: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative of v at d."""

    @property
    def exponential(self) -> ExponentialPolynomial | None:
        """v as an exponential polynomial, if it is one: then sums over sorted samples are exact."""
        return None


class Kernel(ABC):
    """A translation-invariant kernel κ(x, y) = v(x − y) on the real line.

    `kernel(x, y)` works elementwise with broadcasting on numbers, numpy arrays and torch tensors (with gradients).
    Kernels are immutable; `+`, `*` with a positive number, `convolve` and `deconvolve` give new ones.
    """

    @property
    @abstractmethod
    def form(self) -> Form:
        """How v is computed."""

    @abstractmethod
    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """ln S(ω): far out, a spectrum and the noise taken off it are too small and too large for a float."""

    def spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """S(ω) = ∫ v(d) e^{−iωd} dd; for the energy kernel the generalised transform at ω ≠ 0."""
        return np.exp(self.log_spectral_density(frequency))

    @property
    def bounded(self) -> bool:
        """Whether |v| is bounded; an unbounded kernel is only conditionally positive definite."""
        return True

    def __call__(self, x: Any, y: Any) -> Any:
        """κ(x, y) = v(x − y), elementwise."""
        return apply(self.form, difference(x, y))

    def profile(self, d: Any, order: int = 0) -> Any:
        """The order-th derivative of v at each distance d."""
        return apply(self.form, d, order)

    def convolve(self, noise: Noise) -> Kernel:
        """κ̃(x, y) = E v(x − y − ξ): the kernel that noise on one side of the pair turns this one into.

        Proposition 5.2 of Rychener, Kuhn & Hu (AISTATS 2025).
        """
        return self._with_noise(noise, 1)

    def deconvolve(self, noise: Noise, *, sides: int = 1) -> Kernel:
        """The kernel whose convolution with the noise (`sides` times) is this one; its price is variance.

        It exists iff S(ω)/φ(ω)^sides is integrable; otherwise `NoDeconvolution` says what would work.
        """
        if sides not in (1, 2):
            raise InputError("sides", "must be 1 or 2", sides, "A pair of scores has two sides.")
        return self._with_noise(noise, -sides)

    def _with_noise(self, noise: Noise, power: int) -> Kernel:
        from privfair.kernels.convolution import with_noise

        return with_noise(self, {}, noise, power)

    def __add__(self, other: Kernel) -> SumKernel:
        """Pointwise sum of kernels."""
        from privfair.kernels.combination import SumKernel

        return SumKernel(((1.0, self), (1.0, other)))

    def __mul__(self, factor: float) -> SumKernel:
        """Pointwise multiple, by a factor above 0."""
        from privfair.kernels.combination import SumKernel

        return SumKernel(((require_finite("factor", factor), self),))

    __rmul__ = __mul__

    @cached_property
    def effective_bandwidth(self) -> float | None:
        """The distance at which v has fallen to e^{−1/2} of its peak: ℓ for a Gaussian. None if v is unbounded."""
        if not self.bounded:
            return None
        level = math.exp(-0.5) * float(self.profile(0.0))
        reach = 1.0
        while float(self.profile(reach)) < level:
            reach /= 2
        while float(self.profile(reach)) > level:
            reach *= 2
        return float(brentq(lambda d: float(self.profile(d)) - level, reach / 2, reach, xtol=1e-14))

    def derivative_bound(self, order: int) -> float:
        """An upper bound of sup |v⁽ⁿ⁾|: the spectral moment (1/π) ∫₀^∞ ωⁿ S(ω) dω. For smooth kernels."""
        return _spectral_moment(self, order)


@lru_cache(maxsize=256)
def _spectral_moment(kernel: Kernel, order: int) -> float:
    """(1/π) ∫₀^∞ ωⁿ S(ω) dω, its quadrature error added."""
    # In units of a frequency where the integrand has fallen off, so that the quadrature sees the mass.
    unit = 1.0
    while _tail(kernel, unit, order) > 1e-3 and unit < 1e12:
        unit *= 2
    while _tail(kernel, unit / 2, order) < 1e-3 and unit > 1e-12:
        unit /= 2
    value, error = quad(
        lambda w: w**order * float(kernel.spectral_density(w * unit)), 0.0, np.inf, limit=500, epsrel=1e-9
    )
    return float((value + error) * unit ** (order + 1) / math.pi)


def _tail(kernel: Kernel, frequency: float, order: int) -> float:
    """How much of ωⁿS(ω) is left at 8 times this frequency, relative to its value there."""
    here = float(kernel.spectral_density(frequency)) * frequency**order
    far = float(kernel.spectral_density(8 * frequency)) * (8 * frequency) ** order
    return far / here if here else 0.0
