"""Largest differences over attributes, whose they are, and intervals around them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from privfair.fairness.metrics import headline, interval_around, largest, spread


def test_the_headline_is_the_largest_gap_with_its_own_interval() -> None:
    sex = {
        "unfairness": {"statistical_parity": 0.1, "equal_opportunity": 0.4, "risk_parity": None, "other": None},
        "confidence_intervals": {"statistical_parity": (0.0, 0.2), "equal_opportunity": (0.3, 0.5)},
    }
    race = {
        "unfairness": {"statistical_parity": 0.4, "equal_opportunity": 0.4, "risk_parity": 0.0, "other": None},
        "confidence_intervals": {"statistical_parity": (0.35, 0.45)},
    }
    found = headline({"sex": sex, "race": race})
    assert found["unfairness"] == {
        "statistical_parity": 0.4, "equal_opportunity": 0.4, "risk_parity": 0.0, "other": None,
    }  # fmt: skip
    assert found["unfairness_of"] == {"statistical_parity": "race", "equal_opportunity": "sex", "risk_parity": "race"}
    assert found["confidence_intervals"] == {"statistical_parity": (0.35, 0.45), "equal_opportunity": (0.3, 0.5)}
    assert largest([sex["unfairness"], race["unfairness"]]) == found["unfairness"]  # what a line of the history has


def test_a_spread_needs_two_known_rates() -> None:
    assert spread(np.array([0.2, np.nan, 0.7])) == pytest.approx(0.5)
    assert spread(np.array([0.2, np.nan])) is None
    assert spread(np.array([])) is None


@pytest.mark.parametrize("groups", [2, 3, 8])
@pytest.mark.parametrize("gap", [0.0, 0.1, 1.0])
def test_intervals_hold_the_truth_as_often_as_they_say(groups: int, gap: float) -> None:
    """Of 500 at least as many as 95% coverage gives but once in 10⁵; the quantile of 400 draws takes half a percent."""
    rng = np.random.default_rng(groups)
    truth, scale, hits = np.zeros(groups), 0.1, 0
    truth[0] = gap
    for _ in range(500):
        measured = spread(truth + scale * rng.normal(size=groups))
        assert measured is not None
        low, high = interval_around(
            measured, np.ptp(scale * rng.normal(size=(400, groups)), axis=1).tolist(), most=np.inf
        )
        hits += low <= gap <= high
    assert hits >= binom.ppf(1e-5, 500, 0.945)


def test_intervals_are_cut_where_a_difference_of_shares_ends() -> None:
    assert interval_around(0.05, [0.2] * 3) == (0.0, 0.25)
    assert interval_around(0.95, [0.2] * 3) == (0.75, 1.0)
