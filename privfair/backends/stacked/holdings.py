"""What the stacked engine reads of clients, and all their records in one matrix."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from privfair.arrays import FloatArray
from privfair.clients.client import Client
from privfair.clients.objectives import TrainingData
from privfair.mechanisms.entropy import Entropy
from privfair.messages import Embeddings, EmbeddingsRequest, Parameters, Request, TrainRequest
from privfair.models import FlatModel
from privfair.replica import Replica

# A simulation's engine stands in for its clients; these are the only places where it looks into one.


def data_of(client: Client) -> TrainingData:
    """Its training records."""
    return client.data


def seed_of(client: Client) -> int:
    """Of its random streams."""
    return client.seed


def replica_of(client: Client) -> Replica:
    """The shared model as it sees it."""
    return client.replica


def model_of(client: Client) -> FlatModel:
    """Its module."""
    return client.model


def shift_of(client: Client, request: TrainRequest, at: Parameters) -> FloatArray | None:
    """SCAFFOLD's c − c_k, where asked for."""
    return client.shift(request, at)


def entropy_for(client: Client, channel: str, round_number: int) -> Entropy:
    """Where its private draws come from."""
    return client.entropy(channel, round_number)


def features_of(client: Client, request: EmbeddingsRequest, scores: FloatArray) -> Embeddings:
    """Its sums of features, from the scores of all its records."""
    return client.embeddings(request, scores)


def opened(client: Client, request: Request) -> Request:
    """The request, with the shared features opened as the client opens them."""
    return client.opened(request) if isinstance(request, TrainRequest) else request


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


class Holdings:
    """The pools of several runs."""

    def __init__(self, clients: Sequence[Client]) -> None:
        """Gather the records; those of clients with the same records and cells once."""
        known: dict[tuple[int, bytes, torch.dtype], Holding] = {}
        kept: dict[Shape, list[TrainingData]] = {}
        ends: dict[Shape, int] = {}
        self._by_client: dict[int, Holding] = {}
        for client in clients:
            data = data_of(client)
            member = hashlib.sha256(np.packbits(data.membership).tobytes()).digest()
            key = (id(data.records), member, data.x.dtype)
            if key not in known:
                shape = shape_of(client)
                offset = ends.get(shape, 0)
                ends[shape] = offset + len(data.y)
                kept.setdefault(shape, []).append(data)
                known[key] = Holding(offset, len(data.y), len(known))
            self._by_client[id(client)] = known[key]
        self._clients = list(clients)  # ids stay valid while they are kept
        self.pools = {shape: _pool(parts) for shape, parts in kept.items()}

    def of(self, client: Client) -> Holding:
        """Where its records are."""
        return self._by_client[id(client)]

    def pool(self, client: Client) -> Pool:
        """The pool that they are in."""
        return self.pools[shape_of(client)]


def shape_of(client: Client) -> Shape:
    """Which pool a client's records are in."""
    data = data_of(client)
    return data.x.dtype, data.x.shape[1], data.membership.shape[1]


def _pool(parts: Sequence[TrainingData]) -> Pool:
    """All records below each other."""
    dtype = parts[0].x.dtype
    rows = torch.cat([torch.cat([p.x, p.y[:, None], torch.from_numpy(p.membership).to(dtype)], dim=1) for p in parts])
    codes = np.concatenate([2 * p.records.groups[:, 0] + (p.records.labels == 1) for p in parts])
    return Pool(rows, torch.from_numpy(codes.astype(np.int64)), parts[0].x.shape[1])
