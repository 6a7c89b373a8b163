"""The verdict: limits against other people's figures, their coverage by simulation, and what must never happen."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from privfair.fairness.verdict import (
    Decisions,
    interval,
    least_target,
    limits,
    lower_limit,
    needed,
    quantile,
    records_for,
    standard_error,
    unsound,
    upper_bound,
    upper_limit,
    verdict,
)

DATASETS = 10_000


def of(positives, totals, variance=0.0, laplace=0, attribute="sex", condition="everyone"):
    groups = tuple("ABCDEF"[: len(positives)])
    return Decisions(attribute, condition, groups, np.asarray(positives), np.asarray(totals), variance, laplace)


# ---- Against other implementations and published figures.


@pytest.mark.parametrize(("count", "total"), [(0, 7), (3, 7), (7, 7), (81, 263), (15, 148), (1, 2000)])
@pytest.mark.parametrize("level", [0.9, 0.96, 0.99])
def test_without_noise_a_rate_has_wilsons_limits(count, total, level):
    low, high = limits(count, total, 0.0, quantile((1 - level) / 2))
    expected = stats.binomtest(count, total).proportion_ci(level, "wilson")
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)


# Newcombe (1998), Statistics in Medicine 17, table II, method 10, 95%
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((6, 7), (2, 7), (0.0582, 0.8062)),
        ((5, 56), (0, 29), (-0.0381, 0.1926)),
        ((0, 10), (0, 20), (-0.1611, 0.2775)),
        ((10, 10), (0, 20), (0.6791, 1.0)),
    ],
)
def test_pairs_have_newcombes_limits(first, second, expected):
    z = quantile(0.025)
    counts, totals = np.array([first[0], second[0]]), np.array([first[1], second[1]])
    upper, lower = upper_limit(counts, totals, 0.0, z), lower_limit(counts, totals, 0.0, z)
    # the largest over both directions: that of first − second is above the other one's here, but for equal rates
    if first[0] * second[1] > second[0] * first[1]:
        assert upper == pytest.approx(expected[1], abs=6e-5)
        assert lower == pytest.approx(max(expected[0], 0.0), abs=6e-5)
    else:
        assert upper == pytest.approx(max(-expected[0], expected[1]), abs=6e-5)
        assert lower == 0


@pytest.mark.parametrize(("count", "total", "noise"), [(30.0, 100.0, 5.0), (-4.0, 60.0, 5.0), (400.0, 1500.0, 20.0)])
def test_with_noise_the_limits_solve_the_equation(count, total, noise):
    z, v = 1.9, noise**2
    low, high = limits(count, total, v, z)
    kept = max(count, 0.0)

    def excess(p):
        return (kept - p * total) ** 2 - z**2 * (total * p * (1 - p) + v * ((1 - p) ** 2 + p**2))

    middle = kept / total
    assert excess(middle) < 0
    assert high == pytest.approx(brentq(excess, middle, 1.0), abs=1e-9)
    assert low == (pytest.approx(brentq(excess, 0.0, middle), abs=1e-9) if excess(0.0) > 0 else 0.0)


@pytest.mark.parametrize(
    ("count", "total", "noise"), [(3.0, 0.0, 5.0), (-3.0, -8.0, 5.0), (2.0, 4.0, 20.0), (0.0, 0.0, 0.0)]
)
def test_too_few_records_for_the_noise_say_nothing(count, total, noise):
    assert [float(x) for x in limits(count, total, noise**2, 1.75)] == [0.0, 1.0]


@pytest.mark.parametrize("parts", [1, 2, 7, 40])
def test_the_tail_of_laplace_noise_is_that_of_its_sum(parts):
    rng, draws, tail = np.random.default_rng(7), 400_000, 0.01
    sums = rng.laplace(size=(draws, parts)).sum(axis=1) / math.sqrt(2 * parts)
    beyond = float((sums > quantile(tail, parts)).mean())
    assert abs(beyond - tail) < 5 * math.sqrt(tail * (1 - tail) / draws)


def test_the_tail_of_laplace_noise_becomes_normal():
    assert quantile(0.02, 1) == pytest.approx(math.log(25) / math.sqrt(2))
    assert quantile(0.02, 400) == pytest.approx(stats.norm.isf(0.02), abs=2e-3)
    assert quantile(0.04, 1) > quantile(0.04, 5) > quantile(0.04)


# ---- Coverage.

SIZES = {2: [(60, 90), (100, 2000), (1000, 1500)], 3: [(60, 90, 150), (100, 2000, 400), (1000, 1200, 2000)]}


@pytest.mark.parametrize(("noise", "law"), [(0, "gaussian"), (5, "gaussian"), (20, "gaussian"), (5, "laplace")])
@pytest.mark.parametrize("gap", [0.0, 0.02, 0.1])
def test_intervals_hold_the_true_gap_often_enough(gap, noise, law):
    """At least 94.5% in each cell, with fresh seeds: no method was chosen by these draws."""
    seed = 88_000 + 1000 * int(100 * gap) + 10 * noise + (law == "laplace")
    rng = np.random.default_rng(seed)
    laplace = 1 if law == "laplace" else 0
    for groups, sets, base in itertools.product((2, 3), (1, 2), (0.05, 0.3)):
        pairs = math.comb(groups, 2) * sets
        for sizes in SIZES[groups]:
            low, high, most = [], [], []
            for number in range(sets):
                rate = np.full(groups, base)
                rate[-1] += gap if number == 0 else gap / 2
                size = np.array(sizes)
                count = rng.binomial(size, rate, size=(DATASETS, groups))
                if law == "laplace":
                    draws = np.rint(rng.laplace(scale=noise, size=(2, *count.shape)))
                else:
                    draws = np.rint(rng.normal(scale=noise, size=(2, *count.shape)))
                v = noise**2 * (2 if laplace else 1)
                positives, totals = count + draws[0], size + draws[0] + draws[1]
                low.append(lower_limit(positives, totals, v, quantile(0.02 / pairs, laplace)))
                high.append(upper_limit(positives, totals, v, quantile(0.02, laplace)))
                most.append(upper_limit(positives, totals, v, quantile(0.04, laplace)))
            held = (np.max(low, axis=0) <= gap) & (gap <= np.max(high, axis=0))
            cell = (groups, sets, base, sizes)
            assert held.mean() >= 0.945, cell
            assert (gap <= np.max(most, axis=0)).mean() >= 0.94, cell


@pytest.mark.parametrize("sizes", [(50, 500), (100, 2000), (60, 90), (200, 200), (400, 100)])
def test_coverage_without_noise_by_enumeration(sizes):
    """Exactly, over all pairs of counts. Nominal 96%; the bound alone is a little short in small groups."""
    grid = np.meshgrid(*(np.arange(size + 1) for size in sizes), indexing="ij")
    counts, z = np.stack(grid, axis=-1), quantile(0.02)
    most = upper_limit(counts, np.array(sizes), 0.0, quantile(0.04))
    low, high = lower_limit(counts, np.array(sizes), 0.0, z), upper_limit(counts, np.array(sizes), 0.0, z)
    for base, gap in itertools.product((0.05, 0.2, 0.5), (0.0, 0.02, 0.1, 0.2)):
        rates = (base, base + gap)
        weights = np.prod([stats.binom.pmf(counts[..., i], sizes[i], rates[i]) for i in (0, 1)], axis=0)
        assert weights[(low <= gap) & (gap <= high)].sum() >= 0.955
        assert weights[gap <= most].sum() >= 0.944


def test_ignoring_the_noise_would_miss_the_gap():
    """The simulation above finds the mistake that it is for."""
    rng, size, noise = np.random.default_rng(99), np.array([100, 120]), 20
    count = rng.binomial(size, 0.3, size=(DATASETS, 2))
    draws = np.rint(rng.normal(scale=noise, size=(2, DATASETS, 2)))
    positives, totals = count + draws[0], size + draws[0] + draws[1]
    low, high = (limit(positives, totals, 0.0, quantile(0.02)) for limit in (lower_limit, upper_limit))
    assert ((low <= 0) & (high >= 0)).mean() < 0.8


# ---- What must hold for any counts.

COUNTS = st.integers(-20, 400)
TOTALS = st.integers(1, 400)
NOISE = st.floats(0, 400)
Z = st.floats(0.5, 4)
SLACK = 1e-9


@settings(deadline=None)
@given(COUNTS, TOTALS, NOISE, Z, st.floats(1, 3))
def test_more_noise_or_more_certainty_widens_the_limits(count, total, variance, z, factor):
    low, high = limits(count, total, variance, z)
    for other in (limits(count, total, variance * factor, z), limits(count, total, variance, z * factor)):
        assert other[0] <= low + SLACK
        assert other[1] >= high - SLACK
    assert 0 <= low <= min(max(count / total, 0), 1) <= high <= 1


@settings(deadline=None)
@given(COUNTS, TOTALS, NOISE, Z)
def test_limits_rise_with_the_count_and_mirror(count, total, variance, z):
    low, high = limits(count, total, variance, z)
    more = limits(count + 1, total, variance, z)
    assert more[0] >= low - SLACK
    assert more[1] >= high - SLACK
    mirrored = limits(total - count, total, variance, z)
    assert mirrored[0] == pytest.approx(1 - high, abs=1e-7)
    assert mirrored[1] == pytest.approx(1 - low, abs=1e-7)


GROUPS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 300)).map(lambda t: (min(t), max(t))), min_size=2, max_size=4
)


@settings(deadline=None)
@given(GROUPS, st.sampled_from([0.0, 9.0, 100.0]), st.floats(0.01, 0.5), st.floats(1, 2))
def test_a_higher_target_is_never_harder_to_meet(groups, variance, target, factor):
    counts = of([k for k, _ in groups], [n for _, n in groups], variance)
    order = ["not met", "cannot tell", "met"]
    low, high = verdict([counts], target), verdict([counts], target * factor)
    assert order.index(high.answer) >= order.index(low.answer)
    assert low.interval[0] <= low.upper <= low.interval[1]
    if low.gap is not None and variance == 0:
        assert low.interval[0] <= low.gap <= low.upper


@settings(deadline=None)
@given(GROUPS, st.sampled_from([0.0, 9.0]))
def test_more_sets_and_attributes_never_lower_the_bound(groups, variance):
    one = of([k for k, _ in groups], [n for _, n in groups], variance)
    other = of([10, 20], [100, 90], variance, condition="label 1")
    assert upper_bound([one, other]) >= upper_bound([one])
    assert interval([one, other])[0] >= 0


@settings(deadline=None)
@given(GROUPS, st.integers(2, 6))
def test_more_records_at_the_same_rates_narrow_the_interval(groups, times):
    few = of([k for k, _ in groups], [n for _, n in groups])
    assert upper_bound([few.scaled(times)]) <= upper_bound([few]) + SLACK


# ---- Answers.


def test_the_three_answers():
    assert verdict([of([300, 310], [3000, 3000])], 0.05).answer == "met"
    assert verdict([of([300, 900], [3000, 3000])], 0.05).answer == "not met"
    assert verdict([of([30, 39], [300, 300])], 0.05).answer == "cannot tell"
    assert verdict([of([30, 39], [300, 300])], None).answer is None


def test_the_gap_has_a_sign_and_names_its_groups():
    found = verdict([of([300, 350, 420], [3000, 3000, 3000])], 0.05)
    assert found.between == ("A", "C")
    assert found.gap == pytest.approx(0.04)
    assert found.difference == pytest.approx(-0.04)


def test_records_that_would_decide_do():
    counts = of([30, 39], [300, 300])
    found = needed([counts], 0.05)
    assert found.noise is None
    assert found.records is not None
    assert found.records > 600
    assert verdict([counts.scaled(found.records / 600)], 0.05).answer == "met"
    assert verdict([counts.scaled(found.records / 600 * 0.98)], 0.05).answer == "cannot tell"


def test_less_noise_that_would_decide_does():
    counts = of([600, 660], [3000, 3000], variance=60.0**2)
    assert verdict([counts], 0.05).answer == "cannot tell"
    found = needed([counts], 0.05)
    assert found.noise is not None
    assert 0 < found.noise < 1
    assert verdict([counts.scaled(variance=found.noise**2)], 0.05).answer == "met"


def test_nothing_decides_where_the_gap_is_just_the_target():
    assert needed([of([100, 150], [1000, 1000])], 0.05).records is None


def test_a_group_without_records_is_named_and_leaves_no_answer():
    found = verdict([of([300, 310, 0], [3000, 3000, 0])], 0.05)
    assert found.answer == "cannot tell"
    assert found.unknown == ("sex=C, everyone",)
    assert "sex=C" in found.reason
    assert found.between == ("A", "B")


def test_a_model_that_says_the_same_to_everybody_is_never_called_fair():
    found = verdict([of([0, 0], [3000, 3000])], 0.05)
    assert found.answer == "met"
    assert unsound(found, "The model gives everybody the same answer.").answer == "cannot tell"


# ---- What can be said beforehand.


def test_planned_standard_error_is_that_of_simulated_gaps():
    rng, sizes, rate, noise = np.random.default_rng(5), np.array([300, 900]), 0.2, 8.0
    count = rng.binomial(sizes, rate, size=(40_000, 2))
    draws = rng.normal(scale=noise, size=(2, 40_000, 2))
    share = (count + draws[0]) / (sizes + draws[0] + draws[1])
    spread = float(np.std(share[:, 0] - share[:, 1]))
    # a standard deviation of n draws has a relative error of 1/√(2n); the formula is of first order in 1/N
    assert standard_error(sizes, rate, noise**2) == pytest.approx(spread, rel=4 / math.sqrt(80_000) + 0.01)


def test_planned_standard_error_takes_the_two_worst_groups():
    assert standard_error([1000, 50, 80], 0.2) == pytest.approx(math.sqrt(0.16 / 50 + 0.16 / 80))
    assert standard_error([1000, 0], 0.2) == math.inf


def test_the_least_target_and_the_records_for_it_belong_together():
    size = records_for(0.05, 0.2, 25.0)
    assert size is not None
    assert least_target((size, size), 0.2, 25.0) <= 0.05 < least_target((0.97 * size, 0.97 * size), 0.2, 25.0)


def test_communities_cannot_meet_a_twentieth_even_at_a_gap_of_nothing():
    assert least_target((120, 121), 0.5) > 0.05
