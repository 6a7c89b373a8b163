"""Moments: sums of features, and of their products, released once each before the first round, to scale features by.

See `privfair.mechanisms.moments` for the sums, their sensitivity and what is made of them. A server that names false
totals, or different ones to different data holders, spoils accuracy. It gains nothing about a record: a holder
answers each of the two requests once, its vectors are cut to the public length after they are scaled, and so is every
later release of what depends on scaled features. Each price holds for any scaling that is chosen before the release.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from accountant import calibration
from accountant.errors import InputError
from accountant.events import Event, Gaussian, NotPrivate
from accountant.spending import TRAIN, Spend
from privfair.channels.base import EXACT, AgreedRun, Channel, Description, Phase, PriceList, ReplyCheck, require
from privfair.channels.workload import PrivateRun, Sampling, Workload
from privfair.clients.client import Client
from privfair.config import Config
from privfair.federated.messages import Moments, MomentsRequest, Products, ProductsRequest
from privfair.federated.release_plan import MOST_TOTAL, ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.entropy import Entropy
from privfair.mechanisms.moments import Scaling, SumRelease, moments, products, ratio_of
from privfair.per_record import require_summable, whole_sum
from privfair.util import FloatArray

MOMENTS, PRODUCTS = MomentsRequest.channel, ProductsRequest.channel
AT_ONCE = 2**22  # numbers of records' vectors that are in memory together


class _SumChannel(Channel[Any, Any]):
    """What the two sums have in common."""

    phase: ClassVar[Phase] = "scaling"
    side: ClassVar[str] = TRAIN
    which: ClassVar[int]
    sampling: ClassVar[str]

    @abstractmethod
    def release(self, release_plan: ReleasePlan) -> SumRelease | None:
        """How this sum is released in these terms; None: not at all."""

    @abstractmethod
    def vectors(self, request: Any, features: NDArray[np.float32]) -> FloatArray:
        """What each of these records adds to the sum, before it is cut and rounded."""

    def _whole(self, request: Any, client: Client) -> NDArray[np.int64]:
        """The sum over the client's training records, in whole numbers."""
        features, release = client.raw_features, request.release
        require_summable(len(features))
        rows = max(1, AT_ONCE // release.count)
        parts = [features[start : start + rows] for start in range(0, max(1, len(features)), rows)]
        sums = [whole_sum(self.vectors(request, part), float(release.bound), release.steps) for part in parts]
        total: NDArray[np.int64] = np.sum(sums, axis=0, dtype=np.int64)
        return total

    def respond(self, request: Any, client: Client, entropy: Entropy) -> Any:
        """The sum with its noise, or a part of the masked sum of all."""
        message = request.release.message(self._whole(request, client), entropy)
        if request.release.masked:
            return self.reply(np.zeros(0, dtype=np.int64), client.part_of_total(message, self.name))
        return self.reply(message)

    def spends(self, request: Any, holder: PriceList) -> tuple[Spend, ...]:
        """One row: a record adds one vector of bounded length, whatever group it is in."""
        event: Event = NotPrivate()
        if request.release.noise is not None:
            event = holder.in_shares(request.release.noise, lambda noise: noise.event(holder.adjacency))
        return (holder.row(request, event),)

    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel | None:
        """Once, and as often again as a crash may need."""
        found, plan = run.moments_noise, run.work.moments
        if found is None or plan is None or len(found) <= self.which:
            return None
        multiplier, count = found[self.which], plan.sizes[self.which]
        if run.own_share:
            multiplier /= math.sqrt(plan.shares)
        event = Gaussian(ratio_of(multiplier, count), run.moved, run.adjacency)
        return calibration.Channel(self.name, event, 1 + run.config.retries, fixed=True)

    def check_reply(self, request: Any, reply: Any, client: str, form: ReplyCheck) -> None:
        """Whole numbers within bounds, or a part of the total."""
        name, total = f"{self.name} of client {client!r}", np.asarray(reply.total)
        if request.release.masked:
            form.require_part_of_total(reply.contribution, total.size, name)
            return
        size = request.release.count
        if reply.contribution is not None or total.shape != (size,) or not np.issubdtype(total.dtype, np.integer):
            raise InputError(name, f"must be {size} whole numbers", f"{total.dtype} of shape {total.shape}")
        most = MOST_TOTAL // 2**16
        if not (np.abs(total.astype(np.float64)) <= most).all():
            raise InputError(name, f"must be between −{most} and {most}", "others")

    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description | None:
        """Its noise, in units of the features."""
        release = self.release(release_plan)
        if release is None:
            return None
        if release.noise is None:
            return EXACT
        noise = release.noise
        facts: dict[str, Any] = {
            "mechanism": "gaussian (integers)",
            "scale": noise.multiplier,
            "unit": f"times the largest part of one record, {release.bound:.4g}",
            "numbers": noise.count,
            "grid_step": release.bound / release.steps,
        }
        text = f"gaussian, {noise.multiplier:.3g} × {release.bound:.3g}"
        if noise.shares > 1:
            facts |= {"shares": noise.shares, "of": "totals over all clients"}
            text += f", by {noise.shares} clients together"
        return Description(text, f"once, all records, {noise.count} numbers", facts)


class MomentsChannel(_SumChannel):
    """Σ(x, x²) of the features: their mean and variance."""

    name: ClassVar[str] = MOMENTS
    request, reply = MomentsRequest, Moments
    which: ClassVar[int] = 0

    def release(self, release_plan: ReleasePlan) -> SumRelease | None:
        """The first sum."""
        return None if release_plan.moments is None else release_plan.moments.first

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> MomentsRequest | None:
        """The same for every client that takes part."""
        release = self.release(release_plan)
        return MomentsRequest(release) if release is not None and release_plan.records[client] > 0 else None

    def vectors(self, request: MomentsRequest, features: NDArray[np.float32]) -> FloatArray:
        """(x, x²)."""
        return moments(features)


class ProductsChannel(_SumChannel):
    """Σ(ssᵀ, s) of the standardised features: their covariance."""

    name: ClassVar[str] = PRODUCTS
    request, reply = ProductsRequest, Products
    which: ClassVar[int] = 1

    def release(self, release_plan: ReleasePlan) -> SumRelease | None:
        """The second sum."""
        return None if release_plan.moments is None else release_plan.moments.second

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> ProductsRequest | None:
        """The same for every client that takes part; before the first sum is known with a scaling that changes nothing.

        The price does not depend on the scaling.
        """
        release, sums = self.release(release_plan), release_plan.moments
        if release is None or sums is None or not release_plan.records[client] > 0:
            return None
        scaling = sums.standard or Scaling(np.zeros(0), np.ones(0))
        return ProductsRequest(release, scaling.centre, scaling.scale)

    def require_agreed(
        self, found: ProductsRequest, planned: ProductsRequest, release_plan: ReleasePlan, run: AgreedRun
    ) -> None:
        """As planned, and the first sum must be there."""
        sums = release_plan.moments
        require(sums is not None and sums.moments is not None, "Products follow moments, which are not there yet.")
        super().require_agreed(found, planned, release_plan, run)

    def vectors(self, request: ProductsRequest, features: NDArray[np.float32]) -> FloatArray:
        """The upper triangle of ssᵀ, and s."""
        return products(Scaling(request.centre, request.scale).standardised(features))
