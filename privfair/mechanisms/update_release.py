"""A client's whole update, made private: cut to a length, weighed, rounded to a grid, with integer noise.

A client's part of the sum is v = (w/w_max)·clip(Δ, S)/S, a vector of norm at most 1: Δ is what training changed, w the
client's public weight and w_max the largest of any client. Noise is sized for the largest weight, so nobody pays more,
and everybody's part of the mean is what it is without privacy. Exchanging one client's records for others changes its
own vector and nobody else's: the sum moves by at most 2 units and the rounding of both vectors, whatever training did
(see `vector_noise` for what that costs).

Sums are of integers that must not wrap. One client adds at most `steps` to a coordinate, and its noise at most 12 of
its standard deviations: the grid is the finest of 2⁴ to 2²⁰ steps at which both fit into what a client may add. All of
it follows from public numbers. What finds no room is cut. Where a client adds all of the noise, that changes nothing:
its message was private before. With noise in shares a cut number is not the one that was paid for. A draw is that far
out with probability 4e-33, so that δ grows by 4e-33 for each number sent: by 4e-23 for ten billion of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_positive
from accountant.neighbouring import Adjacency
from privfair.arrays import FloatArray
from privfair.mechanisms.entropy import Entropy
from privfair.mechanisms.vector_noise import LEAST_NOISE, MOST_COORDINATES, VectorNoise, in_unit_ball

GRIDS = tuple(2**power for power in range(20, 3, -1))  # steps in a unit, the finest first


@dataclass(frozen=True)
class UpdateRelease:
    """What is done to one client's update before it leaves."""

    max_norm: float  # S
    portion: float  # w/w_max
    noise: VectorNoise

    def __post_init__(self) -> None:
        """Refuse what is no bound, or no portion."""
        require_positive("max_update_norm", self.max_norm)
        if not 0 < self.portion <= 1:
            raise InputError("portion", "must be in (0, 1]", self.portion, "It is a weight over the largest one.")

    def whole(self, delta: FloatArray) -> NDArray[np.int64]:
        """The update on the grid, without noise; data never raise: what is no number is 0."""
        values = np.asarray(delta, dtype=np.float64).reshape(1, -1)
        if values.size != self.noise.count:
            raise InputError("update", f"must have {self.noise.count} values", values.size)
        with np.errstate(over="ignore", invalid="ignore"):
            units = in_unit_ball(np.where(np.isfinite(values), values, 0.0) / self.max_norm)
        whole: NDArray[np.int64] = np.rint(units[0] * self.portion * self.noise.steps).astype(np.int64)
        return whole

    def message(self, delta: FloatArray, entropy: Entropy) -> NDArray[np.int64]:
        """The update on the grid, with all of the noise or one share."""
        return self.noise.release(self.whole(delta), entropy)


@dataclass(frozen=True)
class UpdatePlan:
    """How whole updates are summed: public, and the same everywhere."""

    max_norm: float  # S
    count: int  # numbers of an update
    most: int  # what one client may add to a coordinate of the sum
    cohort: int = 1  # no sum of fewer updates is opened; above 1, everybody adds only a share of the noise
    participation: float = 1.0  # the share of clients that train in a round

    def __post_init__(self) -> None:
        """Refuse a model that is too large."""
        if not 1 <= self.count <= MOST_COORDINATES:
            rule = f"must have between 1 and {MOST_COORDINATES} parameters for client-level privacy"
            raise InputError("model", rule, self.count)

    @property
    def shares(self) -> int:
        """So many shares are the whole noise: whoever opens a sum knows its own, so all but one of the cohort's."""
        return max(1, self.cohort - 1)

    def noise(self, multiplier: float) -> VectorNoise:
        """Noise of so many times the largest part of one client, on the finest grid that it fits."""
        fine = VectorNoise(multiplier, self.count, 2.0, GRIDS[0], self.shares)
        for steps in GRIDS:
            if multiplier * steps < LEAST_NOISE * math.sqrt(self.shares):
                break
            found = VectorNoise(multiplier, self.count, 2.0, steps, self.shares)
            if self._fits(found):
                return found
        raise self._no_room(fine)

    def calibrated(self, ratio: float) -> VectorNoise:
        """The least noise of at least `ratio` times what one client can move, on the finest grid that it fits.

        A coarser grid needs more noise, for it rounds more. So this is what `noise` makes of its multiplier.
        """
        for found in self._calibrated(require_positive("noise over sensitivity", ratio)):
            if self._fits(found):
                return found
        raise self._no_room(found)

    def _calibrated(self, ratio: float) -> Iterator[VectorNoise]:
        for steps in GRIDS:
            least = LEAST_NOISE * math.sqrt(self.shares) / steps * (1 + 1e-9)
            start = VectorNoise(least, self.count, 2.0, steps, self.shares)
            yield start.with_event_scale(ratio * start.sensitivity(Adjacency.REPLACE_ONE))

    def _fits(self, noise: VectorNoise) -> bool:
        return noise.steps + noise.reach <= self.most

    def _no_room(self, noise: VectorNoise) -> InputError:
        rule = f"must fit into sums of whole numbers, in which a client may add {self.most} to a value"
        remedy = "Let fewer clients train in a round, ask for less noise, or add it in shares."
        return InputError("noise multiplier of updates", rule, float(f"{noise.multiplier:.4g}"), remedy)
