"""ε from one training run with many canaries (Steinke, Nasr & Jagielski 2023, arXiv 2305.08846v1, Theorem 5.2).

m canaries are each put in by a fair coin. The attacker sees the outcome and guesses r of the coins, abstaining on the
others; v guesses are right. Under (ε, δ) the number of right guesses is hardly larger than that of randomised response,
W ~ Binomial(r, q) with q = e^ε/(1 + e^ε):

    P[right ≥ v] ≤ P[W ≥ v] + 2 m δ · max over i = 1 … m of P[v − i ≤ W < v]/i.

Several independent runs with canaries of their own are one run with all of them: neighbours differ in one canary of one
run. How many guesses are made must not depend on the coins.
"""

from __future__ import annotations

import math

import numpy as np

from accountant.empirical.intervals import require_level
from accountant.errors import InputError


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float = 0.0) -> float:
    """How likely so many right guesses are at most, if (ε, δ) holds."""
    from scipy.stats import binom

    if not 0 <= right <= guesses <= canaries:
        raise InputError("right", "must be at most the guesses, and these at most the canaries", right)
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise InputError("(ε, δ)", "must be ε at least 0 and δ in [0, 1]", (epsilon, delta))
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, accuracy))
    if not delta or not right:
        return min(1.0, tail)
    steps = np.arange(1, right + 1)  # beyond i = v the sum stays and the divisor grows
    below = np.cumsum(binom.pmf(right - steps, guesses, accuracy))
    return min(1.0, tail + 2.0 * canaries * delta * float(np.max(below / steps)))


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float = 0.0, level: float = 0.05) -> float:
    """The largest ε that so many right guesses refute; 0 if they refute none. Wrong with probability at most `level`.

    The p-value grows with ε as far as it is small: the search stops at the first ε that is not refuted.
    """
    require_level(level)

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) < level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 0.25
    while refuted(high):  # in small steps, so that no ε below the answer goes untested by much
        low, high = high, high + 0.25
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
