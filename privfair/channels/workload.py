"""What a run does and how often it samples records: the public facts from which its plan is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from accountant.events import Adjacency, Neighbouring, Unit
from privfair.config import PrivacyConfig
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import EmbeddingPlan
from privfair.mechanisms.count_release import CountNoise, gaussian_scale_for, laplace_scale_for
from privfair.mechanisms.vector_release import UpdatePlan
from privfair.util import FloatArray

COUNT_DELTA = 0.1  # two phases, Gaussian counts: the part of δ that counts may use


@dataclass(frozen=True)
class Workload:
    """What the run does, apart from noise: all of it public."""

    rounds: int
    epochs: int
    batch_size: int
    samples: int  # scores per cell and round, over all clients
    shares_scores: bool
    most_trainings: int  # rounds in which the busiest client trains
    score_range: tuple[float, float] | None
    kernel: str = "energy"
    embedding: EmbeddingPlan | None = None  # None: scores are shared, not features of them
    updates: UpdatePlan | None = None  # where whole clients are protected; None: records are


@dataclass(frozen=True)
class Sampling:
    """Rates and steps: configured, or planned from released counts."""

    sampling_rate: float
    steps: int
    quotas: NDArray[np.int64] | None  # (clients, cells); of features 1 or 0
    rates: FloatArray | None  # (clients, cells); None: no scores, or public counts


@dataclass(frozen=True)
class PrivateRun:
    """What a private run protects, and how: what every channel's worst case depends on."""

    config: PrivacyConfig
    work: Workload
    cells: Cells
    count_releases: int = 1  # more than one after a crash that lost counts
    public_counts: NDArray[np.int64] | None = None  # (clients, cells), where the owner declared them public
    released_delta: float | None = None  # δ′, where the released number of records needs a smaller one than configured

    @property
    def delta(self) -> float:
        """The δ of the run."""
        return self.config.delta if self.released_delta is None else self.released_delta

    @property
    def adjacency(self) -> Adjacency:
        """Public counts leave replacing a record within its cell; otherwise adding or removing one."""
        return Adjacency.REPLACE_ONE if self.config.counts == "public" else Adjacency.ADD_OR_REMOVE

    @property
    def unit(self) -> Unit:
        """What is protected: a record, or, where whole updates are clipped, a client with all of its records."""
        return Unit.RECORD if self.work.updates is None else Unit.CLIENT

    @property
    def neighbouring(self) -> Neighbouring:
        """Which datasets the run makes hard to tell apart."""
        return Neighbouring(self.adjacency, self.unit)

    @property
    def one_phase(self) -> bool:
        """Whether the plan is fixed before the first release; public counts are known to everybody beforehand."""
        c = self.config
        updates = c.updates == "none" or c.sampling_rate is not None
        scores = not self.noisy_sharing or c.prediction_rate is not None or self.work.embedding is not None
        return c.counts == "public" or (updates and scores)

    @property
    def noisy_sharing(self) -> bool:
        """Whether scores, or sums of their features, are shared with noise."""
        return self.work.shares_scores and self.config.predictions != "none"

    @cached_property
    def count_noise(self) -> CountNoise | None:
        """The noise of counts: given, or from its share of ε."""
        c = self.config
        if c.counts == "public":
            return None
        scale = c.count_noise or self._scale(c.counts, c.count_share, self.cells.count_overlap, "count_noise")
        return CountNoise(c.counts, scale)

    @cached_property
    def evaluation_noise(self) -> CountNoise | None:
        """The noise of the final confusion counts: given, or from its share of ε."""
        c = self.config
        if c.evaluation == "none":
            return None
        scale = c.evaluation_noise
        if scale is None:
            overlap = self.cells.attributes if self.adjacency is Adjacency.ADD_OR_REMOVE else 2 * self.cells.attributes
            scale = self._scale(c.evaluation, c.evaluation_share, overlap, "evaluation_noise")
        return CountNoise(c.evaluation, scale)

    def _scale(self, kind: Literal["laplace", "gaussian"], share: float, overlap: int, key: str) -> float:
        target = self.target(key) * share
        if kind == "laplace":
            return laplace_scale_for(target, overlap)
        return gaussian_scale_for(target, self.config.delta * COUNT_DELTA, overlap)

    def target(self, missing: str) -> float:
        """The configured ε; without one the noise named `missing` cannot follow from it, which is an error."""
        if self.config.epsilon is None:
            rule = "must be given, or privacy.epsilon, from which it follows"
            raise InputError(f"privacy.{missing}", rule, None)
        return self.config.epsilon
