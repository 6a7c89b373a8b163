"""DP-SGD for many clients of many runs at once. Opacus is the reference; see `clients.dp_sgd` for what a step is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from privfair.arrays import FloatArray
from privfair.backends.stacked.clipping import clipped_sums
from privfair.backends.stacked.descent import StackedDescent, Start
from privfair.backends.stacked.networks import Perceptron
from privfair.backends.stacked.rules import Rule, Step
from privfair.backends.stacked.tasks import slopes_of
from privfair.backends.stacked.training import TrainJob
from privfair.clients.steps import Trained
from privfair.messages import PrivateWork


@dataclass(frozen=True)
class PrivateJob:
    """A training job, and the noise of its steps."""

    job: TrainJob
    noise: FloatArray  # (steps, P)
    work: PrivateWork


def train_stack_privately(private: Sequence[PrivateJob], rule: Rule | None) -> list[Trained]:
    """Where each job ends; jobs have the same key and the same number of steps."""
    jobs = [p.job for p in private]
    first, steps = jobs[0], private[0].work.steps
    pool, network, task, kind = first.pool, first.network, first.data.task, first.data.cells.notion.score
    dtype = pool.rows.dtype
    width = max(j.rows for j in jobs)
    index = np.zeros((steps, len(jobs), width), dtype=np.int64)
    for number, job in enumerate(jobs):
        index[:, number] = job.offset
        index[:, number, : job.rows] += job.order.positions
    rows, sizes = torch.from_numpy(index), torch.from_numpy(np.stack([j.order.sizes for j in jobs], axis=1))
    noise = torch.from_numpy(np.stack([p.noise for p in private], axis=1))
    bound = torch.tensor([p.work.max_grad_norm for p in private], dtype=torch.float64)[:, None]
    divisor = torch.tensor([p.work.divisor for p in private], dtype=torch.float64)[:, None]
    starts = [Start(j.request, j.start, j.shift, steps) for j in jobs]
    descent = StackedDescent(starts, torch.float64)  # the model moves in double precision
    places = torch.arange(width)
    for step in range(steps):
        widest = max(1, int(sizes[step].max()))
        index_now = rows[step, :, :widest]
        x, labels, member = pool.take(index_now)
        parameters = descent.parameters.to(dtype)
        given = None
        if isinstance(network, Perceptron):
            outputs, given = network.activations(parameters, x)
        else:
            outputs = network.outputs(parameters, x)
        slopes = slopes_of(task, kind, outputs, labels, scored=rule is not None)
        pull = slopes.loss
        if rule is not None:
            penalty = rule.slopes(Step(parameters, index_now, slopes.scores, member, sizes[step]))
            pull = torch.addcmul(pull, penalty, slopes.score)
        counted = places[:widest] < sizes[step, :, None]
        total = clipped_sums(network, parameters, x, pull, given, counted, bound)
        descent.step(total.add_(noise[step]).div_(divisor))
    ends = descent.parameters.to(dtype).numpy()
    snapshots = {j: s.to(dtype).numpy() for j, s in descent.snapshots.items()}
    return [Trained(ends[j].copy(), steps, snapshots.get(j)) for j in range(len(jobs))]
