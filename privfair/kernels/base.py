"""Translation-invariant kernels: what every kernel can do, sums of kernels, and kernels with noise.

A kernel is applied elementwise to numpy arrays and torch tensors, with gradients. The arithmetic is numpy in double
precision, whatever comes in; the result has the type that came in. For batches of a few hundred scores numpy is faster
than torch, and one implementation serves both. torch is imported only when a caller passes a tensor.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad
from scipy.optimize import brentq

from accountant.errors import InputError, require_finite, require_positive
from privfair.kernels.exponential import ExponentialPolynomial

if TYPE_CHECKING:
    import torch

    from privfair.mechanisms.score_release import Noise
    from privfair.util import FloatArray


class SmoothFunction(Protocol):
    """A function of one real variable that knows its derivatives."""

    def evaluate(self, x: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative at each x."""
        ...


def is_tensor(x: object) -> bool:
    """Whether x is a torch tensor; does not import torch."""
    torch_module = sys.modules.get("torch")
    return torch_module is not None and isinstance(x, torch_module.Tensor)


@overload
def apply(function: SmoothFunction, x: torch.Tensor, order: int = 0) -> torch.Tensor: ...
@overload
def apply(function: SmoothFunction, x: ArrayLike, order: int = 0) -> Any: ...
def apply(function: SmoothFunction, x: Any, order: int = 0) -> Any:
    """The order-th derivative of the function at each element of x, in the type and shape of x."""
    if is_tensor(x):
        from privfair.kernels.autograd import tensor_apply

        return tensor_apply(function, x, order)
    array = np.asarray(x)
    result = evaluate(function, array, order)
    return result if array.ndim else result.dtype.type(result)


def evaluate(function: SmoothFunction, x: NDArray[Any], order: int) -> NDArray[Any]:
    """As `apply`, for numpy arrays: computed in double precision on a flat view, returned in the type of x."""
    flat = np.ascontiguousarray(x, dtype=np.float64).reshape(-1)
    result = function.evaluate(flat, order).reshape(x.shape)
    return result.astype(x.dtype) if x.dtype in (np.float32, np.float16) else result


def difference(x: Any, y: Any) -> Any:
    """x − y with broadcasting; a tensor if either is one."""
    if is_tensor(x) or is_tensor(y):
        import torch

        like = x if is_tensor(x) else y
        dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        x, y = (
            (side.to(dtype) if not side.is_floating_point() else side)
            if is_tensor(side)
            else torch.as_tensor(side, dtype=dtype, device=like.device)
            for side in (x, y)
        )
        return x - y
    return np.subtract(np.asarray(x), np.asarray(y), dtype=_common_float(x, y))


def _common_float(x: Any, y: Any) -> np.dtype[Any]:
    """float32 where both sides are, float64 otherwise (integers too)."""
    common = np.result_type(np.asarray(x), np.asarray(y))
    return common if common.kind == "f" else np.dtype(np.float64)


def as_scores(name: str, scores: Any) -> FloatArray:
    """The scores as a flat double-precision array; refuses what is empty or not finite."""
    if is_tensor(scores):
        scores = scores.detach().cpu().double().numpy()
    try:
        array = np.asarray(scores, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(name, "must be numbers", scores) from None
    if array.size == 0:
        raise InputError(name, "must hold at least one score", "none", "A group with no scores has no distribution.")
    bad = ~np.isfinite(array)
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        raise InputError(
            name,
            "must be finite",
            float(array[where]),
            f"{int(bad.sum())} of {array.size} are not, first at {where}.",
        )
    return array


def as_weights(name: str, weights: Any, size: int) -> FloatArray:
    """Weights that sum to 1, one for each score; equal ones if none are given. They may be negative."""
    if weights is None:
        return np.full(size, 1.0 / size)
    array = as_scores(name, weights)
    if array.size != size:
        raise InputError(name, f"must have one weight for each of the {size} scores", array.size)
    total = float(array.sum())
    if not total > 0:
        raise InputError(name, "must have a positive sum", total, "They are divided by it.")
    return array / total


# ---- Kernels and the forms of their profiles.


def chebyshev_points(count: int) -> FloatArray:
    """The zeros of T_count on [−1, 1], between which smooth functions are interpolated."""
    points: FloatArray = np.cos(np.pi * (np.arange(count) + 0.5) / count)[::-1]
    return points


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
    def with_noise(self, noise: Noise, power: int) -> Form:
        """The form convolved `power` times with this noise, or deconvolved −`power` times; then it may not exist."""

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

    @property
    def has_cosines(self) -> bool:
        """Whether its features on an interval are cosines; those of other kernels are computed."""
        return False

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
        return with_noise(self, {}, noise, power)

    def __add__(self, other: Kernel) -> SumKernel:
        """Pointwise sum of kernels."""
        return SumKernel(((1.0, self), (1.0, other)))

    def __mul__(self, factor: float) -> SumKernel:
        """Pointwise multiple, by a factor above 0."""
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

    @property
    def removable_gaussian_noise(self) -> float | None:
        """The scale below which Gaussian noise on one side can be deconvolved; None if no such noise can be."""
        return None


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


# ---- Sums of kernels, and kernels with noise.


@dataclass(frozen=True)
class SumKernel(Kernel):
    """Σ_i c_i κ_i with c_i > 0. Convolution and deconvolution go to the parts."""

    parts: tuple[tuple[float, Kernel], ...]

    def __post_init__(self) -> None:
        """Flatten sums of sums; refuse factors that are not above 0 (the sum would not be positive definite)."""
        if not self.parts:
            raise InputError("parts", "must name at least one kernel", self.parts)
        flat: list[tuple[float, Kernel]] = []
        if not all(isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], Kernel) for part in self.parts):
            raise InputError("parts", "must be pairs of a factor and a kernel", self.parts)
        for factor, kernel in self.parts:
            require_positive("factor", factor, "A kernel times a negative number is not positive definite.")
            if isinstance(kernel, SumKernel):
                flat.extend((factor * inner, part) for inner, part in kernel.parts)
            else:
                flat.append((float(factor), kernel))
        object.__setattr__(self, "parts", tuple(flat))

    @cached_property
    def form(self) -> SumForm:
        """The weighted sum of the parts' forms."""
        return SumForm(tuple((factor, kernel.form) for factor, kernel in self.parts))

    @property
    def bounded(self) -> bool:
        """Whether every part is."""
        return all(kernel.bounded for _, kernel in self.parts)

    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """The logarithm of the weighted sum of the parts' spectra."""
        spectra = [math.log(factor) + kernel.log_spectral_density(frequency) for factor, kernel in self.parts]
        return np.asarray(np.logaddexp.reduce(spectra, axis=0))

    def _with_noise(self, noise: Noise, power: int) -> Kernel:
        return SumKernel(tuple((factor, kernel._with_noise(noise, power)) for factor, kernel in self.parts))

    def __str__(self) -> str:
        """For example 0.5*gaussian:0.3+energy."""
        return "+".join(f"{kernel}" if factor == 1 else f"{factor:g}*{kernel}" for factor, kernel in self.parts)


@dataclass(frozen=True)
class SumForm(Form):
    """Σ_i c_i v_i."""

    parts: tuple[tuple[float, Form], ...]

    @property
    def exists(self) -> bool:
        """Whether every part does."""
        return all(form.exists for _, form in self.parts)

    def with_noise(self, noise: Noise, power: int) -> Form:
        """Part by part."""
        return SumForm(tuple((factor, form.with_noise(noise, power)) for factor, form in self.parts))

    def evaluate(self, d: FloatArray, order: int = 0) -> FloatArray:
        """The weighted sum of the parts' derivatives."""
        return sum((factor * form.evaluate(d, order) for factor, form in self.parts), np.zeros_like(d))

    @cached_property
    def exponential(self) -> ExponentialPolynomial | None:
        """An exponential polynomial if every part is one."""
        total = ExponentialPolynomial()
        for factor, form in self.parts:
            part = form.exponential
            if part is None:
                return None
            total += part.times(Fraction(factor))
        return total


@dataclass(frozen=True)
class NoisyKernel(Kernel):
    """A base kernel, and how often each noise was put on (+) or taken off (−)."""

    base: Kernel
    powers: tuple[tuple[Noise, int], ...]
    noisy_form: Form

    @property
    def form(self) -> Form:
        """Worked out when the kernel was made."""
        return self.noisy_form

    @property
    def bounded(self) -> bool:
        """As the base: noise with a finite mean changes no growth."""
        return self.base.bounded

    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """ln S(ω) + Σ power·ln φ(ω): a second way to the same kernel, used to check the first."""
        result = self.base.log_spectral_density(frequency)
        for noise, power in self.powers:
            result = result + power * noise.log_characteristic_function(frequency)
        return result

    def _with_noise(self, noise: Noise, power: int) -> Kernel:
        return with_noise(self.base, dict(self.powers), noise, power)

    def __str__(self) -> str:
        """For example gaussian:0.3 * laplace:0.5, and / where noise was taken off."""
        text = str(self.base)
        for noise, power in self.powers:
            text += f" {'*' if power > 0 else '/'} {noise}" * abs(power)
        return text


def with_noise(base: Kernel, powers: Mapping[Noise, int], noise: Noise, power: int) -> Kernel:
    """The base kernel under `powers` and one more noise; noise put on and taken off again cancels exactly."""
    total = {**powers, noise: powers.get(noise, 0) + power}
    total = {law: n for law, n in total.items() if n and law.scale}
    if not total:
        return base
    form = base.form
    for law, n in sorted(total.items(), key=lambda item: -item[1]):  # put on first, then take off
        form = form.with_noise(law, n)
    if not form.exists:
        raise _no_deconvolution(base, noise, -total.get(noise, power))
    return NoisyKernel(base, tuple(total.items()), form)


def _no_deconvolution(base: Kernel, noise: Noise, sides: int) -> NoDeconvolution:
    """The error that says what would work instead."""
    twice = sides > 1
    if noise.name == "gaussian":
        least = noise.scale * (2**0.5 if twice else 1)
        remedy = (
            f"Gaussian noise of scale {noise.scale:g} can only be taken off a Gaussian kernel whose bandwidth is above "
            f"{least:.4g}"
        )
        if base.removable_gaussian_noise is not None:
            remedy += (
                f", or here with a noise scale below {base.removable_gaussian_noise / (2**0.5 if twice else 1):.4g}."
            )
        else:
            remedy += "; with Laplace noise a rational quadratic or Matérn-5/2 kernel works too."
    else:
        kinds = (
            "Gaussian, rational quadratic and Matérn-5/2"
            if twice
            else ("Gaussian, rational quadratic, Matérn-3/2 and Matérn-5/2")
        )
        remedy = f"Laplace noise can be taken off {kinds} kernels, of any bandwidth."
    remedy += " Or keep the kernel and accept the convolved objective (`convolve`)."
    times = " on both sides" if twice else ""
    return NoDeconvolution(
        "kernel",
        f"must have a spectrum that, divided by the noise's characteristic function{' squared' if twice else ''}, is "
        f"integrable, to take {noise} noise off{times}",
        str(base),
        remedy,
    )
