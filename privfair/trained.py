"""A trained model, ready to be used on new records, and the file of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.clients.task import TaskKind
from privfair.datasets.encoder import Encoder
from privfair.fairness.metrics import THRESHOLD

DIGEST = "privfair.sha256"  # in the metadata of the file


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


def weights_file(weights: Mapping[str, torch.Tensor]) -> bytes:
    """The weights in the safetensors format, with their digest in its metadata; refuses those that are not finite."""
    found = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    _require_finite(found, "model", "It diverged. Try a smaller learning rate.")
    return save(found, metadata={DIGEST: weights_digest(found)})


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """What `weights_file` made; refuses weights that are not finite, or not those of the digest where there is one."""
    try:
        with safe_open(path, framework="pt") as file:
            kept = (file.metadata() or {}).get(DIGEST)
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError) as error:
        raise InputError(path.name, "must be whole and readable", str(path), f"({error})") from None
    if kept is not None and kept != weights_digest(weights):  # files of earlier versions have none
        rule, remedy = "must have the weights that training wrote", "They were changed since."
        raise InputError(path.name, rule, f"others than those of its digest in {path}", remedy)
    _require_finite(weights, path.name, "Such a model says nothing of anybody. Train it again.")
    return weights


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, types, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().contiguous()
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _require_finite(weights: Mapping[str, torch.Tensor], where: str, remedy: str) -> None:
    wrong = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if wrong:
        raise InputError(where, "must have finite weights", f"nan or inf in {wrong[0]!r}", remedy)
