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
    q, u = np.asarray(quality, dtype=float), np.asarray(unfairness, dtype=float)
    return float(hypervolumes(q[None], u[None], reference)[0])


def hypervolumes(quality: FloatArray, unfairness: FloatArray, reference: tuple[float, float]) -> FloatArray:
    """(draws,): the same for every row of (draws, points); a point that is NaN adds nothing."""
    low, high = reference
    inside = (quality > low) & (unfairness < high)
    q, u = np.where(inside, quality, low), np.where(inside, unfairness, high)
    order = np.argsort(u, axis=1, kind="stable")
    edges = np.pad(np.take_along_axis(u, order, axis=1), ((0, 0), (0, 1)), constant_values=high)
    best_so_far = np.maximum.accumulate(np.take_along_axis(q, order, axis=1), axis=1)
    areas: FloatArray = np.sum(np.diff(edges, axis=1) * (best_so_far - low), axis=1)
    return areas


def best_quality(quality: FloatArray, unfairness: FloatArray, most: float) -> int | None:
    """The point of the best quality among those whose unfairness is at most `most`; None where there is none."""
    allowed = np.flatnonzero(np.asarray(unfairness) <= most)
    if not allowed.size:
        return None
    return int(allowed[np.argmax(np.asarray(quality)[allowed])])
