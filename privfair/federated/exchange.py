"""What server, clients, algorithms and engines expect of each other, how the server asks, and how messages travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar

import numpy as np

from accountant.errors import InputError, Refused
from privfair.codec import TREE, Arrays, Codec, FloatArray, Remembered, Tagged, with_tree
from privfair.federated.messages import (
    Answered,
    Asked,
    Bundle,
    BundleReply,
    Counts,
    Embeddings,
    Evaluation,
    MaskingReply,
    MaskingRequest,
    Measures,
    Missing,
    Model,
    Moments,
    Objective,
    Products,
    Reply,
    Request,
    Scores,
    Update,
)

if TYPE_CHECKING:
    from privfair.federated.release_plan import ReleasePlan

Memory = Mapping[str, Remembered]  # what a server-side object remembers between rounds; all of it is in the checkpoint
Replies = Mapping[int, Reply | Missing]  # by client
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
    uncounted: tuple[int, ...] = ()  # clients that have not reported their counts yet, and may still join
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
        """What clients are asked together with training; nothing, unless what they share lags a round behind."""
        ...

    def received(
        self, state: ServerState, memory: Memory, replies: Replies, stepped: Sequence[int], ask: Ask
    ) -> Memory:
        """What it remembers of the answers to `beside`, by client; `state` has the new model.

        `stepped`: whose updates are in the sum whose step was taken; nobody, if none was. That sum may have more in it
        than updates: features that lag travel in it, where contributions are masked.
        """
        ...

    def after(self, state: ServerState, memory: Memory, model: Model, ask: Ask) -> Memory:
        """What it remembers after the round, given the new model."""
        ...


class Plain:
    """What most algorithms do: they remember nothing, ask nothing beside, and weigh clients by their records."""

    measures: ClassVar[tuple[str, ...]] = ()
    snapshots: ClassVar[bool] = False
    per_example: ClassVar[bool] = True

    def start(self, release_plan: ReleasePlan) -> Memory:
        """It remembers nothing."""
        return {}

    def joined(self, memory: Memory, release_plan: ReleasePlan) -> Memory:
        """It remembers what it did before."""
        return memory

    def weights(self, state: ServerState, memory: Memory) -> FloatArray:
        """ν_k, each client's share of all records."""
        return state.release_plan.weights

    def snapshot_at(self, state: ServerState) -> float | None:
        """It needs no snapshot."""
        return None

    def beside(self, state: ServerState) -> Mapping[int, Request]:
        """It asks for nothing."""
        return {}

    def received(
        self, state: ServerState, memory: Memory, replies: Replies, stepped: Sequence[int], ask: Ask
    ) -> Memory:
        """It remembers what it did before."""
        return memory

    def after(self, state: ServerState, memory: Memory, model: Model, ask: Ask) -> Memory:
        """It remembers what it did before."""
        return memory


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


ReplyKind = TypeVar("ReplyKind", Counts, Moments, Products, Scores, Embeddings, Update, Measures, Evaluation)


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


# ---- Who answered and who did not: the roll of a round, and requests that travel together.


class Unfinished(Refused):
    """A run that stops before its end, for want of clients: what it has is kept, and it can be continued."""


class ExchangeLog:
    """Asks as `ask` does, and writes down who did not answer."""

    def __init__(self, ask: Ask, round_number: int | None) -> None:
        """Of one round, or of what is asked before the first and after the last."""
        self._ask, self._round = ask, round_number
        self.absent: list[Absence] = []

    def ask(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """The replies, with `Missing` for those who did not answer."""
        requests = {k: request(k) for k in clients}
        replies = self._ask(clients, requests.__getitem__)
        for k, reply in zip(clients, replies, strict=True):
            asked = requests[k]
            if isinstance(asked, MaskingRequest):
                self._note(k, asked.channel, reply)
                continue
            for single, answer in zip(singles(asked), _answers(asked, reply), strict=True):
                self._note(k, single.channel, answer)
        return replies

    def _note(self, client: int, channel: str, answer: Answered) -> None:
        if isinstance(answer, Missing):
            self.absent.append(Absence(self._round, client, channel, answer.reason))


def singles(asked: Asked) -> tuple[Request, ...]:
    """The requests of a bundle; a single one is one of its own. Those of the protocol of masks are no releases."""
    if isinstance(asked, MaskingRequest):
        raise InputError("request", "must be for a release", type(asked).__name__)
    return asked.requests if isinstance(asked, Bundle) else (asked,)


def regrouped(asked: Sequence[Request | Bundle], replies: Sequence[Reply]) -> list[Answered]:
    """Replies to the `singles` of all that was asked, in order, as replies to what was asked."""
    rest = iter(replies)
    return [
        BundleReply(tuple(next(rest) for _ in one.requests)) if isinstance(one, Bundle) else next(rest) for one in asked
    ]


def ask_together(
    ask: Ask, first: Mapping[int, Request], second: Mapping[int, Request]
) -> tuple[dict[int, Reply | Missing], dict[int, Reply | Missing]]:
    """What the clients of each mapping answered to it; who is in both is asked once, for both."""
    clients = sorted({*first, *second})

    def request(client: int) -> Request | Bundle:
        requests = tuple(part[client] for part in (first, second) if client in part)
        return requests[0] if len(requests) == 1 else Bundle(requests)

    found: tuple[dict[int, Reply | Missing], dict[int, Reply | Missing]] = ({}, {})
    for client, reply in zip(clients, ask(clients, request), strict=True):
        answers = iter(_answers(request(client), reply))
        for part, into in zip((first, second), found, strict=True):
            if client in part:
                into[client] = next(answers)
    return found


def _answers(asked: Request | Bundle, reply: Answered) -> tuple[Reply | Missing, ...]:
    """One answer for each single request; who did not answer a bundle did not answer any of it."""
    count = len(singles(asked))
    if isinstance(reply, Missing):
        return (reply,) * count
    if isinstance(reply, MaskingReply):
        raise InputError("reply", "must be to what was asked", type(reply).__name__)
    answers = reply.replies if isinstance(reply, BundleReply) else (reply,)
    if len(answers) != count or isinstance(reply, BundleReply) != isinstance(asked, Bundle):
        raise InputError("reply", f"must have {count} answers", len(answers))
    return answers


# ---- Counting what crosses the wire.


class Metered:
    """A backend that counts the bytes of arrays and numbers in its messages, up (to the server) and down."""

    def __init__(self, backend: Backend) -> None:
        """Start at 0."""
        self.inner = backend
        self.bytes_up = 0
        self.bytes_down = 0

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.inner.clients

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """Ask, and count."""
        requests = {k: request(k) for k in clients}
        replies = self.inner.exchange(clients, requests.__getitem__)
        known: dict[int, int] = {}
        self.bytes_down += sum(size(r, known) for r in requests.values())
        self.bytes_up += sum(size(r, known) for r in replies)
        return replies

    def agreed(self, release_plan: ReleasePlan) -> None:
        """The backend's."""
        self.inner.agreed(release_plan)

    def client_state(self) -> Memory:
        """The backend's."""
        return self.inner.client_state()

    def restore_clients(self, state: Memory) -> None:
        """The backend's."""
        self.inner.restore_clients(state)


def size(value: Any, known: dict[int, int] | None = None) -> int:
    """Bytes of the payload: arrays as they are, numbers as 8, texts as UTF-8; names and framing not counted.

    `known` has by their ids the values that were counted before, for parts that messages share; it must not outlive
    them.
    """
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, bool | int | float):
        return 8
    if isinstance(value, str):
        return len(value.encode())
    if known is None:
        known = {}
    elif id(value) in known:
        return known[id(value)]
    parts: Iterable[Any] = ()
    if isinstance(value, tuple | list):
        parts = value
    elif is_dataclass(value):
        kind: Any = type(value)
        always, later = _names(kind)
        parts = [getattr(value, name) for name in always]
        parts += [found for name, default in later if (found := getattr(value, name)) is not default]
    elif isinstance(value, Mapping):
        parts = value.values()
    known[id(value)] = found = sum([size(part, known) for part in parts])
    return found


@lru_cache(maxsize=256)
def _names(kind: Any) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """The fields of a dataclass that are always written, and those that are left out at their default."""
    later = {f.name: f.default for f in fields(kind) if "unless(" in str(f.type)}
    return tuple(f.name for f in fields(kind) if f.name not in later), tuple(later.items())


# ---- Requests and replies as bytes, for machines that are far away and for the ledger.


def _stored(arrays: Arrays) -> Arrays:
    """The arrays of a reply. Those of earlier versions, which a ledger may have stored, were named by their kind."""
    if TREE in arrays:
        return arrays
    (kind,) = {name.partition("/")[0] for name in arrays}
    fields: dict[str, Any] = {name.partition("/")[2]: name for name in sorted(arrays)}
    if kind in ("scores", "evaluation"):
        fields = {"cells" if kind == "scores" else "confusion": list(fields.values())}
    elif kind == "measures":
        fields = {"values": fields}
    return with_tree(arrays, {kind.capitalize(): fields})


_requests = Codec[Asked](Annotated[Asked, Tagged()], "request")
_replies = Codec[Reply](Annotated[Reply, Tagged()], "reply", earlier=_stored)
_mask_replies = Codec[MaskingReply](Annotated[MaskingReply, Tagged()], "reply")

encode_request, decode_request = _requests.encode, _requests.decode
encode, decode = _replies.encode, _replies.decode
# apart from releases: what a ledger stores is never one of these
encode_masking, decode_masking = _mask_replies.encode, _mask_replies.decode


def carry(request: type, reply: type) -> None:
    """Make the messages of a further channel known; the request travels by itself, not in a `Bundle`."""
    _requests.also(request)
    _replies.also(reply)
