"""From requests to jobs, and from jobs to the rules that give their slopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.clients.client import TrainingData, damping_of, followed, own_rule, tracked_rule
from privfair.clients.training import Trained
from privfair.engines.batched.compiled.training import (
    OWN,
    TASK,
    TRACKED,
    Goal,
    Outcome,
    Records,
    Steps,
    Work,
    sum_private_job,
    train_jobs,
    train_private_job,
)
from privfair.engines.batched.compiled.witness import Witness, can_be_packed, numbered, packed_witness
from privfair.engines.batched.networks import Network, Perceptron
from privfair.engines.batched.objectives import (
    AllScores,
    DriftEnergy,
    DriftOneByOne,
    OneByOne,
    OwnEnergy,
    Rule,
    TrackedRule,
    compared_pairs,
)
from privfair.engines.batched.record_pool import Order, Pool
from privfair.engines.batched.training import TrainJob
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import Shared, SharedScores, TrackedPenalty
from privfair.federated.messages import Objective, OwnPenalty, PrivateWork, Reweighted, Task, Tracked
from privfair.per_record import grid_of
from privfair.util import FloatArray


def objective_key(objective: Objective, data: TrainingData) -> tuple[Any, ...]:
    """Equal for objectives whose slopes one rule gives."""
    cells = data.cells
    match objective:
        case Task():
            return ("task",)
        case Reweighted():
            return ("reweighted", objective.weights.shape)
        case OwnPenalty():
            return ("own", objective.kernel, cells.comparisons)
        case Tracked():
            shared = followed(objective)
            kernel = (shared.kernel, shared.noisy and shared.noisy.correction)
            return ("tracked", type(shared).__name__, kernel, objective.drift != "none", cells.comparisons)


class Penalties:
    """The penalty of each broadcast, built once for all clients of a run."""

    def __init__(self) -> None:
        """None yet."""
        self._known: dict[int, tuple[Any, TrackedPenalty]] = {}

    def of(self, job: TrainJob) -> TrackedPenalty:
        """The penalty that a job follows."""
        objective = job.request.objective
        if not isinstance(objective, Tracked):
            raise TypeError(f"no shared scores in {type(objective).__name__}")
        return self.of_shared(followed(objective), job.data.cells)

    def of_shared(self, shared: Shared, cells: Cells) -> TrackedPenalty:
        """The penalty of one broadcast."""
        if id(shared) not in self._known:
            self._known[id(shared)] = (shared, TrackedPenalty(shared, cells))
        return self._known[id(shared)][1]


def rule_for(jobs: Sequence[TrainJob], penalties: Penalties) -> Rule | None:
    """What gives the slopes of these jobs, which have the same key; None without a penalty."""
    first = jobs[0].request.objective
    dtype, offsets, data = jobs[0].pool.rows.dtype, [j.offset for j in jobs], [j.data for j in jobs]
    if isinstance(first, OwnPenalty):
        own = [j.request.objective for j in jobs if isinstance(j.request.objective, OwnPenalty)]
        if first.kernel == "energy":
            return OwnEnergy([o.strength for o in own], data[0].cells)
        return OneByOne([own_rule(o, d) for o, d in zip(own, data, strict=True)], offsets)
    if not isinstance(first, Tracked):
        return None
    tracked = [penalties.of(j) for j in jobs]
    if first.drift == "none":
        if all(can_be_packed(p) for p in tracked):
            return TrackedRule(tracked, dtype)
        return OneByOne([tracked_rule(p, d) for p, d in zip(tracked, data, strict=True)], offsets)
    shared = followed(first)
    energy = isinstance(shared, SharedScores) and shared.kernel == "energy" and shared.noisy is None
    alike = [isinstance(j.request.objective, Tracked) and j.request.objective.drift == "shared" for j in jobs]
    start = torch.stack([torch.from_numpy(j.start) for j in jobs]).to(dtype)
    drift = DriftEnergy if energy else DriftOneByOne
    return drift(tracked, data, alike, offsets, _all_scores(jobs[0].network, jobs[0].pool, data, offsets), start)


def _all_scores(network: Network, pool: Pool, data: Sequence[TrainingData], offsets: Sequence[int]) -> AllScores:
    """The scores of all records of these clients under given parameters."""
    most = max(len(d.y) for d in data)
    places = torch.arange(most).expand(len(data), most).clone()
    places[places >= torch.tensor([len(d.y) for d in data])[:, None]] = 0
    x, labels, _ = pool.take(places + torch.tensor(offsets)[:, None])
    task, kind = data[0].task, data[0].cells.notion.score

    def scores(parameters: torch.Tensor) -> torch.Tensor:
        jobs = len(parameters)
        return task.scores(network.outputs(parameters, x[:jobs]), labels[:jobs], kind)

    return scores


# ---- Jobs as arrays for the compiled training; jobs that it cannot do go through `train_stack`.


@dataclass(frozen=True)
class PrivateJob:
    """A training job, and the noise of its steps."""

    job: TrainJob
    noise: FloatArray  # (steps, P)
    work: PrivateWork


def can_be_fused(network: Network, objective: Objective, data: TrainingData, penalties: Penalties) -> bool:
    """Whether the compiled training knows this model and this objective."""
    if not isinstance(network, Perceptron):
        return False
    if isinstance(objective, OwnPenalty):
        return objective.kernel == "energy"
    if not isinstance(objective, Tracked):
        return True
    if objective.drift != "none":
        return False
    return can_be_packed(penalties.of_shared(followed(objective), data.cells))


def train_fused(jobs: Sequence[TrainJob], penalties: Penalties) -> list[Trained]:
    """Where each job ends; jobs have the same key."""
    packed = Packed.of(jobs, penalties, jobs[0].pool.rows.numpy().dtype)
    ends = np.stack([j.start for j in jobs]).astype(packed.work.rate.dtype)
    snapshots = np.zeros_like(ends)
    train_jobs(*packed, ends, snapshots)
    return [
        Trained(end.copy(), job.order.steps, snapshot.copy() if _has_snapshot(job) else None)
        for job, end, snapshot in zip(jobs, ends, snapshots, strict=True)
    ]


def train_fused_privately(private: Sequence[PrivateJob], penalties: Penalties) -> list[Trained]:
    """The same with DP-SGD; the model moves in double precision."""
    jobs = [p.job for p in private]
    dtype = jobs[0].pool.rows.numpy().dtype
    packed = Packed.of(jobs, penalties, np.dtype(np.float64))
    results = []
    for number, (job, p) in enumerate(zip(jobs, private, strict=True)):
        end = job.start.astype(dtype).astype(np.float64)
        snapshot = np.zeros_like(end)
        bound = float(p.work.max_grad_norm)
        clip = (bound, grid_of(bound))
        train_private_job(*packed, p.noise, clip, p.work.divisor, number, end, snapshot)
        kept = snapshot.astype(dtype) if _has_snapshot(job) else None
        results.append(Trained(end.astype(dtype), job.order.steps, kept))
    return results


def sum_fused_gradients(jobs: Sequence[TrainJob], penalties: Penalties) -> list[Trained]:
    """The sum of each job's clipped gradients in whole numbers, which `request.gradient` asks for; nothing moves."""
    dtype = jobs[0].pool.rows.numpy().dtype
    packed = Packed.of(jobs, penalties, np.dtype(np.float64))
    results = []
    for number, job in enumerate(jobs):
        release = job.request.gradient
        if release is None:
            raise TypeError("a job without a release of gradients")
        bound, theta = float(release.max_grad_norm), job.start.astype(dtype)
        total = sum_private_job(*packed, bound, release.noise.steps, number, theta)
        results.append(Trained(job.start, job.order.steps, None, total))
    return results


class Packed(NamedTuple):
    """What the compiled training of some jobs is given."""

    records: Records
    widths: NDArray[np.int64]
    outcome: Outcome
    steps: Steps
    work: Work
    goal: Goal
    witness: Witness

    @staticmethod
    def of(jobs: Sequence[TrainJob], penalties: Penalties, moving: np.dtype[Any]) -> Packed:
        """Of jobs with the same key, whose parameters move in the type `moving`."""
        first = jobs[0]
        order, steps = _orders(jobs)
        works = [j.request.work for j in jobs]
        work = Work(
            order=order,
            offset=np.array([j.offset for j in jobs]),
            records=np.array([len(j.data.y) for j in jobs]),
            rate=np.array([w.learning_rate for w in works], dtype=moving),
            proximal=np.array([w.proximal for w in works], dtype=moving),
            shift=_shifts(jobs, moving),
            snapshot_after=np.array([j.snapshot_after for j in jobs]),
            adam=works[0].optimizer == "adam",
        )
        goal, witness = _goal(jobs, penalties, first.pool.rows.numpy().dtype)
        records = Records(first.pool.rows.numpy(), first.pool.codes.numpy(), first.pool.features)
        return Packed(records, _widths(first.network), _outcome(first.data), steps, work, goal, witness)


def _has_snapshot(job: TrainJob) -> bool:
    return 0 < job.snapshot_after <= job.order.steps


def _widths(network: Network) -> NDArray[np.int64]:
    """Of all layers, input and output included."""
    if not isinstance(network, Perceptron):
        raise TypeError(f"no compiled training of {type(network).__name__}")
    return np.array(network.sizes)


def _outcome(data: TrainingData) -> Outcome:
    """What outputs and scores mean."""
    return Outcome(data.task.task == "binary", data.task.low, data.task.high, data.cells.notion.score == "loss")


def _shifts(jobs: Sequence[TrainJob], dtype: np.dtype[Any]) -> NDArray[Any]:
    """SCAFFOLD's c − c_k of each job; nothing where no job has one."""
    size = jobs[0].start.size
    if all(j.shift is None for j in jobs):
        return np.zeros((0, size), dtype)
    return np.stack([np.zeros(size) if j.shift is None else j.shift for j in jobs]).astype(dtype)


def _orders(jobs: Sequence[TrainJob]) -> tuple[NDArray[np.int64], Steps]:
    """The number of each job's order, and all orders that they use, each once."""
    known: dict[int, int] = {}
    orders: list[Order] = []
    for job in jobs:
        if id(job.order) not in known:
            known[id(job.order)] = len(orders)
            orders.append(job.order)
    table = np.zeros((len(orders), 4), dtype=np.int64)
    place = step = 0
    for row, order in zip(table, orders, strict=True):
        row[:] = place, step, order.steps, order.positions.shape[1]
        place, step = place + order.positions.size, step + order.steps
    steps = Steps(
        table,
        np.concatenate([o.positions.reshape(-1) for o in orders]),
        np.concatenate([o.sizes for o in orders]),
        max(1, max(o.positions.shape[1] for o in orders)),
    )
    return np.array([known[id(j.order)] for j in jobs]), steps


def _goal(jobs: Sequence[TrainJob], penalties: Penalties, dtype: np.dtype[Any]) -> tuple[Goal, Witness]:
    """What is added to the task loss of these jobs."""
    objectives, cells = [j.request.objective for j in jobs], jobs[0].data.cells
    kind, numbers = TASK, np.zeros(len(jobs), dtype=np.int64)
    tracked: list[TrackedPenalty] = []
    if isinstance(objectives[0], Tracked):
        kind = TRACKED
        numbers, tracked = numbered([penalties.of(j) for j in jobs])
    elif isinstance(objectives[0], OwnPenalty):
        kind = OWN
    tables = [o.weights.reshape(-1) for o in objectives if isinstance(o, Reweighted)]
    goal = Goal(
        kind=kind,
        penalty=numbers,
        strength=np.array([o.strength if isinstance(o, OwnPenalty) else 0.0 for o in objectives], dtype=dtype),
        pairs=compared_pairs(cells),
        loss_weights=np.stack(tables).astype(dtype) if tables else np.zeros((0, 1), dtype),
        damping=np.array([damping_of(o) for o in objectives], dtype=dtype),
    )
    return goal, packed_witness(tracked, len(cells), dtype)
