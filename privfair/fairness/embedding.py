"""Tracking by features: what is shared of a group is the mean of a few bounded features of its scores.

A client sends for each cell one vector, Σ ψ(S_i) over its records (see `kernels.feature_weights`): noise on it is
divided by the number of records, no record is sampled, and sums can be added under encryption. Whoever may open the
sum over all clients has the witness functions of the round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.fairness.tracking import Factors
from privfair.kernels.base import Kernel
from privfair.kernels.feature_weights import UnitFeatures, unit_features
from privfair.kernels.feature_witness import FeatureWitness
from privfair.kernels.parse import parse_kernel
from privfair.mechanisms.vector_noise import DEFAULT_STEPS, VectorNoise


@dataclass(frozen=True)
class EmbeddingPlan:
    """Which features of a score are shared, and on which grid: public, and the same everywhere."""

    kernel: str
    low: float
    high: float
    features: int | None  # None: as many as the kernel needs
    steps: int = DEFAULT_STEPS
    room: int | None = None  # records of one client and cell that a sum has room for; None: any number
    cohort: int = 1  # no sum of fewer clients' vectors is opened; above 1, everybody adds only a share of the noise

    @cached_property
    def unit(self) -> UnitFeatures:
        """The features, weighted for the least error of the penalty's slope."""
        return unit_features(parse_kernel(self.kernel), self.low, self.high, self.features)

    def noise(self, multiplier: float) -> VectorNoise:
        """Noise of so many times the largest contribution of a record.

        Shared noise is that of all clients of the smallest cohort but one: who opens a sum knows its own share.
        """
        return VectorNoise(multiplier, self.unit.count, self.unit.spread, self.steps, max(1, self.cohort - 1))

    def room_beside(self, noise: VectorNoise | None) -> int | None:
        """How many records of one client and cell a sum has room for, with this noise; None: any number.

        Integers that find no room are cut. Where others count on a client's share of noise it must find room but for
        one draw in 1e32. A client's own noise does no more than blur what it sends: six standard deviations will do.
        """
        if self.room is None or noise is None:
            return self.room
        reach = noise.reach if noise.shares > 1 else noise.reach / 2
        return max(0, self.room - math.ceil(reach / self.steps))


@dataclass(frozen=True, eq=False)
class SealedFeatures:
    """What the server broadcasts for a round: the sum of the clients' vectors, encrypted or not, for them to open.

    `shares`: of each cell the released number of records of those clients whose vectors are in the sum.
    """

    kernel: str
    strength: float  # λ
    total: bytes  # empty: nobody told anything
    shares: FloatArray
    counts: FloatArray  # records in each cell, over all clients
    records: float  # records over all clients


@dataclass(frozen=True, eq=False)
class SharedFeatures:
    """An opened `SealedFeatures`: the mean features of every cell that was heard of."""

    plan: EmbeddingPlan
    strength: float
    means: FloatArray  # (cells, J), of φ
    shares: FloatArray
    counts: FloatArray
    records: float
    noisy: None = None  # noise is on the means, and has mean 0: the kernel stays what it is

    @property
    def kernel(self) -> str:
        """Its name."""
        return self.plan.kernel

    @property
    def domain(self) -> tuple[float, float]:
        """The range of the features."""
        return self.plan.low, self.plan.high

    def scale(self, cell: int) -> float:
        """2λ/P(A = a, C_j)."""
        return 2 * self.strength * self.records / float(self.counts[cell])

    def heard(self, cell: int) -> bool:
        """Whether anybody's records of a cell are in the sum."""
        return bool(self.shares[cell] > 0)

    def curve(self, factors: Factors, kernel: Kernel) -> FeatureWitness:
        """Σ_c factor_c·⟨φ(z), mean of cell c⟩; the kernel is in the features already."""
        total = np.zeros(self.plan.unit.count)
        for cell, factor in factors.items():
            total += factor * self.means[cell]
        return FeatureWitness(self.plan.unit.features, total)


def opened_features(plan: EmbeddingPlan, sealed: SealedFeatures, total: FloatArray, units: float) -> SharedFeatures:
    """The mean features that a sum says; `units`: what stands for 1 in the sum.

    A mean of vectors of the unit ball is in it: one that noise has carried out of it is brought back to its surface,
    which is nearer to the truth wherever that lies.
    """
    shape = (len(sealed.shares), plan.unit.count)
    if total.size != shape[0] * shape[1]:
        raise InputError("sum of features", f"must have {shape[0] * shape[1]} values", total.size)
    means = total.reshape(shape) / units / np.maximum(sealed.shares, 1e-9)[:, None]
    means = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1.0)
    return SharedFeatures(
        plan=plan,
        strength=sealed.strength,
        means=plan.unit.mean_features(means),
        shares=sealed.shares,
        counts=sealed.counts,
        records=sealed.records,
    )
