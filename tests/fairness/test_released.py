"""Figures from noisy confusion counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from privfair.datasets.records import Schema, SensitiveAttribute
from privfair.fairness.notions import EQUAL_OPPORTUNITY, STATISTICAL_PARITY, Cells, ConditioningSet, Notion
from privfair.fairness.released import released_decisions, released_figures, released_verdict
from privfair.mechanisms import CountNoise, SeededEntropy
from tests.end_to_end.federations import toy

SCHEMA = toy().schema
EXACT = np.array([[[300, 100], [100, 300]], [[200, 200], [100, 300]]])


def test_without_noise_the_figures_are_those_of_the_counts() -> None:
    found = released_figures([(EXACT,)], SCHEMA, CountNoise("gaussian", 1e-3))
    assert found["accuracy"] == pytest.approx(1100 / 1600)
    assert found["unfairness"]["statistical_parity"] == pytest.approx(500 / 800 - 400 / 800)
    assert found["unfairness"]["predictive_equality"] == pytest.approx(0.25)
    assert found["unfairness"]["equal_opportunity"] == pytest.approx(0.0)
    wilson = binomtest(1100, 1600).proportion_ci(0.95, "wilson")
    assert found["confidence_intervals"]["accuracy"] == pytest.approx([wilson.low, wilson.high], abs=1e-6)
    assert found["groups"][SCHEMA.sensitive[0].name]["0"]["intervals"]["true_positive_rate"] == pytest.approx(
        list(binomtest(300, 400).proportion_ci(0.95, "wilson")), abs=1e-6
    )


def test_intervals_cover_the_truth() -> None:
    """Of 200 intervals for the accuracy at least 160 hold it: at a coverage of 90% fewer has probability below 1e-5.

    The test records are the same each time, so that the intervals, which are for people, hold it more often than 95%.
    """
    noise, entropy = CountNoise("laplace", 15.0), SeededEntropy(np.random.default_rng(1))
    hits = 0
    for _ in range(200):
        replies = [(noise.release(EXACT // 4, entropy),) for _ in range(4)]
        low, high = released_figures(replies, SCHEMA, noise)["confidence_intervals"]["accuracy"]
        hits += low <= 1100 / 1600 <= high
    assert hits >= 160


def with_attributes(*groups: int) -> Schema:
    """Binary labels, and attributes of so many groups."""
    sensitive = (SensitiveAttribute(f"s{a}", tuple(map(str, range(n)))) for a, n in enumerate(groups))
    return Schema(("x",), "binary", "y", (0, 1), tuple(sensitive))


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("notion", ["statistical_parity", "equalized_odds"])
def test_intervals_cover_a_gap_of_zero(groups: int, notion: str) -> None:
    """Of 150 at least as many as 94.5% coverage gives but once in 10⁵."""
    noise, entropy = CountNoise("laplace", 10.0), SeededEntropy(np.random.default_rng(groups))
    same = np.tile(EXACT[:1], (groups, 1, 1))
    hits = 0
    for _ in range(150):
        replies = [(noise.release(same, entropy),)]
        found = released_figures(replies, with_attributes(groups), noise)
        low, high = found["confidence_intervals"][notion]
        assert low <= found["unfairness"][notion] <= high <= 1
        hits += low == 0
    assert hits >= binom.ppf(1e-5, 150, 0.945)


def test_the_largest_gap_over_attributes_has_its_name_and_interval() -> None:
    further = np.array([[[390, 10], [190, 210]], [[10, 390], [190, 210]]])
    noise = CountNoise("laplace", 1.0)
    found = released_figures([(EXACT, further)], with_attributes(2, 2), noise)
    assert found["unfairness"]["statistical_parity"] == pytest.approx(600 / 800 - 220 / 800)
    assert found["unfairness_of"]["statistical_parity"] == found["unfairness_of"]["equalized_odds"] == "s1"
    for name, of in found["unfairness_of"].items():
        own = found["by_attribute"][of]
        assert found["unfairness"][name] == own["unfairness"][name] >= found["by_attribute"]["s0"]["unfairness"][name]
        assert found["confidence_intervals"][name] == own["confidence_intervals"][name]
        assert own["confidence_intervals"][name][0] <= own["unfairness"][name] <= own["confidence_intervals"][name][1]
    assert found["by_attribute"]["s0"]["unfairness"]["statistical_parity"] == pytest.approx(0.125)


def test_groups_without_a_label_have_no_such_rate() -> None:
    table = EXACT.copy()
    table[1, 0] = 0  # nobody of the second group has a negative label
    noise = CountNoise("laplace", 1e-3)
    found = released_figures([(table,)], SCHEMA, noise)
    assert found["groups"]["s0"]["1"]["false_positive_rate"] is None
    assert found["unfairness"]["predictive_equality"] is None
    assert "predictive_equality" not in found["confidence_intervals"]
    assert found["unfairness_of"].keys() == {"statistical_parity", "equal_opportunity", "equalized_odds"}
    assert found["unfairness"]["equalized_odds"] == found["unfairness"]["equal_opportunity"]


def test_a_verdict_rests_on_the_counts_of_its_notion() -> None:
    cells = Cells.of(EQUAL_OPPORTUNITY, SCHEMA)
    noise = CountNoise("gaussian", 2.0)
    (counted,) = released_decisions([(EXACT,), (EXACT,)], SCHEMA, noise, "equal_opportunity")
    assert counted.positives.tolist() == [600, 600]
    assert counted.totals.tolist() == [800, 800]
    assert counted.variance == 2 * 2.0**2  # one number of positive decisions from each of two clients
    (everyone,) = released_decisions([(EXACT,)], SCHEMA, CountNoise("laplace", 3.0), "statistical_parity")
    assert (everyone.variance, everyone.laplace) == (2 * 2 * 3.0**2, 2)
    found = released_verdict([(EXACT,), (EXACT,)], SCHEMA, noise, cells, 0.2)
    assert found["answer"] == "met"
    assert "Target met" in found["sentence"]
    assert released_verdict([], SCHEMA, noise, cells, 0.2)["answer"] == "cannot tell"
    assert released_verdict([], SCHEMA, noise, cells, None)["answer"] is None


def test_a_model_that_may_say_the_same_to_everybody_is_not_called_fair() -> None:
    cells, noise = Cells.of(STATISTICAL_PARITY, SCHEMA), CountNoise("gaussian", 20.0)
    table = np.array([[[400, 10], [400, 20]], [[400, 10], [400, 5]]])
    found = released_verdict([(table,)], SCHEMA, noise, cells, 0.2)
    assert found["answer"] == "cannot tell"
    assert "the same answer" in found["sentence"]
    # as many positive decisions with less noise are no doubt some
    assert released_verdict([(table,)], SCHEMA, CountNoise("gaussian", 3.0), cells, 0.2)["answer"] == "met"


def test_other_conditioning_sets_have_no_verdict_from_released_counts() -> None:
    own = Notion("own", "prediction", (ConditioningSet("some", lambda records: records.labels >= 0),))
    found = released_verdict([(EXACT,)], SCHEMA, CountNoise("gaussian", 1.0), Cells.of(own, SCHEMA), 0.2)
    assert found["answer"] == "cannot tell"
    assert "conditioning sets" in found["reason"]
