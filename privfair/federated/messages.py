"""Everything that crosses the wire, as frozen values of plain numpy. Clients send nothing unasked.

A request's `channel` is the one name of its kind: in the ledger, in the plan and in reports (see `privfair.channels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from accountant.errors import InputError
from privfair.codec import FloatArray, FloatMatrix, FloatVector, IntArray, IntVector, Payload, Tagged, Whole, unless
from privfair.fairness.tracking import SealedFeatures, SharedFeatures, SharedScores
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.moments import SumRelease
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import GradientRelease, UpdateRelease, VectorNoise

Drift = Literal["none", "own", "shared"]


@dataclass(frozen=True, eq=False)
class Task:
    """Minimise the task loss alone."""


@dataclass(frozen=True, eq=False)
class Tracked:
    """Task loss plus the per-example penalty of the shared scores (the paper's algorithm), or of shared features.

    Features travel sealed; a client opens them before it trains.
    """

    shared: Annotated[SharedScores | SealedFeatures | SharedFeatures, Tagged(SharedScores, SealedFeatures)]
    drift: Drift = "none"


@dataclass(frozen=True, eq=False)
class OwnPenalty:
    """Task loss plus λ·MMD² between the groups of the client's own minibatch."""

    kernel: str
    strength: float


@dataclass(frozen=True, eq=False)
class Reweighted:
    """Task loss with a weight for each (group of the first attribute, label)."""

    weights: FloatMatrix  # (groups, 2)


Objective = Annotated[Task | Tracked | OwnPenalty | Reweighted, Tagged()]


@dataclass(frozen=True, eq=False)
class Parameters:
    """The model as it is: the server holds it."""

    values: FloatVector
    control: FloatVector | None = None  # SCAFFOLD: the server's control variate c
    snapshot: FloatVector | None = None  # the mean of the parameters at a moment within the last round


@dataclass(frozen=True, eq=False)
class Sealed:
    """The encrypted sum of the last round's updates: clients open it and take the server's step themselves.

    `round` counts the sums so far; before the first there is none, and clients start from the initial model. `share`:
    how much of the asked-for weight the sum holds, less than 1 where clients were absent; the mean is the sum over it.
    `step`: what 1 in the sum stands for; not 1 where whole updates are summed on a grid.
    """

    round: int
    total: Payload
    share: float = 1.0
    step: float = 1.0


Model = Annotated[Parameters | Sealed, Tagged()]


@dataclass(frozen=True, eq=False)
class CountsRequest:
    """How many records have you, in all and in each cell? `noise`: what to add before the answer leaves."""

    channel: ClassVar[str] = "counts"
    noise: CountNoise | None = None


@dataclass(frozen=True, eq=False)
class Counts:
    """The answer to `CountsRequest`: the numbers, or in `contribution` the client's part of their total over all."""

    records: Whole
    cells: IntVector
    contribution: Annotated[Payload | None, unless(None)] = None


@dataclass(frozen=True, eq=False)
class MomentsRequest:
    """Add up the features of your training records, and their squares (see `mechanisms.moments`)."""

    channel: ClassVar[str] = "moments"
    release: SumRelease


@dataclass(frozen=True, eq=False)
class Moments:
    """The answer to `MomentsRequest`: whole numbers, or in `contribution` the client's part of their sum over all."""

    total: IntVector
    contribution: Annotated[Payload | None, unless(None)] = None


@dataclass(frozen=True, eq=False)
class ProductsRequest:
    """Add up the products of the features of your training records, standardised by `centre` and `scale`."""

    channel: ClassVar[str] = "products"
    release: SumRelease
    centre: FloatVector
    scale: FloatVector


@dataclass(frozen=True, eq=False)
class Products:
    """The answer to `ProductsRequest`, as `Moments`."""

    total: IntVector
    contribution: Annotated[Payload | None, unless(None)] = None


@dataclass(frozen=True, eq=False)
class ScoreRelease:
    """How scores are made private: noise on each, of records taken at a public rate (None: exactly `quotas` of them).

    With rates a message is padded up to its quota with the middle of the range.
    """

    noise: ScoreNoise
    rates: FloatVector | None


@dataclass(frozen=True, eq=False)
class ScoresRequest:
    """Share so many scores of each cell under this model."""

    channel: ClassVar[str] = "predictions"
    round: int
    model: Model
    quotas: IntVector
    release: ScoreRelease | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """The answer to `ScoresRequest`: one array per cell, in random order."""

    cells: tuple[FloatVector, ...]


@dataclass(frozen=True, eq=False)
class EmbeddingsRequest:
    """Share the sum of the features of your scores under this model, for each cell that is not 0 in `cells`.

    `round`: whose training follows them. They may lag: the model is then that of the round before. `release`: the noise
    on each; None: none.
    """

    channel: ClassVar[str] = "embeddings"
    round: int
    model: Model
    cells: IntVector
    release: VectorNoise | None = None


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The answer to `EmbeddingsRequest`: one vector for each cell, encoded for the aggregation."""

    contribution: Payload


LocalOptimizer = Literal["sgd", "adam"]


@dataclass(frozen=True, eq=False)
class LocalWork:
    """How a client trains in a round. The server holds the learning rate and its decay."""

    epochs: int
    batch_size: int | None  # None: all records at once
    learning_rate: float
    proximal: float = 0.0  # FedProx: μ
    optimizer: LocalOptimizer = "sgd"


@dataclass(frozen=True, eq=False)
class PrivateWork:
    """How a client trains with DP-SGD: every number is public, and none depends on the client's records."""

    steps: int
    sampling_rate: float  # each record is in a minibatch with this probability
    noise_multiplier: float  # noise scale over max_grad_norm
    max_grad_norm: float
    divisor: float  # the planned size of a minibatch, from released counts
    learning_rate: float
    proximal: float = 0.0
    optimizer: LocalOptimizer = "sgd"


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """Train on your records from this model, and contribute `weight` times what changed."""

    channel: ClassVar[str] = "updates"
    round: int
    model: Model
    objective: Objective
    work: Annotated[LocalWork | PrivateWork, Tagged()]
    weight: float
    participation: float = 1.0  # the share of clients that train in this round
    correct: bool = False  # SCAFFOLD: correct the steps by control variates
    snapshot_at: float | None = None  # also contribute the change after this share of the local steps
    release: UpdateRelease | None = None  # what is done to the whole change before it leaves; None: nothing
    gradient: Annotated[GradientRelease | None, unless(None)] = (
        None  # one step of DP-SGD whose noise is whole numbers; None: it is in `work`
    )
    # the features for the next round, which lag: under this request's model, behind the change in the same vector
    features: Annotated[EmbeddingsRequest | None, unless(None)] = None


@dataclass(frozen=True, eq=False)
class Update:
    """The answer to `TrainRequest`: the weighted change, encoded for the aggregation (see `model_state`)."""

    contribution: Payload


@dataclass(frozen=True, eq=False)
class MeasureRequest:
    """Measure these quantities on your training records under this model (see `clients.measures`).

    `at_snapshot`: not under the model itself but under the mean snapshot of its last round.
    """

    channel: ClassVar[str] = "measures"
    model: Model
    quantities: tuple[str, ...]
    at_snapshot: bool = False


@dataclass(frozen=True, eq=False)
class Measures:
    """The answer to `MeasureRequest`."""

    values: Mapping[str, FloatArray]


@dataclass(frozen=True, eq=False)
class EvaluateRequest:
    """Count your test records by group, label and decision under this model, and add this noise."""

    channel: ClassVar[str] = "evaluation"
    model: Model
    noise: CountNoise


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The answer to `EvaluateRequest`: for each attribute (groups, label, decision); or a part of their total."""

    confusion: tuple[IntArray, ...]
    contribution: Annotated[Payload | None, unless(None)] = None


Request = (
    CountsRequest
    | MomentsRequest
    | ProductsRequest
    | ScoresRequest
    | EmbeddingsRequest
    | TrainRequest
    | MeasureRequest
    | EvaluateRequest
)
Reply = Counts | Moments | Products | Scores | Embeddings | Update | Measures | Evaluation


# ---- Masks of secure sums (see `privfair.secure_aggregation.masking`). What travels here depends on no record: keys,
# shares of keys, signatures. It is no release and has no price. Bytes of several holders stand one behind the other,
# in the order in which they are named; `secure_sums` knows how many each has.


@dataclass(frozen=True, eq=False)
class MaskKeysRequest:
    """Make keys for this block of sums."""

    channel: ClassVar[str] = "masks"
    block: int


@dataclass(frozen=True, eq=False)
class MaskKeys:
    """The answer: a holder's public keys for the block, signed; `chosen`: the neighbours that it drew, if any."""

    block: int
    keys: Payload
    chosen: Annotated[IntVector | None, unless(None)] = None


@dataclass(frozen=True, eq=False)
class MaskSharesRequest:
    """Share your mask keys of this block among these holders, whose public keys these are."""

    channel: ClassVar[str] = "masks"
    block: int
    holders: IntVector
    keys: Payload


@dataclass(frozen=True, eq=False)
class MaskShares:
    """The answer: shares for each of the other holders, encrypted for each."""

    block: int
    holders: IntVector
    sealed: Payload


@dataclass(frozen=True, eq=False)
class RosterRequest:
    """Sign that these holders are the roster of the block; `sealed`: the shares that the others sent to you.

    Among neighbours these are the receiver's neighbours, `senders` those of them that drew it, and the roster stands in
    `roster`, with `digests` of its keys.
    """

    channel: ClassVar[str] = "masks"
    block: int
    holders: IntVector
    keys: Payload
    sealed: Payload
    senders: Annotated[IntVector | None, unless(None)] = None
    roster: Annotated[IntVector | None, unless(None)] = None
    digests: Annotated[Payload, unless(b"")] = b""


@dataclass(frozen=True, eq=False)
class RosterSigned:
    """The answer: the digest of the roster, and a signature on it."""

    block: int
    roster: Payload
    signature: Payload


@dataclass(frozen=True, eq=False)
class AgreeRequest:
    """These holders signed the roster: mask for it."""

    channel: ClassVar[str] = "masks"
    block: int
    holders: IntVector
    rosters: Payload
    signatures: Payload


@dataclass(frozen=True, eq=False)
class RosterAgreed:
    """The answer: enough holders signed the same roster."""

    block: int


@dataclass(frozen=True, eq=False)
class BlockLost:
    """Instead of an answer about a block: this holder has nothing of it. It comes in again with the next block."""

    block: int


@dataclass(frozen=True, eq=False)
class UnmaskSumRequest:
    """These holders are in the sum: open their seeds, and the mask keys of everybody else on the roster.

    `commitments`, `signatures`, `sealed`: of every survivor but the receiver, or of those `of` whom it has shares.
    """

    channel: ClassVar[str] = "masks"
    number: int
    survivors: IntVector
    commitments: Payload
    signatures: Payload
    sealed: Payload
    of: Annotated[IntVector | None, unless(None)] = None


@dataclass(frozen=True, eq=False)
class SumUnmasked:
    """The answer: one share of every holder on the roster."""

    number: int
    holders: IntVector
    shares: Payload


MaskingRequest = MaskKeysRequest | MaskSharesRequest | RosterRequest | AgreeRequest | UnmaskSumRequest
MaskingReply = MaskKeys | MaskShares | RosterSigned | RosterAgreed | BlockLost | SumUnmasked
MASKING_REQUESTS: tuple[type, ...] = get_args(MaskingRequest)


@dataclass(frozen=True, eq=False)
class Missing:
    """Instead of a reply: this client did not answer, and why (its own words, where it refused)."""

    client: int
    reason: str


@dataclass(frozen=True, eq=False)
class Bundle:
    """Several requests that travel together: one exchange where there would be two. Each is answered for itself."""

    requests: tuple[Annotated[Request, Tagged()], ...]


@dataclass(frozen=True, eq=False)
class BundleReply:
    """The replies to a `Bundle`, in its order."""

    replies: tuple[Reply | Missing, ...]


Asked = Request | Bundle | MaskingRequest
Answered = Reply | BundleReply | MaskingReply | Missing


# ---- Masked sums: which answers are in one, and its number.

# channels of whose answers only a masked sum is opened
_REQUESTS = (TrainRequest, EmbeddingsRequest, CountsRequest, EvaluateRequest, MomentsRequest, ProductsRequest)
SUMMED = tuple(request.channel for request in _REQUESTS)


def sum_number(
    channel: str, round_number: int | None, rounds: int, *, joined: bool = False, scaled: bool = False
) -> int:
    """The number of a sum, which no other sum of a run has: counts 0, then features and updates by turns.

    `joined`: the features of all rounds but the first are in the sums of updates, and have no number of their own.
    `scaled`: moments and products come between counts and the rounds, 1 and 2. Sums are made in the order of their
    numbers, so that a holder deletes the keys of smaller ones.
    """
    if channel == CountsRequest.channel:
        return 0
    if scaled:
        if channel == MomentsRequest.channel:
            return 1
        return 2 if channel == ProductsRequest.channel else 2 + sum_number(channel, round_number, rounds, joined=joined)
    if channel == EvaluateRequest.channel:
        return rounds + 2 if joined else 2 * rounds + 1
    if channel not in (EmbeddingsRequest.channel, TrainRequest.channel) or round_number is None:
        raise InputError("sum", "must be of a channel whose contributions add up", channel)
    if channel == TrainRequest.channel:
        return round_number + 2 if joined else 2 * round_number + 2
    if joined and round_number:
        raise InputError("sum of features", "must be in the sum of updates of the round before", round_number)
    return 2 * round_number + 1


def in_a_sum(request: Any) -> bool:
    """Whether the answer is in a masked sum, in a run with masks: parts of totals are, counts of one client are not."""
    noise = getattr(request, "noise", None)
    in_parts = noise is not None and noise.shares > 1
    if isinstance(request, MomentsRequest | ProductsRequest):
        return request.release.masked
    return in_parts or request.channel in (EmbeddingsRequest.channel, TrainRequest.channel)
