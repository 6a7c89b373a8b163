"""All records of the clients in one matrix, and which of them each step and each release takes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.clients.client import Client, TrainingData
from privfair.clients.training import batches_per_epoch, minibatches
from privfair.federated.messages import LocalWork, ScoresRequest
from privfair.mechanisms.entropy import stream
from privfair.util import FloatArray


@dataclass(frozen=True)
class Holding:
    """Where a client's records are in the pool."""

    offset: int
    count: int
    key: int  # equal for equal records and cells


@dataclass(frozen=True)
class Pool:
    """One row per record: features, label, cells; `codes` is 2·group + label. Equal holdings are kept once."""

    rows: torch.Tensor  # (records, features + 1 + cells)
    codes: torch.Tensor  # (records,)
    features: int

    def take(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Features (…, d), labels (…) and membership (…, cells) of these rows."""
        picked = self.rows.index_select(0, index.reshape(-1)).view(*index.shape, self.rows.shape[1])
        return picked[..., : self.features], picked[..., self.features], picked[..., self.features + 1 :]


Shape = tuple[torch.dtype, int, int]  # type, features, cells: what clients of one pool have in common


class RecordPool:
    """The pools of several runs."""

    def __init__(self, clients: Sequence[Client]) -> None:
        """Gather the records; those of clients with the same records and cells once."""
        self._clients = list(clients)  # ids stay valid while they are kept
        self._gather()

    def _gather(self) -> None:
        known: dict[tuple[int, bytes, torch.dtype], Holding] = {}
        kept: dict[Shape, list[TrainingData]] = {}
        ends: dict[Shape, int] = {}
        self._by_client: dict[int, Holding] = {}
        self._data: dict[int, TrainingData] = {}
        for client in self._clients:
            data = self._data[id(client)] = client.data
            member = hashlib.sha256(np.packbits(data.membership).tobytes()).digest()
            key = (id(data.records), member, data.x.dtype)
            if key not in known:
                shape = shape_of(client)
                offset = ends.get(shape, 0)
                ends[shape] = offset + len(data.y)
                kept.setdefault(shape, []).append(data)
                known[key] = Holding(offset, len(data.y), len(known))
            self._by_client[id(client)] = known[key]
        self.pools = {shape: _pool(parts) for shape, parts in kept.items()}

    def refresh(self) -> None:
        """Gather all records again if somebody's features were scaled since; before anything refers to places."""
        if any(self._data[id(client)] is not client.data for client in self._clients):
            self._gather()

    def of(self, client: Client) -> Holding:
        """Where its records are."""
        return self._by_client[id(client)]

    def pool(self, client: Client) -> Pool:
        """The pool that they are in."""
        return self.pools[shape_of(client)]


def shape_of(client: Client) -> Shape:
    """Which pool a client's records are in."""
    data = client.data
    return data.x.dtype, data.x.shape[1], data.membership.shape[1]


def _pool(parts: Sequence[TrainingData]) -> Pool:
    """All records below each other."""
    dtype = parts[0].x.dtype
    rows = torch.cat([torch.cat([p.x, p.y[:, None], torch.from_numpy(p.membership).to(dtype)], dim=1) for p in parts])
    codes = np.concatenate([2 * p.records.groups[:, 0] + (p.records.labels == 1) for p in parts])
    return Pool(rows, torch.from_numpy(codes.astype(np.int64)), parts[0].x.shape[1])


# ---- The minibatches of many jobs, from the same random streams as one client alone would use.


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


# ---- Which records' scores clients share, drawn as each alone would draw them.


@dataclass(frozen=True)
class Draw:
    """Positions of the records of all cells, one cell after the other, and their labels."""

    positions: NDArray[np.int64]
    labels: torch.Tensor
    sizes: tuple[int, ...]  # of the cells


def draw(client: Client, request: ScoresRequest) -> Draw:
    """A simple random sample of each cell."""
    rng, data = stream(client.seed, "scores", request.round, client.index), client.data
    cells = []
    for cell, quota in enumerate(request.quotas):
        rows = np.flatnonzero(data.membership[:, cell])
        # fewer than asked for only where the server knows noisy counts, and scores without noise are shared anyway
        cells.append(rng.choice(rows, size=min(int(quota), rows.size), replace=False))
    positions = np.concatenate(cells)
    return Draw(positions, data.y[torch.from_numpy(positions)], tuple(cell.size for cell in cells))


def split(scores: FloatArray, draws: Sequence[Draw]) -> Iterator[tuple[FloatArray, ...]]:
    """The scores of each draw, cell by cell; `scores` has those of all draws one after the other."""
    place = 0
    for each in draws:
        cells = []
        for size in each.sizes:
            cells.append(scores[place : place + size])
            place += size
        yield tuple(cells)
