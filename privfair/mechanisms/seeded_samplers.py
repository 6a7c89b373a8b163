"""The laws of integer noise from an ordinary generator, for simulations that must repeat; they protect nobody."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def seeded_discrete_laplace(scale: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent integers with mass ∝ exp(−|k|/b): the difference of two geometric draws ⌊b·Exp(1)⌋."""
    first, second = (np.floor(scale * rng.standard_exponential(size)) for _ in range(2))
    return (first - second).astype(np.int64)


def seeded_discrete_gaussian(scale: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent integers with mass ∝ exp(−k²/2σ²), by rejection from a discrete Laplace of scale t = ⌊σ⌋ + 1.

    A draw y is kept with probability exp(−(|y| − σ²/t)²/2σ²) (Canonne, Kamath, Steinke 2020, arXiv 2004.00010v5,
    Algorithm 3), in floating point rather than in fractions.
    """
    t = math.floor(scale) + 1
    result = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        proposed = seeded_discrete_laplace(t, 2 * (size - filled) + 8, rng)
        distance = (np.abs(proposed) - scale * (scale / t)) / scale
        kept = proposed[rng.random(proposed.size) < np.exp(-0.5 * distance**2)][: size - filled]
        result[filled : filled + kept.size] = kept
        filled += kept.size
    return result
