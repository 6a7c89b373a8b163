"""The seams: what an algorithm, a federated optimiser and a backend promise each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.messages import Counts, Evaluation, Measures, Model, Objective, Reply, Request, Scores, Update
from privfair.terms import Terms

Memory = Mapping[str, FloatArray]  # what a server-side object remembers between rounds; all of it is in the checkpoint
Ask = Callable[
    [Sequence[int], Callable[[int], Request]], list[Reply]
]  # (clients, request for each) -> replies in order


class Backend(Protocol):
    """Where clients live: this process, a batched program, another machine."""

    @property
    def clients(self) -> int:
        """How many there are."""
        ...

    def exchange(self, clients: Sequence[int], request: Callable[[int], Request]) -> list[Reply]:
        """Send each client its request; its reply. The only place where data leave a client."""
        ...

    def client_state(self) -> Memory:
        """What clients remember between rounds, for a simulation's checkpoint."""
        ...

    def restore_clients(self, state: Memory) -> None:
        """Take `client_state` back."""
        ...


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that the server knows between two rounds."""

    round: int
    model: Model
    terms: Terms
    algorithm: Memory

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.terms.records)


class Algorithm(Protocol):
    """A way to be fair: what to ask before training, what each client minimises, how clients are weighed."""

    name: ClassVar[str]
    measures: ClassVar[tuple[str, ...]]  # local figures its messages carry beside scores, updates and counts
    snapshots: ClassVar[bool]  # whether updates carry the parameters at a moment within the round as well
    per_example: ClassVar[bool]  # whether a record's loss is its own, whatever other records the client has

    def start(self, terms: Terms) -> Memory:
        """What it remembers before the first round."""
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


ReplyKind = TypeVar("ReplyKind", Counts, Scores, Update, Measures, Evaluation)


def expect(kind: type[ReplyKind], replies: Sequence[Reply]) -> list[ReplyKind]:
    """The replies, all of the kind that was asked for; a reply of another kind is an error, never dropped."""
    checked = []
    for position, reply in enumerate(replies):
        if not isinstance(reply, kind):
            raise InputError(f"reply {position}", f"must be {kind.__name__}", type(reply).__name__)
        checked.append(reply)
    return checked


def measured(replies: Sequence[Reply], quantity: str) -> list[FloatArray]:
    """One quantity from the replies to a `MeasureRequest`."""
    return [reply.values[quantity] for reply in expect(Measures, replies)]
