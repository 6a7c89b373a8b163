"""Largest differences over attributes, whose they are, and intervals around them."""

from __future__ import annotations

import numpy as np
import pytest

from privfair.fairness.metrics import headline, largest, spread


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
