"""The one-run bound against randomised response, which meets it, and against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from accountant.empirical import one_run_epsilon, one_run_p_value
from accountant.errors import InputError


def brute_force(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 by going through all outcomes of r guesses, each right with probability e^ε/(1 + e^ε)."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [0.0] * (r + 1)
    for outcome in itertools.product((0, 1), repeat=r):
        mass[sum(outcome)] += math.prod(q if right else 1 - q for right in outcome)
    tail = sum(mass[v:])
    steepest = max(sum(mass[w] for w in range(r + 1) if v > w >= v - i) / i for i in range(1, m + 1))
    return min(1.0, tail + 2 * m * delta * steepest)


@pytest.mark.parametrize(("m", "r"), [(1, 1), (5, 5), (8, 6), (9, 3)])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_the_p_value_is_that_of_the_theorem(m: int, r: int, epsilon: float, delta: float) -> None:
    for v in range(r + 1):
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(
            brute_force(m, r, v, epsilon, delta), abs=1e-12
        )


@pytest.mark.parametrize("m", [3, 20, 200])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.01), (1.0, 1e-3), (2.0, 0.05)])
def test_mechanisms_with_delta_do_not_exceed_it(m: int, epsilon: float, delta: float) -> None:
    """Randomised response that tells everything with probability δ: all at once, or each canary by itself."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    for v in range(m + 1):
        p = one_run_p_value(m, m, v, epsilon, delta)
        assert p >= delta + (1 - delta) * binom.sf(v - 1, m, q) - 1e-12 or p == 1.0
        assert p >= binom.sf(v - 1, m, delta + (1 - delta) * q) - 1e-12


def test_randomised_response_is_bounded_from_below_and_nearly_met() -> None:
    """At 95% confidence a bound above the truth is allowed in 1 of 20 repetitions; the tolerance is for 1e-6."""
    epsilon, m, repetitions, level = 1.0, 4000, 400, 0.05
    rng = np.random.default_rng(1)
    right = rng.binomial(m, math.exp(epsilon) / (1 + math.exp(epsilon)), repetitions)
    bounds = {int(v): one_run_epsilon(m, m, int(v), 0.0, level) for v in set(right)}
    found = np.array([bounds[int(v)] for v in right])
    assert np.sum(found > epsilon) <= binom.isf(1e-6, repetitions, level)
    assert np.sum(found > epsilon) >= binom.ppf(1e-6, repetitions, level) - 1  # exact, but for whole numbers
    assert np.median(found) > 0.9 * epsilon


def test_delta_and_abstaining_only_lower_the_bound() -> None:
    assert one_run_epsilon(1000, 200, 180, 0.0) > one_run_epsilon(1000, 200, 180, 1e-4) > 0
    assert one_run_epsilon(1000, 200, 180, 1e-5) < one_run_epsilon(200, 200, 180, 1e-5)
    assert one_run_epsilon(100, 100, 50, 1e-5) == 0.0
    assert one_run_epsilon(100, 100, 100, 0.0) == pytest.approx(-math.log(0.05 ** (-1 / 100) - 1), rel=1e-6)


def test_more_right_guesses_than_guesses_are_refused() -> None:
    with pytest.raises(InputError, match="right must be at most the guesses, and these at most the canaries; found 11"):
        one_run_p_value(20, 10, 11, 1.0)
    with pytest.raises(InputError, match=r"\(ε, δ\) must be ε at least 0"):
        one_run_p_value(20, 10, 5, -1.0)
