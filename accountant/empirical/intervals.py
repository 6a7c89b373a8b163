"""Exact one-sided limits for a probability that was counted (Clopper & Pearson 1934)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from accountant.errors import InputError

Array = np.ndarray[Any, np.dtype[np.float64]]


def at_least(successes: ArrayLike, trials: int, level: float) -> Array:
    """What the probability of a success is at least, wrong with probability at most `level`: a quantile of Beta."""
    from scipy.stats import beta

    k = _checked(successes, trials, level)
    found: Array = np.where(k > 0, beta.ppf(level, np.maximum(k, 1), trials - k + 1), 0.0)
    return found


def at_most(successes: ArrayLike, trials: int, level: float) -> Array:
    """What the probability of a success is at most, wrong with probability at most `level`."""
    found: Array = 1.0 - at_least(trials - np.asarray(successes), trials, level)
    return found


def require_level(level: float) -> float:
    """The probability of being wrong, if it is one that says anything; otherwise `InputError`."""
    if not 0 < level < 0.5:
        raise InputError("level", "must be in (0, 0.5)", level, "0.05 stands for 95% confidence.")
    return float(level)


def _checked(successes: ArrayLike, trials: int, level: float) -> Array:
    require_level(level)
    k = np.asarray(successes, dtype=np.float64)
    if trials < 1 or (k.size and (k.min() < 0 or k.max() > trials)):
        raise InputError("successes", f"must be between 0 and the number of trials, {trials}", successes)
    return k
