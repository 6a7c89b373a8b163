"""How likely a message of one noisy score is, with and without the attacked record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privfair.arrays import FloatArray
from privfair.mechanisms.grid_noise import ScoreNoise

TINY = 1e-300


@dataclass(frozen=True)
class OneScore:
    """A message of length 1: what stands in it before the noise, with which probability.

    `others` records with one score are there in any case. Taken at rate γ each, a message has a pad if none is taken;
    the attacked record, if taken, is kept against b others with probability 1/(b + 1). Without a rate one of all
    records is drawn, and the attacked record is exchanged for one like the others.
    """

    others: int
    rate: float | None

    @property
    def absent(self) -> FloatArray:
        """Probabilities of (the pad, a score of the others, the attacked record's) without that record."""
        if self.rate is None:
            return np.array([0.0, 1.0, 0.0])
        pad = (1.0 - self.rate) ** self.others
        return np.array([pad, 1.0 - pad, 0.0])

    @property
    def present(self) -> FloatArray:
        """The same with the record; E 1/(B + 1) = (1 − (1 − γ)^(n+1))/((n + 1)γ) for B ~ Binomial(n, γ)."""
        if self.rate is None:
            share = 1.0 / (self.others + 1)
            return np.array([0.0, 1.0 - share, share])
        kept = (1.0 - (1.0 - self.rate) ** (self.others + 1)) / (self.others + 1)
        pad = (1.0 - self.rate) ** (self.others + 1)
        return np.array([pad, 1.0 - pad - kept, kept])

    def log_ratio(self, noisy: FloatArray, scores: FloatArray, noise: ScoreNoise) -> FloatArray:
        """log P(noisy | present) − log P(noisy | absent); `scores`: the pad, the others', the record's."""
        logs = log_density(noise, np.asarray(noisy)[:, None] - scores[None, :])
        at = np.exp(logs - logs.max(axis=1, keepdims=True))  # far from all of them only the ratio is left
        return np.asarray(np.log(at @ self.present + TINY) - np.log(at @ self.absent + TINY))

    def strength(self, noise: ScoreNoise) -> float:
        """The chi-square divergence of present from absent, the record and the others at opposite ends."""
        y = np.linspace(noise.low - 10 * noise.scale, noise.high + 10 * noise.scale, 2001)
        at = np.exp(log_density(noise, y[:, None] - np.array([noise.middle, noise.low, noise.high])[None, :]))
        present, absent = at @ self.present, at @ self.absent
        return float(np.sum((present - absent) ** 2 / np.maximum(absent, TINY)) * (y[1] - y[0]))


def log_density(noise: ScoreNoise, offset: FloatArray) -> FloatArray:
    """The logarithm of the noise's density, of its continuous law, at these offsets."""
    x = np.abs(offset) / noise.scale
    if noise.kind == "laplace":
        return np.asarray(-x - np.log(2.0 * noise.scale))
    return np.asarray(-0.5 * x * x - np.log(noise.scale * np.sqrt(2.0 * np.pi)))


def worst_case(rate: float, noise: ScoreNoise) -> OneScore:
    """The number of other records at which one record shows most, at this public rate."""
    numbers = {0, 1, 2, 3, *(round(x / rate) for x in (0.3, 0.7, 1.5))}
    return max((OneScore(n, rate) for n in sorted(numbers) if n <= 2000), key=lambda law: law.strength(noise))
