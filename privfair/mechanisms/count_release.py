"""Noisy counts: integer noise on every count of a vector, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_positive
from accountant.events import Adjacency, Composed, DiscreteGaussian, DiscreteLaplace, as_adjacency
from privfair.mechanisms.entropy import LARGEST_SCALE, Entropy

Kind = Literal["laplace", "gaussian"]


@dataclass(frozen=True)
class CountNoise:
    """Integer noise on counts: mass ∝ exp(−|k|/b) or exp(−k²/2σ²), b or σ = scale. The sum may be negative."""

    kind: Kind
    scale: float

    def __post_init__(self) -> None:
        """Check the law and the scale."""
        if self.kind not in get_args(Kind):
            raise InputError("kind of noise", f"must be one of {list(get_args(Kind))}", self.kind)
        remedy = "Counts without noise are public: they need no CountNoise."
        scale = require_positive("noise scale", self.scale, remedy)
        if not 1e-12 <= scale <= LARGEST_SCALE:
            raise InputError("noise scale", "must be between 1e-12 and 2**40", self.scale, remedy)
        object.__setattr__(self, "scale", scale)

    def release(self, counts: NDArray[np.integer], entropy: Entropy) -> NDArray[np.int64]:
        """The counts, each with its own noise; never clamped, so that sums of them stay unbiased."""
        whole = np.asarray(counts)
        if not np.issubdtype(whole.dtype, np.integer):
            raise InputError("counts", "must be whole numbers", str(whole.dtype), "Count records; do not weight them.")
        draw = entropy.discrete_laplace if self.kind == "laplace" else entropy.discrete_gaussian
        return whole.astype(np.int64) + draw(self.scale, whole.size).reshape(whole.shape)

    def event(
        self, overlap: int = 1, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE
    ) -> DiscreteLaplace | DiscreteGaussian | Composed:
        """What releasing the vector costs when one record is counted in at most `overlap` of its entries.

        Adding or removing a record moves that many entries by 1. Replacing one moves the entries of both records: twice
        as many, still by 1 each (an entry that counts both does not move).
        """
        moved = _require_overlap(overlap)
        if as_adjacency(adjacency) is Adjacency.REPLACE_ONE:
            moved *= 2
        if self.kind == "laplace":
            return DiscreteLaplace(self.scale, moved, as_adjacency(adjacency))
        one = DiscreteGaussian(self.scale, 1, as_adjacency(adjacency))
        return one if moved == 1 else Composed((one,) * moved)


def laplace_scale_for(epsilon: float, overlap: int = 1) -> float:
    """b = overlap/ε, never rounded down: the vector of counts is then ε-private with δ = 0, under add-or-remove.

    The masses at two counts that differ by Δ in all have a ratio of at most exp(Δ/b).
    """
    target, moved = require_positive("epsilon", epsilon), _require_overlap(overlap)
    scale = moved / target
    while moved / Fraction(scale) > Fraction(target):
        scale = math.nextafter(scale, math.inf)
    return CountNoise("laplace", scale).scale


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
