"""What a run does and how often it samples records: the public facts from which its plan is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from accountant.events import Adjacency, Gaussian, Neighbouring, Unit
from privfair.config import PrivacyConfig
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import EmbeddingPlan
from privfair.federated.release_plan import FeatureMoments, ReleasePlan, feature_moments
from privfair.mechanisms.count_release import (
    CountNoise,
    gaussian_scale_for,
    laplace_scale_for,
    scale_in_shares,
    shared_scale_for,
)
from privfair.mechanisms.moments import PRODUCTS_SHARE, SHARE, MomentsPlan, gaussian_budget, multiplier_of
from privfair.mechanisms.vector_release import GradientPlan, UpdatePlan
from privfair.secure_aggregation.masks import MODULUS, Cohort
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
    gradients: GradientPlan | None = None  # where a round is one step of DP-SGD on the sum of all clients' gradients
    cohort: Cohort | None = None  # of masked sums; None: contributions are not masked
    counts_in_shares: bool = False  # counts and evaluation are totals, whose noise comes in shares
    participation: float = 1.0  # the share of clients that train in a round
    moments: MomentsPlan | None = None  # sums of features, by which they are scaled; None: they are not
    learning_rate: float = 0.0
    learning_rate_decay: float = 1.0
    damped: int = 0  # as `Schedule.damped`


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
    own_share: bool = False  # price counts and evaluation by one share of their noise, where it comes in shares
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
        updates = c.updates == "none" or c.sampling_rate is not None or self.work.gradients is not None
        scores = not self.noisy_sharing or c.prediction_rate is not None or self.work.embedding is not None
        return c.counts == "public" or (updates and scores)

    @property
    def noisy_sharing(self) -> bool:
        """Whether scores, or sums of their features, are shared with noise."""
        return self.work.shares_scores and self.config.predictions != "none"

    @property
    def alone(self) -> Self:
        """The same run where only a client's own share of noise in shares hides its counts."""
        return replace(self, own_share=True)

    @cached_property
    def count_noise(self) -> CountNoise | None:
        """The noise of counts: given, or from its share of ε."""
        c = self.config
        if c.counts == "public":
            return None
        return self._counts(c.counts, c.count_noise, c.count_share, self.cells.count_overlap, "count_noise")

    def require_delta(self) -> None:
        """Raise if δ is too large for a declared number of records: publishing one of them would count as private."""
        c = self.config
        if c.records is not None and c.delta >= 1 / c.records:
            rule = f"must be below 1/{c.records}, one over the declared number of records (privacy.records)"
            remedy = f"A tenth of that is a good choice: {0.1 / c.records:.1g}."
            raise InputError("privacy.delta", rule, c.delta, remedy)

    @property
    def sided(self) -> bool:
        """Whether rows name the side of the division that they are about, so that a record pays for one of them.

        Let D′ be D with one record more. The division looks at each record by itself (`held_out`), so that all others
        are on the same sides in both. (1) If it is a training record, the test records are the same; the evaluation is
        computed from them and from the model, which follows from earlier releases: it costs this record nothing. All
        else is (ε₁, δ)-private by its own plan. (2) If it is a test record, the training records are the same, and all
        that is computed of them has the same law; given it, the evaluation is (ε₂, δ)-private. So the run is
        (max(ε₁, ε₂), δ)-private. The maximum is one run's: another may divide the records differently, and what a
        record pays in several runs adds up.

        It needs that a record is added or removed (a replaced one may change sides), and that every channel looks at
        one side (`Channel.side`). Rows of single groups (shared scores) would have to name group and side.
        """
        c = self.config
        from privfair.channels.base import registered  # which imports this module

        own = c.evaluation in ("gaussian", "laplace") and c.evaluation_share == 1
        own = own and all(channel.side for channel in registered() if channel.phase != "on demand")
        records = self.adjacency is Adjacency.ADD_OR_REMOVE and self.unit is Unit.RECORD
        return own and records and not (self.noisy_sharing and self.work.embedding is None)

    @cached_property
    def evaluation_noise(self) -> CountNoise | None:
        """The noise of the final confusion counts: given, or from its share of ε; of all of it on a side of its own."""
        c = self.config
        if c.evaluation == "none":
            return None
        if c.evaluation_share == 1 and not self.sided:
            rule = "must be below 1 here: only where records are added or removed, and scores are not shared by group, "
            rule += "does a record pay for one side of the division alone"
            raise InputError("privacy.evaluation_share", rule, 1, 'Take 0.05, or fairness.tracker = "embedding".')
        if self.sided and c.evaluation_noise is None:
            return self._all_of_epsilon(c.evaluation)
        overlap = self.cells.attributes if self.adjacency is Adjacency.ADD_OR_REMOVE else 2 * self.cells.attributes
        return self._counts(c.evaluation, c.evaluation_noise, c.evaluation_share, overlap, "evaluation_noise")

    @property
    def moved(self) -> float:
        """How far one record moves a sum of vectors of length 1 at most."""
        return 1.0 if self.adjacency is Adjacency.ADD_OR_REMOVE else 2.0

    @cached_property
    def moments_noise(self) -> tuple[float, ...] | None:
        """The noise multipliers of moments and products, with room for repetitions; None where none are released.

        Given, or a tenth of μ², and a quarter of the rest, whatever the noise of the rest is (see `gaussian_budget`).
        """
        plan = self.work.moments
        if plan is None:
            return None
        keys, shares = ("moments_noise", "products_noise"), (SHARE, PRODUCTS_SHARE * (1 - SHARE))
        found = []
        for which in range(1 + plan.precondition):
            given = getattr(self.config, keys[which])
            if given is None:
                budget = gaussian_budget(self.target(keys[which]), self.config.delta)
                ratio = self.moved * math.sqrt((1 + self.config.retries) / shares[which]) / budget
                given = multiplier_of(ratio, plan.sizes[which])
            found.append(given)
        return tuple(found)

    def moments(self, records: int) -> FeatureMoments | None:
        """How features are scaled, for so many released records."""
        return None if self.work.moments is None else feature_moments(self.work.moments, records, self.moments_noise)

    def _all_of_epsilon(self, kind: Literal["laplace", "gaussian"]) -> CountNoise:
        """The least noise at which the evaluation alone, and repeated after crashes, costs ε at the run's δ.

        It is the last release: its noise may follow from the released counts (δ′), as that of the rest does.
        """
        c, cohort = self.config, self.work.cohort
        from accountant.calibration import calibrate  # only planners need it

        moved = self.cells.attributes * (1 + c.retries)
        target = self.target("evaluation_noise")
        if self.work.counts_in_shares and cohort is not None:
            most, shares = _most_counted(cohort.holders), cohort.honest
            needed = calibrate(Gaussian(1.0, math.sqrt(moved)), target, self.delta, c.target_method).factor
            noise = CountNoise("gaussian", scale_in_shares(needed, shares, most), shares, most)
            return noise.alone if self.own_share else noise
        event = CountNoise(kind, 1.0).event(moved)
        return CountNoise(kind, calibrate(event, target, self.delta, c.target_method).factor)

    def _counts(
        self, kind: Literal["laplace", "gaussian"], given: float | None, share: float, overlap: int, key: str
    ) -> CountNoise:
        """The noise of counts: given, or what makes them cost their share of ε; with totals, in shares."""
        cohort, delta = self.work.cohort, self.config.delta * COUNT_DELTA
        if self.work.counts_in_shares and cohort is not None:
            most, shares = _most_counted(cohort.holders), cohort.honest
            scale = given or shared_scale_for(self.target(key) * share, delta, overlap, shares, most)
            noise = CountNoise("gaussian", scale, shares, most)
            return noise.alone if self.own_share else noise
        if given is not None:
            return CountNoise(kind, given)
        target = self.target(key) * share
        scale = laplace_scale_for(target, overlap) if kind == "laplace" else gaussian_scale_for(target, delta, overlap)
        return CountNoise(kind, scale)

    def target(self, missing: str) -> float:
        """The configured ε; without one the noise named `missing` cannot follow from it, which is an error."""
        if self.config.epsilon is None:
            rule = "must be given, or privacy.epsilon, from which it follows"
            raise InputError(f"privacy.{missing}", rule, None)
        return self.config.epsilon


def sampling_of(release_plan: ReleasePlan) -> Sampling:
    """The rates and steps that these terms have."""
    rate, steps = (
        (1.0, 1) if release_plan.updates is None else (release_plan.updates.sampling_rate, release_plan.updates.steps)
    )
    if release_plan.sharing is not None:
        return Sampling(rate, steps, release_plan.sharing.quotas, release_plan.sharing.rates)
    return Sampling(rate, steps, None if release_plan.embedding is None else release_plan.embedding.cells, None)


def _most_counted(clients: int) -> int:
    """What a client may count of its records in a sum of bounded integers, on the grid of totals and beside noise."""
    return MODULUS // 4 // clients // 64
