"""What privacy noise does to a kernel and to the MMD² of two groups: computed, predicted and checked by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.kernels.base import Kernel, NoDeconvolution, as_scores
from privfair.kernels.mmd import Estimate, mmd2, mmd2_estimate
from privfair.mechanisms.score_release import GaussianNoise, Noise
from privfair.util import FloatArray


@dataclass(frozen=True)
class Deconvolved:
    """The kernel that undoes the noise on `sides` sides of a pair, or the reason why there is none."""

    kernel: Kernel | None
    reason: str = ""

    @staticmethod
    def of(kernel: Kernel, noise: Noise, sides: int) -> Deconvolved:
        """Try it."""
        try:
            return Deconvolved(kernel.deconvolve(noise, sides=sides))
        except NoDeconvolution as error:
            return Deconvolved(None, str(error))


@dataclass(frozen=True)
class Check:
    """A Monte-Carlo mean against the exact prediction, in Monte-Carlo standard errors."""

    mean: float
    predicted: float
    standard_error: float

    @property
    def deviation(self) -> float:
        """How many standard errors apart they are; beyond 4 happens by chance less than once in 1,000 times.

        (Student's law at 19 degrees of freedom, the fewest draws the command line allows.)
        """
        gap = self.mean - self.predicted
        return gap / self.standard_error if self.standard_error > 0 else math.copysign(math.inf, gap) if gap else 0.0

    @property
    def agrees(self) -> bool:
        """Within 4 standard errors."""
        return abs(self.deviation) <= 4


@dataclass(frozen=True)
class Comparison:
    """One kernel under one noise."""

    kernel: Kernel
    noise: Noise
    convolved: Kernel  # noise on one side of a pair: what local training sees
    deconvolved: Deconvolved
    variance_factor: float | None  # Var C′ with the deconvolved kernel on noisy scores / Var C′ of the clean kernel
    mmd2_clean: Estimate
    mmd2_noisy: Estimate  # the clean kernel on one draw of noisy scores
    mmd2_convolved: Estimate  # noise put on the kernel twice, clean scores: what the line above is on average
    mmd2_deconvolved: Estimate | None  # noise taken off twice, on the same noisy draw: unbiased for the clean one
    no_deconvolution: str  # why the line above is missing
    noisy_check: Check
    deconvolved_check: Check | None


def compare(
    kernel: Kernel, noise: Noise, scores0: Any, scores1: Any, *, repeats: int, rng: np.random.Generator
) -> Comparison:
    """Compare one kernel with and without one noise on the scores of two groups.

    All MMD² are U-statistics with jackknife standard errors. Over the noise alone, the mean of the clean kernel on
    noisy scores is exactly the twice convolved kernel on clean scores (Proposition 5.2 of Rychener, Kuhn & Hu 2025,
    used on both sides of a pair), and the twice deconvolved kernel gives back the clean value. `repeats` draws check
    both.
    """
    x, y = as_scores("scores of the first group", scores0), as_scores("scores of the second group", scores1)
    if repeats < 2:
        raise InputError("repeats", "must be 2 or more", repeats, "A mean of one draw has no standard error.")
    if noise.scale == 0:
        raise InputError("noise scale", "must be above 0 to compare with and without noise", noise.scale)
    one_sided, two_sided = Deconvolved.of(kernel, noise, 1), Deconvolved.of(kernel, noise, 2)
    twice = kernel.convolve(noise).convolve(noise)
    clean, predicted = mmd2_estimate(x, y, kernel), mmd2_estimate(x, y, twice)

    draws = [(x + noise.sample(x.size, rng), y + noise.sample(y.size, rng)) for _ in range(repeats)]
    return Comparison(
        kernel=kernel,
        noise=noise,
        convolved=kernel.convolve(noise),
        deconvolved=one_sided,
        variance_factor=None if one_sided.kernel is None else variance_factor(kernel, one_sided.kernel, noise, x, y),
        mmd2_clean=clean,
        mmd2_noisy=mmd2_estimate(*draws[0], kernel),
        mmd2_convolved=predicted,
        mmd2_deconvolved=None if two_sided.kernel is None else mmd2_estimate(*draws[0], two_sided.kernel),
        no_deconvolution=two_sided.reason,
        noisy_check=_check(draws, kernel, predicted.value),
        deconvolved_check=None if two_sided.kernel is None else _check(draws, two_sided.kernel, clean.value),
    )


def variance_factor(kernel: Kernel, deconvolved: Kernel, noise: Noise, scores0: Any, scores1: Any) -> float:
    """By how much deconvolution multiplies the variance of C′ from one shared score, averaged over the scores' range.

    Var κ̂′(z − y − ξ) over Var κ′(z − y), y a score of the pooled groups, ξ the noise (by Gauss quadrature), z evenly
    spread: the number of scores to share grows by this factor for the same error.
    """
    scores = np.concatenate([np.asarray(scores0), np.asarray(scores1)])
    z = np.linspace(scores.min(), scores.max(), 21)
    nodes, weights = noise_quadrature(noise)
    distances = z[:, None] - scores
    first = np.zeros_like(distances)
    second = np.zeros_like(distances)
    for node, weight in zip(nodes, weights, strict=True):
        slope = deconvolved.profile(distances - node, 1)
        first += weight * slope
        second += weight * np.square(slope)
    noisy = second.mean(axis=1) - np.square(first.mean(axis=1))
    clean = np.var(kernel.profile(distances, 1), axis=1)
    return float(noisy.mean() / clean.mean()) if clean.mean() > 0 else math.inf


def monte_carlo_band(
    kernel: Kernel, noise: Noise, distances: FloatArray, *, draws: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Mean and standard error of v(d − ξ) over draws of the noise, at each distance."""
    values = kernel.profile(distances[:, None] - noise.sample((1, draws), rng))
    return values.mean(axis=1), values.std(axis=1, ddof=1) / math.sqrt(draws)


def _check(draws: Sequence[tuple[FloatArray, FloatArray]], kernel: Kernel, predicted: float) -> Check:
    values = np.array([mmd2(x, y, kernel, biased=False) for x, y in draws])
    return Check(float(values.mean()), predicted, float(values.std(ddof=1) / math.sqrt(values.size)))


def noise_quadrature(noise: Noise) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of the expectation over the noise."""
    if isinstance(noise, GaussianNoise):
        nodes, weights = np.polynomial.hermite_e.hermegauss(80)
        return nodes * noise.scale, weights / weights.sum()
    nodes, weights = np.polynomial.laguerre.laggauss(60)
    return np.concatenate([-nodes, nodes]) * noise.scale, np.concatenate([weights, weights]) / 2
