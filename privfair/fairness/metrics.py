"""What people read: accuracy, unfairness by notion, tables by group, with bootstrap confidence intervals.

The quick figures of every round are computed here, the final tables by fairlearn, also the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.datasets.records import Records, Schema
from privfair.fairness.cells import Cells
from privfair.fairness.gaps import largest, most_of, spread
from privfair.kernels.base import Kernel
from privfair.kernels.mmd import mmd2

THRESHOLD = 0.5


@dataclass(frozen=True)
class Predicted:
    """Records with what a model says of them."""

    records: Records
    predictions: FloatArray  # in units of the label
    losses: FloatArray
    scores: FloatArray  # what the notion compares


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
    return _differences(_Sample.of(predicted, schema, attribute).rates())


def largest_unfairness(predicted: Predicted, schema: Schema) -> dict[str, float | None]:
    """By notion the largest difference between groups over all attributes."""
    return largest([unfairness(predicted, schema, a) for a in range(len(schema.sensitive))])


def notion_gap(predicted: Predicted, schema: Schema, cells: Cells, attribute: int | None = None) -> float | None:
    """The largest difference between groups on the conditioning sets of a notion, of one attribute or over all."""
    values = predicted.losses if cells.notion.score == "loss" else _chosen(predicted, schema)
    member = cells.membership(predicted.records)
    spreads = []
    for comparison in cells.comparisons:
        if attribute not in (None, comparison.attribute):
            continue
        means = [values[member[:, c]].mean() for c in comparison.cells if member[:, c].any()]
        if len(means) > 1:
            spreads.append(float(max(means) - min(means)))
    return max(spreads) if spreads else None


def penalty_mmd2(predicted: Predicted, cells: Cells, kernel: Kernel) -> float:
    """Σ over attributes, conditioning sets and pairs of groups of MMD² between their scores (V-statistic)."""
    scores = predicted.scores
    member = cells.membership(predicted.records)
    total = 0.0
    for comparison in cells.comparisons:
        present = [scores[member[:, c]] for c in comparison.cells if member[:, c].any()]
        total += sum(float(mmd2(a, b, kernel)) for a, b in combinations(present, 2))
    return total


def _chosen(predicted: Predicted, schema: Schema) -> FloatArray:
    """Decisions as 0 and 1, or for regression the predictions."""
    return (predicted.predictions >= THRESHOLD).astype(float) if schema.task == "binary" else predicted.predictions


@dataclass(frozen=True)
class _Sample:
    """The columns that all figures by group come from."""

    groups: NDArray[np.int64]
    labels: FloatArray
    chosen: FloatArray
    losses: FloatArray
    count: int  # groups that there can be
    binary: bool

    @staticmethod
    def of(predicted: Predicted, schema: Schema, attribute: int) -> _Sample:
        records = predicted.records
        return _Sample(
            records.groups[:, attribute],
            records.labels,
            _chosen(predicted, schema),
            predicted.losses,
            len(schema.sensitive[attribute].values),
            schema.task == "binary",
        )

    def take(self, rows: NDArray[np.int64]) -> _Sample:
        return replace(
            self, groups=self.groups[rows], labels=self.labels[rows], chosen=self.chosen[rows], losses=self.losses[rows]
        )

    def rates(self) -> dict[str, FloatArray]:
        """Means by group, NaN where a group has no such records."""
        everyone = np.ones(self.groups.size, dtype=bool)
        result = {"mean_loss": self._mean(self.losses, everyone)}
        if not self.binary:
            return {**result, "mean_score": self._mean(self.chosen, everyone)}
        return {
            **result,
            "accuracy": self._mean((self.chosen == self.labels).astype(float), everyone),
            "selection_rate": self._mean(self.chosen, everyone),
            "true_positive_rate": self._mean(self.chosen, self.labels == 1),
            "false_positive_rate": self._mean(self.chosen, self.labels == 0),
        }

    def _mean(self, values: FloatArray, on: NDArray[np.bool_]) -> FloatArray:
        sizes = np.bincount(self.groups[on], minlength=self.count)
        sums = np.bincount(self.groups[on], weights=values[on], minlength=self.count)
        means: FloatArray = np.divide(sums, sizes, out=np.full(self.count, np.nan), where=sizes > 0)
        return means


def _differences(rates: Mapping[str, FloatArray]) -> dict[str, float | None]:
    """The largest difference between groups, by notion."""
    if "selection_rate" not in rates:
        return {"statistical_parity": spread(rates["mean_score"]), "risk_parity": spread(rates["mean_loss"])}
    opportunity, equality = spread(rates["true_positive_rate"]), spread(rates["false_positive_rate"])
    return {
        "statistical_parity": spread(rates["selection_rate"]),
        "risk_parity": spread(rates["mean_loss"]),
        "equal_opportunity": opportunity,
        "predictive_equality": equality,
        "equalized_odds": most_of((opportunity, equality)),
    }


def group_table(predicted: Predicted, schema: Schema, attribute: int = 0) -> dict[str, dict[str, float | None]]:
    """For each group: size, accuracy, selection rate, true and false positive rate, mean score; rates by fairlearn.

    A rate of a group without such labels is None (fairlearn says 0).
    """
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
    labels, predictions = predicted.records.labels, predicted.predictions
    alone = len(labels) == 1  # fairlearn takes a single record for a single number: it is shown twice and counted once
    if alone:
        groups, labels, predictions = np.repeat(groups, 2), np.repeat(labels, 2), np.repeat(predictions, 2)
    if schema.task == "binary":
        decisions = (predictions >= THRESHOLD).astype(int)
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
            y_pred=predictions,
            sensitive_features=groups,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            table = frame.by_group.join(scores.by_group)
        for label, name in ((1, "true_positive_rate"), (0, "false_positive_rate")):
            table.loc[~table.index.isin(groups[labels == label]), name] = np.nan
    else:
        table = MetricFrame(
            metrics={"records": count, "mean_score": mean_prediction},
            y_true=labels,
            y_pred=predictions,
            sensitive_features=groups,
        ).by_group
    if alone:
        table["records"] = 1
    return {
        str(group): {str(name): None if np.isnan(value) else float(value) for name, value in row.items()}
        for group, row in table.iterrows()
    }


@dataclass(frozen=True)
class Intervals:
    """Bootstrap confidence intervals."""

    figures: dict[str, tuple[float, float]]  # accuracy and unfairness by notion
    groups: dict[str, dict[str, tuple[float, float]]]  # group -> rate


def confidence_intervals(
    predicted: Predicted,
    schema: Schema,
    rng: np.random.Generator,
    *,
    attribute: int = 0,
    repeats: int = 500,
    level: float = 0.95,
) -> Intervals:
    """Bootstrap intervals over the drawing of the records: accuracy, every unfairness figure, the rates of every group.

    A largest difference is biased upwards under resampling; its percentiles are shifted by that bias and cut at 0, and
    at 1 where it is one of shares.
    """
    sample = _Sample.of(predicted, schema, attribute)
    n = sample.groups.size
    if n < 2:
        return Intervals({}, {})
    rates = [sample.take(rng.integers(n, size=n)).rates() for _ in range(repeats)]
    tails = [(1 - level) / 2, (1 + level) / 2]
    figures: dict[str, tuple[float, float]] = {}
    if sample.binary:
        right = sample.chosen == sample.labels
        draws = rng.binomial(n, right.mean(), size=repeats) / n  # resampling records resamples right and wrong
        figures["accuracy"] = _pair(np.quantile(draws, tails))
    for name, estimate in _differences(sample.rates()).items():
        values = np.array([value for value in (_differences(r)[name] for r in rates) if value is not None])
        if estimate is not None and values.size:
            most = 1.0 if sample.binary and name != "risk_parity" else np.inf
            figures[name] = _pair(np.clip(np.quantile(values, tails) - (values.mean() - estimate), 0.0, most))
    groups: dict[str, dict[str, tuple[float, float]]] = {}
    for g, group in enumerate(schema.sensitive[attribute].values):
        for name in rates[0]:
            values = np.array([r[name][g] for r in rates])
            if name != "mean_loss" and not np.isnan(values).all():
                groups.setdefault(group, {})[name] = _pair(np.nanquantile(values, tails))
    return Intervals(figures, groups)


def _pair(values: FloatArray) -> tuple[float, float]:
    return float(values[0]), float(values[1])
