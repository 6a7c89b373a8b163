"""Local training of many clients of many runs as one batched program.

Derivatives of losses and scores in the model's outputs are written out; the formulas are those of `TaskKind`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from privfair.channels.updates import UPDATES, UpdatesChannel
from privfair.clients.client import Client, TrainingData, damping_of
from privfair.clients.training import Trained
from privfair.engines.batched.networks import Network
from privfair.engines.batched.objectives import Rule, Step
from privfair.engines.batched.record_pool import Order, Pool, Schedule
from privfair.fairness.notions import Score
from privfair.federated.messages import Parameters, Reweighted, TrainRequest, Update
from privfair.mechanisms.entropy import Entropy
from privfair.models import TaskKind
from privfair.util import FloatArray


@dataclass(frozen=True)
class Slopes:
    """At each record: its score, and the derivatives of loss and score in the output."""

    scores: torch.Tensor
    loss: torch.Tensor
    score: torch.Tensor


def slopes_of(task: TaskKind, kind: Score, outputs: torch.Tensor, labels: torch.Tensor, *, scored: bool) -> Slopes:
    """Of every record; without `scored` the score is not needed and not computed."""
    if task.task == "binary":
        p = torch.sigmoid(outputs)
        loss = p - labels
        if not scored:
            return Slopes(p, loss, loss)
        if kind == "prediction":
            return Slopes(p, loss, p * (1 - p))
    else:
        place = outputs + 0.5
        loss = 2 * (place - (labels - task.low) / (task.high - task.low))
        if not scored:
            return Slopes(place, loss, loss)
        if kind == "prediction":
            return Slopes(place.clamp(0.0, 1.0), loss, ((place >= 0) & (place <= 1)).to(outputs.dtype))
    return Slopes(task.losses(outputs, labels), loss, loss)


@dataclass(frozen=True)
class TrainJob:
    """One client's local training in one round."""

    request: TrainRequest
    start: FloatArray
    shift: FloatArray | None
    data: TrainingData
    pool: Pool
    offset: int
    network: Network
    order: Order
    key: tuple[Any, ...]  # equal for jobs that one program can do

    @property
    def rows(self) -> int:
        """Records that a step looks at."""
        return int(self.order.positions.shape[1])

    @property
    def snapshot_after(self) -> int:
        """The number of steps after which a snapshot is taken; 0 if none is."""
        at = self.request.snapshot_at
        return 0 if at is None else math.ceil(at * self.order.steps)


class StackedDescent:
    """Local steps of several jobs, as `clients.training.Descent`; those that still move are always the first ones."""

    def __init__(self, jobs: Sequence[TrainJob], dtype: torch.dtype) -> None:
        """All jobs use the same local optimiser."""
        works = [j.request.work for j in jobs]
        self.parameters = torch.stack([torch.from_numpy(j.start) for j in jobs]).to(dtype)
        self._rate = torch.tensor([w.learning_rate for w in works], dtype=torch.float64)[:, None].to(dtype)
        self._start = self._proximal = self._shift = None
        if any(w.proximal for w in works):
            self._start = self.parameters.clone()
            self._proximal = torch.tensor([w.proximal for w in works], dtype=torch.float64)[:, None].to(dtype)
        if any(j.shift is not None for j in jobs):
            nothing = torch.zeros_like(self.parameters[0])
            shifts = [nothing if j.shift is None else torch.from_numpy(j.shift).to(dtype) for j in jobs]
            self._shift = torch.stack(shifts)
        self._snapshot_after = [j.snapshot_after for j in jobs]
        self._snapshot_steps = set(self._snapshot_after) - {0}
        self.snapshots: dict[int, torch.Tensor] = {}
        self._moments: tuple[torch.Tensor, torch.Tensor] | None = None
        if works[0].optimizer == "adam":
            self._moments = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self._steps = 0

    def step(self, gradient: torch.Tensor) -> None:
        """One step of the first len(gradient) jobs; the gradient is overwritten."""
        jobs = len(gradient)
        moving = self.parameters[:jobs]
        if self._proximal is not None and self._start is not None:
            gradient.addcmul_(moving - self._start[:jobs], self._proximal[:jobs])
        if self._shift is not None:
            gradient.add_(self._shift[:jobs])
        self._steps += 1
        if self._moments is None:
            moving.addcmul_(gradient, self._rate[:jobs], value=-1)
        else:
            self._adam(moving, gradient, *(m[:jobs] for m in self._moments))
        if self._steps in self._snapshot_steps:
            for job in (j for j, after in enumerate(self._snapshot_after) if after == self._steps):
                self.snapshots[job] = self.parameters[job].clone()

    def _adam(self, moving: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> None:
        """As `clients.training.Adam`."""
        mean.lerp_(gradient, 1 - 0.9)
        square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        root = (square / (1 - 0.999**self._steps)).sqrt_().add_(1e-8)
        moving.sub_(self._rate[: len(moving)] / (1 - 0.9**self._steps) * mean / root)


def update(
    request: TrainRequest,
    client: Client,
    at: Parameters,
    shift: FloatArray | None,
    trained: Trained,
    entropy: Entropy | None = None,
) -> Update:
    """What a client sends after local training that the engine did for it; `entropy`: where its draws go on."""
    entropy = client.entropy(UPDATES, request.round) if entropy is None else entropy
    return UpdatesChannel().message(request, client, at, shift, trained, entropy)


def train_stack(jobs: Sequence[TrainJob], rule: Rule | None) -> list[Trained]:
    """Where each job ends; jobs have the same key and falling numbers of steps."""
    first = jobs[0]
    pool, network, task, kind = first.pool, first.network, first.data.task, first.data.cells.notion.score
    dtype = pool.rows.dtype
    schedule = Schedule.of([j.order for j in jobs], [j.offset for j in jobs], dtype)
    descent = StackedDescent(jobs, dtype)
    loss_weights = _loss_weights(jobs, dtype)
    factors = [damping_of(job.request.objective) for job in jobs]
    damping = None if all(factor == 1 for factor in factors) else torch.tensor(factors, dtype=dtype)[:, None]
    for step, active in enumerate(schedule.active):
        index = schedule.index[step, :active]
        x, labels, member = pool.take(index)
        parameters = descent.parameters[:active]
        outputs, backward = network.forward(parameters, x)
        slopes = slopes_of(task, kind, outputs, labels, scored=rule is not None)
        pull = slopes.loss
        if loss_weights is not None:
            pull = pull * loss_weights[:active].gather(1, pool.codes[index])
        if rule is not None:
            now = Step(parameters, index, slopes.scores, member, schedule.sizes[step, :active])
            pull = torch.addcmul(pull, rule.slopes(now), slopes.score)
        if damping is not None:
            pull = pull * damping[:active]
        descent.step(backward(pull * schedule.record_weights(step)))
    ends = descent.parameters.numpy()
    return [
        Trained(ends[j].copy(), job.order.steps, descent.snapshots[j].numpy() if j in descent.snapshots else None)
        for j, job in enumerate(jobs)
    ]


def _loss_weights(jobs: Sequence[TrainJob], dtype: torch.dtype) -> torch.Tensor | None:
    """(jobs, 2·groups): the weight of each group and label in the task loss, where the objective has such weights."""
    tables = [job.request.objective.weights for job in jobs if isinstance(job.request.objective, Reweighted)]
    return torch.stack([torch.from_numpy(t).reshape(-1) for t in tables]).to(dtype) if tables else None
