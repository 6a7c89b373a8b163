"""Released sums of features and of their products, and the scaling that a public rule makes of them.

Two sums may leave the clients before the first round, each once. First Σ(x, x²) over records, features clipped to
[−1, 1], which are the declared ranges of encoded ones: mean and variance of every feature. Then, for logistic
regression with enough records, Σ(ssᵀ, s) of the standardised features s: their covariance.

    standardised   s = clip((x − m)/√max(v, 2e/n), −3, 3),  m, v from the first sum, e its noise on one entry
    whitened       z = P·(s − m̄),  P = (C + ρI)^(−½),  C, m̄ from the second, ρ = max(2e√d/n, λ_max/1000)

Whitening makes the Hessian of logistic regression at most ¼ in every direction, so that gradient descent with step 4 is
a Newton method with a fixed Hessian (cf. Ganesh, Haghifam, Steinke & Thakurta 2023, arXiv 2305.13209). Features that
are multiplied by any root of (C + ρI)⁻¹ give the same steps up to a rotation, which neither clipping nor noise sees.

Sensitivity. A record's vector is cut to a public length b and rounded to whole numbers of b/steps of length `steps` at
most, so that it moves the sum by that: whatever the record, and whatever scaling it was given. (x, x²) has length
√(2c) at most where c columns make the features, as each category has one feature that is not 0, and is cut to it. For
the symmetric matrix ssᵀ the upper triangle is sent, its off-diagonal entries √2 times: its length is then that of the
matrix, |s|², because Σ s_i⁴ + Σ_{i<j} 2 s_i² s_j² = |s|⁴. With √2·s behind it, and s cut to √d, √(d² + 2d).

Scaling is post-processing of what was released. Where somebody else names it, as the server of a federation does, ε
does not rest on its truth: every later release bounds what a record can do after the scaling, for any scaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_positive
from privfair.codec import unless
from privfair.mechanisms.entropy import Entropy
from privfair.mechanisms.vector_release import GRIDS, LEAST_NOISE, SMOOTHING, GradientPlan, VectorNoise
from privfair.util import FloatArray

CUT = 3.0  # standard deviations
LEAST_VARIANCE = 1e-6
LEAST_EIGENVALUE = 1e-3  # of the largest
SHARE = 0.1  # of μ², for the first sum
PRODUCTS_SHARE = 0.25  # of what that leaves, for the second
OPEN = 2**62  # sums of int64 that nobody masks
MOST = 2**24  # records


@dataclass(frozen=True)
class SumRelease:
    """How a client's records become its part of a sum: cut to `bound`, in whole numbers of bound/steps, with noise."""

    bound: float
    count: int
    """How many numbers the sum has."""
    steps: int
    room: int
    """What a client's sum is clamped to before its noise, in steps: no two sums get farther apart by that."""
    noise: VectorNoise | None = None
    masked: Annotated[bool, unless(False)] = False
    """Whether parts are masked, so that only their sum can be read."""

    def __post_init__(self) -> None:
        """Check that the noise is for this grid."""
        require_positive("bound", self.bound)
        if not 1 <= self.steps <= self.room:
            raise InputError("room", f"must be at least {self.steps} steps", self.room)
        n = self.noise
        if n is not None and not (n.inward and (n.steps, n.count) == (self.steps, self.count)):
            raise InputError("noise of moments", "must be of this grid, for vectors that are rounded inward", "others")

    def message(self, total: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
        """The sum of a client's vectors, in steps, with all of the noise or one share of it."""
        clamped = np.clip(total, -self.room, self.room)
        return clamped if self.noise is None else self.noise.release(clamped, entropy)

    def opened(self, total: NDArray[np.int64]) -> FloatArray:
        """The sum in units of the features."""
        found: FloatArray = np.asarray(total, dtype=np.float64) * (self.bound / self.steps)
        return found

    def error(self, parts: int) -> float:
        """The noise of one entry of the sum of so many parts, in units of the features: its standard deviation."""
        if self.noise is None:
            return 0.0
        return self.bound * self.noise.multiplier * math.sqrt(parts / self.noise.shares)


@dataclass(frozen=True)
class MomentsPlan:
    """What the sums are like, as far as it is known before counts: all of it public."""

    features: int
    columns: int
    precondition: bool
    clients: int
    shares: int = 1
    modulus: int = OPEN
    masked: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        """How many numbers each of the two sums has."""
        return sizes(self.features)

    @property
    def bounds(self) -> tuple[float, float]:
        """What a record's vector is cut to, in each."""
        d = self.features
        return math.sqrt(2.0 * self.columns), math.sqrt(d * (d + 2.0))

    @property
    def largest(self) -> tuple[float, float]:
        """How large a number of a record's vector can be, over its length: features are cut, too."""
        return 1.0 / self.bounds[0], min(1.0, math.sqrt(2.0) * CUT**2 / self.bounds[1])

    def release(self, which: int, records: int, multipliers: Sequence[float] | None) -> SumRelease:
        """One of the sums, for a released number of records; `multipliers`: of the noise, None without privacy."""
        return self._release(which, records, None if multipliers is None else multipliers[which])

    def _release(self, which: int, records: int, multiplier: float | None) -> SumRelease:
        most = MOST  # where nothing is masked there is room for anybody, and terms do not depend on counts
        if self.masked:
            most = math.ceil(1.1 * max(records, 1) + 6 * math.sqrt(max(records, 1)) + 100)
        most = math.ceil(most * self.largest[which])
        try:
            if multiplier is not None:
                plan = GradientPlan(self.sizes[which], self.clients, self.shares, self.modulus)
                noise = plan.noise(multiplier, most)
                room = plan.room(noise, most)
                return SumRelease(self.bounds[which], noise.count, noise.steps, room, noise, self.masked)
            steps = next(steps for steps in GRIDS if most * steps <= (self.modulus - 1) // 2)
        except (InputError, StopIteration):
            rule = f"must be so few that moments of {self.features} features fit into sums below {self.modulus}"
            raise InputError("records", rule, records, 'Set federation.scaling = "none".') from None
        return SumRelease(self.bounds[which], self.sizes[which], steps, most * steps, None, self.masked)


@lru_cache(maxsize=64)
def gaussian_budget(epsilon: float, delta: float) -> float:
    """μ: one Gaussian release of sensitivity 1 and scale 1/μ is (ε, δ)-private. Squares of μ add up over releases.

    It says how a budget is divided, and claims nothing: ε comes from the events.
    """
    from accountant.calibration import calibrate_release, noise_scale  # only planners need it
    from accountant.events import Gaussian

    return 1.0 / noise_scale(calibrate_release(Gaussian(1.0, 1.0), epsilon, delta))


def multiplier_of(ratio: float, count: int) -> float:
    """The multiplier of discrete noise that costs at most what Gaussian noise of this ratio does, for so many numbers.

    A grid has 16·√count steps in the bound or more (see `GradientPlan`).
    """
    return math.sqrt(ratio**2 + (SMOOTHING / LEAST_NOISE) ** 2 / count) * (1 + 1e-12)


def ratio_of(multiplier: float, count: int) -> float:
    """The ratio of the Gaussian noise that bounds discrete noise of this multiplier, whatever the grid."""
    return math.nextafter(math.sqrt(max(multiplier**2 - (SMOOTHING / LEAST_NOISE) ** 2 / count, 0.0)), 0.0)


def sizes(features: int) -> tuple[int, int]:
    """How many numbers the two sums have, of so many features."""
    return 2 * features, features * (features + 1) // 2 + features


def columns_of(features: tuple[str, ...]) -> int:
    """From how many columns features come, by their public names, if at most one feature of each is not 0.

    "column=value" is one of a category's, and "column: from 3 to 5" one of the bins of a number.
    """
    return len(
        {next((name.partition(sign)[0] + sign for sign in ("=", ": ") if sign in name), name) for name in features}
    )


# ---- The vectors of records, each of which depends on its record alone.


def moments(x: NDArray[np.floating]) -> FloatArray:
    """(n, 2d): each record's features, clipped to [−1, 1], and their squares; what is no number is 0."""
    inside = np.clip(np.nan_to_num(np.asarray(x, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)
    return np.ascontiguousarray(np.concatenate([inside, np.square(inside)], axis=1))


def products(s: FloatArray) -> FloatArray:
    """(n, d(d+3)/2): the upper triangle of each record's ssᵀ, off the diagonal times √2, then √2·s; s is cut to √d."""
    d = s.shape[1]
    lengths = np.sqrt(np.square(s).sum(axis=1, keepdims=True))
    cut = s * np.minimum(1.0, math.sqrt(d) / np.maximum(lengths, 1e-12))
    first, second = np.triu_indices(d)
    weights = np.where(first == second, 1.0, math.sqrt(2.0))
    return np.ascontiguousarray(
        np.concatenate([cut[:, first] * cut[:, second] * weights, math.sqrt(2.0) * cut], axis=1)
    )


# ---- What the sums are turned into.


@dataclass(frozen=True, eq=False)
class Scaling:
    """What is done to a record's features before the model: standardised, cut, and with a matrix whitened."""

    centre: FloatArray
    scale: FloatArray
    shift: FloatArray | None = None
    matrix: FloatArray | None = None

    def standardised(self, x: NDArray[np.floating]) -> FloatArray:
        """(x − centre)/scale, cut at ±3; what is no number is 0."""
        numbers = np.nan_to_num(np.asarray(x, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        cut: FloatArray = np.clip((numbers - self.centre) / self.scale, -CUT, CUT)
        return cut

    def apply(self, x: NDArray[np.floating]) -> FloatArray:
        """The scaled features; those of a record depend on that record alone, to the last bit.

        A matrix product would round a record by what stands beside it: products are added one feature after another.
        """
        s = self.standardised(x)
        if self.matrix is None or self.shift is None:
            return s
        moved, total = s - self.shift, np.zeros_like(s)
        for j, row in enumerate(self.matrix):
            total += moved[:, j : j + 1] * row
        return total


def standard(total: FloatArray, records: float, error: float) -> Scaling:
    """The scaling from Σ(x, x²) over so many records; `error`: the noise of one entry."""
    d = total.size // 2
    mean = np.clip(total[:d] / records, -1.0, 1.0)
    variance = np.maximum(total[d:] / records - np.square(mean), 0.0)
    floor = 2.0 * error / records
    return Scaling(mean, np.sqrt(np.maximum(variance, floor) + LEAST_VARIANCE))


def whitened(scaling: Scaling, total: FloatArray, records: float, error: float) -> Scaling:
    """The same with the matrix that makes the covariance of the standardised features the unit matrix, nearly.

    `total`: Σ of `products`; `error`: the noise of one entry. Off the diagonal the matrix has 1/√2 of it.
    """
    d = scaling.centre.size
    first, second = np.triu_indices(d)
    values = total[: first.size] / np.where(first == second, 1.0, math.sqrt(2.0)) / records
    mean = total[first.size :] / math.sqrt(2.0) / records
    gram = np.zeros((d, d))
    gram[first, second] = values
    gram[second, first] = values
    eigenvalues, vectors = np.linalg.eigh(gram - np.outer(mean, mean))
    positive = np.maximum(eigenvalues, 0.0)
    floor = max(2.0 * error * math.sqrt(d) / records, LEAST_EIGENVALUE * max(float(positive.max()), LEAST_VARIANCE))
    return Scaling(scaling.centre, scaling.scale, mean, (vectors / np.sqrt(positive + floor)) @ vectors.T)
