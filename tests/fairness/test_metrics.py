"""Metrics against fairlearn and against counting by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference

from privfair.datasets.records import Records, Schema, SensitiveAttribute
from privfair.fairness.metrics import (
    Predicted,
    accuracy,
    confidence_intervals,
    group_table,
    largest_unfairness,
    notion_gap,
    penalty_mmd2,
    unfairness,
)
from privfair.fairness.notions import EQUALIZED_ODDS, Cells
from privfair.kernels import EnergyKernel, mmd2


def example(n: int = 300, groups: int = 3) -> tuple[Predicted, Schema]:
    rng = np.random.default_rng(0)
    schema = Schema(
        ("x",), "binary", "y", (0, 1), (SensitiveAttribute("colour", tuple(f"c{i}" for i in range(groups))),)
    )
    records = Records(
        rng.normal(size=(n, 1)),
        rng.integers(2, size=n),
        rng.integers(groups, size=(n, 1)),
        np.zeros((n, 0), dtype=bool),
    )
    predictions = rng.uniform(size=n)
    return Predicted(records, predictions, rng.exponential(size=n), predictions), schema


def test_unfairness_equals_fairlearn() -> None:
    predicted, schema = example()
    found = unfairness(predicted, schema)
    decisions = (predicted.predictions >= 0.5).astype(int)
    labels, groups = predicted.records.labels.astype(int), predicted.records.groups[:, 0]
    parity = demographic_parity_difference(labels, decisions, sensitive_features=groups)
    odds = equalized_odds_difference(labels, decisions, sensitive_features=groups)
    assert found["statistical_parity"] == pytest.approx(parity)
    assert found["equalized_odds"] == pytest.approx(odds)
    assert accuracy(predicted, schema) == pytest.approx(np.mean(decisions == labels))


def test_group_table_counts_right() -> None:
    predicted, schema = example()
    table = group_table(predicted, schema)
    mine = predicted.records.groups[:, 0] == 1
    assert table["c1"]["records"] == mine.sum()
    assert table["c1"]["selection_rate"] == pytest.approx(np.mean(predicted.predictions[mine] >= 0.5))
    assert table["c1"]["mean_score"] == pytest.approx(predicted.predictions[mine].mean())


def test_missing_groups_and_labels_give_none() -> None:
    predicted, schema = example(20, 2)
    one_group = Records(
        predicted.records.features, np.zeros(20), np.zeros((20, 1), dtype=int), predicted.records.conditions
    )
    found = unfairness(Predicted(one_group, predicted.predictions, predicted.losses, predicted.scores), schema)
    assert found["statistical_parity"] is None
    assert found["equal_opportunity"] is None
    assert found["equalized_odds"] is None
    table = group_table(Predicted(one_group, predicted.predictions, predicted.losses, predicted.scores), schema)
    assert list(table) == ["c0"]


def test_penalty_is_the_sum_over_pairs_and_sets() -> None:
    predicted, schema = example(60, 3)
    cells = Cells.of(EQUALIZED_ODDS, schema)
    groups, labels, scores = predicted.records.groups[:, 0], predicted.records.labels, predicted.predictions
    expected = 0.0
    for label in (0, 1):
        for a, b in ((0, 1), (0, 2), (1, 2)):
            expected += mmd2(
                scores[(groups == a) & (labels == label)], scores[(groups == b) & (labels == label)], EnergyKernel()
            )
    assert penalty_mmd2(predicted, cells, EnergyKernel()) == pytest.approx(expected)


def test_confidence_intervals_have_the_right_width() -> None:
    """The interval of a rate of n records is about ±1.96·√(p(1−p)/n); within 15% at 500 draws; it has the estimate."""
    predicted, schema = example(1000, 2)
    intervals = confidence_intervals(predicted, schema, np.random.default_rng(1))
    p = accuracy(predicted, schema) or 0.0
    low, high = intervals.figures["accuracy"]
    assert low < p < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(p * (1 - p) / 1000), rel=0.15)
    mine = predicted.records.groups[:, 0] == 1
    rate = float(np.mean(predicted.predictions[mine] >= 0.5))
    low, high = intervals.groups["c1"]["selection_rate"]
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(rate * (1 - rate) / mine.sum()), rel=0.2)
    for name, value in unfairness(predicted, schema).items():
        low, high = intervals.figures[name]
        assert low <= (value or 0.0) <= high


def test_no_interval_of_a_difference_of_shares_ends_above_one() -> None:
    """Few records: shifting by the bias would move its end beyond."""
    for seed in range(5):
        predicted, schema = example(12, 3)
        figures = confidence_intervals(predicted, schema, np.random.default_rng(seed)).figures
        assert all(0 <= low <= high <= 1 for name, (low, high) in figures.items() if name != "risk_parity")


def test_a_notion_is_measured_on_its_own_sets() -> None:
    predicted, schema = example(200, 2)
    cells = Cells.of(EQUALIZED_ODDS, schema)
    assert notion_gap(predicted, schema, cells) == pytest.approx(unfairness(predicted, schema)["equalized_odds"])


def test_one_record_alone() -> None:
    predicted, schema = example(1, 2)
    table = group_table(predicted, schema)
    assert [row["records"] for row in table.values()] == [1]
    assert confidence_intervals(predicted, schema, np.random.default_rng(0)).figures == {}


@pytest.mark.filterwarnings("error")
def test_a_rate_of_a_group_without_such_labels_is_none() -> None:
    """Group 0 has no negative labels, group 1 no positive ones."""
    predicted, schema = example(90, 3)
    groups = predicted.records.groups[:, 0]
    labels = np.select([groups == 0, groups == 1], [1, 0], predicted.records.labels)
    predicted = replace(predicted, records=replace(predicted.records, labels=labels))
    table = group_table(predicted, schema)
    assert table["c0"]["false_positive_rate"] is None
    assert table["c1"]["true_positive_rate"] is None
    chosen = predicted.predictions >= 0.5
    assert table["c0"]["true_positive_rate"] == pytest.approx(chosen[groups == 0].mean())
    assert table["c1"]["false_positive_rate"] == pytest.approx(chosen[groups == 1].mean())
    assert None not in table["c2"].values()
    intervals = confidence_intervals(predicted, schema, np.random.default_rng(0))
    assert "false_positive_rate" not in intervals.groups["c0"]
    assert "true_positive_rate" not in intervals.groups["c1"]
    rates = [table[g]["false_positive_rate"] or 0.0 for g in ("c1", "c2")]
    assert unfairness(predicted, schema)["predictive_equality"] == pytest.approx(abs(rates[0] - rates[1]))
    alone = int(np.flatnonzero(groups == 0)[0])
    assert group_table(predicted_of(predicted, [alone]), schema)["c0"]["false_positive_rate"] is None


def predicted_of(predicted: Predicted, rows: list[int]) -> Predicted:
    """Some of the records."""
    return Predicted(
        predicted.records.take(rows), predicted.predictions[rows], predicted.losses[rows], predicted.scores[rows]
    )


def test_unfairness_of_several_attributes_is_the_largest_of_them() -> None:
    predicted, one = example(300, 2)
    far = (predicted.predictions >= 0.6).astype(int)  # a second attribute, which decisions follow
    records = replace(predicted.records, groups=np.column_stack([predicted.records.groups, far]))
    predicted = replace(predicted, records=records)
    schema = replace(one, sensitive=(*one.sensitive, SensitiveAttribute("shape", ("round", "square"))))
    own = [unfairness(predicted, schema, a) for a in (0, 1)]
    found = largest_unfairness(predicted, schema)
    assert found["statistical_parity"] == own[1]["statistical_parity"]
    assert found == {name: max(own[0][name] or 0.0, own[1][name] or 0.0) for name in found}
    assert largest_unfairness(predicted, one) == own[0]  # of one attribute: its own
    cells = Cells.of(EQUALIZED_ODDS, schema)
    for a in (0, 1):
        assert notion_gap(predicted, schema, cells, a) == pytest.approx(own[a]["equalized_odds"])
    assert notion_gap(predicted, schema, cells) == pytest.approx(found["equalized_odds"])
