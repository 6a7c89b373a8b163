"""Figures from noisy confusion counts."""

from __future__ import annotations

import numpy as np
import pytest

from privfair.fairness.released import released_figures
from privfair.mechanisms import CountNoise, SeededEntropy
from tests.end_to_end.federations import toy

SCHEMA = toy().schema
EXACT = np.array([[[300, 100], [100, 300]], [[200, 200], [100, 300]]])


def test_without_noise_the_figures_are_those_of_the_counts() -> None:
    found = released_figures([(EXACT,)], SCHEMA, CountNoise("laplace", 1e-3), np.random.default_rng(0), draws=5)
    assert found["accuracy"] == pytest.approx(1100 / 1600)
    assert found["unfairness"]["statistical_parity"] == pytest.approx(500 / 800 - 400 / 800)
    assert found["unfairness"]["predictive_equality"] == pytest.approx(0.25)
    assert found["unfairness"]["equal_opportunity"] == pytest.approx(0.0)
    assert found["confidence_intervals"]["accuracy"] == pytest.approx([1100 / 1600] * 2)


def test_intervals_cover_the_truth() -> None:
    """Of 200 intervals for the accuracy at least 160 hold it: at a coverage of 90% fewer has probability below 1e-5."""
    noise, entropy = CountNoise("laplace", 15.0), SeededEntropy(np.random.default_rng(1))
    hits = 0
    for _ in range(200):
        replies = [(noise.release(EXACT // 4, entropy),) for _ in range(4)]
        low, high = released_figures(replies, SCHEMA, noise, np.random.default_rng(0), draws=100)[
            "confidence_intervals"
        ]["accuracy"]
        hits += low <= 1100 / 1600 <= high
    assert hits >= 160
