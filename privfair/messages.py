"""Everything that crosses the wire, as frozen values of plain numpy. Clients send nothing unasked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.fairness.tracking import SharedScores

Drift = Literal["none", "own", "shared"]


@dataclass(frozen=True, eq=False)
class Task:
    """Minimise the task loss alone."""


@dataclass(frozen=True, eq=False)
class Tracked:
    """Task loss plus the per-example penalty of the shared scores (the paper's algorithm)."""

    shared: SharedScores
    drift: Drift = "none"


@dataclass(frozen=True, eq=False)
class OwnPenalty:
    """Task loss plus λ·MMD² between the groups of the client's own minibatch."""

    kernel: str
    strength: float


@dataclass(frozen=True, eq=False)
class Reweighted:
    """Task loss with a weight for each (group of the first attribute, label)."""

    weights: FloatArray  # (groups, 2)


Objective = Task | Tracked | OwnPenalty | Reweighted


@dataclass(frozen=True, eq=False)
class CountsRequest:
    """How many records have you, in all and in each cell?"""


@dataclass(frozen=True, eq=False)
class Counts:
    """The answer to `CountsRequest`."""

    records: int
    cells: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ScoresRequest:
    """Share so many scores of each cell under these parameters."""

    round: int
    parameters: FloatArray
    quotas: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scores:
    """The answer to `ScoresRequest`: one array per cell, in random order."""

    cells: tuple[FloatArray, ...]


@dataclass(frozen=True, eq=False)
class LocalWork:
    """How a client trains in a round. The server holds the learning rate and its decay."""

    epochs: int
    batch_size: int | None  # None: all records at once
    learning_rate: float
    proximal: float = 0.0  # FedProx: μ


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """Train on your records from these parameters."""

    round: int
    parameters: FloatArray
    objective: Objective
    work: LocalWork
    correction: FloatArray | None = None  # SCAFFOLD: the server's control variate c
    snapshot_at: float | None = None  # also return the parameters after this share of the local steps


@dataclass(frozen=True, eq=False)
class Update:
    """The answer to `TrainRequest`."""

    delta: FloatArray
    control_delta: FloatArray | None = None  # SCAFFOLD: change of the client's control variate
    snapshot_delta: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class MeasureRequest:
    """Measure these quantities on your training records under these parameters (see `clients.measures`)."""

    parameters: FloatArray
    quantities: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Measures:
    """The answer to `MeasureRequest`."""

    values: Mapping[str, FloatArray]


Request = CountsRequest | ScoresRequest | TrainRequest | MeasureRequest
Reply = Counts | Scores | Update | Measures
