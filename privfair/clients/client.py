"""A client: its records, and its answers."""

from __future__ import annotations

import numpy as np
import torch

from privfair.arrays import FloatArray
from privfair.clients.measures import measure
from privfair.clients.objectives import TrainingData, all_scores
from privfair.clients.sgd import train_locally
from privfair.clients.task import TaskKind
from privfair.datasets.records import Records, Schema
from privfair.fairness.cells import Cells
from privfair.messages import (
    Counts,
    CountsRequest,
    MeasureRequest,
    Measures,
    Reply,
    Request,
    Scores,
    ScoresRequest,
    TrainRequest,
    Update,
)
from privfair.models import FlatModel, torch_seeded
from privfair.randomness import stream


class Client:
    """One data holder. `respond` is its only door; `control` is its SCAFFOLD state, which stays with it."""

    def __init__(
        self, index: int, records: Records, schema: Schema, cells: Cells, model: FlatModel, *, seed: int
    ) -> None:
        """`model` is scratch space that clients of one process share."""
        self.index = index
        self._seed = seed
        self._model = model
        dtype = model.flat.dtype
        self._data = TrainingData(
            records=records,
            x=torch.tensor(records.features, dtype=dtype),
            y=torch.tensor(records.labels, dtype=dtype),
            membership=cells.membership(records),
            cells=cells,
            task=TaskKind.of(schema),
        )
        self.control: FloatArray | None = None

    def respond(self, request: Request) -> Reply:
        """The answer to a request."""
        match request:
            case CountsRequest():
                return Counts(len(self._data.records), self._data.membership.sum(axis=0).astype(np.int64))
            case ScoresRequest():
                return self._scores(request)
            case TrainRequest():
                return self._train(request)
            case MeasureRequest():
                self._model.load(request.parameters)
                return Measures(measure(request.quantities, self._data, self._model))

    def _scores(self, request: ScoresRequest) -> Scores:
        """A simple random sample of each cell's scores."""
        rng = stream(self._seed, "scores", request.round, self.index)
        self._model.load(request.parameters)
        scores = all_scores(self._model, self._data)
        shared = []
        for cell, quota in enumerate(request.quotas):
            rows = np.flatnonzero(self._data.membership[:, cell])
            shared.append(scores[rng.choice(rows, size=int(quota), replace=False)])
        return Scores(tuple(shared))

    def _train(self, request: TrainRequest) -> Update:
        """Local training; with a correction also SCAFFOLD's new control variate (option II)."""
        rng = stream(self._seed, "minibatches", request.round, self.index)
        if request.correction is not None and self.control is None:
            self.control = np.zeros_like(request.parameters)
        if not len(self._data.records):  # nothing to learn from: no step, whatever was asked
            nothing = np.zeros_like(request.parameters)
            return Update(nothing, None if request.correction is None else nothing, nothing)
        with torch_seeded(self._seed, "module", request.round, self.index):
            trained = train_locally(request, self._data, self._model, rng, self.control)
        delta = trained.parameters - request.parameters
        control_delta = None
        if request.correction is not None and self.control is not None:
            # c_k⁺ = c_k − c + (θᵗ − θ_k)/(steps·η)
            control_delta = -request.correction - delta / np.asarray(
                trained.steps * request.work.learning_rate, dtype=delta.dtype
            )
            self.control = self.control + control_delta
        snapshot = None if trained.snapshot is None else trained.snapshot - request.parameters
        return Update(delta, control_delta, snapshot)
