"""What people read: accuracy, unfairness by notion, tables by group, with bootstrap confidence intervals.

The quick figures of every round are computed here, the final tables by fairlearn, also the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.datasets.records import Records, Schema
from privfair.fairness.cells import Cells
from privfair.kernels.base import Kernel
from privfair.kernels.mmd import mmd2

THRESHOLD = 0.5


@dataclass(frozen=True)
class Predicted:
    """Records with what a model says of them."""

    records: Records
    predictions: FloatArray
    losses: FloatArray


def accuracy(predicted: Predicted, schema: Schema) -> float | None:
    """Share of right decisions; None for regression."""
    if schema.task != "binary" or not len(predicted.records):
        return None
    return float(np.mean((predicted.predictions >= THRESHOLD) == (predicted.records.labels == 1)))


def root_mean_squared_error(predicted: Predicted) -> float | None:
    """√mean (prediction − label)²."""
    if not len(predicted.records):
        return None
    return float(np.sqrt(np.mean(np.square(predicted.predictions - predicted.records.labels))))


def unfairness(predicted: Predicted, schema: Schema, attribute: int = 0) -> dict[str, float | None]:
    """The largest difference between groups, by notion. Decisions for classification, mean predictions for regression.

    statistical_parity: P(decision = 1 | A); equal_opportunity: the same given label 1; predictive_equality: given
    label 0; equalized_odds: the larger of the two; risk_parity: mean loss. None where fewer than two groups have such
    records.
    """
    records = predicted.records
    groups = records.groups[:, attribute]
    chosen = (predicted.predictions >= THRESHOLD).astype(float) if schema.task == "binary" else predicted.predictions
    everyone = np.ones(len(records), dtype=bool)
    result = {
        "statistical_parity": _spread(chosen, groups, everyone),
        "risk_parity": _spread(predicted.losses, groups, everyone),
    }
    if schema.task == "binary":
        on_positive, on_negative = (_spread(chosen, groups, records.labels == value) for value in (1, 0))
        both = [value for value in (on_positive, on_negative) if value is not None]
        result |= {
            "equal_opportunity": on_positive,
            "predictive_equality": on_negative,
            "equalized_odds": max(both) if both else None,
        }
    return result


def penalty_mmd2(predicted: Predicted, cells: Cells, kernel: Kernel) -> float:
    """Σ over attributes, conditioning sets and pairs of groups of MMD² between their scores (V-statistic)."""
    scores = predicted.predictions if cells.notion.score == "prediction" else predicted.losses
    member = cells.membership(predicted.records)
    total = 0.0
    for comparison in cells.comparisons:
        present = [scores[member[:, c]] for c in comparison.cells if member[:, c].any()]
        total += sum(float(mmd2(a, b, kernel)) for a, b in combinations(present, 2))
    return total


def _spread(values: FloatArray, groups: NDArray[np.int64], on: NDArray[np.bool_]) -> float | None:
    """Largest minus smallest group mean on a part of the records."""
    sums = np.bincount(groups[on], weights=values[on])
    sizes = np.bincount(groups[on])
    means = sums[sizes > 0] / sizes[sizes > 0]
    return float(means.max() - means.min()) if means.size > 1 else None


def group_table(predicted: Predicted, schema: Schema, attribute: int = 0) -> dict[str, dict[str, float | None]]:
    """For each group: size, accuracy, selection rate, true and false positive rate, mean score; rates by fairlearn."""
    import warnings

    from fairlearn.metrics import (
        MetricFrame,
        count,
        false_positive_rate,
        mean_prediction,
        selection_rate,
        true_positive_rate,
    )
    from sklearn.exceptions import UndefinedMetricWarning
    from sklearn.metrics import accuracy_score

    names = schema.sensitive[attribute].values
    groups = np.asarray(names, dtype=object)[predicted.records.groups[:, attribute]]
    labels = predicted.records.labels
    if schema.task == "binary":
        decisions = (predicted.predictions >= THRESHOLD).astype(int)
        frame = MetricFrame(
            metrics={
                "records": count,
                "accuracy": accuracy_score,
                "selection_rate": selection_rate,
                "true_positive_rate": true_positive_rate,
                "false_positive_rate": false_positive_rate,
            },
            y_true=labels.astype(int),
            y_pred=decisions,
            sensitive_features=groups,
        )
        scores = MetricFrame(
            metrics={"mean_score": mean_prediction},
            y_true=labels,
            y_pred=predicted.predictions,
            sensitive_features=groups,
        )
        with warnings.catch_warnings():  # a rate of a group without such labels is undefined: it becomes None below
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            table = frame.by_group.join(scores.by_group)
    else:
        table = MetricFrame(
            metrics={"records": count, "mean_score": mean_prediction},
            y_true=labels,
            y_pred=predicted.predictions,
            sensitive_features=groups,
        ).by_group
    return {
        str(group): {str(name): None if np.isnan(value) else float(value) for name, value in row.items()}
        for group, row in table.iterrows()
    }


def confidence_intervals(
    predicted: Predicted, schema: Schema, rng: np.random.Generator, *, repeats: int = 500, level: float = 0.95
) -> Mapping[str, tuple[float, float]]:
    """Percentile bootstrap intervals of accuracy and of every unfairness figure, over the drawing of the records."""
    n = len(predicted.records)
    if n < 2:
        return {}
    draws: dict[str, list[float]] = {}
    for _ in range(repeats):
        rows = rng.integers(n, size=n)
        sample = Predicted(predicted.records.take(rows), predicted.predictions[rows], predicted.losses[rows])
        for name, value in {"accuracy": accuracy(sample, schema), **unfairness(sample, schema)}.items():
            if value is not None:
                draws.setdefault(name, []).append(value)
    tail = (1 - level) / 2
    return {
        name: (float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail))) for name, values in draws.items()
    }
