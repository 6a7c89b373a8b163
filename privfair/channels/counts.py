"""Counts: how many records a client has in each cell, released once, before the first round, exact or with noise."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from accountant import calibration
from accountant.errors import InputError
from accountant.events import Adjacency, Event, Nothing, NotPrivate
from accountant.spending import TRAIN, Spend
from privfair.channels.base import Channel, Description, Phase, PriceList, ReplyCheck
from privfair.channels.workload import PrivateRun, Sampling, Workload
from privfair.clients.client import Client
from privfair.config import Config
from privfair.federated.messages import Counts, CountsRequest
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import Entropy

COUNTS = CountsRequest.channel


class CountsChannel(Channel[CountsRequest, Counts]):
    """The counts from which rates, weights and the smallest cells follow."""

    name: ClassVar[str] = COUNTS
    side: ClassVar[str] = TRAIN
    request, reply = CountsRequest, Counts
    phase: ClassVar[Phase] = "before"

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> CountsRequest | None:
        """The same for every client, with the noise of the plan."""
        return CountsRequest(release_plan.counting)

    def respond(self, request: CountsRequest, client: Client, entropy: Entropy) -> Counts:
        """Exact or noisy; the total is the cells' sum where they add up to it. With shares: a part of a masked sum."""
        cells = client.data.cells
        reported = cells.tell(client.data.membership)
        if request.noise is not None and request.noise.shares > 1:
            part = request.noise.release(reported, entropy)
            return Counts(0, np.zeros(0, dtype=np.int64), client.part_of_total(part, self.name))
        return Counts(*cells.read(reported if request.noise is None else request.noise.release(reported, entropy)))

    def spends(self, request: CountsRequest, holder: PriceList) -> tuple[Spend, ...]:
        """One row: a record moves one count of every set that it is in."""
        event: Event
        if request.noise is not None:
            overlap = holder.cells.count_overlap
            event = holder.in_shares(request.noise, lambda noise: noise.event(overlap, holder.adjacency))
        else:  # replacing a record within its cell moves no count
            event = Nothing() if holder.adjacency is Adjacency.REPLACE_ONE else NotPrivate()
        return (holder.row(request, event),)

    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel | None:
        """As often as counts were released."""
        if run.count_noise is None:
            return None
        event = run.count_noise.event(run.cells.count_overlap, run.adjacency)
        return calibration.Channel(self.name, event, run.count_releases, fixed=True)

    def check_reply(self, request: CountsRequest, reply: Counts, client: str, form: ReplyCheck) -> None:
        """Whole numbers within bounds; exact ones are not negative."""
        name, cells = f"counts of client {client!r}", np.asarray(reply.cells)
        if request.noise is not None and request.noise.shares > 1:
            form.require_part_of_total(reply.contribution, cells.size + int(reply.records), name)
            return
        if reply.contribution is not None:
            raise InputError(name, "must be numbers", "a part of a total")
        if cells.shape != (form.cells,) or not np.issubdtype(cells.dtype, np.integer):
            raise InputError(name, f"must be {form.cells} whole numbers", f"{cells.dtype} of shape {cells.shape}")
        everything = [int(reply.records), *(int(count) for count in cells)]
        least = 0 if request.noise is None else -form.most_records
        if not all(least <= count <= form.most_records for count in everything):
            raise InputError(name, f"must be between {least} and {form.most_records}", "others")

    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description | None:
        """Their noise, in records."""
        noise = release_plan.counting
        if noise is None:
            public = config.privacy.counts == "public"
            return Description("none: public", "once, all records") if public else None
        return described(noise, "once, all records")


def described(noise: CountNoise, sampling: str) -> Description:
    """Noise of counts, or of their totals, for people."""
    facts: dict[str, Any] = {"mechanism": noise.kind, "scale": noise.scale, "unit": "records"}
    if noise.shares > 1:
        facts |= {"shares": noise.shares, "of": "totals over all clients"}
        text = f"{noise.kind}, {noise.scale:.3g} records on totals, by {noise.shares} clients together"
        return Description(text, sampling, facts)
    return Description(f"{noise.kind}, {noise.scale:.3g} records", sampling, facts)
