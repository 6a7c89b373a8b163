"""Where private randomness comes from: the operating system, or a seed for simulations that must repeat."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite, require_positive
from privfair.util import FloatArray

LARGEST_SCALE = 2.0**40  # integer noise of at most this scale stays exact as a float and far from the ends of int64
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


class Entropy(ABC):
    """The random choices that a private release needs; a subclass draws them."""

    claim: ClassVar[bool]  # whether a release drawn from it may claim an ε
    description: ClassVar[str]  # what was used, for privacy statements

    def poisson_mask(self, n: int, rate: float) -> NDArray[np.bool_]:
        """n independent choices, each True with probability ⌊rate·2^64⌋/2^64: never above the rate."""
        return _below(self._words(_require_size("n", n)), rate)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """0 … n−1 in uniformly random order."""
        return self._permutation(_require_size("n", n))

    def choice(self, n: int, m: int) -> NDArray[np.int64]:
        """m different numbers of 0 … n−1, every subset and order equally likely."""
        if _require_size("m", m) > _require_size("n", n):
            raise InputError("m", f"must be at most {n}", m, "A unit is drawn at most once.")
        return self.permutation(n)[:m]

    def normal(self, size: int) -> FloatArray:
        """Independent standard normals, as float64."""
        return self._normal(_require_size("size", size))

    def discrete_gaussian(self, scale: float, size: int) -> NDArray[np.int64]:
        """Independent integers with mass ∝ exp(−k²/2σ²), σ = scale: the law of the event `DiscreteGaussian`."""
        return self._discrete_gaussian(_require_scale(scale), _require_size("size", size))

    def discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        """Independent integers with mass ∝ exp(−|k|/b), b = scale: the law of the event `DiscreteLaplace`."""
        return self._discrete_laplace(_require_scale(scale), _require_size("size", size))

    @abstractmethod
    def _words(self, n: int) -> NDArray[np.uint64]: ...

    @abstractmethod
    def _permutation(self, n: int) -> NDArray[np.int64]: ...

    @abstractmethod
    def _normal(self, size: int) -> FloatArray: ...

    @abstractmethod
    def _discrete_gaussian(self, scale: float, size: int) -> NDArray[np.int64]: ...

    @abstractmethod
    def _discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class SystemEntropy(Entropy):
    """The operating system's cryptographic generator: nobody can repeat its draws.

    Integer noise comes from OpenDP's exact samplers, which implement Canonne, Kamath, Steinke 2020 (arXiv 2004.00010v5)
    in rational arithmetic on random bits of the operating system: the laws are exact for the floating-point scale they
    are given. How long a draw takes depends on what is drawn (Jin, McMurtry, Rubinstein, Ohrimenko 2021, arXiv
    2112.05307v4): timing is not covered. `system_normals` says what normal noise is safe against.
    """

    claim = True
    description = (
        "operating system's generator (for long noise AES-256 in counter mode, keyed by it); OpenDP discrete "
        "samplers; normal noise as the sum of four floating-point draws (makes them hard to invert; its ε is that "
        "of real numbers)"
    )

    def _words(self, n: int) -> NDArray[np.uint64]:
        return system_words(n)

    def _permutation(self, n: int) -> NDArray[np.int64]:
        """In exactly uniform random order: by 64-bit keys, all drawn anew should two be equal."""
        while True:
            keys = system_words(n)
            order = np.argsort(keys, kind="stable")
            in_order = keys[order]
            if not np.any(in_order[1:] == in_order[:-1]):
                return order.astype(np.int64)

    def _normal(self, size: int) -> FloatArray:
        from privfair.mechanisms.system_normals import system_normals  # compiled: it takes a second to import

        return system_normals(size)

    def _discrete_gaussian(self, scale: float, size: int) -> NDArray[np.int64]:
        return np.asarray(_gaussian(scale)(np.zeros(size, dtype=np.int64)), dtype=np.int64)

    def _discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        return np.asarray(_laplace(scale)(np.zeros(size, dtype=np.int64)), dtype=np.int64)


# OpenDP's measurements by scale; a release of zeros is the noise itself. This is the only file that imports OpenDP.


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


@dataclass(frozen=True)
class SeededEntropy(Entropy):
    """The same laws from a numpy generator, for simulations that must repeat.

    Anybody who knows the seed can subtract the noise, so releases drawn from it claim no ε. A generator moves on with
    every draw, so a run that must resume bit for bit builds one for every round, client and channel.
    """

    claim = False
    description = "seeded simulation: no privacy towards anyone who knows the seed, and no ε is claimed"

    rng: np.random.Generator

    def _words(self, n: int) -> NDArray[np.uint64]:
        return self.rng.integers(0, 2**64 - 1, n, dtype=np.uint64, endpoint=True)

    def _permutation(self, n: int) -> NDArray[np.int64]:
        return self.rng.permutation(n).astype(np.int64)

    def _normal(self, size: int) -> FloatArray:
        return self.rng.standard_normal(size)

    def _discrete_gaussian(self, scale: float, size: int) -> NDArray[np.int64]:
        """By rejection from a discrete Laplace of scale t = ⌊σ⌋ + 1.

        A draw y is kept with probability exp(−(|y| − σ²/t)²/2σ²) (Canonne, Kamath, Steinke 2020, arXiv 2004.00010v5,
        Algorithm 3), in floating point rather than in fractions.
        """
        t = math.floor(scale) + 1
        result = np.empty(size, dtype=np.int64)
        filled = 0
        while filled < size:
            proposed = self._discrete_laplace(t, 2 * (size - filled) + 8)
            distance = (np.abs(proposed) - scale * (scale / t)) / scale
            kept = proposed[self.rng.random(proposed.size) < np.exp(-0.5 * distance**2)][: size - filled]
            result[filled : filled + kept.size] = kept
            filled += kept.size
        return result

    def _discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        """The difference of two geometric draws ⌊b·Exp(1)⌋."""
        first, second = (np.floor(scale * self.rng.standard_exponential(size)) for _ in range(2))
        return (first - second).astype(np.int64)


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


def _require_scale(scale: float) -> float:
    number = require_positive("noise scale", scale, "A release without noise draws none.")
    if number > LARGEST_SCALE:
        remedy = "Count in coarser steps: so much noise hides everything there is to see."
        raise InputError("noise scale", "must be at most 2**40 steps", scale, remedy)
    return number
