"""Random bits that nobody can repeat, as fast as noise for whole models needs them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite, require_positive
from privfair.util import FloatArray

_FEW = 1 << 10  # bytes; below this the operating system's own answer is as quick


def system_words(n: int) -> NDArray[np.uint64]:
    """n uniform 64-bit numbers: from the operating system, or, if many, AES-256 in counter mode keyed by it.

    Every call takes a fresh 256-bit key and counter, and keeps nothing: no state to fork, to store or to steal. To
    tell the numbers from random ones is to break AES-256; they are at least as hard to guess as the system's own,
    which come from a cipher too.
    """
    if 8 * n <= _FEW:
        return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)
    cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * n)), dtype=np.uint64)


# ---- Standard normals from random bits that nobody can repeat.


# ---- The laws of integer noise from an ordinary generator, for simulations that must repeat; they protect nobody.


def seeded_discrete_laplace(scale: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent integers with mass ∝ exp(−|k|/b): the difference of two geometric draws ⌊b·Exp(1)⌋."""
    first, second = (np.floor(scale * rng.standard_exponential(size)) for _ in range(2))
    return (first - second).astype(np.int64)


def seeded_discrete_gaussian(scale: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent integers with mass ∝ exp(−k²/2σ²), by rejection from a discrete Laplace of scale t = ⌊σ⌋ + 1.

    A draw y is kept with probability exp(−(|y| − σ²/t)²/2σ²) (Canonne, Kamath, Steinke 2020, arXiv 2004.00010v5,
    Algorithm 3), in floating point rather than in fractions.
    """
    t = math.floor(scale) + 1
    result = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        proposed = seeded_discrete_laplace(t, 2 * (size - filled) + 8, rng)
        distance = (np.abs(proposed) - scale * (scale / t)) / scale
        kept = proposed[rng.random(proposed.size) < np.exp(-0.5 * distance**2)][: size - filled]
        result[filled : filled + kept.size] = kept
        filled += kept.size
    return result


# ---- Exact integer noise from OpenDP: the only file that imports it.
#
# OpenDP draws by the algorithms of Canonne, Kamath, Steinke 2020 (arXiv 2004.00010v5) in rational arithmetic on random
# bits of the operating system, so the laws are exact for the floating-point scale it is given: nothing is rounded. How
# long a draw takes depends on what is drawn (Jin, McMurtry, Rubinstein, Ohrimenko 2021, arXiv 2112.05307v4): timing is
# not covered.


def opendp_discrete_gaussian(scale: float, size: int) -> NDArray[np.int64]:
    """Independent integers with mass ∝ exp(−k²/2σ²), σ = scale."""
    return _noise(_gaussian(scale), size)


def opendp_discrete_laplace(scale: float, size: int) -> NDArray[np.int64]:
    """Independent integers with mass ∝ exp(−|k|/b), b = scale."""
    return _noise(_laplace(scale), size)


def _noise(measurement: Callable[[Any], Any], size: int) -> NDArray[np.int64]:
    """A release of zeros is the noise itself; the callers' bound on the scale keeps it far from the ends of int64."""
    return np.asarray(measurement(np.zeros(size, dtype=np.int64)), dtype=np.int64)


@lru_cache(maxsize=64)
def _gaussian(scale: float) -> Callable[[Any], Any]:
    # Imported when first drawn from: half a second that runs without private noise need not wait for.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")  # OpenDP's own switch: components that have not finished its vetting
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="i64"), scale=scale)


@lru_cache(maxsize=64)
def _laplace(scale: float) -> Callable[[Any], Any]:
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_laplace(vector_domain(atom_domain(T="i64")), l1_distance(T="i64"), scale=scale)


# ---- Where private randomness comes from: the operating system, or a seed for simulations that must repeat.


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
