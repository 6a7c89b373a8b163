"""A channel that privfair does not have: in every round each client reports the noisy sum of its labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from accountant import calibration
from accountant.errors import InputError
from accountant.spending import Spend
from privfair.channels.base import MOST_RECORDS, Channel, Description, PriceList, ReplyCheck
from privfair.channels.workload import PrivateRun, Sampling, Workload
from privfair.clients.client import Client
from privfair.config import Config
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import Entropy

NOISE = CountNoise("laplace", 40.0)


@dataclass(frozen=True, eq=False)
class LabelSumRequest:
    """How many of your records have the label 1? `noise`: what to add."""

    channel: ClassVar[str] = "label_sum"
    round: int
    noise: CountNoise


@dataclass(frozen=True, eq=False)
class LabelSum:
    """The answer to `LabelSumRequest`."""

    total: int


class LabelSumChannel(Channel[LabelSumRequest, LabelSum]):
    """The noise is settled beforehand: a record is in the sum once."""

    name: ClassVar[str] = "label_sum"
    request, reply = LabelSumRequest, LabelSum

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> LabelSumRequest | None:
        takes_part = number is not None and release_plan.claim is not None and release_plan.records[client] > 0
        return LabelSumRequest(number, NOISE) if takes_part and number is not None else None

    def respond(self, request: LabelSumRequest, client: Client, entropy: Entropy) -> LabelSum:
        exact = np.array([int((client.data.y > 0.5).sum())])
        return LabelSum(int(request.noise.release(exact, entropy)[0]))

    def spends(self, request: LabelSumRequest, holder: PriceList) -> tuple[Spend, ...]:
        return (holder.row(request, request.noise.event(1, holder.adjacency)),)

    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel:
        rounds = run.work.rounds + run.config.retries
        return calibration.Channel(self.name, NOISE.event(1, run.adjacency), rounds, fixed=True)

    def check_reply(self, request: LabelSumRequest, reply: LabelSum, client: str, form: ReplyCheck) -> None:
        if abs(reply.total) > MOST_RECORDS:
            raise InputError(f"label sum of client {client!r}", f"must be at most {MOST_RECORDS}", "more")

    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description:
        facts = {"mechanism": NOISE.kind, "scale": NOISE.scale, "unit": "labels"}
        return Description(f"{NOISE.kind}, {NOISE.scale:g} labels", f"{work.rounds} × one sum, all records", facts)
