"""A channel is one kind of release, whole: its request, the reply, the price, what is checked and how it is described.

Everybody derives a request from the same `Channel.planned`: the server sends it, the forecast prices it, a data holder
compares what arrived with it, and attacks reuse it. What only the server knows (the model, the objective) is filled in
afterwards; `require_agreed` checks it at the data holder.

A new channel is one module with a `Channel`, and one `register`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from accountant import calibration
from accountant.errors import InputError, Refused
from accountant.events import Adjacency, Event, InShares, NotPrivate, Unit
from accountant.spending import Spend, side_group
from privfair.channels.workload import PrivateRun, Sampling, Workload
from privfair.clients.client import Client
from privfair.config import Config
from privfair.fairness.notions import Cells
from privfair.federated.exchange import Algorithm, carry
from privfair.federated.messages import Reply, Request, Sealed
from privfair.federated.model_state import Replica
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule, before_counts
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import Entropy
from privfair.mechanisms.vector_release import VectorNoise
from privfair.secure_aggregation import ServerAggregator
from privfair.secure_aggregation.masked import open_totals, read_total
from privfair.secure_aggregation.masks import Cohort

NO_MODEL = Sealed(0, b"")  # in a planned request, until the server fills in its own
MOST_RECORDS = 2**31  # what nobody has; sums of larger numbers would overflow
LARGEST = 1e18  # of a score, a measure or a change: what is larger is no longer finite in float32 soon

# the channels whose noise the planner calibrates to what ε the others leave
CALIBRATED = ("predictions", "embeddings", "updates")
Phase = Literal["before", "scaling", "round", "algorithm", "training", "after", "on demand"]
Q = TypeVar("Q")
R = TypeVar("R")


class Declined(Refused):
    """A request that is not the agreed one."""


@dataclass(frozen=True)
class Description:
    """A channel in the plan's table, and its entry in privacy.json's `noise`; `facts`: None where it has no noise."""

    noise: str
    sampling: str
    facts: dict[str, Any] | None = None
    event: Event | None = None  # instead of what was planned for the channel: without noise, `NotPrivate`


EXACT = Description("none: exact values leave the clients", "every round", event=NotPrivate())


def by_several(noise: VectorNoise) -> str:
    """By how many clients together the noise is added, in words; nothing where every client adds all of it."""
    return f", by {noise.shares} clients together" if noise.shares > 1 else ""


NoiseInShares = TypeVar("NoiseInShares", CountNoise, VectorNoise)


class AgreedRun(Protocol):
    """What a data holder knows of a run before anything is released: all of it is in the agreed configuration."""

    @property
    def config(self) -> Config:
        """Its configuration."""
        ...

    @property
    def clients(self) -> int:
        """How many there are."""
        ...

    @property
    def cells(self) -> Cells:
        """The groups of the fairness notion."""
        ...

    @property
    def algorithm(self) -> Algorithm:
        """How it is fair."""
        ...

    @property
    def plan(self) -> Schedule:
        """What is asked in every round."""
        ...

    @property
    def planner(self) -> PrivateRun | None:
        """What it protects; None: nothing."""
        ...


class Channel(ABC, Generic[Q, R]):
    """One kind of release.

    `phase`: who asks for it, and when. "before" there are terms; for "scaling" features, under the terms and before the
    first round; in every "round", by the round itself; by the "algorithm" in a round; for "training"; "after" the last
    round; or "on demand", without privacy only.

    The noise of a channel is settled before counts are released, and its price is part of every plan, unless the
    planner calibrates it (`CALIBRATED`).
    """

    name: ClassVar[str]
    request: type[Q]
    reply: type[R]
    phase: ClassVar[Phase] = "round"
    # "train" or "test": of which records alone every release is computed; "": nobody knows, and both pay. One that says
    # "test" may look at nothing but test records and the model, one that says "train" at no test record.
    side: ClassVar[str] = ""

    @property
    def in_rounds(self) -> bool:
        """Whether every release of it belongs to a round."""
        return self.phase in ("round", "algorithm", "training")

    @abstractmethod
    def planned(self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int) -> Q | None:
        """The request to this client in this round (None: before the first or after the last); None: no request."""

    @abstractmethod
    def respond(self, request: Q, client: Client, entropy: Entropy) -> R:
        """What the client computes and sends."""

    def opened(self, request: Q, client: Client) -> Q:
        """The request with everything that travels encrypted opened by the client."""
        return request

    @abstractmethod
    def spends(self, request: Q, holder: PriceList) -> tuple[Spend, ...]:
        """The ledger rows of a reply; without noise they are rows of an infinite ε."""

    @abstractmethod
    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel | None:
        """What the channel costs the worst-case record, or client, over the whole run; None: nothing is released.

        `noise`: None for the noise that is settled beforehand. `fixed`: whether the noise is not to be calibrated.
        """

    def require_agreed(self, found: Q, planned: Q, release_plan: ReleasePlan, run: AgreedRun) -> None:
        """Raise `Declined` unless the request that arrived is the planned one; here: in every field but the model."""
        for field in fields(planned):  # type: ignore[arg-type]  # every request is a dataclass
            if field.name != "model":
                same = equal(getattr(found, field.name), getattr(planned, field.name))
                require(same, f"The {self.name} are not asked for as agreed: {field.name}.")

    @abstractmethod
    def check_reply(self, request: Q, reply: R, client: str, form: ReplyCheck) -> None:
        """Raise an `InputError` that names client and fault unless the reply has the form that was asked for."""

    @abstractmethod
    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description | None:
        """The channel for people; None where the run has none of it."""


# ---- The registry. A request names its channel (`request.channel`); nothing else maps one to the other.


_CHANNELS: dict[str, Channel[Any, Any]] = {}


def register(channel: Channel[Any, Any]) -> None:
    """From here on runs plan, request, price, check and describe this channel."""
    if channel.name in _CHANNELS or channel.request.channel != channel.name:
        raise InputError("channel", "must have a name of its own, the one that its request has", channel.name)
    carry(channel.request, channel.reply)
    _CHANNELS[channel.name] = channel


def unregister(name: str) -> None:
    """Runs that begin from here on do not have this channel."""
    del _CHANNELS[name]


def registered() -> Sequence[Channel[Any, Any]]:
    """All channels, in the order in which tables have them."""
    return tuple(_CHANNELS.values())


def channel_of(request: Request) -> Channel[Any, Any]:
    """The channel of a request; one that is not registered has no price, and is not answered."""
    if request.channel not in _CHANNELS:
        raise InputError("request", f"must be one of {', '.join(_CHANNELS)}", request.channel)
    return _CHANNELS[request.channel]


def round_of(request: Request) -> int | None:
    """The round that a request belongs to; None: before the first, or after the last."""
    return getattr(request, "round", None)


def respond(client: Client, request: Request) -> Reply:
    """A client's reply: the only way in which anything of its records leaves it."""
    channel = channel_of(request)
    reply: Reply = channel.respond(request, client, client.entropy(channel.name, round_of(request) or 0))
    return reply


@dataclass(frozen=True)
class PlannedRequests:
    """The requests of a run, by channel, for the server: see `privfair.federated.exchange.Requests`."""

    schedule: Schedule

    @property
    def every_round(self) -> Sequence[str]:
        """The channels that a round asks for by itself."""
        return [channel.name for channel in registered() if channel.phase == "round"]

    def __call__(self, channel: str, release_plan: ReleasePlan, number: int | None) -> dict[int, Any]:
        """The planned request of every client that has one."""
        clients = range(len(release_plan.records))
        planned = {k: _CHANNELS[channel].planned(release_plan, self.schedule, number, k) for k in clients}
        return {k: request for k, request in planned.items() if request is not None}


# ---- What a data holder pays, and for whom: the ledger rows of a reply. Nothing is answered that has no price.


@dataclass(frozen=True)
class PriceList:
    """One client's prices. `cell_counts` are needed, and public, only where the owner declared counts public.

    `unit`: what is protected. A client with all of its records pays for every cell together, not for each group.
    """

    dataset: str
    run: str
    client: str
    labels: tuple[str, ...]  # of each cell
    cells: Cells
    adjacency: Adjacency
    cell_counts: NDArray[np.int64]
    unit: Unit = Unit.RECORD
    cohort: Cohort | None = None  # of masked sums
    # of the division into training and test records; rows then name the side that they are about (`PrivateRun.sided`)
    division: str = ""

    def in_shares(self, noise: NoiseInShares, price: Callable[[NoiseInShares], Event]) -> Event:
        """The event of a release with this noise; in shares under masks, also that of the client's own share alone.

        Without masks a row has the noise of the whole sum, and the run's name says that it came in shares.
        """
        if noise.shares == 1 or self.cohort is None:
            return price(noise)
        return InShares(
            price(noise), price(noise.alone), self.cohort.holders, self.cohort.colluders, self.cohort.smallest
        )

    def spends(self, request: Request) -> tuple[Spend, ...]:
        """The rows of a reply to this request."""
        return channel_of(request).spends(request, self)

    def row(self, request: Request, event: Event, *, group: str = "", count: int = 1) -> Spend:
        """One row; where the run names sides, of the records of its channel's side alone."""
        side = channel_of(request).side
        if self.division and side and not group:
            group = side_group(f"{self.run} {self.division}", side)
        return Spend(self.dataset, event, self.client, group, request.channel, self.run, round_of(request), count)


def label_of(cells: Cells, attributes: tuple[str, ...], groups: tuple[str, ...], label: str, cell: int) -> str:
    """The payer of a cell, "attribute=value": cells of exclusive sets exclude each other, others add up.

    `attributes` are plain names already. Two groups of one attribute whose names meet pay together: the safe side.
    Sets that exclude each other do so for one label only, the column and what counts as 1 in it: `label`. Those of
    another label overlap with them, and add up.
    """
    comparison = next(c for c in cells.comparisons if cell in c.cells)
    attribute, group = attributes[comparison.attribute], plain_name(groups[cell])
    exclusive = cells.notion.sets_of_a_record == 1 and len(cells.notion.sets) > 1
    if not exclusive:
        return f"{attribute}={group}"
    return f"{attribute},{plain_name(label)}={group},{plain_name(cells.notion.sets[comparison.condition].name)}"


def plain_name(name: str) -> str:
    """The name without the signs that the ledger's grammar needs."""
    return " ".join(name.replace("=", "≡").replace(",", ";").split()) or "unnamed"


# ---- What a data holder checks of a request before it responds.


def require_planned(request: Request, run: AgreedRun, release_plan: ReleasePlan | None, me: int) -> None:
    """Raise `Declined`, with the reason, unless the plan has this data holder answer exactly this request."""
    channel, number = channel_of(request), round_of(request)
    if channel.phase == "before":
        release_plan = before_counts(run.clients, None if run.planner is None else run.planner.count_noise)
    if release_plan is None:
        raise Declined("Nothing but counts is reported before there is a release plan.")
    if number is not None:
        rounds = run.config.federation.rounds
        require(0 <= number < rounds, f"The plan has {rounds} rounds, and no round {number}.")
    if channel.phase == "on demand" and run.planner is not None:
        raise Declined(f"A private run has no {channel.name}, which leave without noise and without a price.")
    if channel.phase not in ("before", "scaling"):
        require(release_plan.scaled, "The terms do not say yet how features are scaled.")
    planned = channel.planned(release_plan, run.plan, number, me)
    if planned is None:
        when = "" if number is None else f" in round {number}"
        raise Declined(f"The plan has no {channel.name} of this data holder{when}.")
    channel.require_agreed(request, planned, release_plan, run)


def require(holds: bool, reason: str) -> None:
    """Raise `Declined` unless it holds."""
    if not holds:
        raise Declined(reason)


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last bit, arrays included."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return one is not None and other is not None and bool(np.array_equal(one, other))
    return bool(one == other)


def close(one: float, other: float) -> bool:
    """Whether two numbers are the same up to rounding, as another machine may round."""
    return math.isclose(one, other, rel_tol=1e-9)


# ---- What the server checks of a reply before it is stored, paid for and used.


class ReplyCheck:
    """Knows what the replies of a run must look like."""

    def __init__(
        self,
        adder: ServerAggregator,
        *,
        cells: int,
        contribution_size: int,
        features: tuple[ServerAggregator, int] | None = None,
        groups: tuple[int, ...] | None = None,
        most_records: int = MOST_RECORDS,
        remote: Sequence[str] | None = None,
        replica: Replica | None = None,
        masked: bool = False,
    ) -> None:
        """How many cells are counted, and how many numbers a contribution carries.

        `features`: who adds them, and how many a record has; None where none are shared. `groups`: how many each
        sensitive attribute has; None where nothing is asked by group. `most_records`: a count above it is refused.
        `remote`: the names of all clients, where they are on other machines, so that contributions must be readable as
        theirs; `replica`: of a server that may open their updates, which must then be finite. `masked`: whether
        parts of totals are masked.
        """
        self.masked = masked
        self.adder, self.cells, self.size, self.features = adder, cells, contribution_size, features
        self.groups, self.most_records, self.remote, self.replica = groups, most_records, remote, replica

    def __call__(self, client: str, request: Request, reply: Reply) -> Reply:
        """The reply, if it is of the kind and form that was asked for; an `InputError` names client and fault."""
        channel = channel_of(request)
        expected: type[Reply] = channel.reply
        if not isinstance(reply, expected):
            raise InputError(f"reply of client {client!r}", f"must be {expected.__name__}", type(reply).__name__)
        channel.check_reply(request, reply, client, self)
        return reply

    def require_part_of_total(self, part: bytes | None, beside: int, name: str) -> None:
        """Raise unless a reply is a part of a total and nothing else."""
        if part is None or beside:
            raise InputError(name, "must be a part of a total, and nothing else", "numbers")
        if self.masked:
            read_total(part, name)
        else:
            open_totals({0: part})

    def require_readable(
        self, adder: ServerAggregator, message: bytes, weight: float, name: str, who: str, number: int
    ) -> None:
        """Raise unless a contribution from another machine is one of this client to this round's sum."""
        if self.remote is not None:
            adder.require_readable(message, weight, name, client=self.remote.index(who), round_number=number)
