"""The privacy of whole messages: exact divergences between neighbours, and one measured from real draws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import beta

from accountant import delta_of
from privfair.mechanisms.entropy import SystemEntropy
from privfair.mechanisms.score_release import Kind, ScoreNoise, fixed_scores, fixed_scores_event, poisson_scores_event
from tests.mechanisms.laws import Law, fixed_message_law, hockey_stick, noisy, poisson_message_law

STEPS, SCALE = 4, 2.0  # a range of four steps with noise of two: losses large enough to see
EPSILONS = (0.05, 0.3, 0.8, 1.5)
VALUES = (0, 2, 4)  # the ends and the middle


def _worst(pairs: list[tuple[Law, Law]], kind: Kind) -> dict[float, float]:
    """The largest δ(ε) of any pair, in either direction, over the exact laws of the noisy messages."""
    worst = dict.fromkeys(EPSILONS, 0.0)
    for first, second in pairs:
        p, q = noisy(first, kind, SCALE, STEPS), noisy(second, kind, SCALE, STEPS)
        for epsilon in EPSILONS:
            worst[epsilon] = max(worst[epsilon], hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
    return worst


def _poisson_pairs(length: int, rate: float) -> list[tuple[Law, Law]]:
    pairs = []
    for n in range(4):
        for records in itertools.combinations_with_replacement(VALUES, n):
            for new in VALUES:
                without = poisson_message_law(records, length, rate, STEPS // 2)
                pairs.append((without, poisson_message_law((*records, new), length, rate, STEPS // 2)))
    return pairs


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize(("length", "rate"), [(1, 0.3), (1, 1.0), (2, 0.6)])
def test_no_poisson_message_tells_more_than_its_event_says(kind: Kind, length: int, rate: float) -> None:
    """All neighbours of up to four records: padded, exactly full and overfull messages."""
    event = poisson_scores_event(rate, ScoreNoise(kind, SCALE, 0.0, STEPS, 1.0))
    for epsilon, delta in _worst(_poisson_pairs(length, rate), kind).items():
        assert delta <= delta_of(event, epsilon, "pld") + 1e-9


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_a_smaller_claim_would_be_caught(kind: Kind) -> None:
    """At half the sensitivity (as if a record only ever displaced a pad) or a third of the rate the claim is false."""
    worst = _worst(_poisson_pairs(1, 1.0), kind)
    halved = poisson_scores_event(1.0, ScoreNoise(kind, 2 * SCALE, 0.0, STEPS, 1.0))
    assert any(delta > delta_of(halved, epsilon, "pld") for epsilon, delta in worst.items())
    rarer = poisson_scores_event(0.3, ScoreNoise(kind, SCALE, 0.0, STEPS, 1.0))
    assert any(delta > delta_of(rarer, epsilon, "pld") for epsilon, delta in worst.items())


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize(("length", "count"), [(1, 3), (2, 3), (2, 2), (2, 1)])
def test_no_fixed_message_tells_more_than_its_event_says(kind: Kind, length: int, count: int) -> None:
    """All neighbours by replacement; for one of one record the event is exact."""
    pairs = []
    for records in itertools.product(VALUES, repeat=count):
        for new in VALUES:
            first = fixed_message_law(records, length, STEPS // 2)
            pairs.append((first, fixed_message_law((*records[:-1], new), length, STEPS // 2)))
    event = fixed_scores_event(length, count, ScoreNoise(kind, SCALE, 0.0, STEPS, 1.0))
    for epsilon, delta in _worst(pairs, kind).items():
        assert delta <= delta_of(event, epsilon, "pld") + 1e-9


def test_measured_epsilon_of_real_draws_is_below_the_accounted_one_and_near_it() -> None:
    """One score at the low end or the high end, Laplace of one range: ε = 1.

    Clopper–Pearson bounds on both sides of a threshold: a true claim fails with probability 1e-6 (two tails of 5e-7).
    """
    noise, runs, tail = ScoreNoise("laplace", 1.0), 1500, 5e-7
    epsilon = noise.event().sensitivity / noise.event().noise_scale
    above = {
        score: sum(float(fixed_scores([score], 1, noise, SystemEntropy())[0]) > 0.5 for _ in range(runs))
        for score in (0.0, 1.0)
    }
    least = beta.ppf(tail, above[1.0], runs - above[1.0] + 1)
    most = beta.isf(tail, above[0.0] + 1, runs - above[0.0])
    assert 0.3 * epsilon < math.log(least / most) <= epsilon
    assert np.isclose(epsilon, 1.0)
