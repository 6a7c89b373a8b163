"""Frontiers of quality (more is better) against unfairness (less is better): pure functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray


def is_efficient(quality: FloatArray, unfairness: FloatArray) -> NDArray[np.bool_]:
    """For each point whether no other is at least as good in both and better in one; of equal points all count."""
    q, u = np.asarray(quality, dtype=float), np.asarray(unfairness, dtype=float)
    as_good = (q[None, :] >= q[:, None]) & (u[None, :] <= u[:, None])
    better = (q[None, :] > q[:, None]) | (u[None, :] < u[:, None])
    dominated: NDArray[np.bool_] = np.any(as_good & better, axis=1)
    return np.logical_not(dominated)


def hypervolume(quality: FloatArray, unfairness: FloatArray, reference: tuple[float, float]) -> float:
    """The area that the points dominate: ∪ [q₀, q] × [u, u₀] with reference (q₀, u₀).

    Zitzler & Thiele 1998. Points that are not better than the reference in both figures add nothing. Sorted by
    unfairness, the best quality so far makes a staircase, whose steps are added up.
    """
    low, high = reference
    q, u = np.asarray(quality, dtype=float), np.asarray(unfairness, dtype=float)
    inside = (q > low) & (u < high)
    if not inside.any():
        return 0.0
    order = np.argsort(u[inside], kind="stable")
    edges = np.append(u[inside][order], high)
    best_so_far = np.maximum.accumulate(q[inside][order])
    return float(np.sum(np.diff(edges) * (best_so_far - low)))


def best_quality(quality: FloatArray, unfairness: FloatArray, most: float) -> int | None:
    """The point of the best quality among those whose unfairness is at most `most`; None where there is none."""
    allowed = np.flatnonzero(np.asarray(unfairness) <= most)
    if not allowed.size:
        return None
    return int(allowed[np.argmax(np.asarray(quality)[allowed])])
