"""Function tracking: the fairness penalty that a client can follow with nothing but what is shared of the groups.

The paper's client loss f_k = 2(α_k⁰E_k[C | A=0] − α_k¹E_k[C | A=1]), α_k^a = P_k(A=a)/P(A=a), is a plain mean over
the client's records of the per-example penalty

    2λ Σ_j 1{(x_i, y_i) ∈ C_j} · D_{a_i, j}(S_i) / P(A = a_i, C_j),    D_{a, j} = Σ_{b ≠ a} (μ_{a, j} − μ_{b, j})

with μ_{a, j}(z) the mean of κ(z, y) over the shared scores y of cell (a, j). For two groups D₀ = C and D₁ = −C. It is
unbiased under any minibatching, and needs only the global shares P(A = a, C_j). More than two groups: one penalty for
each pair of groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.codec import FloatArray, Payload, unless
from privfair.fairness.notions import Cells, Counts
from privfair.kernels.base import Kernel
from privfair.kernels.families import parse_kernel
from privfair.kernels.features import FeatureWitness, UnitFeatures, unit_features
from privfair.kernels.witness import Embedding
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import DEFAULT_STEPS, LEAST_NOISE, VectorNoise

SAME_SCORE = 1e-6
"""Scores nearer than this (relative to the larger of 1 and the score) are one score.

The same record gives scores that differ in the last bit, by the order in which products are added; rounding must not
decide on which side of itself a record is, where the kernel has a kink.
"""


# ---- Shared scores.

Factors = dict[int, float]  # cell -> what μ of that cell is multiplied with
Curve = Embedding | FeatureWitness  # a function of the score, with derivatives


@dataclass(frozen=True, eq=False)
class NoisyScores:
    """How the scores were made private, and how the kernel answers to it.

    Correction "none": κ itself meets noisy scores, so its convolution with the noise is what is followed, the
    paper's Proposition 5.2. "deconvolve": κ′ with κ′ ∗ noise = κ meets them, and κ is followed, at more variance.
    `pads`: for each cell the weight of the middle of the range that corrects for the messages' padding.
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


@dataclass(frozen=True, eq=False)
class SharedScores:
    """What the server broadcasts for a round: the scores of every cell, their weights, and the cells' sizes."""

    kernel: str
    strength: float  # λ
    scores: tuple[FloatArray, ...]  # one array per cell; empty where no client has such a record
    weights: tuple[FloatArray, ...]
    counts: FloatArray  # records in each cell, over all clients
    records: float  # records over all clients
    domain: tuple[float, float] | None  # the range of the scores, where it is known
    noisy: NoisyScores | None = None
    damping: ClassVar[float] = 1.0  # what the loss of a record is multiplied with

    def scale(self, cell: int) -> float:
        """2λ/P(A = a, C_j)."""
        return 2 * self.strength * self.records / float(self.counts[cell])

    def received(self, cell: int) -> bool:
        """Whether anybody shared a score of a cell."""
        return bool(self.scores[cell].size)

    def curve(self, factors: Factors, kernel: Kernel) -> Embedding:
        """Σ_c factor_c·(mean of κ(z, y) over the scores of cell c)."""
        scores = np.concatenate([self.scores[c] for c in factors])
        weights = np.concatenate([factor * self.weights[c] for c, factor in factors.items()])
        return Embedding(kernel, scores, weights, domain=self.domain, tie=SAME_SCORE)


def equal_weights(scores: Sequence[FloatArray]) -> tuple[FloatArray, ...]:
    """1/n for each of n scores, cell by cell."""
    return tuple(np.full(s.size, 1.0 / s.size) if s.size else np.zeros(0) for s in scores)


# ---- Features: what is shared of a group is the mean of a few bounded features of its scores.
#
# A client sends for each cell one vector, Σ ψ(S_i) over its records (see `UnitFeatures`): noise on it is divided by the
# number of records, no record is sampled, and sums can be added under encryption. Everybody who may open the sum over
# all clients has the witness functions of the round.


@dataclass(frozen=True)
class EmbeddingPlan:
    """Which features of a score are shared, and on which grid: public, and the same everywhere."""

    kernel: str
    low: float
    high: float
    features: int | None  # None: as many as the kernel needs
    steps: int = DEFAULT_STEPS
    room: int | None = None  # records of one client and cell that a sum has room for; None: any number
    cohort: int = 1  # no sum of fewer clients' vectors is opened
    shares: int = 1  # how many clients' shares are the whole noise; 1: everybody adds all of it
    threshold: float | None = None  # where decisions are tracked as well: the least score of those that are 1

    @cached_property
    def unit(self) -> UnitFeatures:
        """The features, weighted for the least error of the penalty's slope; and the decision."""
        found = unit_features(parse_kernel(self.kernel), self.low, self.high, self.features)
        return found if self.threshold is None else found.with_decision(self.threshold)

    def noise(self, multiplier: float) -> VectorNoise:
        """Noise of scale `multiplier` times the largest contribution of a record."""
        return VectorNoise(multiplier, self.unit.count, self.unit.spread, self.steps, self.shares)

    @property
    def least_noise(self) -> float:
        """The smallest multiplier whose shares have enough steps of the grid."""
        return LEAST_NOISE * math.sqrt(self.shares) / self.steps * (1 + 1e-9)

    def room_beside(self, noise: VectorNoise | None) -> int | None:
        """How many records of one client and cell a sum has room for, with this noise; None: any number.

        Integers that find no room are clipped. A share of distributed noise must find room but for one draw in 1e32,
        because others rely on it. A client's own noise only blurs what it sends: six standard deviations are enough.
        """
        if self.room is None or noise is None:
            return self.room
        reach = noise.reach if noise.shares > 1 else noise.reach / 2
        return max(0, self.room - math.ceil(reach / self.steps))


@dataclass(frozen=True, eq=False)
class SealedFeatures:
    """What the server broadcasts for a round: the sum of the clients' vectors, encrypted or not, for them to open.

    `shares`: of each cell the released number of records of those clients whose vectors are in the sum. `within`: the
    number of the sum of updates that has the features behind them, and is the last that clients have opened; `total` is
    then empty. `steering`: what λ follows beside the sum, where it follows a target.
    """

    kernel: str
    strength: float  # λ
    total: Payload  # empty: no client sent anything, or the features are in another sum
    shares: FloatArray
    counts: FloatArray  # records in each cell, over all clients
    records: float  # records over all clients
    within: Annotated[int | None, unless(None)] = None
    steering: Annotated[Steering | None, unless(None)] = None


@dataclass(frozen=True, eq=False)
class SharedFeatures:
    """An opened `SealedFeatures`: the mean features of every cell of which the sum has records.

    `rates`: the tracked share of decisions that are 1, where decisions are tracked. `steered`: λ of each cell, where
    they follow a target, and what task and penalty are multiplied with.
    """

    plan: EmbeddingPlan
    strength: float
    means: FloatArray  # (cells, J), of φ
    shares: FloatArray
    counts: FloatArray
    records: float
    rates: FloatArray | None = None
    steered: Steered | None = None
    noisy: None = None  # noise is on the means, and has mean 0: the kernel stays what it is

    @property
    def kernel(self) -> str:
        """Its name."""
        return self.plan.kernel

    @property
    def damping(self) -> float:
        """What the loss of a record, task and penalty, is multiplied with."""
        return 1.0 if self.steered is None else self.steered.damping

    @property
    def domain(self) -> tuple[float, float]:
        """The range of the features."""
        return self.plan.low, self.plan.high

    def scale(self, cell: int) -> float:
        """2λ/P(A = a, C_j)."""
        strength = self.strength if self.steered is None else float(self.steered.strengths[cell])
        return 2 * strength * self.records / float(self.counts[cell])

    def received(self, cell: int) -> bool:
        """Whether anybody's records of a cell are in the sum."""
        return bool(self.shares[cell] > 0)

    def curve(self, factors: Factors, kernel: Kernel) -> FeatureWitness:
        """Σ_c factor_c·⟨φ(z), mean of cell c⟩; the kernel is in the features already."""
        total = np.zeros(self.plan.unit.features.count)
        for cell, factor in factors.items():
            total += factor * self.means[cell]
        return FeatureWitness(self.plan.unit.features, total)


def opened_features(plan: EmbeddingPlan, sealed: SealedFeatures, total: FloatArray, units: float) -> SharedFeatures:
    """The mean features in a sum; `units`: what stands for 1 in the sum.

    A mean of vectors of the unit ball is in it. One that noise has moved out of it is projected onto its surface, which
    is nearer to the true mean wherever that is. Decisions stay as they are: what follows them knows their noise.
    """
    shape = (len(sealed.shares), plan.unit.count)
    if total.size != shape[0] * shape[1]:
        raise InputError("sum of features", f"must have {shape[0] * shape[1]} values", total.size)
    means = total.reshape(shape) / units / np.maximum(sealed.shares, 1e-9)[:, None]
    return SharedFeatures(
        plan=plan,
        strength=sealed.strength,
        rates=plan.unit.mean_decision(means),
        means=plan.unit.mean_features(means),
        shares=sealed.shares,
        counts=sealed.counts,
        records=sealed.records,
    )


# ---- A target in place of λ: the gap between decisions that may remain, and what λ has to be for that.
#
# The decision is one of the coordinates that are shared, so the gap by which a model is judged is tracked inside the
# same noisy sums, and λ follows it: post-processing, which costs no ε. Whoever may open the sums has λ, by the same
# arithmetic on the same numbers; nobody sends it.

SMOOTHING = 0.3  # weight of a round's rates in the smoothed ones
GAIN = 0.3  # log λ moves by this at most in a round
LEAST_STRENGTH, MOST_STRENGTH = 0.01, 60.0
MARGIN = 1.75  # standard errors of the verdict by which the aim is below the target
SHRINKAGE, SHRINKAGE_WHITENED = 0.2, 0.5  # c of loss = (task + λ·fairness)/(1 + c·λ); on whitened features
LAST_SHARE = 0.4  # of the rounds, whose models' mean is the result


@dataclass(frozen=True, eq=False)
class Steering:
    """What λ follows beside the sums of a round: public, and the same for everybody.

    For each cell the standard deviation of the noise in its sum of decisions, in records, and how many test records the
    verdict is expected to have; and the variance of the noise of one of the verdict's counts.
    """

    errors: FloatArray
    tests: FloatArray
    noise: float


@dataclass(frozen=True, eq=False)
class Steered:
    """λ of each cell, and what task and penalty are multiplied with."""

    strengths: FloatArray
    damping: float


@dataclass(frozen=True)
class TargetPlan:
    """The largest gap that is asked for, and between which cells: public, and the same everywhere."""

    target: float
    comparisons: tuple[tuple[int, ...], ...]  # cells of each conditioning set of each attribute
    attributes: tuple[int, ...]  # of which attribute each comparison is
    rounds: int
    shrinkage: float = SHRINKAGE

    @staticmethod
    def of(target: float, cells: Cells, rounds: int, *, whitened: bool = False) -> TargetPlan:
        """For all comparisons of a notion; `whitened`: whether features are (`federation.precondition`)."""
        compared = tuple(tuple(comparison.cells) for comparison in cells.comparisons)
        attributes = tuple(comparison.attribute for comparison in cells.comparisons)
        return TargetPlan(target, compared, attributes, rounds, SHRINKAGE_WHITENED if whitened else SHRINKAGE)

    def aim(self, error: float) -> float:
        """What the tracked gap is steered to, below the target by what a verdict with this standard error will need.

        Where that is less than half of the target, it is the target itself, and "met" is a matter of luck.
        """
        below = self.target - MARGIN * error
        return below if below >= self.target / 2 else self.target

    def damping(self, strengths: FloatArray) -> float:
        """1/(1 + c·λ), so that steps do not grow with λ; λ is the largest sum of those that one record can meet."""
        worst = sum(
            max(float(strengths[e]) for e, own in enumerate(self.attributes) if own == attribute)
            for attribute in dict.fromkeys(self.attributes)
        )
        return 1 / (1 + self.shrinkage * worst)


def step_share(number: int, rounds: int) -> float:
    """What the step of a round is multiplied with, where λ follows a target: min(1, 2(1 − t/T) + 0.1)."""
    return min(1.0, 2 * (1 - number / rounds) + 0.1)


def out_of_reach(target: float) -> str:
    """That a verdict "met" is not to be expected, for people."""
    return (
        f'With so few test records, or so much noise, the verdict "met" would take a gap below half of {target:g}: λ '
        "aims at the target itself, and the verdict is a matter of luck."
    )


class Controller:
    """λ of every comparison, round by round: part of the state of whoever opens the sums.

        smoothed rates r ← (1 − s)r + s·(tracked rates), and their noise v ← (1 − s)²v + s²·(its variance)
        ĝ = max over pairs of √max((r_a − r_b)² − v_a − v_b, 0)
        λ ← clip(λ·exp(0.3·clip((ĝ − aim)/aim, −1, 1)), 0.01, 60)

    A round that is asked for again gets what it got before.
    """

    def __init__(self, plan: TargetPlan) -> None:
        """Before the first round: λ = 1 everywhere."""
        cells = 1 + max(cell for own in plan.comparisons for cell in own)
        self.plan = plan
        self.strengths: FloatArray = np.ones((0, len(plan.comparisons)))  # (rounds so far, comparisons)
        self.gaps: FloatArray = np.zeros((0, len(plan.comparisons)))  # NaN: not known in that round
        self.aims: FloatArray = np.zeros((0, len(plan.comparisons)))
        self._rates: FloatArray = np.full(cells, np.nan)
        self._variances: FloatArray = np.zeros(cells)

    @property
    def round(self) -> int:
        """How many rounds it has followed: the number of the next one."""
        return len(self.strengths)

    def follow(self, number: int, shared: SharedFeatures, steering: Steering) -> SharedFeatures:
        """The features of a round with λ; raise unless it is the next round, or one that was."""
        if number > self.round:
            rule = f"must be those of round {self.round}, which λ follows first"
            raise InputError("sum of features", rule, f"those of round {number}")
        if number == self.round:
            self._advance(shared, steering)
        by_cell = np.ones(len(shared.shares))
        for own, strength in zip(self.plan.comparisons, self.strengths[number], strict=True):
            by_cell[list(own)] = strength
        return replace(shared, steered=Steered(by_cell, self.plan.damping(self.strengths[number])))

    def _advance(self, shared: SharedFeatures, steering: Steering) -> None:
        """Take a round's rates; λ of a comparison of which fewer than two groups are known stays."""
        if shared.rates is None:
            raise InputError("shared features", "must have the decisions, where a target is followed", "none")
        heard = shared.shares > 0
        variances = (steering.errors / np.maximum(shared.shares, 1e-9)) ** 2
        s = np.where(np.isnan(self._rates), 1.0, SMOOTHING)
        rates = (1 - s) * np.where(np.isnan(self._rates), 0.0, self._rates) + s * shared.rates
        self._rates = np.where(heard, rates, self._rates)
        self._variances = np.where(heard, (1 - s) ** 2 * self._variances + s**2 * variances, self._variances)
        before = self.strengths[-1] if self.round else np.ones(len(self.plan.comparisons))
        gaps, aims, strengths = np.full(len(before), np.nan), np.full(len(before), np.nan), before.copy()
        for e, own in enumerate(self.plan.comparisons):
            known = [cell for cell in own if not math.isnan(self._rates[cell])]
            if len(known) < 2:
                continue
            gap, error = self._judged(known, steering)
            gaps[e], aims[e] = gap, self.plan.aim(error)
            move = GAIN * min(max((gap - aims[e]) / aims[e], -1.0), 1.0)
            strengths[e] = min(max(before[e] * math.exp(move), LEAST_STRENGTH), MOST_STRENGTH)
        self.gaps, self.aims = np.vstack([self.gaps, gaps]), np.vstack([self.aims, aims])
        self.strengths = np.vstack([self.strengths, strengths])

    def _judged(self, known: Sequence[int], steering: Steering) -> tuple[float, float]:
        """The largest gap between these cells without its noise, and the largest standard error of a verdict on it."""
        from privfair.fairness.verdict import standard_error  # SciPy's distributions take long to import

        square = 0.0
        for a, b in combinations(known, 2):
            apart = float(self._rates[a] - self._rates[b])
            square = max(square, apart**2 - float(self._variances[a] + self._variances[b]))
        rate = min(max(float(self._rates[known].mean()), 0.0), 1.0)
        return math.sqrt(square), standard_error(steering.tests[known], rate, steering.noise)

    @property
    def notes(self) -> list[str]:
        """What stood in the way of the target, as far as λ and its aims tell; for people."""
        if not self.round:
            return []
        found = []
        if (self.strengths[-1] >= MOST_STRENGTH).any():
            found.append(
                f"λ ended at {MOST_STRENGTH:g}, the largest there is: training could not bring the tracked gap down to "
                "the aim. More rounds, longer steps or more ε would help, or a larger target."
            )
        if (self.aims[-1] >= self.plan.target).any():
            found.append(out_of_reach(self.plan.target))
        return found

    def figures(self, number: int) -> dict[str, float | None]:
        """λ and the tracked gap of a round, the largest of all comparisons; None before it was followed."""
        if not 0 <= number < self.round:
            return {"lambda": None, "tracked_gap": None}
        gaps = self.gaps[number][~np.isnan(self.gaps[number])]
        return {"lambda": float(self.strengths[number].max()), "tracked_gap": float(gaps.max()) if gaps.size else None}

    def state(self) -> dict[str, FloatArray]:
        """All of it, for a checkpoint."""
        return {
            "strengths": self.strengths,
            "gaps": self.gaps,
            "aims": self.aims,
            "rates": self._rates,
            "variances": self._variances,
        }

    def restore(self, state: Mapping[str, FloatArray]) -> None:
        """Take `state` back."""
        self.strengths, self.gaps, self.aims = state["strengths"], state["gaps"], state["aims"]
        self._rates, self._variances = state["rates"], state["variances"]


Shared = SharedScores | SharedFeatures  # what clients know of all groups' scores in a round


# ---- The penalty of a round.


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
            present = [c for c in comparison.cells if shared.received(c)]
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
        """What corrects for the padding of noisy messages, for each embedding."""
        return [self._padding(factors) for factors in self.factors]

    def _padding(self, factors: Factors) -> Embedding | None:
        """What corrects for the padding of noisy messages."""
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
        """Use the present scores of all the client's records."""
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


# ---- How many scores each client shares from each cell.

LARGEST_POOL = 10**9  # numpy draws without replacement from fewer than these


def random_quotas(counts: Counts, samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(clients, cells): how many of `samples` scores per cell fall on each client in a uniform draw from all records.

    Drawn without replacement over the pooled cell (multivariate hypergeometric), so that the union of what the
    clients share is a simple random sample: the gradient estimator is then unbiased (Lemma 4.1), also where a client
    has fewer records than would earn it one score. All records of a cell are shared where it has fewer than `samples`.
    From a billion records and more, which a client may claim though none has them, it is drawn with replacement, and
    no client is asked for more than it claims.
    """
    quotas = np.zeros_like(counts)
    for cell in range(counts.shape[1]):
        available = counts[:, cell]
        total = int(available.sum())
        wanted = min(samples, total)
        if total < LARGEST_POOL:
            quotas[:, cell] = rng.multivariate_hypergeometric(available, wanted, method="marginals")
        else:
            quotas[:, cell] = np.minimum(rng.multinomial(wanted, available / total), available)
    return quotas


def largest_remainder_quotas(counts: Counts, samples: int) -> NDArray[np.int64]:
    """(clients, cells): `samples` scores per cell in proportion to the counts; remainders to the largest fractions.

    The same every round: a client whose share rounds to 0 never shares a score.
    """
    quotas = np.zeros_like(counts)
    for cell in range(counts.shape[1]):
        available = counts[:, cell]
        total = int(available.sum())
        wanted = min(samples, total)
        if not total:
            continue
        exact = available * wanted / total
        quotas[:, cell] = np.floor(exact).astype(np.int64)
        left = wanted - int(quotas[:, cell].sum())
        quotas[np.argsort(-(exact - quotas[:, cell]), kind="stable")[:left], cell] += 1
    return quotas
