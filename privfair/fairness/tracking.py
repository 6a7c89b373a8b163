"""Function tracking: the fairness penalty that a client can follow with nothing but the shared scores.

The paper's client loss f_k = 2(α_k⁰E_k[C | A=0] − α_k¹E_k[C | A=1]), α_k^a = P_k(A=a)/P(A=a), is a plain mean over the
client's records of the per-example penalty

    2λ Σ_j 1{(x_i, y_i) ∈ C_j} · D_{a_i, j}(S_i) / P(A = a_i, C_j),    D_{a, j} = Σ_{b ≠ a} (μ_{a, j} − μ_{b, j})

with μ_{a, j}(z) the mean of κ(z, y) over the shared scores y of cell (a, j). For two groups D₀ = C and D₁ = −C. It is
unbiased under any minibatching, and needs only the global shares P(A = a, C_j). More than two groups: one penalty for
each pair of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.fairness.cells import Cells
from privfair.kernels.base import Kernel
from privfair.kernels.feature_witness import FeatureWitness
from privfair.kernels.parse import parse_kernel
from privfair.kernels.witness import Embedding
from privfair.mechanisms.grid_noise import ScoreNoise

SAME_SCORE = 1e-6
"""Scores nearer than this (relative to the larger of 1 and the score) are one score.

The same record gives scores that differ in the last bit, by the order in which products are added; rounding must not
decide on which side of itself a record is, where the kernel has a kink.
"""


@dataclass(frozen=True, eq=False)
class NoisyScores:
    """How the scores were made private, and how the kernel answers to it.

    Correction "none": κ itself meets noisy scores, so its convolution with the noise is what is followed, the
    paper's Proposition 5.2. "deconvolve": κ′ with κ′ ∗ noise = κ meets them, and κ is followed, at more variance.
    `pads`: for each cell the weight of the middle of the range that takes back the messages' padding.
    """

    noise: ScoreNoise
    correction: Literal["none", "deconvolve"]
    pads: tuple[float, ...]

    def kernel_on_scores(self, kernel: Kernel) -> Kernel:
        """What meets a noisy score."""
        return kernel.deconvolve(self.noise.noise) if self.correction == "deconvolve" else kernel

    def kernel_followed(self, kernel: Kernel) -> Kernel:
        """Its expectation over the noise: the kernel whose MMD is really penalised."""
        return kernel if self.correction == "deconvolve" else kernel.convolve(self.noise.noise)


Factors = dict[int, float]  # cell -> what μ of that cell is multiplied with
Curve = Embedding | FeatureWitness  # a function of the score, with derivatives


class Shared(Protocol):
    """What clients know of all groups' scores in a round: scores themselves, or the means of features of them."""

    @property
    def kernel(self) -> str:
        """Its name."""
        ...

    @property
    def counts(self) -> FloatArray:
        """Records in each cell, over all clients."""
        ...

    @property
    def domain(self) -> tuple[float, float] | None:
        """The range of the scores, where it is known."""
        ...

    @property
    def noisy(self) -> NoisyScores | None:
        """How scores were made private, where it changes the kernel."""
        ...

    def scale(self, cell: int) -> float:
        """2λ/P(A = a, C_j)."""
        ...

    def heard(self, cell: int) -> bool:
        """Whether anything is known of a cell."""
        ...

    def curve(self, factors: Factors, kernel: Kernel) -> Curve:
        """Σ_c factor_c·μ_c, where this kernel meets a score."""
        ...


@dataclass(frozen=True, eq=False)
class SharedScores:
    """What the server broadcasts for a round: the scores of every cell, their weights, and the cells' sizes."""

    kernel: str
    strength: float  # λ
    scores: tuple[FloatArray, ...]  # one array per cell; empty where nobody has such a record
    weights: tuple[FloatArray, ...]
    counts: FloatArray  # records in each cell, over all clients
    records: float  # records over all clients
    domain: tuple[float, float] | None  # the range of the scores, where it is known
    noisy: NoisyScores | None = None

    def scale(self, cell: int) -> float:
        """2λ/P(A = a, C_j)."""
        return 2 * self.strength * self.records / float(self.counts[cell])

    def heard(self, cell: int) -> bool:
        """Whether anybody shared a score of a cell."""
        return bool(self.scores[cell].size)

    def curve(self, factors: Factors, kernel: Kernel) -> Embedding:
        """Σ_c factor_c·(mean of κ(z, y) over the scores of cell c)."""
        scores = np.concatenate([self.scores[c] for c in factors])
        weights = np.concatenate([factor * self.weights[c] for c, factor in factors.items()])
        return Embedding(kernel, scores, weights, domain=self.domain, tie=SAME_SCORE)


class TrackedPenalty:
    """The per-example penalty of one round: Σ_e (coefficient of record i for e)·E_e(S_i) over a few embeddings E_e."""

    def __init__(self, shared: Shared, cells: Cells) -> None:
        """Build the witness functions of all comparisons; two groups share one."""
        self.shared, self.cells = shared, cells
        self.kernel = parse_kernel(shared.kernel)
        noisy = shared.noisy
        self._on_scores = self.kernel if noisy is None else noisy.kernel_on_scores(self.kernel)
        self._on_middle = None if noisy is None or not any(noisy.pads) else noisy.kernel_followed(self.kernel)
        self.factors: list[Factors] = []
        self._users: list[dict[int, float]] = []  # for each embedding: the cells that use it, and with which sign
        for comparison in cells.comparisons:
            present = [c for c in comparison.cells if shared.heard(c)]
            if len(present) == 2:
                first, second = present
                self.factors.append({first: 1.0, second: -1.0})
                self._users.append({first: 1.0, second: -1.0})
            elif len(present) > 2:
                for c in present:
                    self.factors.append({o: len(present) - 1.0 if o == c else -1.0 for o in present})
                    self._users.append({c: 1.0})

    @cached_property
    def embeddings(self) -> list[Curve]:
        """What meets the scores; built when first asked for, because not every engine evaluates it this way."""
        return [self.shared.curve(factors, self._on_scores) for factors in self.factors]

    @cached_property
    def paddings(self) -> list[Embedding | None]:
        """What takes back the padding of noisy messages, for each embedding."""
        return [self._padding(factors) for factors in self.factors]

    def _padding(self, factors: Factors) -> Embedding | None:
        """What takes back the padding of noisy messages."""
        noisy = self.shared.noisy
        if noisy is None or self._on_middle is None:
            return None
        weight = sum(factor * noisy.pads[c] for c, factor in factors.items())
        if not weight:  # the groups' padding cancels out
            return None
        middle = np.array([noisy.noise.middle])
        return Embedding(self._on_middle, middle, np.array([weight]), domain=self.shared.domain)

    @property
    def scores(self) -> SharedScores:
        """What it is built from, where that is scores."""
        if not isinstance(self.shared, SharedScores):
            raise TypeError(f"no scores in {type(self.shared).__name__}")
        return self.shared

    def coefficients(self, membership: NDArray[np.bool_]) -> FloatArray:
        """(embeddings, records): ±2λ/P(A = a_i, C_j) where the record's cell uses the embedding, else 0."""
        result = np.zeros((len(self._users), len(membership)))
        for row, users in zip(result, self._users, strict=True):
            for cell, sign in users.items():
                row[membership[:, cell]] = sign * self.shared.scale(cell)
        return result

    def derivative(self, scores: FloatArray, coefficients: FloatArray, order: int = 1) -> FloatArray:
        """The order-th derivative of each record's penalty in the record's score; order 0 is the penalty itself."""
        total = weighted_sum(self.embeddings, scores, coefficients, order)
        if self._on_middle is not None:
            total += weighted_sum(self.paddings, scores, coefficients, order)
        return total


def weighted_sum(
    embeddings: Sequence[Curve | None], scores: FloatArray, coefficients: FloatArray, order: int
) -> FloatArray:
    """Σ_e c_e·E_e⁽ᵒʳᵈᵉʳ⁾ at each score; a missing embedding is 0."""
    total = np.zeros_like(scores)
    for embedding, c in zip(embeddings, coefficients, strict=True):
        if embedding is not None:
            total += c * embedding.evaluate(scores, order)
    return total


@lru_cache(maxsize=4)
def tracked_penalty(shared: Shared, cells: Cells) -> TrackedPenalty:
    """The penalty of a broadcast, built once for all clients of this process."""
    return TrackedPenalty(shared, cells)


class DriftingPenalty:
    """The tracked penalty, corrected for what the client knows has moved since the broadcast: its own predictions.

        C_{k,i}(z) = C^t(z) + w₀[mean κ(z, own A=0 now) − mean κ(z, own A=0 at θᵗ)] − w₁[the same for A=1]

    with w_a = n_k^a/n^a ("own": the client's share of the mixture) or 1 ("shared": as if the others moved alike). The
    frozen C pushes as hard at the end of a round as at its beginning, and overshoots; the corrected one weakens as the
    gap closes. Nothing more is communicated. It couples a record's gradient to the client's other records. Own scores
    have no noise: they meet the kernel that is followed, which noisy scores meet in the mean.
    """

    def __init__(
        self, tracked: TrackedPenalty, membership: NDArray[np.bool_], at_start: FloatArray, *, shared_drift: bool
    ) -> None:
        """`at_start`: the scores of all the client's records at the round's parameters."""
        self._tracked = tracked
        noisy = tracked.shared.noisy
        self._kernel = tracked.kernel if noisy is None else noisy.kernel_followed(tracked.kernel)
        self._members = [np.flatnonzero(column) for column in membership.T]
        counts = tracked.shared.counts
        self._shares = [
            (1.0 if shared_drift else rows.size / max(float(counts[c]), rows.size)) if rows.size else 0.0
            for c, rows in enumerate(self._members)
        ]
        self._fixed = self._own(at_start, -1.0)
        self._moving = self._own(at_start, 1.0)

    def refresh(self, now: FloatArray) -> None:
        """Take note of the present scores of all the client's records."""
        self._moving = self._own(now, 1.0)

    def derivative(self, scores: FloatArray, coefficients: FloatArray, order: int = 1) -> FloatArray:
        """As `TrackedPenalty.derivative`, with the drift in."""
        total = self._tracked.derivative(scores, coefficients, order)
        for part in (self._fixed, self._moving):
            total += weighted_sum(part, scores, coefficients, order)
        return total

    def _own(self, scores: FloatArray, sign: float) -> list[Embedding | None]:
        """For each embedding of the penalty: ± Σ_c factor_c·w_c·(mean κ over own records of cell c)."""
        result: list[Embedding | None] = []
        for factors in self._tracked.factors:
            parts = [(c, f) for c, f in factors.items() if self._shares[c]]
            if not parts:
                result.append(None)
                continue
            samples = np.concatenate([scores[self._members[c]] for c, _ in parts])
            weights = [
                np.full(self._members[c].size, sign * f * self._shares[c] / self._members[c].size) for c, f in parts
            ]
            domain = self._tracked.shared.domain
            result.append(Embedding(self._kernel, samples, np.concatenate(weights), domain=domain, tie=SAME_SCORE))
        return result


def equal_weights(scores: Sequence[FloatArray]) -> tuple[FloatArray, ...]:
    """1/n for each of n scores, cell by cell."""
    return tuple(np.full(s.size, 1.0 / s.size) if s.size else np.zeros(0) for s in scores)
