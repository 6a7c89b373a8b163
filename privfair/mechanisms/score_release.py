"""A client's answer for one cell: always the same number of noisy scores, whatever its records are.

With private counts (`poisson_scores`): every record is taken independently at a public rate γ, a message is filled up
with the middle of the range, and noise goes on every entry. Let v be the filled message without the new record, in
random order. With the record it is the same v, unless the record is taken AND kept, which happens with probability at
most γ; then one entry of v, a pad or the record it displaces, is exchanged for it, and moves by at most the range.
So the message is dominated by a Poisson-sampled mechanism of rate γ on one score, whatever the true number of records.

With public counts (`fixed_scores`): m of n records without replacement, under replace-one within the cell.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from accountant.errors import InputError, require_finite
from accountant.events import DiscreteGaussian, DiscreteLaplace, FixedSizeSampled, PoissonSampled
from accountant.neighbouring import Adjacency
from privfair.arrays import FloatArray
from privfair.mechanisms.entropy import Entropy, require_rate
from privfair.mechanisms.grid_noise import ScoreNoise


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
