"""Laws of additive noise: what they do to a kernel and how large they are.

`sample` draws from an ordinary pseudo-random generator, for simulations and tests. A release that protects
people needs a sampler that is safe against floating-point attacks (Mironov 2012); this file is not one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from accountant.errors import InputError, require_finite

if TYPE_CHECKING:
    from privfair.util import FloatArray


@dataclass(frozen=True)
class Noise(ABC):
    """A symmetric law with one scale; scale 0 means no noise."""

    name: ClassVar[str]
    scale: float

    def __post_init__(self) -> None:
        """Refuse a scale that is negative or not a number."""
        scale = require_finite("noise scale", self.scale)
        if scale < 0:
            raise InputError("noise scale", "must be 0 or above", self.scale, "Use 0 for no noise.")
        if scale and not 1e-50 <= scale <= 1e50:
            raise InputError("noise scale", "must be 0, or between 1e-50 and 1e50", self.scale)
        object.__setattr__(self, "scale", scale)

    @property
    @abstractmethod
    def variance(self) -> float:
        """The variance of one draw."""

    @abstractmethod
    def log_characteristic_function(self, frequency: ArrayLike) -> FloatArray:
        """ln E exp(iωξ); the expectation is real and above 0 for both laws of this file."""

    @abstractmethod
    def density(self, x: ArrayLike) -> FloatArray:
        """The density at x."""

    @abstractmethod
    def sample(self, size: int | tuple[int, ...], rng: np.random.Generator) -> FloatArray:
        """Independent draws for simulations; not for releases that protect people."""

    def __str__(self) -> str:
        """A short name such as `laplace:0.5`, the form the command line takes."""
        return f"{self.name}:{self.scale:g}"


class GaussianNoise(Noise):
    """N(0, σ²): density exp(−x²/2σ²)/(σ√2π), characteristic function exp(−σ²ω²/2)."""

    name = "gaussian"

    @property
    def variance(self) -> float:
        """σ²."""
        return self.scale**2

    def log_characteristic_function(self, frequency: ArrayLike) -> FloatArray:
        """−σ²ω²/2."""
        return -0.5 * np.square(self.scale * np.asarray(frequency, dtype=float))

    def density(self, x: ArrayLike) -> FloatArray:
        """exp(−x²/2σ²)/(σ√2π)."""
        standardised = np.asarray(x, dtype=float) / self.scale
        return np.asarray(np.exp(-0.5 * standardised**2) / (self.scale * np.sqrt(2 * np.pi)))

    def sample(self, size: int | tuple[int, ...], rng: np.random.Generator) -> FloatArray:
        """Independent N(0, σ²) draws."""
        return rng.normal(0.0, self.scale, size)


class LaplaceNoise(Noise):
    """Laplace(b): density exp(−|x|/b)/2b, characteristic function 1/(1 + b²ω²), variance 2b²."""

    name = "laplace"

    @property
    def variance(self) -> float:
        """2b²."""
        return 2 * self.scale**2

    def log_characteristic_function(self, frequency: ArrayLike) -> FloatArray:
        """−ln(1 + b²ω²)."""
        return -np.log1p(np.square(self.scale * np.asarray(frequency, dtype=float)))

    def density(self, x: ArrayLike) -> FloatArray:
        """exp(−|x|/b)/2b."""
        return np.asarray(np.exp(-np.abs(np.asarray(x, dtype=float)) / self.scale) / (2 * self.scale))

    def sample(self, size: int | tuple[int, ...], rng: np.random.Generator) -> FloatArray:
        """Independent Laplace(b) draws."""
        return rng.laplace(0.0, self.scale, size)
