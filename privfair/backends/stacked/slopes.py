"""Derivatives of kernel sums Σ_j w_j κ(z, y_j) in z, for many samples at once.

Where a kernel has a kink, a sample that is (nearly) at z counts with the mean of its two one-sided derivatives: for the
energy kernel, 0. Scores nearer than `TIE` are one score: the same record gives scores that differ in the last bit, by
the order in which products are added, and rounding must not decide on which side of itself a record is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from privfair.arrays import FloatArray

TIE = 1e-6  # relative to the larger of 1 and the sample


class EnergySums:
    """z ↦ Σ_j w_j·(−½ sign(z − y_j)): the derivative for the energy kernel, one row of samples for each job.

    With every sample at two places, y ± tie, and half its weight at each, the sum is a step function without ties:
    one search, one look-up.
    """

    def __init__(self, samples: torch.Tensor, weights: torch.Tensor) -> None:
        """(jobs, M) each; a sample that does not count has weight 0."""
        reach = TIE * samples.abs().clamp(min=1.0)
        places, order = torch.cat([samples - reach, samples + reach], dim=1).sort(dim=1)
        running = torch.cat([weights, weights], dim=1).gather(1, order).cumsum(dim=1)
        self._places = places
        self._values = torch.cat([torch.zeros_like(running[:, :1]), running], dim=1)
        self._values = (weights.sum(dim=1, keepdim=True) - self._values).mul_(0.5)

    def at(self, z: torch.Tensor) -> torch.Tensor:
        """At each z of the first len(z) jobs, (jobs, b)."""
        jobs = len(z)
        below = torch.searchsorted(self._places[:jobs], z)
        return self._values[:jobs].gather(1, below)


def padded(arrays: Sequence[FloatArray], dtype: torch.dtype, fill: float = 0.0) -> torch.Tensor:
    """The arrays as rows of one tensor, filled up at the end."""
    result = np.full((len(arrays), max(1, *(a.size for a in arrays))), fill)
    for row, array in zip(result, arrays, strict=True):
        row[: array.size] = array
    return torch.from_numpy(result).to(dtype)
