"""Noisy counts: integer noise on every count of a vector, and what that costs.

Where several clients' counts are added up in a masked sum, each client adds only a share of the noise. Shares of
discrete Gaussian noise add up to one up to a factor that no digit shows if each has 16 steps or more (see
`vector_release`), so counts are taken on a finer grid than one step a record, and the total costs what Gaussian noise
of scale √(σ² − 4) steps costs. Shares of Laplace noise do not add up to Laplace noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_positive
from accountant.events import Adjacency, Composed, DiscreteGaussian, DiscreteLaplace, Gaussian, as_adjacency
from privfair.codec import unless
from privfair.mechanisms.entropy import LARGEST_SCALE, Entropy
from privfair.mechanisms.vector_release import LEAST_NOISE, SMOOTHING

Kind = Literal["laplace", "gaussian"]


@dataclass(frozen=True)
class CountNoise:
    """Integer noise on counts: mass ∝ exp(−|k|/b) or exp(−k²/2σ²), b or σ = scale. The sum may be negative."""

    kind: Kind
    scale: float
    shares: Annotated[int, unless(1)] = 1
    """How many clients' noise adds up to the noise above, in a masked sum of counts; 1: every client adds all of it."""
    most: Annotated[int, unless(0)] = 0
    """With shares: what a client's count is clamped to before its noise, so that the sum does not wrap."""
    grid: Annotated[int, unless(0)] = 0
    """Steps in one record; 0: one, or with shares as many as each share needs."""

    def __post_init__(self) -> None:
        """Check the law, the scale and the shares."""
        if isinstance(self.shares, bool) or not isinstance(self.shares, int) or self.shares < 1:
            raise InputError("shares", "must be a whole number, at least 1", self.shares)
        if self.shares > 1 and (self.kind != "gaussian" or self.most < 1):
            remedy = "Shares of Laplace noise do not add up to Laplace noise."
            raise InputError("kind of noise", "must be gaussian, with a bound on counts, in shares", self.kind, remedy)
        if self.kind not in get_args(Kind):
            raise InputError("kind of noise", f"must be one of {list(get_args(Kind))}", self.kind)
        remedy = "Counts without noise are public: they need no CountNoise."
        scale = require_positive("noise scale", self.scale, remedy)
        if not 1e-12 <= scale <= LARGEST_SCALE:
            raise InputError("noise scale", "must be between 1e-12 and 2**40", self.scale, remedy)
        object.__setattr__(self, "scale", scale)

    @property
    def steps(self) -> int:
        """Steps of the grid in one record: 1, or with shares a power of two that gives each share 16 steps or more."""
        if self.grid:
            return self.grid
        if self.shares == 1:
            return 1
        least = LEAST_NOISE * math.sqrt(self.shares) / self.scale * (1 + 1e-9)
        return int(max(64, 2 ** math.ceil(math.log2(least))))

    def release(self, counts: NDArray[np.integer], entropy: Entropy) -> NDArray[np.int64]:
        """The counts, each with its own noise; never clamped after it, so that sums of them stay unbiased.

        With shares: in steps of the grid, with one share of the noise.
        """
        whole = np.asarray(counts)
        if not np.issubdtype(whole.dtype, np.integer):
            raise InputError("counts", "must be whole numbers", str(whole.dtype), "Count records; do not weight them.")
        if self.shares > 1:
            grid = np.clip(whole.astype(np.int64), 0, self.most) * self.steps
            scale = self.scale * self.steps / math.sqrt(self.shares) * (1 + 1e-12)
            return grid + entropy.discrete_gaussian(scale, whole.size).reshape(whole.shape)
        draw = entropy.discrete_laplace if self.kind == "laplace" else entropy.discrete_gaussian
        return whole.astype(np.int64) + draw(self.scale, whole.size).reshape(whole.shape)

    def event(
        self, overlap: int = 1, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE
    ) -> DiscreteLaplace | DiscreteGaussian | Gaussian | Composed:
        """What releasing the vector costs when one record is counted in at most `overlap` of its entries.

        Adding or removing a record moves that many entries by 1. Replacing one moves the entries of both records: twice
        as many, still by 1 each (an entry that counts both does not move).
        """
        moved = _require_overlap(overlap)
        if as_adjacency(adjacency) is Adjacency.REPLACE_ONE:
            moved *= 2
        if self.steps > 1:
            return self._gaussian(moved, as_adjacency(adjacency))
        if self.kind == "laplace":
            return DiscreteLaplace(self.scale, moved, as_adjacency(adjacency))
        one = DiscreteGaussian(self.scale, 1, as_adjacency(adjacency))
        return one if moved == 1 else Composed((one,) * moved)

    @property
    def alone(self) -> CountNoise:
        """The noise of one share, on the same grid: what hides a client's counts where its share alone does."""
        return replace(self, scale=self.scale / math.sqrt(self.shares), shares=1, grid=self.steps)

    @property
    def effective_scale(self) -> float:
        """The scale, in records, of the Gaussian noise that bounds noise on a fine grid."""
        return self._gaussian(1, Adjacency.ADD_OR_REMOVE).noise_multiplier

    def _gaussian(self, moved: int, adjacency: Adjacency) -> Gaussian:
        """The Gaussian release that bounds noise on a fine grid, for `moved` entries that move by 1."""
        steps = self.scale * self.steps
        smooth = math.nextafter(math.sqrt((steps - SMOOTHING) * (steps + SMOOTHING)), 0.0)
        return Gaussian(smooth, math.nextafter(self.steps * math.sqrt(moved), math.inf), adjacency)

    def total(self, reported: NDArray[np.int64]) -> NDArray[np.int64]:
        """The opened total of shares, in whole records."""
        return np.rint(np.asarray(reported) / self.steps).astype(np.int64)


def laplace_scale_for(epsilon: float, overlap: int = 1) -> float:
    """b = overlap/ε, never rounded down: the vector of counts is then ε-private with δ = 0, under add-or-remove.

    The masses at two counts that differ by Δ in all have a ratio of at most exp(Δ/b).
    """
    target, moved = require_positive("epsilon", epsilon), _require_overlap(overlap)
    scale = moved / target
    while moved / Fraction(scale) > Fraction(target):
        scale = math.nextafter(scale, math.inf)
    return CountNoise("laplace", scale).scale


def shared_scale_for(epsilon: float, delta: float, overlap: int, shares: int, most: int) -> float:
    """The least σ, in records, at which a total of counts with noise in shares is (ε, δ)-private; never too small."""
    from accountant.calibration import calibrate_release, noise_scale  # only planners need it

    moved = _require_overlap(overlap)
    return scale_in_shares(
        noise_scale(calibrate_release(Gaussian(1.0, math.sqrt(moved)), epsilon, delta)), shares, most
    )


def scale_in_shares(needed: float, shares: int, most: int) -> float:
    """The σ of noise in shares, in records, that is as good as Gaussian noise of the scale that is needed."""
    scale = needed
    while True:
        noise = CountNoise("gaussian", scale, shares, most)
        if noise.effective_scale >= needed:
            return scale
        scale = math.hypot(scale, 2.0 * SMOOTHING / noise.steps)


def gaussian_scale_for(epsilon: float, delta: float, overlap: int = 1) -> float:
    """The least σ at which the vector of counts is (ε, δ)-private under add-or-remove; never too small.

    One moved entry by the exact δ of the discrete Gaussian, several by composing them (PLD).
    """
    from accountant.calibration import calibrate, calibrate_release, noise_scale  # only planners need it

    event = CountNoise("gaussian", 1.0).event(overlap)
    if isinstance(event, Composed):
        return CountNoise("gaussian", calibrate(event, epsilon, delta, "pld").factor).scale
    return CountNoise("gaussian", noise_scale(calibrate_release(event, epsilon, delta))).scale


def _require_overlap(overlap: int) -> int:
    if isinstance(overlap, bool) or not isinstance(overlap, int | np.integer) or overlap < 1:
        remedy = "It is the number of counts that one record can be in."
        raise InputError("overlap", "must be a whole number of at least 1", overlap, remedy)
    return int(overlap)
