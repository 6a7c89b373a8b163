"""A trained model, ready to be used on new records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.clients.task import TaskKind
from privfair.datasets.encoder import Encoder
from privfair.fairness.metrics import THRESHOLD


@dataclass(frozen=True)
class TrainedModel:
    """A model that says yes or no, and how likely.

    It takes rows as they are in the source (a pandas table, or a list of dicts), which its `encoder` prepares as the
    training data were; or a plain matrix of features that are prepared already, in the order of `features`.
    """

    module: torch.nn.Module
    features: tuple[str, ...]
    task: TaskKind
    encoder: Encoder | None

    def scores(self, x: Any) -> FloatArray:
        """For each record the probability of label 1, or for regression the prediction."""
        matrix = self._matrix(x)
        dtype = next(self.module.parameters()).dtype
        self.module.eval()
        with torch.no_grad():
            outputs = self.module(torch.tensor(matrix, dtype=dtype)).reshape(-1)
            return self.task.predictions(outputs).numpy().astype(np.float64)

    def predict(self, x: Any) -> FloatArray:
        """The decision 0 or 1 for each record, or for regression the prediction."""
        scores = self.scores(x)
        return (scores >= THRESHOLD).astype(np.int64) if self.task.task == "binary" else scores

    def _matrix(self, x: Any) -> FloatArray:
        """The features of the records, prepared; refuses what is not a number."""
        named = ", ".join(self.features[:5]) + (", …" if len(self.features) > 5 else "")
        rows = hasattr(x, "columns") or (isinstance(x, list) and bool(x) and isinstance(x[0], dict))
        if rows and self.encoder is not None:
            return self.encoder.encode(x)
        if rows:
            raise InputError("X", f"must be a matrix of the features {named}", type(x).__name__)
        matrix = np.atleast_2d(np.asarray(x, dtype=np.float64))
        if matrix.shape[1] != len(self.features):
            raise InputError("X", f"must have {len(self.features)} columns ({named})", matrix.shape[1])
        if not np.isfinite(matrix).all():
            raise InputError("X", "must be finite", "nan or inf", "Rows as they are in the source may have gaps.")
        return matrix
