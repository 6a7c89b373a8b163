"""What people read of a model: accuracy, unfairness by notion, tables by group, their intervals, and warnings.

The quick figures of every round are computed here, the final tables by fairlearn, which is also the oracle of the
tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from privfair.datasets.records import Records, Schema
from privfair.fairness import verdict
from privfair.fairness.notions import Cells
from privfair.fairness.verdict import Decisions
from privfair.kernels.base import Kernel
from privfair.kernels.mmd import mmd2
from privfair.mechanisms.count_release import CountNoise
from privfair.util import FloatArray

# ---- Largest differences between groups.

Gaps = Mapping[str, float | None]  # by notion; None where fewer than two groups have such records


def spread(rates: FloatArray) -> float | None:
    """max − min over the groups whose rate is known (not NaN); None where fewer than two are."""
    known = rates[~np.isnan(rates)]
    return float(known.max() - known.min()) if known.size > 1 else None


def most_of(gaps: Iterable[float | None]) -> float | None:
    """The largest gap that is known; None where none is."""
    return max((gap for gap in gaps if gap is not None), default=None)


def largest(gaps: Sequence[Gaps]) -> dict[str, float | None]:
    """By notion the largest gap over all attributes: what `unfairness` of a run means. `gaps`: those of each."""
    return {notion: most_of(own[notion] for own in gaps) for notion in gaps[0]}


def headline(by_attribute: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`unfairness`, `unfairness_of` and `confidence_intervals` of a run, from those of each of its attributes.

    By notion: the largest gap over all attributes, the attribute that it is of (the first, where several are as large),
    and that attribute's interval.
    """
    unfairness = largest([about["unfairness"] for about in by_attribute.values()])
    of = {
        notion: next(name for name, about in by_attribute.items() if about["unfairness"][notion] == gap)
        for notion, gap in unfairness.items()
        if gap is not None
    }
    intervals = {notion: by_attribute[name]["confidence_intervals"].get(notion) for notion, name in of.items()}
    return {
        "unfairness": unfairness,
        "unfairness_of": of,
        "confidence_intervals": {notion: interval for notion, interval in intervals.items() if interval is not None},
    }


# ---- Accuracy, unfairness by notion, and tables by group.

THRESHOLD = 0.5
# Which conditioning sets a notion of decisions has, and which rates of a group are shares of positive decisions there.
COMPARED = {
    "statistical_parity": ("everyone",),
    "equal_opportunity": ("label 1",),
    "predictive_equality": ("label 0",),
    "equalized_odds": ("label 0", "label 1"),
}
RATES = {"selection_rate": "everyone", "true_positive_rate": "label 1", "false_positive_rate": "label 0"}


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


def decisions(predicted: Predicted, schema: Schema, cells: Cells, attribute: int | None = None) -> list[Decisions]:
    """Counts of decisions of every group, by attribute and conditioning set; none for losses and for regression."""
    if schema.task != "binary" or cells.notion.score == "loss":
        return []
    chosen, member = _chosen(predicted, schema), cells.membership(predicted.records)
    return [
        Decisions(
            schema.sensitive[c.attribute].name,
            cells.notion.sets[c.condition].name,
            schema.sensitive[c.attribute].values,
            np.array([chosen[member[:, cell]].sum() for cell in c.cells]),
            np.array([member[:, cell].sum() for cell in c.cells], dtype=np.float64),
        )
        for c in cells.comparisons
        if attribute in (None, c.attribute)
    ]


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

    def counts(self, on: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(positive decisions, records) of each group, on some records or on all."""
        kept = np.ones(self.groups.size, dtype=bool) if on is None else on
        totals = np.bincount(self.groups[kept], minlength=self.count).astype(np.float64)
        chosen = np.bincount(self.groups[kept], weights=self.chosen[kept].astype(np.float64), minlength=self.count)
        return chosen.astype(np.float64), totals

    def means(self) -> dict[str, FloatArray]:
        """What is no share: mean losses by group, and for regression mean predictions."""
        everyone = np.ones(self.groups.size, dtype=bool)
        found = {"mean_loss": self._mean(self.losses, everyone)}
        return found if self.binary else {**found, "mean_score": self._mean(self.chosen, everyone)}

    def _mean(self, values: FloatArray, on: NDArray[np.bool_]) -> FloatArray:
        sizes = np.bincount(self.groups[on], minlength=self.count)
        sums = np.bincount(self.groups[on], weights=values[on], minlength=self.count)
        means: FloatArray = np.divide(sums, sizes, out=np.full(self.count, np.nan), where=sizes > 0)
        return means


def _differences(rates: Mapping[str, FloatArray]) -> dict[str, float | None]:
    """The largest difference between groups, by notion; of the notions whose rates are there."""
    if "selection_rate" not in rates:
        means = {"statistical_parity": "mean_score", "risk_parity": "mean_loss"}
        return {notion: spread(rates[name]) for notion, name in means.items() if name in rates}
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
    """Confidence intervals over the drawing of the records."""

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
    """Intervals over the drawing of the records: accuracy, every unfairness figure, the rates of every group.

    Of decisions as in a verdict: Wilson's limits of rates (95%), and of gaps what holds whichever groups are furthest
    apart (96%). Of mean losses and mean predictions by the bootstrap: a largest difference is biased upwards under
    resampling; its percentiles are shifted by that bias and cut at 0.
    """
    sample = _Sample.of(predicted, schema, attribute)
    n = sample.groups.size
    if n < 2:
        return Intervals({}, {})
    rates = [sample.take(rng.integers(n, size=n)).means() for _ in range(repeats)]
    tails = [(1 - level) / 2, (1 + level) / 2]
    figures: dict[str, tuple[float, float]] = {}
    groups: dict[str, dict[str, tuple[float, float]]] = {}
    names = schema.sensitive[attribute].values
    if sample.binary:
        figures["accuracy"] = verdict.rate_interval(float((sample.chosen == sample.labels).sum()), float(n))
        counted = {
            label: Decisions("", label, names, *sample.counts(on))
            for label, on in (("label 0", sample.labels == 0), ("label 1", sample.labels == 1), ("everyone", None))
        }
        for notion, sets in COMPARED.items():
            compared = [one for one in (_present(counted[label]) for label in sets) if one.pairs]
            if compared:
                figures[notion] = verdict.interval(compared)
        for g, group in enumerate(names):
            for rate, label in RATES.items():
                if counted[label].totals[g]:
                    found = verdict.rate_interval(counted[label].positives[g], counted[label].totals[g])
                    groups.setdefault(group, {})[rate] = found
            right, total = (
                float((sample.chosen == sample.labels)[sample.groups == g].sum()),
                counted["everyone"].totals[g],
            )
            if total:
                groups.setdefault(group, {})["accuracy"] = verdict.rate_interval(right, total)
    for name, estimate in _differences(sample.means()).items():
        values = np.array([value for value in (_differences(r)[name] for r in rates) if value is not None])
        if estimate is not None and values.size:
            figures[name] = _pair(np.clip(np.quantile(values, tails) - (values.mean() - estimate), 0.0, np.inf))
    for g, group in enumerate(names if not sample.binary else ()):
        values = np.array([r["mean_score"][g] for r in rates])
        if not np.isnan(values).all():
            groups.setdefault(group, {})["mean_score"] = _pair(np.nanquantile(values, tails))
    return Intervals(figures, groups)


def _present(counted: Decisions) -> Decisions:
    """Only the groups that have records, as the point figures have them."""
    seen = np.flatnonzero(counted.totals > 0)
    groups = tuple(counted.groups[g] for g in seen)
    return replace(counted, groups=groups, positives=counted.positives[seen], totals=counted.totals[seen])


def _pair(values: FloatArray) -> tuple[float, float]:
    return float(values[0]), float(values[1])


# ---- Warnings about models that are of no use: they give everybody the same answer, or training diverged.
#
# Such a model can look fair, because rejecting everybody treats all groups alike. So reports warn wherever they show
# its figures. For a private run the warnings use only what is released anyway, the model's parameters and noisy counts
# of its decisions: post-processing, which costs no privacy.

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
