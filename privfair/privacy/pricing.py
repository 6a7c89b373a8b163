"""What whole clients pay: all records of one client are exchanged for as many others of the same groups and sets.

Counts are public, so two neighbouring federations have the same number of records in every cell of every client.

- Sums of features: the sum of a cell with n records moves by at most n times what one record can move it (pair the
  records). All cells of a client are one vector, which moves by at most that times √Σ n².
- Scores: whichever records were drawn, each of the m scores of a message may be another one, and moves by at most the
  range. Noise is drawn for each by itself: m releases, without any gain from sampling.
- Updates: see `mechanisms.update_release`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accountant.events import Adjacency, Event, Gaussian, Nothing, NotPrivate, PoissonSampled, Repeated, Unit
from accountant.spending import Spend
from privfair.fairness.notions import Cells
from privfair.federated.messages import (
    CountsRequest,
    EmbeddingsRequest,
    EvaluateRequest,
    MeasureRequest,
    PrivateWork,
    Request,
    ScoreRelease,
    ScoresRequest,
    TrainRequest,
)
from privfair.mechanisms.score_release import ScoreNoise, fixed_scores_event, poisson_scores_event
from privfair.mechanisms.vector_release import VectorNoise


def vectors_moved(asked: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """√Σ n² over the asked cells of one client, not rounded down."""
    squares = sum(int(n) ** 2 for n in np.asarray(counts)[np.asarray(asked) > 0])
    return math.nextafter(math.sqrt(squares), math.inf) if squares else 0.0


def features_event(noise: VectorNoise, asked: NDArray[np.int64], counts: NDArray[np.int64]) -> Event:
    """What one client's sums of features of one round cost it."""
    times = vectors_moved(asked, counts)
    return noise.event(Adjacency.REPLACE_ONE, Unit.CLIENT, times) if times else Nothing()


def scores_event(noise: ScoreNoise, scores: int) -> Event:
    """What so many noisy scores of one client cost it."""
    return Repeated(noise.event(Adjacency.REPLACE_ONE, Unit.CLIENT), scores) if scores else Nothing()


# ---- The price of a request: the ledger rows that its answer costs. Nothing is answered that has no price here.


COUNTS, PREDICTIONS, UPDATES, EVALUATION, MEASURES = "counts", "predictions", "updates", "evaluation", "measures"
EMBEDDINGS = "embeddings"


def update_event(sampling_rate: float, noise_multiplier: float, adjacency: Adjacency) -> Event:
    """One step of DP-SGD, in units of max_grad_norm: replacing a record moves the sum of gradients twice as far."""
    if adjacency is Adjacency.ADD_OR_REMOVE:
        return PoissonSampled(sampling_rate, Gaussian(noise_multiplier, 1.0, adjacency))
    return PoissonSampled(sampling_rate, Gaussian(noise_multiplier, 2.0, adjacency), presence_sensitivity=1.0)


def label_of(cells: Cells, attributes: tuple[str, ...], groups: tuple[str, ...], label: str, cell: int) -> str:
    """The payer of a cell, "attribute=value": cells of exclusive sets exclude each other, others add up.

    `attributes` are plain names already. Two groups of one attribute whose names meet pay together: the safe side.
    Sets that exclude each other do so for one label only, the column and what counts as 1 in it: `label`. Those of
    another label overlap with them, and add up.
    """
    comparison = next(c for c in cells.comparisons if cell in c.cells)
    attribute, group = attributes[comparison.attribute], plain_name(groups[cell])
    exclusive = cells.notion.sets_of_a_record == 1 and len(cells.notion.sets) > 1
    if not exclusive:
        return f"{attribute}={group}"
    return f"{attribute},{plain_name(label)}={group},{plain_name(cells.notion.sets[comparison.condition].name)}"


def plain_name(name: str) -> str:
    """The name without the signs that the ledger's grammar needs."""
    return " ".join(name.replace("=", "≡").replace(",", ";").split()) or "unnamed"


@dataclass(frozen=True)
class PriceList:
    """One client's prices. `cell_counts` are needed, and public, only where the owner declared counts public.

    `unit`: what is protected. A client with all of its records pays for every cell together, not for each group.
    """

    dataset: str
    run: str
    client: str
    labels: tuple[str, ...]  # of each cell
    cells: Cells
    adjacency: Adjacency
    cell_counts: NDArray[np.int64]
    unit: Unit = Unit.RECORD

    def channel(self, request: Request) -> tuple[str, int | None]:
        """The channel and the round that a request belongs to."""
        match request:
            case CountsRequest():
                return COUNTS, None
            case ScoresRequest():
                return PREDICTIONS, request.round
            case EmbeddingsRequest():
                return EMBEDDINGS, request.round
            case TrainRequest():
                return UPDATES, request.round
            case MeasureRequest():
                return MEASURES, None
            case EvaluateRequest():
                return EVALUATION, None

    def spends(self, request: Request) -> tuple[Spend, ...]:
        """The rows of an answer to this request; without noise they are rows of an infinite ε."""
        match request:
            case CountsRequest():
                return (self._row(request, self._counts(request)),)
            case ScoresRequest():
                return self._scores(request)
            case EmbeddingsRequest():
                return self._embeddings(request)
            case TrainRequest():
                return (self._training(request),)
            case MeasureRequest():
                return (self._row(request, NotPrivate()),)
            case EvaluateRequest():
                # a record is in one table for each attribute
                return (self._row(request, request.noise.event(self.cells.attributes, self.adjacency)),)

    def _counts(self, request: CountsRequest) -> Event:
        if request.noise is not None:
            return request.noise.event(self.cells.count_overlap, self.adjacency)
        # replacing a record within its cell moves no count
        return Nothing() if self.adjacency is Adjacency.REPLACE_ONE else NotPrivate()

    def _scores(self, request: ScoresRequest) -> tuple[Spend, ...]:
        if request.release is None:
            return (self._row(request, NotPrivate()),)
        if self.unit is Unit.CLIENT:
            each, count = request.release.noise.event(self.adjacency, self.unit), int(request.quotas.sum())
            return (self._row(request, each, count=count) if count else self._row(request, Nothing()),)
        rows = []
        for cell, quota in enumerate(request.quotas):
            if quota:
                event = self._score_event(request.release, cell, int(quota))
                rows.append(self._row(request, event, group=self.labels[cell]))
        return tuple(rows) or (self._row(request, Nothing()),)

    def _score_event(self, release: ScoreRelease, cell: int, quota: int) -> Event:
        if release.rates is not None:
            return poisson_scores_event(float(release.rates[cell]), release.noise)
        return fixed_scores_event(quota, int(self.cell_counts[cell]), release.noise)

    def _embeddings(self, request: EmbeddingsRequest) -> tuple[Spend, ...]:
        """One row for each asked cell: every record of it is in the sum."""
        if request.release is None:
            return (self._row(request, NotPrivate()),)
        if self.unit is Unit.CLIENT:
            return (self._row(request, features_event(request.release, request.cells, self.cell_counts)),)
        event = request.release.event(self.adjacency)
        rows = [self._row(request, event, group=self.labels[cell]) for cell in np.flatnonzero(request.cells)]
        return tuple(rows) or (self._row(request, Nothing()),)

    def _training(self, request: TrainRequest) -> Spend:
        work, release = request.work, request.release
        if release is not None:  # of the largest weight, whatever its own: nobody pays more
            return self._row(request, release.noise.event(self.adjacency, Unit.CLIENT))
        if not isinstance(work, PrivateWork):
            return self._row(request, NotPrivate())
        event = update_event(work.sampling_rate, work.noise_multiplier, self.adjacency)
        return self._row(request, event, count=work.steps)

    def _row(self, request: Request, event: Event, *, group: str = "", count: int = 1) -> Spend:
        channel, number = self.channel(request)
        return Spend(self.dataset, event, self.client, group, channel, self.run, number, count)
