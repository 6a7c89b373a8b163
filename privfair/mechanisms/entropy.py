"""Where randomness comes from: the operating system for releases that protect people, a seed for what must repeat.

`stream` gives the repeatable numbers that training and schedules use. `Entropy` has the draws that private releases
need, from the operating system (`SystemEntropy`) or, for simulations, from a seed (`SeededEntropy`); `entropy_of`
chooses between the two.
"""

from __future__ import annotations

import math
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.special import erfc

from accountant.errors import InputError, require_finite, require_positive

if TYPE_CHECKING:
    from privfair.util import FloatArray

LARGEST_SCALE = 2.0**40  # integer noise of at most this scale stays exact as a float and far from the ends of int64
_FEW = 1 << 10  # bytes; below this the operating system's own answer is as quick


def stream(seed: int, *labels: str | int) -> np.random.Generator:
    """The generator of this seed for this purpose, for example `stream(seed, "minibatches", round, client)`.

    The same seed and labels always give the same numbers. Streams of different labels are independent (numpy's
    SeedSequence with the labels as its spawn key), so clients can run in any order or in parallel, and a resumed run
    needs no generator state.
    """
    key = tuple(zlib.crc32(label.encode()) if isinstance(label, str) else label for label in labels)
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=key))


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


EntropyOf = Callable[[str, int], Entropy]  # (channel, round) -> where private randomness comes from


def entropy_of(seed: int | None, client: int) -> EntropyOf:
    """Where a client's private randomness comes from: the operating system, or, with a seed, a stream of that seed."""
    if seed is None:
        return lambda channel, number: SystemEntropy()
    return lambda channel, number: SeededEntropy(stream(seed, "private", channel, number, client))


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


# ---- Normal draws from random bits that cannot be repeated.

_SUMMED = 4
_BLOCK = 1 << 14  # normals at a time: the words stay in the cache
_LAYERS = 256
_EDGE = 3.6541528853610088  # where the tail begins, so that 256 pieces of equal area make up the half bell


def system_normals(size: int) -> FloatArray:
    """Independent N(0, 1) draws, each the sum of four draws by the ziggurat method, divided by 2.

    Marsaglia & Tsang, "The ziggurat method for generating random variables", J. Stat. Software 5(8), 2000; with
    separate bits of a 64-bit word for layer, sign and place (Doornik 2005), so that they are independent. By hand,
    because numpy's own takes its bits from a generator that can be repeated.

    What the sum is for: one draw can be inverted, and the floating-point numbers that a sum "value + draw" cannot
    reach give the value away (Mironov 2012). A sum of several independent draws leaves an attacker only the search
    through what could have been drawn, exponential in their number (Holohan, Braghin 2021, arXiv 2107.10138; Opacus'
    secure_mode adds four for this reason and reckons with 2^159 steps). What it is not: a proof. The ε of Gaussian
    noise is that of real numbers; the law of the rounded floating-point result is not bounded here, and the time a
    draw takes is not covered. Integer noise is exact.
    """
    result = np.empty(size)
    for start in range(0, size, _BLOCK):
        _draw(result[start : start + _BLOCK])
    return result


def _draw(result: FloatArray) -> None:
    """Fill the array. A draw that runs out of words goes on with the next ones, or long draws would be too rare."""
    done, state = 0, np.zeros(3)
    while done < result.size:
        wanted = result.size - done
        done += _compiled_fill()(
            system_words(_SUMMED * wanted + wanted // 4 + 16), _WIDTHS, _HEIGHTS, state, result[done:]
        )


def _layers() -> tuple[FloatArray, FloatArray]:
    """Right ends of the layers, from the widest to 0, and the bell's height there; the first stands for the tail."""
    area = _EDGE * math.exp(-0.5 * _EDGE**2) + math.sqrt(math.pi / 2) * float(erfc(_EDGE / math.sqrt(2)))
    widths = [area / math.exp(-0.5 * _EDGE**2), _EDGE]
    while len(widths) < _LAYERS:
        widths.append(math.sqrt(-2 * math.log(area / widths[-1] + math.exp(-0.5 * widths[-1] ** 2))))
    ends = np.array([*widths, 0.0])
    return ends, np.exp(-0.5 * ends**2)


_WIDTHS, _HEIGHTS = _layers()


@lru_cache(maxsize=1)
def _compiled_fill() -> Callable[..., int]:
    """`_fill`, compiled when it is first drawn from: numba takes a second to import."""
    from numba import njit

    compiled: Callable[..., int] = njit(nogil=True, cache=True, error_model="numpy")(_fill)
    return compiled


def _fill(words, widths, heights, state, result):  # type: ignore[no-untyped-def]
    """Fill the front of `result` with as many draws as the words allow; how many those are.

    `state`: the sum of the draw that is under way, how many are in it, and the sign if one of them is in the tail.
    """

    def unit(word: Any) -> float:
        # in [0, 1), from the upper 53 bits; the lower ones choose layer and sign
        return float(word >> np.uint64(11)) * 2.0**-53

    used, number = 0, 0
    total, summed, tail = state
    while number < len(result) and used + 2 <= len(words):
        if tail != 0.0:  # exponential draws, until one is below the bell
            beyond = -math.log(1.0 - unit(words[used])) / _EDGE
            height = -math.log(1.0 - unit(words[used + 1]))
            used += 2
            if 2.0 * height > beyond * beyond:
                total += tail * (_EDGE + beyond)
                summed += 1.0
                tail = 0.0
        else:
            word = words[used]
            layer = int(word & np.uint64(_LAYERS - 1))
            sign = 1.0 - 2.0 * float((word >> np.uint64(8)) & np.uint64(1))
            z = unit(word) * widths[layer]
            used += 1
            if z < widths[layer + 1]:
                total += sign * z
                summed += 1.0
            elif layer == 0:
                tail = sign
            else:
                height = heights[layer] + unit(words[used]) * (heights[layer + 1] - heights[layer])
                used += 1
                if height < math.exp(-0.5 * z * z):
                    total += sign * z
                    summed += 1.0
        if summed == _SUMMED:
            result[number] = total / math.sqrt(_SUMMED)
            number += 1
            total = summed = 0.0
    state[0], state[1], state[2] = total, summed, tail
    return number
