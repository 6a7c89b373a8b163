"""Models that are of no use although training ended: one that gives everybody the same answer, or that diverged.

Such a model can look fair: who says no to everybody treats all groups alike. So it is named wherever its figures are.

Of a private run only what is released anyway is looked at: the model's parameters, and noisy counts of its decisions.
Both are post-processing, which costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from privfair.datasets.records import Schema
from privfair.fairness.metrics import THRESHOLD, Predicted
from privfair.mechanisms.count_release import CountNoise

LARGEST_WEIGHT = 1_000.0  # features and outputs are of the order of 1: a weight beyond this saturates every output
WORSE_THAN_NOTHING = 10.0  # times the loss of the middle of the range for everybody
FAR = 10.0  # features are scaled; no prepared record has one beyond ±10
LITTLE = 0.01  # a share of the other decision that noise may hide
SAME = "The model gives everybody the same answer"
DIVERGED = "Training diverged"
LOWER = "Try a smaller federation.learning_rate, or a smaller fairness.lambda."


def exact_warnings(predicted: Predicted, schema: Schema, train_loss: float | None) -> list[str]:
    """From exact figures, where they may be shown."""
    found = []
    if len(predicted.records):
        binary, (low, high) = schema.task == "binary", schema.label_range
        answers = predicted.predictions >= THRESHOLD if binary else predicted.predictions
        if np.ptp(answers.astype(float)) <= (0.0 if binary else 1e-3 * (high - low)):
            found.append(f"{SAME}: {answers.mean():.4g} to all {len(answers):,} test records.")
    if train_loss is not None and has_diverged(train_loss, schema.task):
        found.append(f"{DIVERGED}: the training loss is {train_loss:,.4g}. {LOWER}")
    return found


def has_diverged(train_loss: float, task: str) -> bool:
    """Whether the loss is many times that of the middle of the range: log 2, or at most ¼ for regression."""
    return train_loss > WORSE_THAN_NOTHING * (math.log(2) if task == "binary" else 0.25)


def parameter_warnings(module: nn.Module) -> list[str]:
    """From the parameters alone: weights beyond all measure, or outputs that no record moves across the threshold."""
    largest = max((float(p.detach().abs().max()) for p in module.parameters() if p.numel()), default=0.0)
    if not largest <= LARGEST_WEIGHT:
        return [f"{DIVERGED}: the model has weights of up to {largest:,.4g}. {LOWER}"]
    bounds = output_bounds(module)
    if bounds is not None and (bounds[0] >= 0 or bounds[1] < 0):
        return [f"{SAME}: whatever the features are (within ±{FAR:g}, prepared), it says {int(bounds[0] >= 0)}."]
    return []


def output_bounds(module: nn.Module) -> tuple[float, float] | None:
    """The least and the largest output for features within ±FAR, by interval arithmetic; None for other layers.

    The interval of W·x + b for x in c ± r is W·c + b ± |W|·r; ReLU is monotone. It may be too wide, never too narrow.
    """
    if not isinstance(module, nn.Linear | nn.Sequential):
        return None
    layers = [module] if isinstance(module, nn.Linear) else list(module)
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not linear or not all(isinstance(layer, nn.Linear | nn.ReLU) for layer in layers):
        return None
    low = torch.full((linear[0].in_features,), -FAR, dtype=torch.float64)
    high = -low
    for layer in layers:
        if isinstance(layer, nn.Linear):
            weight, centre, radius = layer.weight.detach().double(), (low + high) / 2, (high - low) / 2
            shift = weight @ centre + (0.0 if layer.bias is None else layer.bias.detach().double())
            low, high = shift - weight.abs() @ radius, shift + weight.abs() @ radius
        else:
            low, high = low.clamp(min=0), high.clamp(min=0)
    return float(low.min()), float(high.max())


def released_warnings(confusion: Sequence[Any], noise: CountNoise) -> list[str]:
    """From every client's noisy counts of decisions: the rarer one is so rare that noise alone could show it.

    confusion: for each client its tables by attribute, (groups, label, decision).
    """
    if not len(confusion):
        return []
    tables = [np.asarray(client[0]) for client in confusion]
    by_decision = np.sum([table.sum(axis=(0, 1)) for table in tables], axis=0).astype(float)
    # one number of each decision for every client, group and label; its noise has a standard deviation of at most
    # √2·b (discrete Laplace: 2e^(−1/b)/(1 − e^(−1/b))² ≤ 2b²) or σ (discrete Gaussian)
    deviation = noise.scale * (math.sqrt(2) if noise.kind == "laplace" else 1.0)
    error = 4 * deviation * math.sqrt(sum(table[..., 0].size for table in tables))
    total, rarer = float(by_decision.sum()), float(by_decision.min())
    if total <= 0 or rarer + error > LITTLE * total:
        return []
    return [f"{SAME}, as far as the released counts show: {int(by_decision.argmax())} to {total:,.0f} test records."]


def row_warnings(row: Mapping[str, Any]) -> dict[str, bool]:
    """Of a finished run of a sweep, by its figures: "same_answer", "diverged".

    A constant decision has the accuracy of one label's share, and no difference between groups at all, whatever the
    label.
    """
    binary = row.get("accuracy") is not None
    gaps = [
        row.get(f"unfairness_{name}") for name in ("statistical_parity", "equal_opportunity", "predictive_equality")
    ]
    same = all(not gap for gap in gaps) and any(gap is not None for gap in gaps)
    if binary and row.get("baseline_accuracy") is not None:
        share = float(row["baseline_accuracy"])
        same = same and min(abs(row["accuracy"] - share), abs(row["accuracy"] - (1 - share))) < 1e-9
    elif row.get("rmse") is None:
        same = False
    loss = row.get("train_loss")
    return {
        "same_answer": bool(same),
        "diverged": loss is not None and has_diverged(float(loss), "binary" if binary else "regression"),
    }
