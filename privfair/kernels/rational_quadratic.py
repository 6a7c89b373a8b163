"""The rational quadratic kernel; with α = 1 the Cauchy kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, kve

from accountant.errors import InputError, require_positive
from privfair.arrays import FloatArray
from privfair.kernels.base import Form, Kernel, require_bandwidth
from privfair.kernels.profile import Profile
from privfair.kernels.tables import DistanceTable
from privfair.mechanisms.noise import Noise


@dataclass(frozen=True)
class RationalQuadraticKernel(Kernel):
    """v(d) = (1 + d²/2αℓ²)^{−α}: a mixture of Gaussian kernels of all bandwidths, with a heavy tail.

    S(ω) = (2√π c/Γ(α))·(c|ω|/2)^{α−½}·K_{α−½}(c|ω|), c = ℓ√(2α).
    """

    bandwidth: float
    alpha: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a bandwidth that is not above 0 and a tail too heavy for a spectrum."""
        object.__setattr__(self, "bandwidth", require_bandwidth(self.bandwidth))
        alpha = require_positive("alpha", self.alpha)
        if alpha <= 0.5:
            raise InputError(
                "alpha", "must be above 0.5", self.alpha, "The kernel is not integrable below; 1 is Cauchy."
            )
        object.__setattr__(self, "alpha", alpha)

    @cached_property
    def form(self) -> RationalQuadraticForm:
        """The closed form, or a table where noise leaves none."""
        return RationalQuadraticForm(self.bandwidth, self.alpha, Profile(impulses=(Fraction(1),)))

    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """See the class; near ω = 0 its limit ln(√π c Γ(α−½)/Γ(α))."""
        c, order = self.bandwidth * math.sqrt(2 * self.alpha), self.alpha - 0.5
        x = np.maximum(np.abs(np.asarray(frequency, dtype=float)) * c, 1e-8)
        scaled = np.log(kve(order, x)) - x
        constant = math.log(2 * math.sqrt(math.pi) * c) - float(gammaln(self.alpha))
        return np.asarray(constant + order * np.log(x / 2) + scaled)

    def __str__(self) -> str:
        """The form the command line takes."""
        return f"cauchy:{self.bandwidth:g}" if self.alpha == 1 else f"rq:{self.bandwidth:g}:{self.alpha:g}"


@dataclass(frozen=True)
class RationalQuadraticForm(Form):
    """The rational quadratic profile with an operator on it: `operator` is what noise made of an impulse."""

    bandwidth: float
    alpha: float
    operator: Profile

    @property
    def exists(self) -> bool:
        """Its spectrum falls like e^{−c|ω|}: any Laplace noise can be undone, no Gaussian noise can."""
        return self.operator.variance >= 0

    def convolved(self, noise: Noise) -> Form:
        """The operator takes the noise."""
        return RationalQuadraticForm(self.bandwidth, self.alpha, self.operator.convolved(noise))

    def deconvolved(self, noise: Noise) -> Form:
        """The operator takes the inverse of the noise."""
        return RationalQuadraticForm(self.bandwidth, self.alpha, self.operator.deconvolved(noise))

    def evaluate(self, d: FloatArray, order: int = 0) -> FloatArray:
        """Closed form where only derivatives act on the profile; otherwise from a table made once."""
        if self.operator.variance == 0 and not self.operator.continuous.terms:
            derivatives = self._derivatives(d, 2 * len(self.operator.impulses) - 2 + order)
            impulses = self.operator.impulses
            return sum((float(c) * derivatives[2 * n + order] for n, c in enumerate(impulses)), np.zeros_like(d))
        return self._table.evaluate(d, order)

    def _derivatives(self, d: FloatArray, highest: int) -> list[FloatArray]:
        """v, v′, … by y⁽ⁿ⁺¹⁾(1 + βd²) = −2βd(n + α)y⁽ⁿ⁾ − nβ(n − 1 + 2α)y⁽ⁿ⁻¹⁾, β = 1/2αℓ²."""
        d = np.clip(d, -1e150, 1e150)
        beta = 1 / (2 * self.alpha * self.bandwidth**2)
        base = 1 + beta * d * d
        values: list[FloatArray] = [base**-self.alpha]
        before: FloatArray = np.zeros_like(d)
        for n in range(highest):
            slope = (
                -(2 * beta * (n + self.alpha) * d * values[-1] + n * beta * (n - 1 + 2 * self.alpha) * before) / base
            )
            before = values[-1]
            values.append(slope)
        return values

    @cached_property
    def _table(self) -> DistanceTable:
        """v over the whole half-line, interpolated."""
        smallest = math.hypot(self.bandwidth, math.sqrt(self.operator.variance))
        return DistanceTable(self._mixture, scale=smallest, reach=1e3 * smallest)

    def _mixture(self, r: FloatArray, order: int) -> FloatArray:
        """∫ [operator ⊛ Gaussian kernel of bandwidth ℓ/√τ](r) Gamma(τ; α, α) dτ.

        By the trapezoidal rule in u = ln τ: the integrand decays double-exponentially to the right and is analytic in
        |Im u| < π/2, so its error falls like e^{−π²/step}; its peak has a width of about 1/√α.
        """
        step = 0.25 / math.sqrt(max(1.0, self.alpha))
        u = np.arange(-40 / self.alpha - 12, 5, step)
        log_weight = self.alpha * (math.log(self.alpha) + u) - self.alpha * np.exp(u) - gammaln(self.alpha)
        total = np.zeros_like(r)
        for node, weight in zip(u, np.exp(log_weight) * step, strict=True):
            ell = self.bandwidth * math.exp(-node / 2)
            if weight == 0 or ell == 0:
                continue
            amplitude = math.sqrt(2 * math.pi) * ell
            smoothed = Profile(
                self.operator.impulses, self.operator.continuous, self.operator.variance + Fraction(ell) ** 2
            )
            total += weight * amplitude * smoothed.evaluate(r, order)
        return total
