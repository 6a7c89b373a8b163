from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privfair.sweeps.frontiers import as_table, compare, efficient, hypervolume, points_of, quality_name, reference_of
from privfair.sweeps.journal import COLUMNS


def row(
    series: str, value: float | None, seed: int, accuracy: float | None, unfairness: float | None, **more: Any
) -> Any:
    known = {"series": series, "method": series, "value": value, "seed": seed, "accuracy": accuracy}
    return {
        **dict.fromkeys(COLUMNS), **known, "unfairness": unfairness, "status": "done", "epsilon_target": math.inf,
        "baseline_accuracy": 0.5, **more,
    }  # fmt: skip


ROWS = [
    *(row("mmd_fedavg", 0.0, s, 0.80 + 0.01 * s, 0.40) for s in range(3)),
    *(row("mmd_fedavg", 1.0, s, 0.70 + 0.01 * s, 0.10) for s in range(3)),
    *(row("local_fairness", 0.0, s, 0.80, 0.40) for s in range(3)),
    *(row("local_fairness", 1.0, s, 0.60, 0.20) for s in range(3)),
]


def test_means_and_standard_errors() -> None:
    first = as_table(points_of(ROWS), "accuracy")[1]
    values = np.array([0.70, 0.71, 0.72])
    assert first["accuracy"] == pytest.approx(values.mean())
    assert first["accuracy_se"] == pytest.approx(values.std(ddof=1) / math.sqrt(3))
    assert (first["unfairness"], first["unfairness_se"]) == (pytest.approx(0.1), pytest.approx(0.0))
    assert first["pareto"]
    assert first["pareto_of_series"]


def test_failed_rows_and_missing_figures_are_left_out() -> None:
    odd = [row("fedavg", None, 0, 0.9, 0.0, status="failed"), row("fedavg", None, 1, 0.9, None), ROWS[0]]
    (only,) = points_of(odd)
    assert (only.series, only.seeds) == ("mmd_fedavg", (0,))
    assert as_table([only], "accuracy")[0]["accuracy_se"] is None


def test_pareto_points_are_over_all_series() -> None:
    assert efficient(points_of(ROWS)) == [True, True, False, False]


def test_regression_is_compared_by_rmse() -> None:
    rows = [row("fedavg", None, s, None, 0.1, rmse=2.0, baseline_accuracy=None, baseline_rmse=3.0) for s in range(2)]
    assert quality_name(rows) == "rmse"
    (point,) = as_table(points_of(rows), "rmse")
    assert point["rmse"] == 2.0
    reference = reference_of(rows)
    assert reference is not None
    assert reference.quality == -3.0


def test_the_reference_is_a_constant_answer_without_a_penalty() -> None:
    reference = reference_of(ROWS)
    assert reference is not None
    assert (reference.quality, reference.unfairness) == (0.5, pytest.approx(0.4))
    assert reference.origin == "quality of a constant answer, unfairness without a penalty"
    without = reference_of([r for r in ROWS if r["value"] != 0])
    assert without is not None
    assert without.unfairness == pytest.approx(0.2)
    assert "local_fairness at its smallest value, 1 (no λ = 0 in the sweep)" in without.origin
    assert reference_of([]) is None


def test_areas_and_paired_bootstrap() -> None:
    reference = reference_of(ROWS)
    assert reference is not None
    first, second = compare(points_of(ROWS), reference, np.random.default_rng(0), resamples=400)
    corner = (0.5, reference.unfairness)
    assert first.value == pytest.approx(hypervolume(np.array([0.81, 0.71]), np.array([0.4, 0.1]), corner))
    assert second.value == pytest.approx(0.1 * 0.2)
    assert second.difference == pytest.approx(second.value - first.value)
    # every seed of the second series is alike, so its area does not move, and the first moves by ±0.01·0.3 at most
    assert second.interval == pytest.approx((0.02, 0.02))
    assert first.interval is not None
    assert (
        first.value - 0.003 - 1e-9 <= first.interval[0] < first.value < first.interval[1] <= first.value + 0.003 + 1e-9
    )
    assert second.difference_interval == pytest.approx((0.02 - first.interval[1], 0.02 - first.interval[0]))


def test_bootstrap_interval_covers_as_often_as_it_says() -> None:
    """Coverage for one point whose area is linear in the mean: the percentile interval of 10 normal values."""
    rng = np.random.default_rng(1)
    trials, seeds, hits = 60, 10, 0
    for _ in range(trials):
        rows = [row("mmd_fedavg", 1.0, s, float(0.7 + 0.02 * rng.standard_normal()), 0.1) for s in range(seeds)]
        rows.append(row("fedavg", None, 0, 0.55, 0.4))
        reference = reference_of(rows)
        assert reference is not None
        area, _ = compare(points_of(rows), reference, rng, resamples=200)
        assert area.interval is not None
        hits += area.interval[0] <= 0.2 * 0.3 <= area.interval[1]
    # A bootstrap of n = 10 uses the deviation with n instead of n − 1 and no t quantile: coverage about 0.90.
    expected, error = 0.90, math.sqrt(0.9 * 0.1 / trials)
    assert abs(hits / trials - expected) < 4 * error + 0.02


def test_one_seed_has_no_interval() -> None:
    rows = [r for r in ROWS if r["seed"] == 0]
    reference = reference_of(rows)
    assert reference is not None
    for area in compare(points_of(rows), reference, np.random.default_rng(0)):
        assert area.interval is None
        assert area.difference_interval is None
