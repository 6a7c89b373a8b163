"""The families of kernels, and the names by which people ask for them.

Gaussian, Laplace, energy and Matérn kernels share one closed family of profiles, `Profile`; the rational quadratic
kernel has a form of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
from numpy.polynomial import chebyshev, hermite_e
from numpy.typing import ArrayLike
from scipy.special import gammaln, kve

from accountant.errors import InputError, require_positive
from privfair.kernels.base import Form, Kernel, SumKernel, chebyshev_points, require_bandwidth
from privfair.kernels.exponential import ExponentialPolynomial, smooth
from privfair.mechanisms.score_release import GaussianNoise, LaplaceNoise, Noise
from privfair.util import FloatArray

_NEAR_RATE_TERMS = 16  # powers kept where nearly equal rates are merged before smoothing: error below 0.1¹⁶


@dataclass(frozen=True)
class Profile(Form):
    """The profile v(d) of a kernel with everything that noise did to it, in one closed family.

        v = [ Σ_n c_n D²ⁿδ  +  E ] ⊛ N(0, s²)

    `impulses` are the c_n, `continuous` is E, an exponential polynomial, and `variance` is s² ≥ 0. A Gaussian kernel is
    an impulse smoothed by its own bandwidth; Laplace, Matérn and energy kernels are an E with s² = 0. Gaussian noise
    adds to s² or subtracts from it; Laplace noise divides or multiplies the transform by 1 + b²ω². All of it is in
    exact fractions, so that convolution and deconvolution cancel.
    """

    impulses: tuple[Fraction, ...] = ()
    continuous: ExponentialPolynomial = field(default_factory=ExponentialPolynomial)
    variance: Fraction = Fraction(0)

    @property
    def exists(self) -> bool:
        """Whether this is a function: no negative variance, and no impulse left bare."""
        return self.variance > 0 or (self.variance == 0 and not any(self.impulses))

    def with_noise(self, noise: Noise, power: int) -> Profile:
        """See `Form`; ask `exists` whether the result is a function."""
        scale = Fraction(noise.scale)
        if isinstance(noise, GaussianNoise):
            return replace(self, variance=self.variance + power * scale**2)
        if not isinstance(noise, LaplaceNoise):
            raise TypeError(f"no closed form for {type(noise).__name__}")
        result = self
        for _ in range(abs(power)):
            result = result._smoothed(scale) if power > 0 else result._sharpened(scale)
        return result

    def _smoothed(self, scale: Fraction) -> Profile:
        """Convolved with Laplace noise."""
        quotient, rest = _divided(self.impulses, scale**2)
        # the rest of the division stands over 1 + b²ω²: that is a Laplace density of this weight
        density = ExponentialPolynomial.collect([(1 / scale, (rest / (2 * scale),))])
        return Profile(quotient, self.continuous.smoothed_by_laplace(scale) + density, self.variance)

    def _sharpened(self, scale: Fraction) -> Profile:
        """The profile that `_smoothed` turns into this one."""
        sharpened, impulse = self.continuous.sharpened_by_laplace(scale)
        return Profile(_times(self.impulses, scale**2, impulse), sharpened, self.variance)

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

    @property
    def removable_gaussian_noise(self) -> float:
        """ℓ: the deconvolved kernel is Gaussian with variance ℓ² − σ²."""
        return self.bandwidth

    def __str__(self) -> str:
        """The form the command line takes."""
        return f"gaussian:{self.bandwidth:g}"


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


@dataclass(frozen=True)
class EnergyKernel(Kernel):
    """v(d) = −|d|/2; MMD² with it is ∫(F₀ − F₁)², half the energy distance (Sejdinovic et al. 2013).

    The paper's Proposition 5.2 asks for a bounded kernel, and its experiments use this one. It is only conditionally
    positive definite (its generalised transform is 1/ω², ω ≠ 0), and that is enough: the witness C meets v through
    the difference of two means, where constants cancel. Convolution multiplies 1/ω² by the noise's characteristic
    function, which is above 0 for Gaussian and Laplace noise, so the kernel stays conditionally positive definite.
    """

    @cached_property
    def form(self) -> Profile:
        """−r/2."""
        return Profile(continuous=ExponentialPolynomial(((Fraction(0), (Fraction(0), Fraction(-1, 2))),)))

    @property
    def bounded(self) -> bool:
        """It is not."""
        return False

    @property
    def has_cosines(self) -> bool:
        """They are: −|x − y|/2 on an interval is diagonal in cosines once it is centred."""
        return True

    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """−2 ln|ω|, the generalised transform; infinite at 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(-2 * np.log(np.abs(np.asarray(frequency, dtype=float))))

    def __str__(self) -> str:
        """The form the command line takes."""
        return "energy"


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


@dataclass(frozen=True)
class RationalQuadraticKernel(Kernel):
    """v(d) = (1 + d²/2αℓ²)^{−α}: a mixture of Gaussian kernels of all bandwidths, with a heavy tail; α = 1 is Cauchy.

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

    def with_noise(self, noise: Noise, power: int) -> Form:
        """The operator takes the noise."""
        return replace(self, operator=self.operator.with_noise(noise, power))

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


class DistanceTable:
    """An even function of a distance, on cells that grow with the distance; computed directly beyond `reach`."""

    _NODES = 16
    _GROWTH = 1.5

    def __init__(self, function: Callable[[FloatArray, int], FloatArray], *, scale: float, reach: float) -> None:
        """Interpolate `function(r, order)`, smooth at distances below `scale`, on [0, reach]."""
        self._function = function
        edges = [0.0, scale / 4]
        while edges[-1] < reach:
            edges.append(edges[-1] * self._GROWTH)
        self._edges = np.array(edges)
        self._half_width = np.diff(self._edges) / 2
        points = chebyshev_points(self._NODES)
        centre = (self._edges[1:] + self._edges[:-1]) / 2
        r = centre[:, None] + self._half_width[:, None] * points
        values = function(r.reshape(-1), 0).reshape(r.shape)
        self._coefficients = {0: chebyshev.chebfit(points, values.T, self._NODES - 1)}

    def evaluate(self, d: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative at each signed distance."""
        r = np.abs(d)
        inside = r < self._edges[-1]
        value = np.empty_like(r)
        if not inside.all():
            value[~inside] = self._function(r[~inside], order)
        if inside.any():
            cell = np.searchsorted(self._edges, r[inside], side="right") - 1
            half = self._half_width[cell]
            t = (r[inside] - self._edges[cell]) / half - 1
            coefficients = self._derivative_coefficients(order)[:, cell]
            value[inside] = chebyshev.chebval(t, coefficients, tensor=False) / half**order
        return value * np.sign(d) if order % 2 else value

    def _derivative_coefficients(self, order: int) -> FloatArray:
        if order not in self._coefficients:
            self._coefficients[order] = chebyshev.chebder(self._coefficients[0], order)
        return self._coefficients[order]


# ---- Kernels and noise by name: `gaussian:0.3`, `matern52:0.2`, `0.5*gaussian:0.3+energy`, `laplace:0.5`.


T = TypeVar("T")

# name -> (example, what the numbers after the colons become)
KERNELS: Mapping[str, tuple[str, Callable[..., Kernel]]] = {
    "gaussian": ("gaussian:0.3", lambda bandwidth: GaussianKernel(bandwidth)),
    "laplace": ("laplace:0.3", lambda bandwidth: LaplaceKernel(bandwidth)),
    "energy": ("energy", lambda: EnergyKernel()),
    "matern32": ("matern32:0.3", lambda bandwidth: MaternKernel(bandwidth, 1.5)),
    "matern52": ("matern52:0.3", lambda bandwidth: MaternKernel(bandwidth, 2.5)),
    "rq": ("rq:0.3:2", lambda bandwidth, alpha=1.0: RationalQuadraticKernel(bandwidth, alpha)),
    "cauchy": ("cauchy:0.3", lambda bandwidth: RationalQuadraticKernel(bandwidth, 1.0)),
}
NOISES: Mapping[str, tuple[str, Callable[..., Noise]]] = {
    "gaussian": ("gaussian:0.5", lambda scale: GaussianNoise(scale)),
    "laplace": ("laplace:0.5", lambda scale: LaplaceNoise(scale)),
}


@lru_cache(maxsize=64)  # with its tables, which are made once
def parse_kernel(text: str) -> Kernel:
    """The kernel a text names; sums with `+`, multiples with `*`."""
    parts = []
    for term in text.split("+"):
        factor, star, name = term.rpartition("*")
        parts.append((_number("kernel", factor, text) if star else 1.0, _parse("kernel", name.strip(), KERNELS)))
    return parts[0][1] if len(parts) == 1 and parts[0][0] == 1.0 else SumKernel(tuple(parts))


def parse_noise(text: str) -> Noise:
    """The noise a text names."""
    return _parse("noise", text.strip(), NOISES)


def _parse(what: str, text: str, known: Mapping[str, tuple[str, Callable[..., T]]]) -> T:
    name, *numbers = text.lower().split(":")
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"Did you mean {known[close[0]][0]!r}? " if close else ""
        examples = ", ".join(example for example, _ in known.values())
        raise InputError(what, "must be a known name", text, f"{hint}Known, with example numbers: {examples}.")
    example, make = known[name]
    arguments = [_number(what, number, text) for number in numbers]
    try:
        return make(*arguments)
    except TypeError:
        raise InputError(what, f"must be written like {example!r}", text) from None


def _number(what: str, number: str, text: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise InputError(what, f"must have numbers after its colons, not {number!r}", text) from None
