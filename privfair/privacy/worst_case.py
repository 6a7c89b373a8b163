"""What a run does and how often it samples records: what its plan is made from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accountant.calibration import Channel
from accountant.errors import InputError
from accountant.events import Adjacency, Composed, Event, Gaussian, Neighbouring, Nothing, Unit
from privfair.config import PrivacyConfig
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import EmbeddingPlan
from privfair.mechanisms.count_release import CountNoise, gaussian_scale_for, laplace_scale_for
from privfair.mechanisms.score_release import ScoreNoise, fixed_scores_event, poisson_scores_event
from privfair.mechanisms.vector_release import UpdatePlan, VectorNoise
from privfair.privacy.pricing import (
    COUNTS,
    EMBEDDINGS,
    EVALUATION,
    PREDICTIONS,
    UPDATES,
    scores_event,
    update_event,
    vectors_moved,
)
from privfair.util import FloatArray


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


# ---- What a round of shared scores costs the record that pays most for them.


Priced = tuple[float, Event]  # the rate at which records are sampled, and what a message costs


def dearest_scores(
    cells: Cells, sampling: Sampling, noise: ScoreNoise, rate: float | None, public_counts: NDArray[np.int64] | None
) -> list[Event]:
    """For each attribute a record's dearest cell, or one of every set where sets overlap.

    `rate`: a configured one, under add-or-remove; `public_counts`: (clients, cells), where they are public.
    """
    events = []
    for attribute in range(cells.attributes):
        by_set = []
        for comparison in cells.comparisons:
            if comparison.attribute == attribute:
                costs = [_cell(cell, sampling, noise, rate, public_counts) for cell in comparison.cells]
                by_set += [max((c for c in costs if c[0] > 0), key=lambda c: c[0], default=(0.0, Nothing()))]
        if cells.notion.sets_of_a_record == 1:
            by_set = [max(by_set, key=lambda c: c[0])]
        events += [event for _, event in by_set]
    return events


def _cell(
    cell: int, sampling: Sampling, noise: ScoreNoise, rate: float | None, public_counts: NDArray[np.int64] | None
) -> Priced:
    """Of the client whose records of this cell are sampled at the highest rate.

    A configured rate is paid for whether or not the cell turns out large enough: the plan was fixed before that.
    """
    if rate is not None:
        return rate, poisson_scores_event(rate, noise)
    quotas = np.zeros(0) if sampling.quotas is None else sampling.quotas[:, cell]
    if not quotas.any():
        return 0.0, Nothing()
    if sampling.rates is not None:
        highest = float(sampling.rates[quotas > 0, cell].max())
        return highest, poisson_scores_event(highest, noise)
    counts = quotas if public_counts is None else public_counts[:, cell]
    rates = np.where(quotas > 0, quotas / np.maximum(counts, 1), 0.0)
    k = int(np.argmax(rates))
    return float(rates[k]), fixed_scores_event(int(quotas[k]), int(counts[k]), noise)


# ---- What every channel of a planned run costs the record, or the client, that pays most for it.


COUNT_DELTA = 0.1  # two phases, Gaussian counts: the part of δ that counts may use

Fairness = ScoreNoise | VectorNoise  # noise of what is shared for fairness: scores, or sums of features


@dataclass(frozen=True)
class PlannedChannels:
    """One run's channels, by their noise."""

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
        scores = not self._noisy_scores or c.prediction_rate is not None or self.work.embedding is not None
        return c.counts == "public" or (updates and scores)

    @property
    def _noisy_scores(self) -> bool:
        return self.work.shares_scores and self.config.predictions != "none"

    @cached_property
    def count_noise(self) -> CountNoise | None:
        """Of counts: given, or from its share of ε."""
        c = self.config
        if c.counts == "public":
            return None
        scale = c.count_noise or self._scale(c.counts, c.count_share, self.cells.count_overlap, "count_noise")
        return CountNoise(c.counts, scale)

    @cached_property
    def evaluation_noise(self) -> CountNoise | None:
        """Of the final confusion counts: given, or from its share of ε."""
        c = self.config
        if c.evaluation == "none":
            return None
        scale = c.evaluation_noise
        if scale is None:
            overlap = self.cells.attributes if self.adjacency is Adjacency.ADD_OR_REMOVE else 2 * self.cells.attributes
            scale = self._scale(c.evaluation, c.evaluation_share, overlap, "evaluation_noise")
        return CountNoise(c.evaluation, scale)

    def _scale(self, kind: Literal["laplace", "gaussian"], share: float, overlap: int, key: str) -> float:
        target = self._target(key) * share
        if kind == "laplace":
            return laplace_scale_for(target, overlap)
        return gaussian_scale_for(target, self.config.delta * COUNT_DELTA, overlap)

    def _target(self, missing: str) -> float:
        if self.config.epsilon is None:
            rule = "must be given, or privacy.epsilon, from which it follows"
            raise InputError(f"privacy.{missing}", rule, None)
        return self.config.epsilon

    # ---- the channels of the record, or client, that pays most

    def fixed(self) -> list[Channel]:
        """Counts and evaluation, whose noise is settled first."""
        channels = []
        if self.count_noise is not None:
            event = self.count_noise.event(self.cells.count_overlap, self.adjacency)
            channels.append(Channel(COUNTS, event, self.count_releases, fixed=True))
        if self.evaluation_noise is not None:
            event = self.evaluation_noise.event(self.cells.attributes, self.adjacency)
            channels.append(Channel(EVALUATION, event, 1 + self.config.retries, fixed=True))
        return channels

    def _fairness_channel(self, sampling: Sampling, noise: Fairness, *, fixed: bool) -> Channel | None:
        """What is shared for fairness in all rounds, for the record that pays most for it."""
        if self.unit is Unit.CLIENT:
            return self._client_channel(sampling, noise, fixed=fixed)
        if isinstance(noise, VectorNoise):
            # a record is in the sum of each of its cells, and all cost the same
            events: tuple[Event, ...] = (noise.event(self.adjacency),)
            events *= self.cells.attributes * self.cells.notion.sets_of_a_record
            event = events[0] if len(events) == 1 else Composed(events)
            return Channel(EMBEDDINGS, event, self.work.rounds + self.config.retries, fixed=fixed)
        return self._score_channel(sampling, noise, fixed=fixed)

    def _score_channel(self, sampling: Sampling, noise: ScoreNoise, *, fixed: bool) -> Channel | None:
        """The scores of all rounds, for a record of the cells with the highest rates."""
        if sampling.quotas is None:
            return None
        rate = self.config.prediction_rate if self.adjacency is Adjacency.ADD_OR_REMOVE else None
        events = dearest_scores(self.cells, sampling, noise, rate, self.public_counts)
        event = events[0] if len(events) == 1 else Composed(tuple(events))
        return Channel(PREDICTIONS, event, self.work.rounds + self.config.retries, fixed=fixed)

    def _client_channel(self, sampling: Sampling, noise: Fairness, *, fixed: bool) -> Channel | None:
        """What is shared for fairness in all rounds, for the client that pays most for it."""
        if sampling.quotas is None or self.public_counts is None:
            return None
        event: Event
        if isinstance(noise, VectorNoise):
            rows = zip(sampling.quotas, self.public_counts, strict=True)
            times = max(vectors_moved(asked, counts) for asked, counts in rows)
            event = noise.event(self.adjacency, self.unit, times) if times else Nothing()
        else:
            event = scores_event(noise, int(sampling.quotas.sum(axis=1).max()))
        channel = EMBEDDINGS if isinstance(noise, VectorNoise) else PREDICTIONS
        return Channel(channel, event, self.work.rounds + self.config.retries, fixed=fixed)

    def _update_channel(self, sampling: Sampling, multiplier: float, *, fixed: bool) -> Channel:
        """The updates of all rounds, for a client that trains most often; the unit of noise is `multiplier`'s."""
        trainings = self.work.most_trainings + self.config.retries
        if self.work.updates is not None:
            return self.of_one_update(self.work.updates.noise(multiplier))[0]
        sampled = update_event(sampling.sampling_rate, multiplier, self.adjacency)
        return Channel(UPDATES, sampled, trainings * sampling.steps, fixed=fixed)

    def of_one_update(self, noise: VectorNoise) -> list[Channel]:
        """The whole updates of all rounds, with this noise, fixed."""
        trainings = self.work.most_trainings + self.config.retries
        return [Channel(UPDATES, noise.event(self.adjacency, self.unit), trainings, fixed=True)]

    def _updates_to_calibrate(self, sampling: Sampling) -> Channel:
        """The updates with noise of the size of what they hide: the factor it needs is what is searched for."""
        if self.work.updates is None:
            return self._update_channel(sampling, 1.0, fixed=False)
        trainings = self.work.most_trainings + self.config.retries
        return Channel(UPDATES, Gaussian(1.0, 1.0, self.adjacency, self.unit), trainings)
