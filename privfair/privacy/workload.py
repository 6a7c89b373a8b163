"""What a run does and how often it samples records: what its plan is made from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.fairness.embedding import EmbeddingPlan
from privfair.mechanisms.update_release import UpdatePlan


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
