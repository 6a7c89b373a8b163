"""Rényi moments of a pair of distributions given on nodes, accurate also when they are very close to 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SERIES_TERMS = 14
SERIES_RADIUS = 0.1
MAX_CELLS = 500_000  # of orders times nodes held in memory at once


@dataclass(frozen=True)
class Pair:
    """Two distributions P and Q on common nodes: log Q-mass of each node and log(P/Q) there."""

    log_q: Array
    log_ratio: Array

    def where(self, keep: NDArray[np.bool_]) -> Pair:
        """The nodes to keep; masses unchanged."""
        return Pair(self.log_q[keep], self.log_ratio[keep])

    def joined(self, other: Pair) -> Pair:
        """The nodes of both, as for a sum of two integrals."""
        return Pair(np.append(self.log_q, other.log_q), np.append(self.log_ratio, other.log_ratio))


def log_moment(pair: Pair, orders: Array) -> Array:
    """log E_Q[(P/Q)^α] for every order α > 1.

    Computed as log(1 + E_Q[g(P/Q)]) with g(t) = t^α − 1 − α(t − 1): the two expectations taken off are
    zero and known, and every term that remains is ≥ 0 by convexity, so nothing cancels and a moment of
    1 + 1e-14 keeps its digits. Logarithms keep moments of any size from overflowing.
    """
    rows = max(1, MAX_CELLS // max(1, pair.log_q.size))
    parts = [_log_moment(pair, orders[start : start + rows]) for start in range(0, orders.size, rows)]
    return np.concatenate(parts)


def _log_moment(pair: Pair, orders: Array) -> Array:
    log_terms = pair.log_q + _log_bregman(pair.log_ratio, orders[:, None])
    largest = np.max(log_terms, axis=1)
    scale = np.where(np.isfinite(largest), largest, 0.0)
    totals = np.sum(np.exp(log_terms - scale[:, None]), axis=1)
    log_sum: Array = scale + np.log(np.maximum(totals, 1e-300))  # a total of 0: the two are the same
    large = log_sum > 30.0
    # log(1 + e^x), where for large x the 1 is below rounding but is still added
    return np.where(large, log_sum + 1e-13, np.log1p(np.exp(np.where(large, 0.0, log_sum))))


def _log_bregman(log_ratio: Array, orders: Array) -> Array:
    """log(t^α − 1 − α(t − 1)) for t = exp(log_ratio), −inf at t = 1; one row per order.

    Near t = 1 the binomial series from the quadratic term on; far above, t^α is taken out in logarithms.
    """
    power = orders * log_ratio
    excess = np.expm1(np.minimum(log_ratio, 300.0))  # t − 1; beyond, only the logarithmic branch is used
    near = np.abs(excess) * orders < SERIES_RADIUS
    far = power > 30.0
    with np.errstate(divide="ignore"):
        middle = np.expm1(np.where(far, 0.0, power)) - orders * np.where(far, 0.0, excess)
        result = np.log(np.where(near | far, 1.0, np.maximum(middle, 0.0)))
        if near.any():
            rows, columns = np.nonzero(near)
            result[rows, columns] = np.log(_binomial_tail(excess[columns], orders[rows, 0]))
    if far.any():
        rows, columns = np.nonzero(far)
        alpha, loss, top = orders[rows, 0], log_ratio[columns], power[rows, columns]
        # divided by t^α: 1 − α t^(1−α) + (α − 1) t^(−α)
        small = alpha * np.exp((1.0 - alpha) * loss) - (alpha - 1.0) * np.exp(-top)
        result[rows, columns] = top + np.log1p(-small)
    return result


def _binomial_tail(excess: Array, orders: Array) -> Array:
    """Σ_{k≥2} C(α, k) x^k for |α x| below the series radius; the terms fall at least tenfold each."""
    term = orders * (orders - 1.0) / 2.0 * excess**2
    total = term.copy()
    for k in range(2, SERIES_TERMS):
        term = term * ((orders - k) / (k + 1.0)) * excess
        total += term
    return total
