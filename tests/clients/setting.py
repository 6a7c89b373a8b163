"""Small clients, models and requests for the tests of local training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from privfair.clients.client import TrainingData
from privfair.datasets.records import Records, Schema, SensitiveAttribute
from privfair.fairness.notions import Cells, notion_by_name
from privfair.fairness.tracking import SharedScores, equal_weights
from privfair.federated.messages import LocalWork, Objective, Parameters, PrivateWork, Task, Tracked, TrainRequest
from privfair.mechanisms.entropy import SeededEntropy
from privfair.models import FlatModel, TaskKind

FEATURES = 4
PRIVATE = PrivateWork(
    steps=1, sampling_rate=1.0, noise_multiplier=0.0, max_grad_norm=0.5, divisor=7.0, learning_rate=1.0
)


def client(records: int = 12, *, seed: int = 0, notion: str = "statistical_parity", x: Any = None) -> TrainingData:
    """Records in double precision, of two groups."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(records, FEATURES)) if x is None else np.asarray(x)
    groups = np.arange(records)[:, None] % 2
    labels = (rng.random(records) < 0.5).astype(float)
    rows = Records(features, labels, groups, np.zeros((records, 0), dtype=bool))
    schema = Schema(tuple("abcd"), "binary", "y", (0.0, 1.0), (SensitiveAttribute("s", ("0", "1")),))
    cells = Cells.of(notion_by_name(notion, schema), schema)
    x64, y64 = (torch.tensor(a.astype(np.float64)) for a in (rows.features, rows.labels))
    return TrainingData(rows, x64, y64, cells.membership(rows), cells, TaskKind.of(schema))


def subset(data: TrainingData, positions: list[int]) -> TrainingData:
    """Some of a client's records."""
    return replace(
        data,
        records=data.records.take(positions),
        x=data.x[positions],
        y=data.y[positions],
        membership=data.membership[positions],
    )


def perceptron(*extra: nn.Module) -> nn.Module:
    """Five hidden units, in double precision, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 5), *extra, nn.Tanh(), nn.Linear(5, 1)).double()


def model() -> FlatModel:
    return FlatModel(perceptron())


def tracked(data: TrainingData, strength: float = 1.0, kernel: str = "gaussian:0.3", **kwargs: Any) -> Tracked:
    """A penalty towards made-up scores of other clients."""
    rng = np.random.default_rng(5)
    scores = tuple(rng.random(9) for _ in range(len(data.cells)))
    counts = np.full(len(data.cells), 40.0)
    return Tracked(SharedScores(kernel, strength, scores, equal_weights(scores), counts, 100.0, (0.0, 1.0)), **kwargs)


def request(work: LocalWork | PrivateWork, objective: Objective | None = None, **kwargs: Any) -> TrainRequest:
    return TrainRequest(
        round=0, model=Parameters(np.zeros(1)), objective=objective or Task(), work=work, weight=1.0, **kwargs
    )


def seeded(seed: int = 0) -> SeededEntropy:
    return SeededEntropy(np.random.default_rng(seed))
