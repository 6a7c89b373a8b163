"""The seams: what an algorithm, a federated optimiser and a backend promise each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from accountant.errors import InputError
from privfair.codec import FloatArray, Remembered
from privfair.federated.messages import (
    Answered,
    Asked,
    Counts,
    Embeddings,
    Evaluation,
    Measures,
    Missing,
    Model,
    Objective,
    Reply,
    Request,
    Scores,
    Update,
)
from privfair.federated.release_plan import ReleasePlan

Memory = Mapping[str, Remembered]  # what a server-side object remembers between rounds; all of it is in the checkpoint
Ask = Callable[
    [Sequence[int], Callable[[int], Asked]], list[Answered]
]  # (clients, request for each) -> replies in order


class Requests(Protocol):
    """What clients are asked for, by channel: `privfair.channels` derives it from the release plan and the schedule."""

    @property
    def every_round(self) -> Sequence[str]:
        """The channels that a round asks for by itself, whatever the algorithm."""
        ...

    def __call__(self, channel: str, release_plan: ReleasePlan, number: int | None) -> dict[int, Any]:
        """The planned request of every client that has one; the server fills in the model, which has its place."""
        ...


class Backend(Protocol):
    """Where clients live: this process, a batched program, another machine."""

    @property
    def clients(self) -> int:
        """How many there are."""
        ...

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """Send each client its request; its reply, or `Missing`. The only place where data leave a client."""
        ...

    def agreed(self, release_plan: ReleasePlan) -> None:
        """From here on requests are made under these terms; clients on other machines get to see them."""
        ...

    def client_state(self) -> Memory:
        """What clients remember between rounds, for a simulation's checkpoint."""
        ...

    def restore_clients(self, state: Memory) -> None:
        """Take `client_state` back."""
        ...


@dataclass(frozen=True)
class Absence:
    """A client that did not answer: in which round (None: before the first, or after the last), what, and why."""

    round: int | None
    client: int
    asked: str
    reason: str


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that the server knows between two rounds."""

    round: int
    model: Model
    release_plan: ReleasePlan
    algorithm: Memory
    uncounted: tuple[int, ...] = ()  # clients that have not told their counts yet, and may still join
    absent: tuple[Absence, ...] = ()
    shared: Mapping[str, Mapping[int, Reply]] = field(default_factory=dict)  # of `Requests.every_round`, in this round

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.release_plan.records)


class Algorithm(Protocol):
    """A way to be fair: what to ask before training, what each client minimises, how clients are weighed."""

    name: ClassVar[str]
    measures: ClassVar[tuple[str, ...]]  # local figures its messages carry beside scores, updates and counts
    snapshots: ClassVar[bool]  # whether updates carry the parameters at a moment within the round as well
    per_example: ClassVar[bool]  # whether a record's loss is its own, whatever other records the client has

    def start(self, release_plan: ReleasePlan) -> Memory:
        """What it remembers before the first round."""
        ...

    def joined(self, memory: Memory, release_plan: ReleasePlan) -> Memory:
        """What it remembers when clients have joined, which are in these terms for the first time."""
        ...

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """What clients minimise this round, and what it remembers."""
        ...

    def weights(self, state: ServerState, memory: Memory) -> FloatArray:
        """How clients' updates are weighed; they sum to 1."""
        ...

    def snapshot_at(self, state: ServerState) -> float | None:
        """At which share of the local steps it wants to see the parameters too, if at all."""
        ...

    def beside(self, state: ServerState) -> Mapping[int, Request]:
        """What clients are asked together with training; nothing, unless scores lag a round behind."""
        ...

    def received(self, state: ServerState, memory: Memory, replies: Mapping[int, Scores]) -> Memory:
        """What it remembers of the answers to `beside`, by client."""
        ...

    def after(self, state: ServerState, memory: Memory, model: Model, ask: Ask) -> Memory:
        """What it remembers after the round, given the new model."""
        ...


class FederatedOptimizer(Protocol):
    """How updates move the model."""

    @property
    def proximal(self) -> float:
        """FedProx's μ, which clients need to know."""
        ...

    @property
    def uses_control(self) -> bool:
        """Whether clients correct their steps by control variates."""
        ...

    def start(self, parameters: FloatArray) -> Memory:
        """What it remembers before the first round."""
        ...

    def step(
        self, parameters: FloatArray, delta: FloatArray, control_delta: FloatArray | None, memory: Memory
    ) -> tuple[FloatArray, Memory]:
        """New parameters from the weighted mean of the updates."""
        ...


ReplyKind = TypeVar("ReplyKind", Counts, Scores, Embeddings, Update, Measures, Evaluation)


def answered(kind: type[ReplyKind], clients: Sequence[int], replies: Sequence[Answered]) -> dict[int, ReplyKind]:
    """The replies by client, without those who did not answer; a reply of another kind is an error, never dropped."""
    found = {}
    for client, reply in zip(clients, replies, strict=True):
        if isinstance(reply, Missing):
            continue
        if not isinstance(reply, kind):
            raise InputError(f"reply of client {client}", f"must be {kind.__name__}", type(reply).__name__)
        found[client] = reply
    return found


def measured(clients: Sequence[int], replies: Sequence[Answered], quantity: str) -> dict[int, FloatArray]:
    """One quantity from the replies to a `MeasureRequest`, by client."""
    return {client: reply.values[quantity] for client, reply in answered(Measures, clients, replies).items()}
