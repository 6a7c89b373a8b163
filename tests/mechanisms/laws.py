"""Exact laws to hold the samplers against, and entropies that make coupled messages comparable."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from privfair.mechanisms.entropy import SeededEntropy

FALSE_ALARM = 1e-6  # the probability that a correct sampler fails one such test


def mass(kind: str, scale: float, reach: float = 45.0) -> tuple[np.ndarray, np.ndarray]:
    """(integers, their probabilities) of discrete Gaussian or Laplace noise, summed from the definition."""
    most = math.ceil(reach * scale) + 2
    k = np.arange(-most, most + 1)
    weight = np.exp(-(k**2) / (2 * scale**2)) if kind == "gaussian" else np.exp(-np.abs(k) / scale)
    return k, weight / weight.sum()


def chi_square(observed: Sequence[float], expected: Sequence[float]) -> float:
    """The p-value of these counts; cells that expect fewer than 20 are pooled."""
    o, e = np.asarray(observed, dtype=float), np.asarray(expected, dtype=float)
    rare = e < 20
    if e[rare].sum() >= 20:
        o, e = np.append(o[~rare], o[rare].sum()), np.append(e[~rare], e[rare].sum())
    else:  # too few to judge alone: they join the largest cell
        largest = int(np.argmax(e))
        o[largest] += o[rare].sum()
        e[largest] += e[rare].sum()
        keep = ~rare
        o, e = o[keep], e[keep]
    return float(chi2.sf(((o - e) ** 2 / e).sum(), e.size - 1))


def fits(draws: np.ndarray, kind: str, scale: float) -> bool:
    """Whether the draws fit the law, with `FALSE_ALARM` the probability of a wrong no."""
    k, probability = mass(kind, scale)
    if np.any(np.abs(draws) > k[-1]):
        return False
    observed = np.bincount(draws - k[0], minlength=k.size)
    return chi_square(observed, probability * draws.size) > FALSE_ALARM


@dataclass(frozen=True)
class NoNoise(SeededEntropy):
    """Real sampling and order, no noise: what a message is before it is protected."""

    def discrete_gaussian(self, scale: float, size: int) -> Any:
        return np.zeros(size, dtype=np.int64)

    discrete_laplace = discrete_gaussian


@dataclass(frozen=True)
class Coupled(NoNoise):
    """Choices that one record more leaves alone: record i has its own key, and the smallest keys come first."""

    seed: int = 0

    def _keys(self, n: int) -> np.ndarray:
        return np.random.default_rng(self.seed).random(n)  # a longer draw begins with the shorter one

    def poisson_mask(self, n: int, rate: float) -> Any:
        return np.random.default_rng(self.seed + 1).random(n) < rate

    def permutation(self, n: int) -> Any:
        return np.argsort(self._keys(n))

    def choice(self, n: int, m: int) -> Any:
        return np.argsort(self._keys(n))[:m]


Law = dict[tuple[int, ...], float]


def poisson_message_law(records: Sequence[int], length: int, rate: float, middle: int) -> Law:
    """The law of a message before noise, by going through every sample, every choice and every order."""
    law: Counter[tuple[int, ...]] = Counter()
    for taken in itertools.product((False, True), repeat=len(records)):
        sample = [r for r, t in zip(records, taken, strict=True) if t]
        probability = math.prod(rate if t else 1 - rate for t in taken)
        _spread(law, sample, length, middle, probability)
    return dict(law)


def fixed_message_law(records: Sequence[int], length: int, middle: int) -> Law:
    """The same without Poisson sampling."""
    law: Counter[tuple[int, ...]] = Counter()
    _spread(law, list(records), length, middle, 1.0)
    return dict(law)


def _spread(law: Counter[tuple[int, ...]], sample: list[int], length: int, middle: int, probability: float) -> None:
    choices = list(itertools.combinations(range(len(sample)), min(length, len(sample))))
    orders = list(itertools.permutations(range(length)))
    for choice in choices:
        slots = [sample[i] for i in choice] + [middle] * (length - len(choice))
        for order in orders:
            law[tuple(slots[i] for i in order)] += probability / len(choices) / len(orders)


def noisy(law: Law, kind: str, scale: float, steps: int) -> np.ndarray:
    """The probabilities of a noisy message, on a grid wide enough for all of it."""
    _, probability = mass(kind, scale)
    shifted = [np.pad(probability, (index, steps - index)) for index in range(steps + 1)]
    total: Any = 0.0
    for message, share in law.items():
        part = np.array(share)
        for index in message:
            part = np.multiply.outer(part, shifted[index])
        total = total + part
    return np.asarray(total)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """δ(ε) of p from q."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())
