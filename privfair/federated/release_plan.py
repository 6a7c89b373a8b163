"""What is settled before the first round: how many records take part, and on which terms they are used."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from privfair.codec import Bound, Codec, FloatMatrix, IntMatrix, IntVector, unless
from privfair.fairness.tracking import step_share
from privfair.federated.messages import LocalWork, PrivateWork
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.moments import MomentsPlan, Scaling, SumRelease, sizes, standard, whitened
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import GradientRelease, UpdateRelease, VectorNoise
from privfair.secure_aggregation.masks import Cohort
from privfair.util import FloatArray

KernelCorrection = Literal["none", "deconvolve"]


@dataclass(frozen=True, eq=False)
class Sharing:
    """How scores are shared privately. Without rates (public counts) exactly `quotas` records are drawn."""

    noise: ScoreNoise
    quotas: IntMatrix  # (clients, cells); 0: left out
    rates: FloatMatrix | None  # (clients, cells)
    correction: KernelCorrection = "none"


@dataclass(frozen=True, eq=False)
class PrivateEmbedding:
    """How sums of features are shared privately: with which noise, and by whom."""

    noise: VectorNoise
    cells: IntMatrix  # (clients, cells); 0: left out

    def asked(self, records: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which clients send a vector: those with a cell in it, and with shared noise all that take part."""
        return np.asarray(self.cells.any(axis=1) | ((records > 0) & (self.noise.shares > 1)))


@dataclass(frozen=True, eq=False)
class PrivateUpdates:
    """How every client runs DP-SGD."""

    steps: int
    sampling_rate: float
    noise_multiplier: float
    max_grad_norm: float
    # one step a round, on the sum of all clients' gradients, which is taken when the sum is opened
    gradient: Annotated[GradientRelease | None, unless(None)] = None
    learning_rate: Annotated[float, unless(0.0)] = 0.0
    learning_rate_decay: Annotated[float, unless(1.0)] = 1.0
    participation: Annotated[float, unless(1.0)] = 1.0  # the share of clients in the sum of a round
    damped: Annotated[int, unless(0)] = 0  # as `Schedule.damped`


@dataclass(frozen=True, eq=False)
class ClientUpdates:
    """How every client's whole update is clipped and gets noise, where clients are protected as a whole."""

    noise: VectorNoise  # in units of the largest part of one client
    max_norm: float
    largest_weight: float  # of any client, in the sum of a round

    @property
    def step(self) -> float:
        """What one step of the sum is, in units of a parameter."""
        return self.max_norm * self.largest_weight / self.noise.steps


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """How the features are scaled: by sums that all clients release before the first round, and what came of them.

    Everybody makes the same scaling of the same totals, which are whole numbers as they were opened, as if nobody was
    absent. They are None until they are there.
    """

    first: SumRelease
    second: SumRelease | None  # of products; None: features are standardised, and not whitened
    parts: int  # of noise, in each total
    moments: IntVector | None = None
    products: IntVector | None = None
    records: int = 0  # over which they are summed, as released

    @property
    def complete(self) -> bool:
        """Whether all totals are there."""
        return self.moments is not None and (self.second is None or self.products is not None)

    @property
    def bare(self) -> FeatureMoments:
        """The same without totals: what follows from the plan and from counts."""
        return replace(self, moments=None, products=None, records=0)

    def fits(self, features: int) -> bool:
        """Whether the totals that are there are those of so many features, and possible."""
        first, second = sizes(features)
        found = [(self.moments, first, self.first), (self.products, second, self.second)]
        order = self.products is None or self.moments is not None
        return (
            order
            and (self.records > 0) == (self.moments is not None)
            and all(
                t is None or (r is not None and t.shape == (n,) and bool((np.abs(t) <= MOST_TOTAL).all()))
                for t, n, r in found
            )
        )

    def succeeds(self, before: FeatureMoments) -> bool:
        """Whether no total that was there before is another one now."""
        pairs = ((before.moments, self.moments), (before.products, self.products))
        same = before.records in (0, self.records) or self.records == 0
        return same and all(old is None or new is None or np.array_equal(old, new) for old, new in pairs)

    @cached_property
    def standard(self) -> Scaling | None:
        """How features are standardised; None before the first total is there."""
        if self.moments is None:
            return None
        return standard(self.first.opened(self.moments), self.records, self.first.error(self.parts))

    @cached_property
    def scaling(self) -> Scaling | None:
        """What is done to the features of every record; None before all totals are there."""
        scaling = self.standard
        if scaling is None or self.second is None or self.products is None:
            return scaling if self.second is None else None
        return whitened(scaling, self.second.opened(self.products), self.records, self.second.error(self.parts))


def feature_moments(plan: MomentsPlan, records: int, multipliers: Sequence[float] | None) -> FeatureMoments:
    """The sums of this plan for a released number of records; `multipliers`: of their noise, None without privacy."""
    second = plan.release(1, records, multipliers) if plan.precondition else None
    return FeatureMoments(plan.release(0, records, multipliers), second, plan.clients)


MOST_TOTAL = 2**61  # of a total of moments


@dataclass(frozen=True)
class Claim:
    """The ε of a plan, by method, at δ: bounds that were fixed before anything was released."""

    rdp: Bound
    pld: Bound
    delta: float
    two_phases: bool = False  # rates and steps were planned from released counts


@dataclass(frozen=True, eq=False)
class ReleasePlan:
    """Counts as they were released (exact without privacy), and what was planned from them by public rules."""

    records: IntVector  # per client; 0 for one that takes no part
    cells: IntMatrix  # (clients, cells); noisy ones may be negative
    least: int = 0  # no cell is taken to be smaller than this
    sharing: Sharing | None = None
    embedding: PrivateEmbedding | None = None
    updates: PrivateUpdates | None = None
    client_updates: ClientUpdates | None = None
    counting: CountNoise | None = None  # the noise that the counts have
    count_releases: int = 1  # how often they were released; more than once after a crash that lost them
    evaluation: CountNoise | None = None  # the noise of the final report
    claim: Claim | None = None  # None: no privacy
    cohort: Annotated[Cohort | None, unless(None)] = None  # of masked sums; None: contributions are not masked
    # counts are released as totals: `records` and `cells` divide them evenly among the clients
    totals: Annotated[bool, unless(False)] = False
    # features are scaled before they are trained on; None: they are as the encoder gives them
    moments: Annotated[FeatureMoments | None, unless(None)] = None

    @property
    def scaling(self) -> Scaling | None:
        """What is done to the features of every record; None: nothing, or nothing yet."""
        return None if self.moments is None else self.moments.scaling

    @property
    def scaled(self) -> bool:
        """Whether everything is there that features are scaled by, if they are."""
        return self.moments is None or self.moments.complete

    @property
    def fairness_noise(self) -> ScoreNoise | VectorNoise | None:
        """Of what is shared for fairness: scores, or sums of their features."""
        if self.embedding is not None:
            return self.embedding.noise
        return None if self.sharing is None else self.sharing.noise

    @property
    def noise_is_shared(self) -> bool:
        """Whether clients add only a share of the noise each, under encryption."""
        return self.noise_shares > 1

    @property
    def noise_shares(self) -> int:
        """How many shares are the whole noise; 1 where every client adds all of it."""
        noises = [shared.noise for shared in (self.embedding, self.client_updates) if shared is not None]
        noises += [self.gradient.noise] if self.gradient is not None else []
        counts = [noise.shares for noise in (self.counting, self.evaluation) if noise is not None]
        return max([*(noise.shares for noise in noises), *counts], default=1)

    @property
    def gradient(self) -> GradientRelease | None:
        """What is done to the sum of a client's gradients, where a round is one step on the sum of all."""
        return None if self.updates is None else self.updates.gradient

    @property
    def trains(self) -> NDArray[np.bool_]:
        """Which clients train: those with records, and in masked sums all; the weight of the others is 0."""
        return np.asarray((self.records > 0) | (self.cohort is not None))

    @property
    def least_updates(self) -> int:
        """No sum of fewer updates is made or opened: with shared noise each has only a part of it.

        Masked sums keep to their own smallest cohort.
        """
        if self.cohort is not None:
            return 1
        noise = None if self.client_updates is None else self.client_updates.noise
        return 1 if noise is None or noise.shares == 1 else noise.shares + 1

    def sum_step(self, number: int) -> float:
        """What 1 in an opened sum of the updates of this round stands for.

        A step of DP-SGD is η/(q·p·N) times the sum of clipped gradients, N the released number of all records and p the
        share of clients that train in a round: a cohort stands for all.
        """
        if self.gradient is not None and self.updates is not None:
            u, records = self.updates, float(self.records.sum()) * self.updates.participation
            rate = u.learning_rate * u.learning_rate_decay**number
            rate *= step_share(number, u.damped) if u.damped else 1.0
            return rate * u.max_grad_norm / (self.gradient.noise.steps * u.sampling_rate * records)
        return 1.0 if self.client_updates is None else self.client_updates.step

    @property
    def noise_of_evaluation(self) -> CountNoise | None:
        """The noise that a released table has: of a client, or of the total over all of them."""
        noise = self.evaluation
        if noise is None or noise.shares == 1:
            return noise
        return CountNoise("gaussian", noise.scale * math.sqrt(len(self.records) / noise.shares))

    def release(self, client: int) -> UpdateRelease | None:
        """What a client does to its whole update before it leaves; None where DP-SGD is private, or nothing is."""
        c = self.client_updates
        if c is None:
            return None
        return UpdateRelease(c.max_norm, float(self.weights[client] / self._largest_weight), c.noise)

    @property
    def silent(self) -> bool:
        """Whether released counts left out a client, or a cell of what a client shares for fairness."""
        takes_part, shared = self.records > 0, self.shared_cells
        left_out = self.counting is not None and not bool(takes_part.all())
        return left_out or (shared is not None and not bool(shared[takes_part].all()))

    @property
    def shared_cells(self) -> NDArray[np.int64] | None:
        """(clients, cells): above 0 where something is shared for fairness; None where nothing is, or without noise."""
        if self.sharing is not None:
            return self.sharing.quotas
        return None if self.embedding is None else self.embedding.cells

    @cached_property
    def weights(self) -> FloatArray:
        """ν_k: each client's share of all records."""
        shares: FloatArray = self.records / self.records.sum()
        return shares

    @cached_property
    def _largest_weight(self) -> float:
        return float(self.weights.max())

    @cached_property
    def cell_totals(self) -> FloatArray:
        """Records of each cell over all clients: noisy counts are summed first, then floored; never each by itself."""
        totals: FloatArray = np.maximum(self.cells.sum(axis=0), self.least).astype(float)
        return totals

    def work(self, client: int, local: LocalWork) -> LocalWork | PrivateWork:
        """What a client does in a round: as planned, or the same by DP-SGD."""
        if self.updates is None:
            return local
        u = self.updates
        one = float(self.records[client] or max(self.least, 1))  # weight 0: any number will do
        return PrivateWork(
            steps=u.steps,
            sampling_rate=u.sampling_rate,
            noise_multiplier=u.noise_multiplier,
            max_grad_norm=u.max_grad_norm,
            divisor=u.sampling_rate * (one if u.gradient is None else float(self.records.sum()) * u.participation),
            learning_rate=local.learning_rate,
            proximal=local.proximal,
            optimizer=local.optimizer,
        )


RELEASE_PLANS = Codec[ReleasePlan](ReleasePlan, "release plan", what="release plan")


def terms_digest(release_plan: ReleasePlan) -> bytes:
    """What masks are bound to: everything that noise, grids and shares of a run's sums follow from."""
    return hashlib.sha256(RELEASE_PLANS.to_text(release_plan).encode()).digest()


NOISE_KEYS = {  # the key of [privacy] with the noise of each channel
    "updates": "noise_multiplier",
    "predictions": "prediction_noise",
    "embeddings": "prediction_noise",
    "counts": "count_noise",
    "evaluation": "evaluation_noise",
    "moments": "moments_noise",
    "products": "products_noise",
}


def noise_of(release_plan: ReleasePlan) -> dict[str, float]:
    """The noise of every channel that has some, in the units of its key in [privacy]."""
    found: dict[str, float] = {}
    if release_plan.counting is not None:
        found["counts"] = release_plan.counting.scale
    if release_plan.sharing is not None:
        found["predictions"] = release_plan.sharing.noise.scale
    if release_plan.embedding is not None:
        found["embeddings"] = release_plan.embedding.noise.multiplier
    if release_plan.updates is not None:
        found["updates"] = release_plan.updates.noise_multiplier
    if release_plan.client_updates is not None:
        found["updates"] = release_plan.client_updates.noise.multiplier
    if release_plan.evaluation is not None:
        found["evaluation"] = release_plan.evaluation.scale
    sums = release_plan.moments
    both = () if sums is None else (("moments", sums.first), ("products", sums.second))
    for name, release in both:
        if release is not None and release.noise is not None:
            found[name] = release.noise.multiplier
    return found
