"""The weights of noisy scores from several clients: padding and unequal shares leave no trace in expectation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.fairness.tracking import (
    EmbeddingPlan,
    NoisyScores,
    SealedFeatures,
    SharedScores,
    Steering,
    equal_weights,
)
from privfair.federated.exchange import Algorithm, Ask, Memory, Plain, Replies, Requests, ServerState, answered
from privfair.federated.messages import (
    Answered,
    Drift,
    Embeddings,
    EmbeddingsRequest,
    Objective,
    Request,
    Scores,
    Sealed,
    Tracked,
)
from privfair.federated.release_plan import ReleasePlan, Sharing
from privfair.mechanisms.entropy import stream
from privfair.mechanisms.score_release import fill_share, unpadding_weights
from privfair.secure_aggregation import ServerAggregator, Summed, Sums
from privfair.util import FloatArray


@dataclass(frozen=True, eq=False)
class Pooled:
    """Scores and weights of every cell, and the weight of the middle of the range that undoes the padding."""

    scores: tuple[FloatArray, ...]
    weights: tuple[FloatArray, ...]
    pads: tuple[float, ...]


def pool(replies: Mapping[int, Sequence[FloatArray]], release_plan: ReleasePlan, sharing: Sharing) -> Pooled:
    """Client k speaks for a share ñ_k/Σñ of a cell; its mean embedding is [mean κ(z, ỹ) − (1 − ρ)κ̃(z, middle)]/ρ.

    ρ is the expected share of its message that is records and not padding: 1 where counts are public.
    """
    scores, weights, pads = [], [], []
    for cell in range(release_plan.cells.shape[1]):
        sharers = [k for k in replies if sharing.quotas[k, cell]]
        counts = np.array([max(int(release_plan.cells[k, cell]), 1) for k in sharers], dtype=float)
        pad = 0.0
        pieces: list[FloatArray] = [np.zeros(0)]
        their_weights: list[FloatArray] = [np.zeros(0)]
        for k, share in zip(sharers, counts / counts.sum(), strict=True):
            quota = int(sharing.quotas[k, cell])
            each, middle = unpadding_weights(quota, _filled(release_plan, sharing, k, cell))
            pieces.append(replies[k][cell])
            their_weights.append(np.full(quota, share * each))
            pad += share * middle
        scores.append(np.concatenate(pieces))
        weights.append(np.concatenate(their_weights))
        pads.append(pad)
    return Pooled(tuple(scores), tuple(weights), tuple(pads))


def standard_error(release_plan: ReleasePlan, sharing: Sharing, cell: int, spread: float = 1 / 12**0.5) -> float:
    """Of a cell's mean score as it is estimated from one round's messages; `spread`: of the scores themselves."""
    sharers = np.flatnonzero(sharing.quotas[:, cell])
    counts = np.maximum(release_plan.cells[sharers, cell], 1).astype(float)
    variance = 0.0
    for k, share in zip(sharers, counts / counts.sum(), strict=True):
        quota, filled = int(sharing.quotas[k, cell]), _filled(release_plan, sharing, int(k), cell)
        each, _ = unpadding_weights(quota, filled)
        variance += (share * each) ** 2 * quota * (sharing.noise.noise.variance + filled * spread**2)
    return float(variance**0.5)


def _filled(release_plan: ReleasePlan, sharing: Sharing, client: int, cell: int) -> float:
    """ρ: the expected share of a client's message that is records."""
    if sharing.rates is None:
        return 1.0
    quota = int(sharing.quotas[client, cell])
    return fill_share(int(release_plan.cells[client, cell]), float(sharing.rates[client, cell]), quota)


# ---- Fairness tracking, the paper's algorithm.


@dataclass(frozen=True)
class MmdFedAvg(Plain):
    """MMD-fair FedAvg (Rychener, Kuhn & Hu 2025, algorithms 1 and 2).

    Each round all clients share `samples` scores per cell, together a simple random sample of the cell; local training
    follows the witness functions built from them. Aggregation weighs clients by their records, as the paper's text
    says (its listing has 1/S, which is the same for equal clients).

    `lagged`: the scores of every round but the first are those under the model of the round before, asked for together
    with that round's training: one exchange a round instead of two, as many releases, a witness one step old.
    """

    name: ClassVar[str] = "mmd_fedavg"

    strength: float
    kernel: str
    drift: Drift
    domain: tuple[float, float] | None
    seed: int
    rounds: int
    requests: Requests
    lagged: bool = False

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The pooled scores of every cell, broadcast: gathered now, or received with the last round's updates."""
        if self.lagged and state.algorithm:
            return Tracked(
                self._broadcast(state.release_plan, _remembered(state.algorithm)), self.drift
            ), state.algorithm
        requests = self._requests(state, state.round)
        clients = list(requests)
        replies = answered(Scores, clients, ask(clients, requests.__getitem__))
        pooled = self._pooled(state.release_plan, state.round, replies)
        memory = _memory(pooled) if self.lagged else state.algorithm
        return Tracked(self._broadcast(state.release_plan, pooled), self.drift), memory

    def beside(self, state: ServerState) -> Mapping[int, Request]:
        """The scores for the next round, if they lag."""
        needed = self.lagged and state.round + 1 < self.rounds
        return self._requests(state, state.round + 1) if needed else {}

    def received(
        self, state: ServerState, memory: Memory, replies: Replies, stepped: Sequence[int], ask: Ask
    ) -> Memory:
        """The scores for the next round; the old ones again if no client sent any."""
        scores = answered(Scores, list(replies), list(replies.values()))
        return _memory(self._pooled(state.release_plan, state.round + 1, scores)) if scores else memory

    def _requests(self, state: ServerState, number: int) -> dict[int, Request]:
        """What each client is asked for round `number`: a simple random sample of each cell, or a private message."""
        planned = self.requests("predictions", state.release_plan, number)
        return {k: replace(request, model=state.model) for k, request in planned.items()}

    def _pooled(self, release_plan: ReleasePlan, number: int, replies: Mapping[int, Scores]) -> Pooled:
        """The scores of those who answered: exact ones alike, noisy ones weighed by released counts and shuffled."""
        cells = release_plan.cells.shape[1]
        if release_plan.sharing is None:
            empty = [np.zeros(0)]  # a cell that nobody speaks for
            scores = tuple(np.concatenate([r.cells[c] for r in replies.values()] or empty) for c in range(cells))
            return Pooled(scores, equal_weights(scores), ())
        pooled = pool({k: reply.cells for k, reply in replies.items()}, release_plan, release_plan.sharing)
        order = stream(self.seed, "shuffle", number)
        shuffles = [order.permutation(scores.size) for scores in pooled.scores]
        return Pooled(
            tuple(values[i] for values, i in zip(pooled.scores, shuffles, strict=True)),
            tuple(values[i] for values, i in zip(pooled.weights, shuffles, strict=True)),
            pooled.pads,
        )

    def _broadcast(self, release_plan: ReleasePlan, pooled: Pooled) -> SharedScores:
        sharing = release_plan.sharing
        return SharedScores(
            kernel=self.kernel,
            strength=self.strength,
            scores=pooled.scores,
            weights=pooled.weights,
            counts=release_plan.cell_totals,
            records=float(release_plan.records.sum()),
            domain=self.domain,
            noisy=None if sharing is None else NoisyScores(sharing.noise, sharing.correction, pooled.pads),
        )


def _memory(pooled: Pooled) -> Memory:
    """The scores as named arrays, for the next round and for a checkpoint."""
    found: dict[str, FloatArray] = {"pads": np.array(pooled.pads)}
    for cell, (scores, weights) in enumerate(zip(pooled.scores, pooled.weights, strict=True)):
        found |= {f"scores.{cell:06d}": scores, f"weights.{cell:06d}": weights}
    return found


def _remembered(memory: Memory) -> Pooled:
    """What `_memory` kept."""
    scores, weights = ([memory[name] for name in sorted(memory) if name.startswith(p)] for p in ("scores.", "weights."))
    return Pooled(tuple(scores), tuple(weights), tuple(float(pad) for pad in memory["pads"]))


# Fairness tracking by features: the same penalty as the paper's, from one vector of each group instead of scores.


Kept = Callable[[int, Callable[[], SealedFeatures]], SealedFeatures]  # the sum of a round, which is made if need be


def made_anew(number: int, make: Callable[[], SealedFeatures]) -> SealedFeatures:
    """For a run whose rounds are whole or never were."""
    return make()


@dataclass(frozen=True)
class EmbeddingTracking(Plain):
    """Each round all clients share Σ ψ(score) of every cell; local training follows ⟨φ(z), μ₀ − μ₁⟩.

    The server adds the vectors, which it need not be able to read, and passes the sum on. No record is sampled, so
    without noise this is the paper's algorithm with all scores shared, up to the features that are left out.

    `lagged`: the features of every round but the first are those under the model of the round before. They leave with
    that round's updates: in a message of their own beside them, or, where contributions are masked, behind them in the
    same vector (`Schedule.rounds_with_features`), so that there is one sum to unmask. Every round has its own sum of
    features, known by the round that follows it; a round whose sum failed has none, and follows the task alone.
    """

    name: ClassVar[str] = "mmd_fedavg"

    strength: float
    plan: EmbeddingPlan
    drift: Drift
    requests: Requests
    rounds: int
    lagged: bool = False
    within: bool = False  # lagged: behind the updates, in one sum with them
    sums: Sums | None = None  # None: nobody has keys yet
    kept: Kept = made_anew
    tests: float | None = None  # where λ follows a target: test records for each training record, as far as is public

    @property
    def adder(self) -> ServerAggregator | None:
        """What adds the vectors."""
        return None if self.sums is None else self.sums.adders.get(EmbeddingsRequest.channel)

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The sum over the clients that answered, broadcast: made now, or received with the last round's updates."""
        if self.lagged and state.round:
            return Tracked(self._remembered(state), self.drift), state.algorithm
        return Tracked(self.kept(state.round, lambda: self._asked(state, ask)), self.drift), state.algorithm

    def beside(self, state: ServerState) -> Mapping[int, Request]:
        """The features for the next round, if they lag and have a message of their own."""
        needed = self.lagged and not self.within and state.round + 1 < self.rounds
        return self._requests(state, state.round + 1) if needed else {}

    def received(
        self, state: ServerState, memory: Memory, replies: Replies, stepped: Sequence[int], ask: Ask
    ) -> Memory:
        """The sum of features for the next round: which round that is, the sum or where it is, and whose it is of."""
        number = state.round + 1
        if not self.lagged or number >= self.rounds:
            return {}
        if not self.within:
            return _features_memory(number, self.kept(number, lambda: self._summed(state, number, replies, ask)))
        if not stepped or not isinstance(state.model, Sealed):
            return {}
        within = replace(self._sealed(state.release_plan, Summed(b"", tuple(stepped))), within=state.model.round)
        return _features_memory(number, self.kept(number, lambda: within))

    def start(self, release_plan: ReleasePlan) -> Memory:
        """Nothing; raise if the sums of these clients have no room, or too few clients share the noise."""
        noise = None if release_plan.embedding is None else release_plan.embedding.noise
        room = self.plan.room_beside(noise)
        if room is not None and release_plan.cells.max() > room:
            remedy = 'Fewer clients leave more room for each in such a sum. Or set fairness.tracker = "samples".'
            rule = f"must have at most {room} records in a group for the embedding tracker"
            raise InputError("every client", rule, int(release_plan.cells.max()), remedy)
        clients = int(np.count_nonzero(shares_features(release_plan)))
        if clients < self.plan.cohort and self.plan.cohort > 1:
            rule = f"must be at most the number of clients that take part, {clients}"
            raise InputError("privacy.smallest_cohort", rule, self.plan.cohort, "Too small a share of noise is left.")
        return {}

    def joined(self, memory: Memory, release_plan: ReleasePlan) -> Memory:
        """As before, if there is room for those who come later."""
        self.start(release_plan)
        return memory

    def _requests(self, state: ServerState, number: int) -> dict[int, Request]:
        """What each client is asked for round `number`, under the present model."""
        planned = self.requests("embeddings", state.release_plan, number)
        return {k: replace(request, model=state.model) for k, request in planned.items()}

    def _asked(self, state: ServerState, ask: Ask) -> SealedFeatures:
        requests = self._requests(state, state.round)
        clients = self._adding.ready(EmbeddingsRequest.channel, state.round, list(requests), ask)
        replies = dict(zip(clients, ask(clients, requests.__getitem__), strict=True))
        return self._summed(state, state.round, replies, ask)

    def _summed(self, state: ServerState, number: int, replies: Mapping[int, Answered], ask: Ask) -> SealedFeatures:
        """The sum of the vectors for this round."""
        found, summed = answered(Embeddings, list(replies), list(replies.values())), None
        if found and len(found) >= self.plan.cohort:  # of fewer the noise is not enough
            contributions = {k: reply.contribution for k, reply in found.items()}
            summed = self._adding.add(EmbeddingsRequest.channel, number, contributions, ask)
        return self._sealed(state.release_plan, summed)

    @property
    def _adding(self) -> Sums:
        if self.sums is None:
            raise InputError("tracker", "must have somebody who adds the vectors", None)
        return self.sums

    def _remembered(self, state: ServerState) -> SealedFeatures:
        """The sum for this round that was received with the last one; an empty one, if there is none."""
        memory, sealed = state.algorithm, self._sealed(state.release_plan, None)
        if not memory or int(memory["round"][0]) != state.round:
            return sealed
        within = int(memory["within"][0])
        return replace(
            sealed,
            total=memory["total"].tobytes(),
            shares=memory["shares"],
            within=within if within else None,
        )

    def _sealed(self, release_plan: ReleasePlan, summed: Summed | None) -> SealedFeatures:
        """The sum as a message; empty, where there is none."""
        cells = takes_part(release_plan)
        total, there = (b"", []) if summed is None else (summed.total, list(summed.members))
        return SealedFeatures(
            kernel=self.plan.kernel,
            strength=self.strength,
            total=total,
            shares=np.where(cells[there], release_plan.cells[there], 0).sum(axis=0).astype(float),
            counts=release_plan.cell_totals,
            records=float(release_plan.records.sum()),
            steering=None if self.tests is None else steering(self.plan, release_plan, self.tests),
        )


def steering(plan: EmbeddingPlan, release_plan: ReleasePlan, tests: float) -> Steering:
    """What λ follows beside the sums, from released counts and planned noise; of clients all that were to send."""
    errors, shared, verdict = np.zeros(release_plan.cells.shape[1]), release_plan.embedding, release_plan.evaluation
    if shared is not None:
        takes = (shared.cells > 0).sum(axis=0)
        noisy = np.count_nonzero(shares_features(release_plan)) if shared.noise.shares > 1 else takes
        errors = shared.noise.multiplier * plan.unit.decision_noise * np.sqrt(noisy / shared.noise.shares) + errors
    parts = 0.0 if verdict is None else len(release_plan.records) / verdict.shares
    noise = 0.0 if verdict is None else parts * verdict.scale**2 * (2.0 if verdict.kind == "laplace" else 1.0)
    return Steering(errors, tests * release_plan.cell_totals, noise)


def _features_memory(number: int, sealed: SealedFeatures) -> Memory:
    """The sum of features for round `number` as named arrays, for the next round and for a checkpoint."""
    return {
        "round": np.array([number]),
        "total": np.frombuffer(sealed.total, np.uint8),
        "shares": sealed.shares,
        "within": np.array([sealed.within or 0]),  # sums are numbered from 1
    }


@lru_cache(maxsize=8)  # with many clients each of them asks
def shares_features(release_plan: ReleasePlan) -> NDArray[np.bool_]:
    """Which clients send a vector; of a masked sum with shared noise each does: `honest` of them carry the claim."""
    if release_plan.embedding is not None:
        if release_plan.cohort is not None and release_plan.embedding.noise.shares > 1:
            return np.ones(len(release_plan.records), dtype=np.bool_)
        return release_plan.embedding.asked(release_plan.records)
    return np.asarray(takes_part(release_plan).any(axis=1))


@lru_cache(maxsize=8)
def takes_part(release_plan: ReleasePlan) -> NDArray[np.int64]:
    """(clients, cells): 1 where a client's vector of a cell is asked for; by released counts, so by public rule."""
    if release_plan.embedding is not None:
        return release_plan.embedding.cells
    return (release_plan.cells > 0).astype(np.int64)


def with_sums(algorithm: Algorithm, sums: Sums, kept: Kept = made_anew) -> Algorithm:
    """The algorithm, with what adds its vectors and who keeps their sum, where it has any."""
    return replace(algorithm, sums=sums, kept=kept) if isinstance(algorithm, EmbeddingTracking) else algorithm
