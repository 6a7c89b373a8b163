"""From how often an attacker is right to ε: what (ε, δ) allows a test between two neighbouring datasets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from accountant.empirical.intervals import Array, at_least, at_most


@dataclass(frozen=True)
class Rates:
    """How often a test said "the record is there": of `present` trials with it and of `absent` ones without it."""

    hits: int
    present: int
    alarms: int
    absent: int

    @property
    def accuracy(self) -> float:
        """The share of right answers where both cases are equally likely."""
        return 0.5 * (self.hits / self.present + 1.0 - self.alarms / self.absent)

    def limits(self, level: float) -> tuple[float, float]:
        """(what the hit rate is at least, what the false-alarm rate is at most): both, but for probability `level`."""
        hit = float(at_least(self.hits, self.present, level / 2))
        return hit, float(at_most(self.alarms, self.absent, level / 2))


def epsilon_from_rates(hit: ArrayLike, alarm: ArrayLike, delta: float) -> Array:
    """The ε that these rates need at least: (ε, δ) allows hit ≤ e^ε·alarm + δ and 1 − alarm ≤ e^ε·(1 − hit) + δ.

    (Kairouz, Oh & Viswanath 2015, arXiv 1311.0776v4, Theorem 2.1.) At least 0.
    """
    tpr, fpr = np.asarray(hit, dtype=np.float64), np.asarray(alarm, dtype=np.float64)
    first = _log_ratio(tpr - delta, fpr)
    second = _log_ratio(1.0 - fpr - delta, 1.0 - tpr)
    found: Array = np.maximum(np.maximum(first, second), 0.0)
    return found


def gaussian_separation(hit: float, alarm: float) -> float:
    """μ = Φ⁻¹(hit) − Φ⁻¹(alarm): how far apart two normal laws of variance 1 must be for a test to have these rates.

    No μ-GDP mechanism allows rates with a larger one (Dong, Roth & Su 2022, arXiv 1905.02383v3, definition 2.6).
    """
    from scipy.special import ndtri

    return float(ndtri(hit) - ndtri(alarm))


def _log_ratio(above: Array, below: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.maximum(above, 0.0)) - np.log(below)
    return np.where(above > 0, ratio, -math.inf)
