"""A client: its records, the losses that it minimises on them, and its own figures.

What a client sends is made by `privfair.channels`. In a minibatch each record has a loss, and the gradient of their
mean is that of task plus penalty. A penalty enters as slope_i·S_i with the slope held constant: its gradient in the
parameters is exact, and no graph through a kernel is ever built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.datasets.records import ClientData, Records, Schema
from privfair.fairness.metrics import THRESHOLD
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import (
    SAME_SCORE,
    DriftingPenalty,
    EmbeddingPlan,
    SealedFeatures,
    SharedFeatures,
    SharedScores,
    TrackedPenalty,
    opened_features,
    tracked_penalty,
)
from privfair.federated.messages import Model, Objective, OwnPenalty, Reweighted, Task, Tracked
from privfair.federated.model_state import Replica
from privfair.federated.secure_sums import MaskingDesk
from privfair.kernels.families import parse_kernel
from privfair.kernels.mmd import Pair
from privfair.mechanisms.entropy import Entropy, EntropyOf
from privfair.mechanisms.moments import Scaling
from privfair.mechanisms.vector_release import VectorNoise, grid_sum
from privfair.models import FlatModel, TaskKind
from privfair.secure_aggregation import ClientAggregator
from privfair.secure_aggregation.masked import TotalsForServer
from privfair.util import FloatArray


@dataclass(frozen=True)
class TrainingData:
    """A client's records as tensors, and which cells they are in."""

    records: Records
    x: torch.Tensor
    y: torch.Tensor
    membership: NDArray[np.bool_]
    cells: Cells
    task: TaskKind

    @property
    def each_record_alone(self) -> TrainingData:
        """The same records for private releases: what is computed of one depends on that one alone, to the last bit."""
        return replace(self, task=self.task.each_record_alone)

    def outputs(self, model: FlatModel) -> torch.Tensor:
        """The model's outputs for all records, without dropout and without a graph."""
        return model.evaluate_alone(self.x) if self.task.alone else model.evaluate(self.x)


class Embedder:
    """A client's part in tracking by features: its vectors out, and the sum of everybody's opened.

    Shared by all clients of a process, with the keys with which sums are made and opened.
    """

    def __init__(self, plan: EmbeddingPlan, aggregator: ClientAggregator) -> None:
        """The aggregator adds whole numbers, or, where neither noise nor encryption needs a grid, floats."""
        self.plan, self._aggregator = plan, aggregator
        self.open = lru_cache(maxsize=4)(self._opened)  # once for all clients of this process

    @property
    def _whole(self) -> bool:
        return self._aggregator.keys.modulus is not None

    def message(
        self,
        scores: FloatArray,
        membership: NDArray[np.bool_],
        cells: NDArray[np.int64],
        noise: VectorNoise | None,
        entropy: Entropy,
        *,
        client: int = 0,
        round_number: int = 0,
    ) -> bytes:
        """What `vector` gives, as a contribution to the sum of all clients."""
        values = self.vector(scores, membership, cells, noise, entropy)
        return self._aggregator.contribute(values, 1.0, client=client, number=round_number, round_number=round_number)

    def vector(
        self,
        scores: FloatArray,
        membership: NDArray[np.bool_],
        cells: NDArray[np.int64],
        noise: VectorNoise | None,
        entropy: Entropy,
    ) -> FloatArray:
        """Σ ψ(score) over the records of each asked cell, with noise, one cell behind the other.

        Its form depends on the plan alone: cells that are left out by public rule are 0, or, where noise comes in
        shares that others count on, noise alone.
        """
        unit = self.plan.unit
        psi = unit.values(scores, alone=noise is not None)
        total = np.zeros((len(cells), unit.count))
        for cell, asked in enumerate(cells):
            shared = noise is not None and noise.shares > 1
            if not asked and not shared:
                continue
            mine = psi[membership[:, cell]] if asked else psi[:0]
            if noise is not None:
                total[cell] = noise.release(self._in_room(grid_sum(mine, noise.steps), noise), entropy)
            else:
                total[cell] = grid_sum(mine, self.plan.steps) if self._whole else mine.sum(axis=0)
        return total.reshape(-1)

    def _in_room(self, whole: NDArray[np.int64], noise: VectorNoise) -> NDArray[np.int64]:
        """The sum, cut before its noise, which others count on. No two sums get farther apart by that.

        Rooms are planned from released counts: a client may have more records than that.
        """
        room = self.plan.room_beside(noise)
        return whole if room is None else np.clip(whole, -room * noise.steps, room * noise.steps)

    def total(self, message: bytes, round_number: int) -> FloatArray:
        """The sum of a round's vectors in a message, in steps of the grid; one of too few clients is refused."""
        return self._aggregator.open(message, "sum of features", number=round_number, least=self.plan.cohort)

    def _opened(self, sealed: SealedFeatures, round_number: int = 0, replica: Replica | None = None) -> SharedFeatures:
        """The mean features of the round; `replica`: has opened the sum of updates that they may be in."""
        size = len(sealed.shares) * self.plan.unit.count
        total: FloatArray = np.zeros(size)
        if sealed.within is not None:
            if sealed.total or replica is None or replica.round != sealed.within:
                rule = "must be those in the last sum of updates that was opened"
                raise InputError("sum of features", rule, f"those in sum {sealed.within}")
            total = replica.features
        elif sealed.total:
            total = self.total(sealed.total, round_number)
        opened = opened_features(self.plan, sealed, total, float(self.plan.steps) if self._whole else 1.0)
        if sealed.steering is None or replica is None or replica.controller is None:
            return opened
        return replica.controller.follow(round_number, opened, sealed.steering)


class Client:
    """One data holder. `channels.respond` is its only door; `control` is its SCAFFOLD state, which stays with it."""

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
        totals: TotalsForServer | None = None,
        masking: MaskingDesk | None = None,
    ) -> None:
        """`model` is scratch space, and `replica` the shared model, of all clients in one process.

        `embedder`: where features of scores are shared instead of scores. `totals`: where the server opens sums of
        counts. `masking`: its side of the protocol of masks, which knows no records.
        """
        self.totals, self.masking = totals, masking
        self.index = index
        self.name, self._given = data.name, data
        self._scaling: Scaling | None = None
        self.seed = seed
        self.entropy = entropy
        self.model = model
        self.replica = replica
        self.embedder = embedder
        self.task = TaskKind.of(schema)
        self.data = self._tensors(data.train, cells)
        self.test_data = self._tensors(data.test, cells)
        self.groups = tuple(len(attribute.values) for attribute in schema.sensitive)
        self.control: FloatArray | None = None

    @property
    def raw_features(self) -> NDArray[np.float32]:
        """The features of its training records as the encoder gave them, whatever they are scaled by now."""
        return self._given.train.features

    def scale(self, scaling: Scaling | None) -> None:
        """From here on train and test on features that are scaled like this; None: on those that were given."""
        if scaling is self._scaling:
            return
        self._scaling, cells = scaling, self.data.cells
        self.data = self._tensors(scaled(self._given.train, scaling), cells)
        self.test_data = self._tensors(scaled(self._given.test, scaling), cells)

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

    def scores(self, model: Model, *, private: bool) -> FloatArray:
        """The scores of all its records; for a private message each depends on its record alone, to the last bit."""
        self.model.load(self.replica.at(model).values)
        return all_scores(self.model, self.data.each_record_alone if private else self.data)

    def part_of_total(self, values: NDArray[np.int64], channel: str) -> bytes:
        """Its part of the one total of a channel that the server opens, over all clients."""
        if self.totals is None:
            raise InputError("request", "must be of a run with masks", "a part of a total")
        return self.totals.contribute(values, client=self.index, number=self.totals.number_of(channel))

    @property
    def features(self) -> Embedder:
        """What makes its sums of features; a run of scores has none."""
        if self.embedder is None:
            raise InputError("request", "must be of the agreed tracker", "features of scores")
        return self.embedder


def scaled(records: Records, scaling: Scaling | None) -> Records:
    """The records with scaled features; those of each depend on that record alone, to the last bit."""
    if scaling is None:
        return records
    return replace(records, features=scaling.apply(records.features).astype(np.float32))


# ---- What a client minimises.


Batch = torch.Tensor  # positions of the records
Losses = Callable[[Batch, torch.Tensor], torch.Tensor]  # (positions, model outputs) -> one loss per record


def build_losses(objective: Objective, data: TrainingData, model: FlatModel) -> Losses:
    """The loss of each record of a minibatch; the model holds the parameters of the round's start.

    The values are not those of the objective, but the gradient of their mean is the objective's. Unless
    `couples_records` says otherwise, a record's loss depends on that record alone.
    """
    if isinstance(objective, Task):
        return lambda batch, outputs: data.task.losses(outputs, data.y[batch])
    if isinstance(objective, Reweighted):
        return _reweighted(objective, data)
    rule = own_rule(objective, data) if isinstance(objective, OwnPenalty) else _shared_rule(objective, data, model)
    damping = damping_of(objective)

    def losses(batch: Batch, outputs: torch.Tensor) -> torch.Tensor:
        if damping != 1:  # once, where task and penalty meet, as the compiled training does: to the last bit
            outputs.register_hook(lambda gradient: gradient * damping)
        labels = data.y.index_select(0, batch)
        task = data.task.losses(outputs, labels)
        scores = data.task.scores(outputs, labels, data.cells.notion.score)
        slopes = rule(batch.numpy(), scores.detach().numpy().astype(np.float64))
        weights = torch.from_numpy(slopes).to(scores.dtype)
        # a fused multiply-add rounds otherwise at the end of a tensor
        return task + weights * scores if data.task.alone else torch.addcmul(task, weights, scores)

    return losses


def damping_of(objective: Objective) -> float:
    """What the loss of each record, task and penalty, is multiplied with."""
    return followed(objective).damping if isinstance(objective, Tracked) else 1.0


def couples_records(objective: Objective) -> str | None:
    """Why a record's loss depends on the client's other records; None if it does not."""
    if isinstance(objective, OwnPenalty):
        return "the penalty compares the groups within the client's own minibatch"
    if isinstance(objective, Tracked) and objective.drift != "none":
        return "the drift correction follows the present predictions of all the client's records"
    return None


SlopeRule = Callable[[NDArray[np.int64], FloatArray], FloatArray]  # (positions, scores) -> slopes


def _shared_rule(objective: Tracked, data: TrainingData, model: FlatModel) -> SlopeRule:
    tracked = tracked_penalty(followed(objective), data.cells)
    if objective.drift == "none":
        return tracked_rule(tracked, data)
    return _drifting_rule(objective, tracked, data, model)


def followed(objective: Tracked) -> SharedScores | SharedFeatures:
    """What the penalty is built from; shared features must have been opened."""
    if isinstance(objective.shared, SealedFeatures):
        raise InputError("shared features", "must be opened before training", "sealed")
    return objective.shared


def tracked_rule(tracked: TrackedPenalty, data: TrainingData) -> SlopeRule:
    """2λ·D′(S_i)/P of each record."""
    coefficients = tracked.coefficients(data.membership)
    return lambda positions, scores: tracked.derivative(_neutralised(scores), coefficients[:, positions])


def _drifting_rule(objective: Tracked, tracked: TrackedPenalty, data: TrainingData, model: FlatModel) -> SlopeRule:
    """The same, with the drift of the client's own scores."""
    coefficients = tracked.coefficients(data.membership)
    penalty = DriftingPenalty(
        tracked, data.membership, all_scores(model, data), shared_drift=objective.drift == "shared"
    )

    def slopes(positions: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        # own scores from one and the same pass: a record must meet itself at distance exactly 0
        now = all_scores(model, data)
        penalty.refresh(now)
        return penalty.derivative(_neutralised(now[positions]), coefficients[:, positions])

    return slopes


def _neutralised(scores: FloatArray) -> FloatArray:
    """The scores, with ½ where one is not finite: the loss of such a record is not finite anyway."""
    finite = np.isfinite(scores)
    return scores if finite.all() else np.where(finite, scores, 0.5)


def own_rule(objective: OwnPenalty, data: TrainingData) -> SlopeRule:
    """The slopes of λ Σ MMD² between every pair of groups within the minibatch, on each conditioning set.

    They are multiplied by the size of the minibatch, because the caller takes the mean over it. A pair of which the
    minibatch holds only one side has no MMD and adds nothing.
    """
    kernel = parse_kernel(objective.kernel)

    def slopes(positions: NDArray[np.int64], scores: FloatArray) -> FloatArray:
        total = np.zeros_like(scores)
        member = data.membership[positions]
        for comparison in data.cells.comparisons:
            rows = [np.flatnonzero(member[:, c]) for c in comparison.cells]
            for first, second in combinations([r for r in rows if r.size], 2):
                pair = Pair(scores[first], scores[second], kernel, tie=SAME_SCORE)
                slope_first, slope_second = pair.slopes(biased=True)
                total[first] += objective.strength * slope_first
                total[second] += objective.strength * slope_second
        return total * positions.size

    return slopes


def _reweighted(objective: Reweighted, data: TrainingData) -> Losses:
    """Each record's weight(group, label)·loss."""
    records = data.records
    weights = torch.from_numpy(objective.weights[records.groups[:, 0], records.labels.astype(np.int64)]).to(
        data.x.dtype
    )
    return lambda batch, outputs: weights[batch] * data.task.losses(outputs, data.y[batch])


def all_scores(model: FlatModel, data: TrainingData) -> FloatArray:
    """The scores of all records under the model's present parameters."""
    scores = data.task.scores(data.outputs(model), data.y, data.cells.notion.score)
    return scores.numpy().astype(np.float64)


# ---- Local figures that some baselines ask of a client. None of them is private.


Measure = Callable[[TrainingData, FloatArray, FloatArray], FloatArray]  # (data, predictions, losses)


def _loss(data: TrainingData, predictions: FloatArray, losses: FloatArray) -> FloatArray:
    """Mean task loss; 0 of no records."""
    return np.array([losses.mean() if losses.size else 0.0])


def _confusion(data: TrainingData, predictions: FloatArray, losses: FloatArray) -> FloatArray:
    """(groups of the first attribute, label, decision): numbers of records."""
    return _table(data, predictions, 0, len(data.cells.comparisons[0].cells)).astype(float)


def _table(data: TrainingData, predictions: FloatArray, attribute: int, groups: int) -> NDArray[np.int64]:
    table = np.zeros((groups, 2, 2), dtype=np.int64)
    decisions = (predictions >= THRESHOLD).astype(np.int64)
    np.add.at(table, (data.records.groups[:, attribute], data.records.labels.astype(np.int64), decisions), 1)
    return table


def confusion_tables(data: TrainingData, model: FlatModel, groups: Sequence[int]) -> list[NDArray[np.int64]]:
    """For each attribute: (groups, label, decision), numbers of records of a binary task; `groups` has their number."""
    predictions = data.task.predictions(data.outputs(model)).numpy().astype(np.float64)
    return [_table(data, predictions, attribute, size) for attribute, size in enumerate(groups)]


def _group_losses(data: TrainingData, predictions: FloatArray, losses: FloatArray) -> FloatArray:
    """(groups of the first attribute, label, [number of records, sum of losses])."""
    groups = data.records.groups[:, 0]
    table = np.zeros((len(data.cells.comparisons[0].cells), 2, 2))
    labels = data.records.labels.astype(np.int64)
    np.add.at(table[..., 0], (groups, labels), 1)
    np.add.at(table[..., 1], (groups, labels), losses)
    return table


MEASURES: dict[str, Measure] = {"loss": _loss, "confusion": _confusion, "group_losses": _group_losses}


def measure(quantities: Sequence[str], data: TrainingData, model: FlatModel) -> dict[str, FloatArray]:
    """The asked figures under the model's present parameters."""
    unknown = [q for q in quantities if q not in MEASURES]
    if unknown:
        raise InputError("quantities", f"must be of {', '.join(MEASURES)}", unknown[0])
    return measured(quantities, data, model.evaluate(data.x))


def measured(quantities: Sequence[str], data: TrainingData, outputs: torch.Tensor) -> dict[str, FloatArray]:
    """The asked figures from the model's outputs for all records."""
    predictions = data.task.predictions(outputs).numpy().astype(np.float64)
    losses = data.task.losses(outputs, data.y).numpy().astype(np.float64)
    return {q: MEASURES[q](data, predictions, losses) for q in quantities}
