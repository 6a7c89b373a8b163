"""Where private randomness comes from: the operating system, or a seed for simulations that must repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite, require_positive
from privfair.arrays import FloatArray
from privfair.mechanisms.opendp_samplers import opendp_discrete_gaussian, opendp_discrete_laplace
from privfair.mechanisms.seeded_samplers import seeded_discrete_gaussian, seeded_discrete_laplace
from privfair.mechanisms.system_bits import system_words

LARGEST_SCALE = 2.0**40  # integer noise of at most this scale stays exact as a float and far from the ends of int64


class Entropy(Protocol):
    """The random choices that a private release needs."""

    @property
    def claim(self) -> bool:
        """Whether a release drawn from it may claim an ε."""

    @property
    def description(self) -> str:
        """What was used, for privacy statements."""

    def poisson_mask(self, n: int, rate: float) -> NDArray[np.bool_]:
        """n independent choices, each True with probability ⌊rate·2^64⌋/2^64: never above the rate."""

    def permutation(self, n: int) -> NDArray[np.int64]:
        """0 … n−1 in uniformly random order."""

    def choice(self, n: int, m: int) -> NDArray[np.int64]:
        """m different numbers of 0 … n−1, every subset and order equally likely."""

    def normal(self, size: int) -> FloatArray:
        """Independent standard normals, as float64."""

    def discrete_gaussian(self, scale: float, size: int) -> NDArray[np.int64]:
        """Independent integers with mass ∝ exp(−k²/2σ²), σ = scale: the law of the event `DiscreteGaussian`."""

    def discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        """Independent integers with mass ∝ exp(−|k|/b), b = scale: the law of the event `DiscreteLaplace`."""


@dataclass(frozen=True)
class SystemEntropy:
    """The operating system's cryptographic generator; integer noise by OpenDP's exact samplers."""

    @property
    def claim(self) -> bool:
        """True: nobody can repeat these draws."""
        return True

    @property
    def description(self) -> str:
        """What was used, for privacy statements."""
        return (
            "operating system's generator (for long noise AES-256 in counter mode, keyed by it); OpenDP discrete "
            "samplers; normal noise as the sum of four floating-point draws (makes them hard to invert; its ε is that "
            "of real numbers)"
        )

    def poisson_mask(self, n: int, rate: float) -> NDArray[np.bool_]:
        """n independent choices, each True with probability ⌊rate·2^64⌋/2^64: never above the rate."""
        return _below(system_words(_require_size("n", n)), rate)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """0 … n−1 in exactly uniform random order: by 64-bit keys, all drawn anew should two be equal."""
        _require_size("n", n)
        while True:
            keys = system_words(n)
            order = np.argsort(keys, kind="stable")
            in_order = keys[order]
            if not np.any(in_order[1:] == in_order[:-1]):
                return order.astype(np.int64)

    def choice(self, n: int, m: int) -> NDArray[np.int64]:
        """m different numbers of 0 … n−1, every subset and order equally likely."""
        _require_subset(n, m)
        return self.permutation(n)[:m]

    def normal(self, size: int) -> FloatArray:
        """Independent standard normals; what they are safe against is said in `system_normals`."""
        from privfair.mechanisms.system_normals import system_normals  # compiled: it takes a second to import

        return system_normals(_require_size("size", size))

    def discrete_gaussian(self, scale: float, size: int) -> NDArray[np.int64]:
        """Independent integers with mass ∝ exp(−k²/2σ²), σ = scale, exactly."""
        return opendp_discrete_gaussian(_require_scale(scale), _require_size("size", size))

    def discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        """Independent integers with mass ∝ exp(−|k|/b), b = scale, exactly."""
        return opendp_discrete_laplace(_require_scale(scale), _require_size("size", size))


@dataclass(frozen=True)
class SeededEntropy:
    """The same laws from a numpy generator, for simulations that must repeat.

    Whoever knows the seed can take the noise off: releases drawn from it claim no ε. A generator moves on with every
    draw, so a run that must resume bit for bit builds one for every round, client and channel.
    """

    rng: np.random.Generator

    @property
    def claim(self) -> bool:
        """False: whoever knows the seed can repeat these draws."""
        return False

    @property
    def description(self) -> str:
        """What was used, for privacy statements."""
        return "seeded simulation: no privacy towards anyone who knows the seed, and no ε is claimed"

    def poisson_mask(self, n: int, rate: float) -> NDArray[np.bool_]:
        """n independent choices, each True with probability ⌊rate·2^64⌋/2^64: never above the rate."""
        words = self.rng.integers(0, 2**64 - 1, _require_size("n", n), dtype=np.uint64, endpoint=True)
        return _below(words, rate)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """0 … n−1 in uniformly random order."""
        return self.rng.permutation(_require_size("n", n)).astype(np.int64)

    def choice(self, n: int, m: int) -> NDArray[np.int64]:
        """m different numbers of 0 … n−1, every subset and order equally likely."""
        _require_subset(n, m)
        return self.rng.permutation(n)[:m].astype(np.int64)

    def normal(self, size: int) -> FloatArray:
        """Independent standard normals."""
        return self.rng.standard_normal(_require_size("size", size))

    def discrete_gaussian(self, scale: float, size: int) -> NDArray[np.int64]:
        """Independent integers with mass ∝ exp(−k²/2σ²), σ = scale."""
        return seeded_discrete_gaussian(_require_scale(scale), _require_size("size", size), self.rng)

    def discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        """Independent integers with mass ∝ exp(−|k|/b), b = scale."""
        return seeded_discrete_laplace(_require_scale(scale), _require_size("size", size), self.rng)


def require_rate(rate: float) -> float:
    """The sampling rate as a float, if it is a probability above 0; otherwise `InputError`."""
    number = require_finite("sampling_rate", rate)
    if not 0 < number <= 1:
        raise InputError("sampling_rate", "must be in (0, 1]", rate, "It is a probability, not a batch size.")
    return number


def _below(words: NDArray[np.uint64], rate: float) -> NDArray[np.bool_]:
    """Which of these uniform 64-bit numbers fall below rate·2^64; a product with a power of two is not rounded."""
    number = require_rate(rate)
    if number == 1.0:
        return np.ones(words.size, dtype=np.bool_)
    return np.asarray(words < np.uint64(int(number * 2.0**64)))


def _require_size(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InputError(name, "must be a whole number of at least 0", value)
    return int(value)


def _require_subset(n: int, m: int) -> None:
    _require_size("n", n)
    if _require_size("m", m) > n:
        raise InputError("m", f"must be at most {n}", m, "A unit is drawn at most once.")


def _require_scale(scale: float) -> float:
    number = require_positive("noise scale", scale, "A release without noise draws none.")
    if number > LARGEST_SCALE:
        remedy = "Count in coarser steps: so much noise hides everything there is to see."
        raise InputError("noise scale", "must be at most 2**40 steps", scale, remedy)
    return number
