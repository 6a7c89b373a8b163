"""Noise on scores: its laws, the grid on which it is drawn, and the messages that carry noisy scores.

The continuous laws (`GaussianNoise`, `LaplaceNoise`) say what noise does to a kernel and how large it is. A release
(`ScoreNoise`) clips a score, rounds it to a grid, and moves it by a random whole number of steps, so that no
floating-point attack (Mironov 2012) finds anything.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from accountant.errors import InputError, require_finite, require_positive
from accountant.events import (
    Adjacency,
    DiscreteGaussian,
    DiscreteLaplace,
    FixedSizeSampled,
    PoissonSampled,
    Unit,
    as_adjacency,
)
from privfair.mechanisms.entropy import LARGEST_SCALE, Entropy, require_rate
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
        """ln E exp(iωξ); the expectation is real and above 0 for both laws."""

    @abstractmethod
    def density(self, x: ArrayLike) -> FloatArray:
        """The density at x."""

    @abstractmethod
    def sample(self, size: int | tuple[int, ...], rng: np.random.Generator) -> FloatArray:
        """Independent draws from an ordinary generator, for simulations; not safe for releases that protect people."""

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


Kind = Literal["gaussian", "laplace"]

DEFAULT_STEPS = 256
"""Steps in the range unless a step is given.

ε is then that of continuous noise to 1e-4 of itself, and the accountant's PLD takes Gaussian noise of up to about 500
ranges (with 1024 steps it stops before 200), each at no more cost than continuous noise.
"""
MOST_STEPS = 2**20


@dataclass(frozen=True)
class ScoreNoise:
    """Clip to [low, high], round to the grid low + i·step, add integer noise of scale/step steps.

    Privacy rests on whole numbers alone (index of the score + integer noise), so no floating-point hole can be looked
    through. One score moves by at most the range, whether its record is added, removed or replaced.

    Against continuous noise on the unrounded score: rounding moves a score by at most step/2, and the laws of the two
    noises are less than step/2 apart (in Wasserstein distance), so the mean of an L-Lipschitz function of the released
    score moves by at most L·step.
    """

    kind: Kind
    scale: float
    """σ of Gaussian noise, b of Laplace noise, in units of the score."""
    low: float = 0.0
    high: float = 1.0
    step: float = 0.0
    """Spacing of the grid; 0, the default, stands for a 256th of the range."""

    def __post_init__(self) -> None:
        """Check and normalise; the bounds must lie on the grid."""
        if self.kind not in get_args(Kind):
            raise InputError("kind of noise", f"must be one of {list(get_args(Kind))}", self.kind)
        low, high = require_finite("low", self.low), require_finite("high", self.high)
        remedy = "A score without bounds needs a clipping range."
        if not low < high:
            raise InputError("low", f"must be below high, {high:g}", self.low, remedy)
        width = require_finite("high - low", high - low, remedy)
        step = require_finite("step", self.step)
        step = require_positive("step", width / DEFAULT_STEPS if step == 0 else step)
        steps = round(width / step) if width / step < 2 * MOST_STEPS else 2 * MOST_STEPS
        if not 1 <= steps <= MOST_STEPS or abs(width / step - steps) > 1e-9 * steps:
            rule = f"must divide the range {width:g} into a whole number of steps, at most {MOST_STEPS}"
            raise InputError("step", rule, self.step, f"For example {width / DEFAULT_STEPS:g}.")
        no_noise = "Scores without noise are not private: they need no ScoreNoise and cost NotPrivate()."
        scale = require_positive("noise scale", self.scale, no_noise)
        if not 1e-12 <= scale / step <= LARGEST_SCALE:
            raise InputError("noise scale", "must be between 1e-12 and 2**40 grid steps", self.scale, no_noise)
        for name, value in (("scale", scale), ("low", low), ("high", high), ("step", step)):
            object.__setattr__(self, name, value)

    @property
    def steps(self) -> int:
        """How many steps the range has: the sensitivity of one score."""
        return round((self.high - self.low) / self.step)

    @property
    def grid_scale(self) -> float:
        """The noise scale in steps: what the sampler is given and what the event says."""
        return self.scale / self.step

    @property
    def middle_index(self) -> int:
        """The grid point in the middle of the range; of two, the lower."""
        return self.steps // 2

    @property
    def middle(self) -> float:
        """The score that pads a message and stands for scores that are not numbers."""
        return self.low + self.middle_index * self.step

    @property
    def noise(self) -> GaussianNoise | LaplaceNoise:
        """The continuous law of the same scale, for convolving kernels."""
        return GaussianNoise(self.scale) if self.kind == "gaussian" else LaplaceNoise(self.scale)

    def event(
        self, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE, unit: Unit = Unit.RECORD
    ) -> DiscreteGaussian | DiscreteLaplace:
        """What releasing one score costs, unsampled: integer noise as it is drawn, the range as sensitivity."""
        law = DiscreteGaussian if self.kind == "gaussian" else DiscreteLaplace
        return law(self.grid_scale, self.steps, as_adjacency(adjacency), unit, step=self.step)

    def with_grid_scale(self, grid_scale: float) -> ScoreNoise:
        """The same grid with noise of at least this many steps, not rounded down: takes a calibrated event's scale."""
        scale = require_positive("noise scale", grid_scale) * self.step
        while scale / self.step < grid_scale:
            scale = math.nextafter(scale, math.inf)
        return replace(self, scale=scale)

    def to_grid(self, scores: ArrayLike) -> NDArray[np.int64]:
        """The index of each score's nearest grid point, after clipping; NaN and ±∞ go to the middle."""
        values = np.asarray(scores, dtype=np.float64)
        finite = np.isfinite(values)
        clipped = np.clip(np.where(finite, values, self.low), self.low, self.high)
        index = np.clip(np.rint((clipped - self.low) / self.step), 0, self.steps).astype(np.int64)
        return np.where(finite, index, self.middle_index)

    def from_grid(self, index: NDArray[np.int64]) -> FloatArray:
        """low + i·step."""
        return self.low + index.astype(np.float64) * self.step

    def release(self, index: NDArray[np.int64], entropy: Entropy) -> FloatArray:
        """The scores at these grid points with noise on every one of them."""
        draw = entropy.discrete_gaussian if self.kind == "gaussian" else entropy.discrete_laplace
        return self.from_grid(index + draw(self.grid_scale, index.size))


# ---- A client's answer for one cell: always the same number of noisy scores, whatever its records are.
#
# With private counts (`poisson_scores`): every record is taken independently at a public rate γ, a message is filled
# up with the middle of the range, and noise goes on every entry. Let v be the filled message without the new record,
# in random order. With the record it is the same v, unless the record is taken AND kept, which happens with
# probability at most γ; then one entry of v, a pad or the record it displaces, is exchanged for it, and moves by at
# most the range. So the message is dominated by a Poisson-sampled mechanism of rate γ on one score, whatever the true
# number of records.
#
# With public counts (`fixed_scores`): m of n records without replacement, under replace-one within the cell.


def poisson_scores(scores: ArrayLike, length: int, rate: float, noise: ScoreNoise, entropy: Entropy) -> FloatArray:
    """Exactly `length` noisy scores: each record with probability `rate`, dropped at random above, padded below."""
    _require_length(length)
    require_rate(rate)
    index = noise.to_grid(_as_vector(scores))
    return _message(index[entropy.poisson_mask(index.size, rate)], length, noise, entropy)


def poisson_scores_event(rate: float, noise: ScoreNoise) -> PoissonSampled:
    """What one `poisson_scores` message costs, under add-or-remove."""
    return PoissonSampled(require_rate(rate), noise.event(Adjacency.ADD_OR_REMOVE))


def fixed_scores(scores: ArrayLike, length: int, noise: ScoreNoise, entropy: Entropy) -> FloatArray:
    """Exactly `length` noisy scores of different records, drawn without replacement; padded if there are too few."""
    _require_length(length)
    return _message(noise.to_grid(_as_vector(scores)), length, noise, entropy)


def fixed_scores_event(
    length: int, count: int, noise: ScoreNoise
) -> FixedSizeSampled | DiscreteGaussian | DiscreteLaplace:
    """What one `fixed_scores` message from `count` records costs, under replace-one within the cell.

    Where every record is sent there is no sampling to gain from, and it costs what one score costs.
    """
    mechanism = noise.event(Adjacency.REPLACE_ONE)
    if _require_length(length) >= count:
        return mechanism
    return FixedSizeSampled(length, count, mechanism)


def fill_share(count: float, rate: float, length: int) -> float:
    """ρ = E min(Bin(ñ, γ), m)/m: the share of a message that is records, for the released count ñ.

    E min(B, m) = Σ_{j<m} P(B > j), and P(B > j) is the incomplete beta function I_γ(j + 1, ñ − j). A released count
    may be fractional; it is rounded.
    """
    released = require_finite("count", count)
    if released < 0:
        remedy = "Cells with a released count below the smallest allowed are left out by public rule."
        raise InputError("count", "must be 0 or above", count, remedy)
    whole = round(released)
    j = np.arange(min(_require_length(length), whole), dtype=np.float64)
    return min(1.0, math.fsum(betainc(j + 1, whole - j, require_rate(rate))) / length)


class Unpadding(NamedTuple):
    """Weights that turn a padded message into the mean embedding of the client's records."""

    score: float
    """Of κ(z, ỹ), for each noisy score ỹ of the message: 1/(mρ)."""
    middle: float
    """Of κ̃(z, middle), κ̃ the kernel convolved with the noise: −(1 − ρ)/ρ."""


def unpadding_weights(length: int, share: float) -> Unpadding:
    """The weights of [mean κ(z, ỹ) − (1 − ρ) κ̃(z, middle)]/ρ, ρ the `fill_share`.

    A message of m scores has in the mean ρ·(mean of κ̃(z, y) over the client's records) + (1 − ρ)·κ̃(z, middle): given
    how many records were kept, every subset of that size is equally likely. So the weights undo the padding without
    bias, for the convolved embedding, where ρ is that of the true count. With the released count the error is
    (ρ_true/ρ − 1)·(mean κ̃(z, y) − κ̃(z, middle)). With a deconvolved κ′ in place of κ, κ̃ is the plain kernel.
    """
    _require_length(length)
    rho = require_finite("share", share)
    if not 0 < rho <= 1:
        remedy = "A cell whose messages are all padding says nothing: leave it out."
        raise InputError("share", "must be in (0, 1]", share, remedy)
    return Unpadding(score=1.0 / (length * rho), middle=-(1.0 - rho) / rho)


def _message(taken: NDArray[np.int64], length: int, noise: ScoreNoise, entropy: Entropy) -> FloatArray:
    """The taken grid points, some dropped or padded to the length, in random order, with noise on every one.

    The order is part of the guarantee: in the records' own order, one record more would move all that follow it.
    """
    slots = np.full(length, noise.middle_index, dtype=np.int64)
    kept = taken[entropy.choice(taken.size, min(length, taken.size))]
    slots[: kept.size] = kept
    return noise.release(slots[entropy.permutation(length)], entropy)


def _as_vector(scores: ArrayLike) -> FloatArray:
    vector = np.asarray(scores, dtype=np.float64)
    if vector.ndim != 1:
        raise InputError("scores", "must be a list of numbers", f"{vector.ndim} dimensions")
    return vector


def _require_length(length: int) -> int:
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
        remedy = "A cell that takes part sends at least one score."
        raise InputError("message length", "must be a whole number of at least 1", length, remedy)
    return int(length)
