"""Sums and positive multiples of kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from accountant.errors import InputError, require_positive
from privfair.arrays import FloatArray
from privfair.kernels.base import Form, Kernel
from privfair.kernels.exponential import ExponentialPolynomial
from privfair.mechanisms.noise import Noise


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

    def convolved(self, noise: Noise) -> Form:
        """Part by part."""
        return SumForm(tuple((factor, form.convolved(noise)) for factor, form in self.parts))

    def deconvolved(self, noise: Noise) -> Form:
        """Part by part."""
        return SumForm(tuple((factor, form.deconvolved(noise)) for factor, form in self.parts))

    def evaluate(self, d: FloatArray, order: int = 0) -> FloatArray:
        """The weighted sum of the parts' derivatives."""
        return sum((factor * form.evaluate(d, order) for factor, form in self.parts), np.zeros_like(d))

    @cached_property
    def exponential(self) -> ExponentialPolynomial | None:
        """An exponential polynomial if every part is one."""
        from fractions import Fraction

        total = ExponentialPolynomial()
        for factor, form in self.parts:
            part = form.exponential
            if part is None:
                return None
            total += part.times(Fraction(factor))
        return total
