"""A client: its records, and what it computes with. What it sends is made by `privfair.channels`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.clients.embedder import Embedder
from privfair.clients.objectives import TrainingData, all_scores
from privfair.datasets.records import ClientData, Records, Schema
from privfair.fairness.notions import Cells
from privfair.federated.messages import Model
from privfair.federated.model_state import Replica
from privfair.mechanisms.entropy import Entropy
from privfair.models import FlatModel, TaskKind
from privfair.util import FloatArray

EntropyOf = Callable[[str, int], Entropy]  # (channel, round) -> where private randomness comes from


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
        self.groups = tuple(len(attribute.values) for attribute in schema.sensitive)
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

    def scores(self, model: Model, *, private: bool) -> FloatArray:
        """The scores of all its records; for a private message each depends on its record alone, to the last bit."""
        self.model.load(self.replica.at(model).values)
        return all_scores(self.model, self.data.each_record_alone if private else self.data)

    @property
    def features(self) -> Embedder:
        """What makes its sums of features; a run of scores has none."""
        if self.embedder is None:
            raise InputError("request", "must be of the agreed tracker", "features of scores")
        return self.embedder
