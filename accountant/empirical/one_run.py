"""What one training run with many canaries refutes: a pair (ε, δ), or a whole trade-off curve.

m canaries are each put in by a fair coin. The attacker sees the outcome and guesses r of the coins, abstaining on the
others; v guesses are right. Several independent runs with canaries of their own are one run with all of them:
neighbours differ in one canary of one run. How many guesses are made must not depend on the coins.

A pair (ε, δ) (Steinke, Nasr & Jagielski 2023, arXiv 2305.08846v1, Theorem 5.2). The number of right guesses is hardly
larger than that of randomised response, W ~ Binomial(r, q) with q = e^ε/(1 + e^ε):

    P[right ≥ v] ≤ P[W ≥ v] + 2 m δ · max over i = 1 … m of P[v − i ≤ W < v]/i.

A trade-off curve (after Mahloujifar, Melis & Chaudhuri 2024, arXiv 2410.22235v1, Theorem 3.2 and algorithm 3). Let F(α)
be the largest hit rate that the claim allows at the false-alarm rate α, in both directions: concave and increasing. Let
p_j = P[right = j] and, for a threshold i,

    R_i = Σ_{j ≥ i} j·p_j,   H_i = Σ_{j ≥ i} (r − j)·p_j,   S_i = P[right ≥ i],   so that R_i + H_i = r·S_i.

Theorem: R_i/m ≤ F(H_{i−1}/m). Proof: fix all coins but that of canary k, and let E be the set of outcomes at which the
guess of k is right and at least i − 1 other guesses are. If the coin of k falls the other way, E is where the guess of
k is wrong and at least i − 1 guesses are right. So P[E] ≤ F(P[E with the other coin]). Take the mean over all coins and
all k: by Jensen's inequality it goes into F, and the means are R_i/m (a canary is one of the j right guesses with
probability j/m) and H_{i−1}/m.

Hence H_{i−1} ≥ m·G(R_i/m), where G is the inverse of F. Given (S_i, R_i), p_{i−1} must be so large that this holds; let
it be exactly so large, and S_0 is the least that it can be. For let R* − R ≥ i·(S* − S) ≥ 0 for two states at level i.
The least S at level i − 1 is max(S, (m·G(R/m) + R − (i−1)·S)/(r − i + 1)), which grows from one state to the other, as
R* − R ≥ (i−1)·(S* − S); and the order holds again one level down, since R grows there by i − 1 times what S does. A
larger p_{i−1} than necessary, a larger S_v, and right guesses beyond v are all larger states. As S_0 = 1, P[right ≥ v]
= S_v is at most the t for which the chain that begins with S_v = t, R_v = v·t ends in S_0 = 1.

That is all that one run can show: a mechanism that is silent with probability 1 − t and answers each coin by randomised
response otherwise keeps the curve as long as t·q ≤ F(t·(1 − q)), and has t·P[W ≥ v]. Many runs show more, for they are
independent. With i = 0 the theorem says that the share of right guesses X of a run has a mean of at most a, the largest
number with a·r/m ≤ F((1 − a)·r/m). So the product of 1 + λ(X − a) over all runs, 0 ≤ λ ≤ 1/a, has a mean of at most 1,
and exceeds 1/p with probability at most p (Markov's inequality; Waudby-Smith & Ramdas 2024, arXiv 2010.09686v8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from accountant.empirical.two_worlds import TradeOff, require_level
from accountant.errors import InputError

_HALVINGS = 60  # of the logarithm of a p-value, which is at least 1e-300
_SMALLEST = 1e-300
_STAKES = (0.25, 0.5, 0.75, 0.99)  # λ·a


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float = 0.0) -> float:
    """How likely so many right guesses are at most, if (ε, δ) holds."""
    from scipy.stats import binom

    _require_guesses(canaries, guesses, right)
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


def one_run_curve_p_value(canaries: int, guesses: int, right: int, claim: TradeOff) -> float:
    """How likely so many right guesses are at most, if the claim's whole trade-off curve holds."""
    _require_guesses(canaries, guesses, right)
    if _least_mass(canaries, guesses, right, claim, _SMALLEST) > 1.0:
        return _SMALLEST
    low, high = math.log(_SMALLEST), 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        possible = _least_mass(canaries, guesses, right, claim, math.exp(middle)) <= 1.0
        low, high = (middle, high) if possible else (low, middle)
    return min(1.0, math.exp(high))


def one_run_accuracy(canaries: int, guesses: int, claim: TradeOff) -> float:
    """a: the share of right guesses that the claim allows in the mean; never below what is true."""
    _require_guesses(canaries, guesses, 0)
    if not guesses:
        return 1.0
    low, high = 0.5, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        allowed = middle * guesses / canaries <= float(claim.most_hits((1.0 - middle) * guesses / canaries))
        low, high = (middle, high) if allowed else (low, middle)
    return high


def many_runs_p_value(seen: Sequence[tuple[ArrayLike, float]]) -> float:
    """How likely such shares of right guesses of independent runs are at most, if their means are as allowed.

    `seen`: for each rule of guessing the shares of all runs, and the mean that is allowed. The products of several
    rules and several λ are averaged: the mean of that is at most 1 as well, and nothing need be chosen.
    """
    products = []
    for shares, allowed in seen:
        rows = np.asarray(shares, dtype=np.float64)
        if not 0 < allowed <= 1:
            raise InputError("allowed share", "must be in (0, 1]", allowed)
        if rows.size and not (rows.min() >= 0 and rows.max() <= 1):
            raise InputError("shares of right guesses", "must be in [0, 1]", "others")
        products += [float(np.log1p(stake / allowed * (rows - allowed)).sum()) for stake in _STAKES]
    return float(min(1.0, math.exp(math.log(len(products)) - float(np.logaddexp.reduce(products)))))


def _least_mass(canaries: int, guesses: int, right: int, claim: TradeOff, tail: float) -> float:
    """S_0 of the chain that begins with P[right ≥ v] = tail: above 1, the tail is impossible."""
    mass, sums = tail, right * tail
    for i in range(right - 1, -1, -1):
        needed = canaries * claim.least_alarms(min(1.0, sums / canaries))  # of H_i
        more = (needed - (guesses * mass - sums)) / (guesses - i)
        if more <= 0:  # so it is at all lower levels, where nothing has changed
            return mass
        mass, sums = mass + more, sums + i * more
        if mass > 1.0:
            return mass
    return mass


def _require_guesses(canaries: int, guesses: int, right: int) -> None:
    if not 0 <= right <= guesses <= canaries:
        raise InputError("right", "must be at most the guesses, and these at most the canaries", right)
