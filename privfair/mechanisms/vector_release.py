"""Noise for sums of vectors of the unit ball: every vector on an integer grid, integer noise on every coordinate.

A record (or, where whole updates are summed, a client) adds a vector of norm at most 1 to the sum, in steps of 1/steps:
rounded by itself, so that sums are whole numbers, and one vector moves the sum by at most steps + √J/2 steps. Privacy
rests on whole numbers alone.

What discrete Gaussian noise of scale σ steps costs on J coordinates is bounded by Gaussian noise of scale √(σ² − s²),
s = 2 steps, and the same sensitivity. For integers x, draw y from N(x, σ² − s²) and round it at random: to k with
probability exp(−(k − y)²/2s²)/θ(y), θ(y) = Σ_k exp(−(k − y)²/2s²). If θ were constant, k would have the discrete
Gaussian law around x exactly, for the two exponentials integrate to one of (k − x)²/2σ². By Poisson's summation
θ(y) = s√(2π)·(1 + 2Σ_m e^{−2π²s²m²} cos 2πmy): constant up to a factor of 1 ± 2e^{−8π²}, 1 ± 1.1e-34. So the masses of
discrete Gaussian noise are those of a post-processed Gaussian release up to a factor of 1 ± 2.2e-34 for each
coordinate, and a release costs the ε of that Gaussian and 4.4e-34·J more (δ grows by a factor of 1 + 2.2e-34·J): for
2²⁴ coordinates and a million releases 8e-21, which no digit of an ε shows.

Noise may come in shares, one from every client of a sum that nobody sees before it is added up. Shares of scale σ₁ and
σ₂ add up to exp(−z²/2(σ₁² + σ₂²))·θ at z, the θ above with 1/s² = 1/σ₁² + 1/σ₂²: a discrete Gaussian law again, up to a
factor of 1 ± 4e^{−2π²s²} (as in Kairouz, Liu & Steinke 2021, arXiv 2102.06387v4, section 4). Shares have 16 steps or
more, so s² ≥ 128: below 1e-1000.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_positive
from accountant.events import Adjacency, Gaussian, Unit, as_adjacency
from privfair.codec import unless
from privfair.mechanisms.entropy import LARGEST_SCALE, Entropy
from privfair.util import FloatArray

DEFAULT_STEPS = 1024
LEAST_NOISE = 16.0  # grid steps
MOST_COORDINATES = 2**24
TAIL = 12.0  # standard deviations: a draw beyond has a probability of 4e-33
SMOOTHING = 2.0  # s, in steps
_TAIL_OF_SUM = 12.2  # standard deviations of the noise in a whole sum
_ROUNDING = 1 + 1e-12  # of clipping in floating point


@dataclass(frozen=True)
class VectorNoise:
    """Gaussian integer noise on sums of vectors of norm at most 1 with `count` coordinates."""

    multiplier: float
    """σ over the largest contribution of one record or client, which is 1."""
    count: int
    spread: float = 2.0
    """An upper bound of the distance of two vectors: what replacing one can move."""
    steps: int = DEFAULT_STEPS
    """Of the grid, in a unit."""
    shares: int = 1
    """How many clients' noise adds up to the noise above; 1: every client adds all of it."""
    inward: Annotated[bool, unless(False)] = False
    """Whether a vector whose rounded form would be longer than `steps` is rounded toward 0: then none is."""

    def __post_init__(self) -> None:
        """Check the noise and the grid."""
        for name, least, most in (("count", 1, MOST_COORDINATES), ("steps", 16, 2**20), ("shares", 1, 2**16)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InputError(name, f"must be a whole number between {least} and {most}", value)
        remedy = "Sums without noise are not private: they need no VectorNoise and cost NotPrivate()."
        multiplier = require_positive("noise multiplier", self.multiplier, remedy)
        low, high = (scale * math.sqrt(self.shares) / self.steps for scale in (LEAST_NOISE, LARGEST_SCALE))
        if not low <= multiplier <= high:
            rule = f"must be between {low:g} and {high:g}"
            raise InputError("noise multiplier", rule, self.multiplier, remedy)
        spread = require_positive("spread", self.spread)
        if spread > 2:
            raise InputError("spread", "must be at most 2, the width of the unit ball", self.spread)
        object.__setattr__(self, "multiplier", multiplier)
        object.__setattr__(self, "spread", spread)

    @property
    def grid_scale(self) -> float:
        """σ in steps, of all shares together."""
        return self.multiplier * self.steps

    @property
    def share_scale(self) -> float:
        """σ of one share in steps, not rounded down: what the sampler is given."""
        if self.shares == 1:
            return self.grid_scale
        return self.grid_scale / math.sqrt(self.shares) * _ROUNDING

    @property
    def alone(self) -> VectorNoise:
        """The noise of one share: what protects a client's message from somebody who sees it by itself."""
        return replace(self, multiplier=self.multiplier / math.sqrt(self.shares), shares=1)

    def sensitivity(self, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE) -> float:
        """How far one vector can move the sum, in steps, in Euclidean distance; rounding included."""
        if self.inward:  # whole numbers within a ball of `steps`, whose distance is at most its width
            return float(self.steps if as_adjacency(adjacency) is Adjacency.ADD_OR_REMOVE else 2 * self.steps)
        rounding = math.sqrt(self.count) / 2
        presence = self.steps * _ROUNDING + rounding
        if as_adjacency(adjacency) is Adjacency.ADD_OR_REMOVE:
            return presence
        return min(2 * presence, self.steps * self.spread * _ROUNDING + 2 * rounding)

    def event(
        self, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE, unit: Unit = Unit.RECORD, times: float = 1.0
    ) -> Gaussian:
        """What releasing one sum costs: a Gaussian release that bounds it, in grid steps.

        `times`: how many times as far as one vector a unit moves what is released; not 1 where a unit is many records.
        """
        scale = math.sqrt((self.grid_scale - SMOOTHING) * (self.grid_scale + SMOOTHING))
        moved = self.sensitivity(adjacency) * times
        return Gaussian(math.nextafter(scale, 0.0), moved, as_adjacency(adjacency), unit)

    @property
    def reach(self) -> float:
        """How far noise that is added at once, all of it or one share, moves a coordinate: farther once in 1e32."""
        return TAIL * self.share_scale

    def with_event_scale(self, scale: float) -> VectorNoise:
        """The same with as much noise as makes `event` have at least this scale: takes a calibrated event's."""
        multiplier = math.hypot(require_positive("noise scale", scale), SMOOTHING) / self.steps
        least = LEAST_NOISE * math.sqrt(self.shares) / self.steps * _ROUNDING
        found = replace(self, multiplier=max(multiplier, least))
        while found.event().noise_scale < scale:
            found = replace(found, multiplier=math.nextafter(found.multiplier, math.inf))
        return found

    def release(self, total: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
        """The sum with noise on every coordinate: all of it, or one share."""
        return total + entropy.discrete_gaussian(self.share_scale, total.size).reshape(total.shape)


def grid_sum(vectors: FloatArray, steps: int) -> NDArray[np.int64]:
    """Σ over records of their vectors in whole steps: longer ones are clipped to length 1, non-numbers are 0.

    Whole numbers add up exactly, so a record moves the sum by its own vector and by nothing else.
    """
    whole: NDArray[np.int64] = np.rint(in_unit_ball(vectors) * steps).astype(np.int64).sum(axis=0)
    return whole


def in_unit_ball(vectors: FloatArray) -> FloatArray:
    """Each row at most 1 long: longer ones are clipped, non-numbers are 0.

    Lengths are those of pairwise sums: right to 1e-14 for 2²⁴ coordinates, and sensitivities allow for 1e-12.
    """
    finite = np.clip(np.where(np.isfinite(vectors), vectors, 0.0), -1e100, 1e100)  # no square overflows
    lengths = np.linalg.norm(finite, axis=1, keepdims=True)
    inside: FloatArray = finite / np.maximum(lengths, 1.0)
    return inside


# ---- One step of DP-SGD whose noise is whole numbers, all of it or a share.


@dataclass(frozen=True)
class GradientRelease:
    """What is done to the sum of a client's clipped gradients before it leaves.

    A record's gradient, clipped to `max_grad_norm`, is a vector of whole numbers of length at most `noise.steps`. Their
    sum over the client's sample is clamped to ±`room` before the noise: no two sums get farther apart by that, and the
    sum over all clients does not wrap. Cutting after the noise would not be post-processing of the sum.
    """

    max_grad_norm: float
    room: int
    noise: VectorNoise

    def __post_init__(self) -> None:
        """Check the bound and the room."""
        require_positive("max_grad_norm", self.max_grad_norm)
        if isinstance(self.room, bool) or not isinstance(self.room, int) or self.room < self.noise.steps:
            raise InputError("room", f"must be a whole number, at least {self.noise.steps}", self.room)
        if not self.noise.inward:
            raise InputError("noise of gradients", "must be for vectors that are rounded inward", "others")

    def message(self, total: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
        """The sum of clipped gradients, in steps, with all of the noise or one share."""
        return self.noise.release(np.clip(total, -self.room, self.room), entropy)


@dataclass(frozen=True)
class GradientPlan:
    """How gradients of all clients are summed in one step of DP-SGD with noise in shares: public, the same everywhere.

    The grid is the finest power of two of which the sum of all records of a step, and 12.2 standard deviations of the
    noise of all clients beside it, stay within half the modulus. A sum that wraps costs accuracy, and never privacy.
    """

    count: int  # parameters
    clients: int  # whose shares are in the sum, at most
    shares: int  # h: how many of them are the whole noise
    modulus: int

    def noise(self, multiplier: float, records: float) -> VectorNoise:
        """Noise of scale `multiplier` times the clipping norm, where a step has at most so many records."""
        for steps in GRIDS:
            enough = multiplier * steps >= LEAST_NOISE * math.sqrt(self.shares) * _ROUNDING
            if enough and self._fits(multiplier, steps, records):
                return VectorNoise(multiplier, self.count, 2.0, steps, self.shares, inward=True)
        rule = f"must fit into sums of whole numbers below {self.modulus}, with {records:.0f} records in a step"
        remedy = "Take a smaller privacy.sampling_rate, or a larger ε."
        raise InputError("noise multiplier of updates", rule, float(f"{multiplier:.4g}"), remedy)

    def room(self, noise: VectorNoise, records: float) -> int:
        """What a client's sum of gradients is clamped to: all records of a step could be its own."""
        return math.ceil(max(records, 1.0)) * noise.steps

    def _fits(self, multiplier: float, steps: int, records: float) -> bool:
        reach = _TAIL_OF_SUM * multiplier * steps * math.sqrt(self.clients / self.shares)
        fine = steps >= LEAST_NOISE * math.sqrt(self.count)  # rounding inward loses at most a sixteenth of a gradient
        return fine and math.ceil(max(records, 1.0)) * steps + reach <= (self.modulus - 1) // 2


# ---- A client's whole update, made private: clipped, weighted, rounded to a grid, with integer noise.
#
# A client's part of the sum is v = (w/w_max)·clip(Δ, S)/S, a vector of norm at most 1: Δ is what training changed, w
# the client's public weight and w_max the largest of any client. Noise is sized for the largest weight, so no client
# pays more, and each client's part of the mean is what it is without privacy. Replacing one client's records by others
# changes its own vector only: the sum moves by at most 2 units and the rounding of both vectors, whatever training did
# (see `VectorNoise` for what that costs).
#
# Sums are of integers that must not wrap. One client adds at most `steps` to a coordinate, and its noise at most 12
# of its standard deviations: the grid is the finest of 2⁴ to 2²⁰ steps at which both fit into what a client may add.
# All of it follows from public numbers. Numbers that find no room are clipped. Where a client adds all of the noise,
# clipping is post-processing of a private message. With noise in shares a clipped number is not the one that was paid
# for. A draw is that far out with probability 4e-33, so that δ grows by 4e-33 for each number sent: by 4e-23 for ten
# billion of them.


GRIDS = tuple(2**power for power in range(20, 3, -1))  # steps in a unit, the finest first


@dataclass(frozen=True)
class UpdateRelease:
    """What is done to one client's update before it leaves."""

    max_norm: float  # S
    portion: float  # w/w_max; 0: noise alone, which others count on
    noise: VectorNoise

    def __post_init__(self) -> None:
        """Check the bound and the portion."""
        require_positive("max_update_norm", self.max_norm)
        least = 0.0 if self.noise.shares > 1 else math.ulp(0.0)  # a client without records adds its share of noise
        if not least <= self.portion <= 1:
            raise InputError(
                "portion",
                "must be in (0, 1], or 0 with noise in shares",
                self.portion,
                "It is a weight over the largest one.",
            )

    def whole(self, delta: FloatArray) -> NDArray[np.int64]:
        """The update on the grid, without noise. It must not raise on data, so non-numbers count as 0."""
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
    shares: int = 1  # how many clients' shares are the whole noise; 1: everybody adds all of it
    participation: float = 1.0  # the share of clients that train in a round

    def __post_init__(self) -> None:
        """Refuse a model that is too large."""
        if not 1 <= self.count <= MOST_COORDINATES:
            rule = f"must have between 1 and {MOST_COORDINATES} parameters for client-level privacy"
            raise InputError("model", rule, self.count)

    def noise(self, multiplier: float) -> VectorNoise:
        """Noise of scale `multiplier` times the largest part of one client, on the finest grid that it fits."""
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
