"""A client: its records, and its answers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.clients.dp_sgd import train_privately
from privfair.clients.embedder import Embedder
from privfair.clients.objectives import TrainingData, all_scores, confusion_tables, measure
from privfair.clients.training import Trained, train_locally
from privfair.datasets.records import ClientData, Records, Schema
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import SealedFeatures
from privfair.federated.messages import (
    Counts,
    CountsRequest,
    Embeddings,
    EmbeddingsRequest,
    EvaluateRequest,
    Evaluation,
    MeasureRequest,
    Measures,
    Parameters,
    PrivateWork,
    Reply,
    Request,
    ScoreRelease,
    Scores,
    ScoresRequest,
    Tracked,
    TrainRequest,
    Update,
)
from privfair.federated.model_state import Replica
from privfair.mechanisms.entropy import Entropy
from privfair.mechanisms.score_release import fixed_scores, poisson_scores
from privfair.models import FlatModel, TaskKind, torch_seeded
from privfair.util import FloatArray, stream

EntropyOf = Callable[[str, int], Entropy]  # (channel, round) -> where private randomness comes from


class Client:
    """One data holder. `respond` is its only door; `control` is its SCAFFOLD state, which stays with it."""

    def __init__(
        self,
        index: int,
        data: ClientData,
        schema: Schema,
        cells: Cells,
        model: FlatModel,
        replica: Replica,
        *,
        seed: int,
        entropy: EntropyOf,
        embedder: Embedder | None = None,
    ) -> None:
        """`model` is scratch space, and `replica` the shared model, of all clients in one process.

        `embedder`: where features of scores are shared instead of scores.
        """
        self.index = index
        self.name = data.name
        self.seed = seed
        self.entropy = entropy
        self.model = model
        self.replica = replica
        self.embedder = embedder
        self.task = TaskKind.of(schema)
        self.data = self._tensors(data.train, cells)
        self.test_data = self._tensors(data.test, cells)
        self._groups = tuple(len(attribute.values) for attribute in schema.sensitive)
        self.control: FloatArray | None = None

    @property
    def cell_counts(self) -> NDArray[np.int64]:
        """Records in each cell. Not for sending: they price answers where the owner declared them public."""
        counts: NDArray[np.int64] = self.data.membership.sum(axis=0, dtype=np.int64)
        return counts

    def _tensors(self, records: Records, cells: Cells) -> TrainingData:
        dtype = self.model.flat.dtype
        return TrainingData(
            records=records,
            x=torch.tensor(records.features, dtype=dtype),
            y=torch.tensor(records.labels, dtype=dtype),
            membership=cells.membership(records),
            cells=cells,
            task=self.task,
        )

    def respond(self, request: Request) -> Reply:
        """The answer to a request."""
        match request:
            case CountsRequest():
                return self._counts(request)
            case ScoresRequest():
                return self._scores(request)
            case EmbeddingsRequest():
                self.model.load(self.replica.at(request.model).values)
                return self.embeddings(request, self._all_scores(private=request.release is not None))
            case TrainRequest():
                return self._train(self.opened(request))
            case MeasureRequest():
                return self._measure(request)
            case EvaluateRequest():
                self.model.load(self.replica.result_at(request.model))
                tables = confusion_tables(self.test_data.each_record_alone, self.model, self._groups)
                entropy = self.entropy("evaluation", 0)
                return Evaluation(tuple(request.noise.release(table, entropy) for table in tables))

    def _counts(self, request: CountsRequest) -> Counts:
        """Exact or noisy; the total is the cells' sum where they add up to it."""
        cells = self.data.cells
        reported = cells.tell(self.data.membership)
        if request.noise is not None:
            reported = request.noise.release(reported, self.entropy("counts", 0))
        return Counts(*cells.read(reported))

    def _scores(self, request: ScoresRequest) -> Scores:
        """So many scores of each cell: a simple random sample as it is, or a private message."""
        self.model.load(self.replica.at(request.model).values)
        scores = self._all_scores(private=request.release is not None)
        if request.release is not None:
            return self.private_scores(request, request.release, scores)
        rng = stream(self.seed, "scores", request.round, self.index)
        shared = []
        for cell, quota in enumerate(request.quotas):
            rows = np.flatnonzero(self.data.membership[:, cell])
            # fewer than asked for only where the server knows noisy counts, and scores without noise are told anyway
            shared.append(scores[rng.choice(rows, size=min(int(quota), rows.size), replace=False)])
        return Scores(tuple(shared))

    def _all_scores(self, *, private: bool) -> FloatArray:
        """The scores of all its records; for a private message each depends on its record alone, to the last bit."""
        return all_scores(self.model, self.data.each_record_alone if private else self.data)

    def private_scores(self, request: ScoresRequest, release: ScoreRelease, scores: FloatArray) -> Scores:
        """Messages of fixed length; cells with a quota of 0 are left out by public rule."""
        entropy = self.entropy("predictions", request.round)
        shared: list[FloatArray] = []
        for cell, quota in enumerate(request.quotas):
            mine = scores[self.data.membership[:, cell]]
            if not quota:
                shared.append(np.zeros(0))
            elif release.rates is None:
                shared.append(fixed_scores(mine, int(quota), release.noise, entropy))
            else:
                shared.append(poisson_scores(mine, int(quota), float(release.rates[cell]), release.noise, entropy))
        return Scores(tuple(shared))

    def embeddings(self, request: EmbeddingsRequest, scores: FloatArray) -> Embeddings:
        """The sums of the features of all its scores, of every asked cell."""
        entropy = self.entropy("embeddings", request.round)
        sent = self._features.message(
            scores,
            self.data.membership,
            request.cells,
            request.release,
            entropy,
            client=self.index,
            round_number=request.round,
        )
        return Embeddings(sent)

    def opened(self, request: TrainRequest) -> TrainRequest:
        """The request with the shared features opened, where it has sealed ones."""
        objective = request.objective
        if not isinstance(objective, Tracked) or not isinstance(objective.shared, SealedFeatures):
            return request
        shared = self._features.open(objective.shared, request.round)
        return replace(request, objective=replace(objective, shared=shared))

    @property
    def _features(self) -> Embedder:
        if self.embedder is None:
            raise InputError("request", "must be of the agreed tracker", "features of scores")
        return self.embedder

    def _measure(self, request: MeasureRequest) -> Measures:
        at = self.replica.at(request.model)
        values = at.snapshot if request.at_snapshot and at.snapshot is not None else at.values
        self.model.load(values)
        return Measures(measure(request.quantities, self.data, self.model))

    def _train(self, request: TrainRequest) -> Update:
        """Local training; the weighted change, with SCAFFOLD's new control variate (option II) where asked for."""
        at = self.replica.at(request.model)
        start = at.values
        shift = self.shift(request, at)
        return self.update(request, at, shift, self._trained(request, start, shift))

    def update(self, request: TrainRequest, at: Parameters, shift: FloatArray | None, trained: Trained) -> Update:
        """What is sent after local training, whoever computed it; a new control variate is kept."""
        start = at.values
        if request.release is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # data never raise
                delta = trained.parameters - start
            entropy = self.entropy("updates", request.round)
            sent = self.replica.noisy_contribution(
                delta, request.release, entropy, client=self.index, round_number=request.round
            )
            return Update(sent)
        delta = trained.parameters - start
        control = None
        if shift is not None and self.control is not None and at.control is not None:
            # c_k⁺ = c_k − c + (θᵗ − θ_k)/(steps·η)
            rate = np.asarray(max(trained.steps, 1) * request.work.learning_rate, dtype=delta.dtype)
            change = -at.control - delta / rate if trained.steps else np.zeros_like(delta)
            self.control = self.control + change
            control = np.asarray(request.participation * change, dtype=delta.dtype)
        snapshot = None
        if request.snapshot_at is not None:
            snapshot = delta if trained.snapshot is None else trained.snapshot - start
        if not isinstance(request.work, PrivateWork) and not np.all(np.isfinite(delta)):
            name = f"update of client {self.name!r}"
            raise InputError(name, "must be finite", "nan or inf", "Try a smaller learning rate.")
        sent = self.replica.contribution(
            delta, control, snapshot, request.weight, client=self.index, round_number=request.round
        )
        return Update(sent)

    def shift(self, request: TrainRequest, at: Parameters) -> FloatArray | None:
        """SCAFFOLD's c − c_k."""
        if not request.correct or at.control is None:
            return None
        if self.control is None:
            self.control = np.zeros_like(at.values)
        shift: FloatArray = at.control - self.control
        return shift

    def _trained(self, request: TrainRequest, start: FloatArray, shift: FloatArray | None) -> Trained:
        if isinstance(request.work, PrivateWork):
            entropy = self.entropy("updates", request.round)
            # Whoever knew the masks of dropout would see one record shift those of all after it: they are secret, too.
            seed = secrets.randbits(128) if entropy.claim else self.seed
            with torch_seeded(seed, "module", request.round, self.index):
                return train_privately(request, start, self.data, self.model, entropy, shift)
        if not len(self.data.records):  # nothing to learn from: no step, whatever was asked
            return Trained(start, 0, None)
        rng = stream(self.seed, "minibatches", request.round, self.index)
        with torch_seeded(self.seed, "module", request.round, self.index):
            return train_locally(request, start, self.data, self.model, rng, shift)
