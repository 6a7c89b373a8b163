"""From requests to jobs, and from jobs to the rules that give their slopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from privfair.backends.stacked.drift import AllScores, DriftEnergy, DriftOneByOne
from privfair.backends.stacked.fused_witness import can_be_packed
from privfair.backends.stacked.holdings import Pool
from privfair.backends.stacked.networks import Network
from privfair.backends.stacked.rules import OneByOne, OwnEnergy, Rule, TrackedRule
from privfair.backends.stacked.training import TrainJob
from privfair.clients.objectives import TrainingData, followed, own_rule, tracked_rule
from privfair.fairness.cells import Cells
from privfair.fairness.tracking import Shared, SharedScores, TrackedPenalty
from privfair.messages import Objective, OwnPenalty, Reweighted, Task, Tracked


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
