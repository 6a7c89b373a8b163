"""The minibatches of many jobs, from the same random streams as one client alone would use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.clients.sgd import batches_per_epoch, minibatches
from privfair.messages import LocalWork
from privfair.randomness import stream


@dataclass(frozen=True)
class Order:
    """All steps of one client in one round: positions of its records, (steps, b), and how many of each row count."""

    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.sizes)


class Orders:
    """Orders by what they depend on: runs that differ in λ or method only have the same ones."""

    def __init__(self) -> None:
        """None yet."""
        self._known: dict[tuple[int | None, ...], Order] = {}

    def of(self, seed: int, round_number: int, client: int, records: int, work: LocalWork) -> Order:
        """The order of one client's work."""
        key = (seed, round_number, client, records, work.epochs, work.batch_size)
        if key not in self._known:
            rng = stream(seed, "minibatches", round_number, client)
            self._known[key] = _drawn(records, work, rng)
        return self._known[key]


def _drawn(records: int, work: LocalWork, rng: np.random.Generator) -> Order:
    """Rows that are not full end with position 0, which does not count."""
    width = records if work.batch_size is None else min(work.batch_size, records)
    steps = work.epochs * batches_per_epoch(records, work)
    positions, sizes = np.zeros((steps, width), dtype=np.int64), np.zeros(steps, dtype=np.int64)
    for step, batch in enumerate(minibatches(records, work, rng)):
        positions[step, : batch.size] = batch
        sizes[step] = batch.size
    return Order(positions, sizes)


@dataclass(frozen=True)
class Schedule:
    """The steps of several jobs, those with the most first."""

    index: torch.Tensor  # (steps, jobs, b): rows of the pool
    weights: torch.Tensor  # (steps, jobs): one over the number of records that count, 0 where a job has ended
    active: list[int]  # how many jobs are not yet done at each step
    full: list[bool]  # whether at this step every row of these jobs counts
    sizes: torch.Tensor  # (steps, jobs)

    @staticmethod
    def of(orders: Sequence[Order], offsets: Sequence[int], dtype: torch.dtype) -> Schedule:
        """`orders` have falling numbers of steps; `offsets` are where the clients' records begin."""
        steps, width = orders[0].steps, max(o.positions.shape[1] for o in orders)
        index = np.zeros((steps, len(orders), width), dtype=np.int64)
        sizes = np.zeros((steps, len(orders)), dtype=np.int64)
        for job, (order, offset) in enumerate(zip(orders, offsets, strict=True)):
            index[: order.steps, job] = offset
            index[: order.steps, job, : order.positions.shape[1]] += order.positions
            sizes[: order.steps, job] = order.sizes
        active = (sizes > 0).sum(axis=1)
        full = [bool((sizes[t, : active[t]] == width).all()) for t in range(steps)]
        weights = np.divide(1.0, sizes, out=np.zeros(sizes.shape), where=sizes > 0)
        return Schedule(
            torch.from_numpy(index), torch.from_numpy(weights).to(dtype), active.tolist(), full, torch.from_numpy(sizes)
        )

    def record_weights(self, step: int) -> torch.Tensor:
        """(jobs that are not done, b or 1): each record's share of its minibatch, 0 for one that does not count."""
        jobs = self.active[step]
        share = self.weights[step, :jobs, None]
        if self.full[step]:
            return share
        places = torch.arange(self.index.shape[2])
        return share * (places < self.sizes[step, :jobs, None])
