"""Local training of many clients of many runs as one batched program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from privfair.arrays import FloatArray
from privfair.backends.stacked.descent import StackedDescent, Start
from privfair.backends.stacked.holdings import Pool
from privfair.backends.stacked.minibatches import Order, Schedule
from privfair.backends.stacked.networks import Network
from privfair.backends.stacked.rules import Rule, Step
from privfair.backends.stacked.tasks import slopes_of
from privfair.clients.objectives import TrainingData
from privfair.clients.steps import Trained
from privfair.messages import Reweighted, TrainRequest


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


def train_stack(jobs: Sequence[TrainJob], rule: Rule | None) -> list[Trained]:
    """Where each job ends; jobs have the same key and falling numbers of steps."""
    first = jobs[0]
    pool, network, task, kind = first.pool, first.network, first.data.task, first.data.cells.notion.score
    dtype = pool.rows.dtype
    schedule = Schedule.of([j.order for j in jobs], [j.offset for j in jobs], dtype)
    descent = StackedDescent([Start(j.request, j.start, j.shift, j.order.steps) for j in jobs], dtype)
    loss_weights = _loss_weights(jobs, dtype)
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
