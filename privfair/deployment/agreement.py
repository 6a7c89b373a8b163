"""What a data holder agreed to, and whether a request is that. The server cannot ask for more."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from accountant.errors import InputError, Refused
from privfair.config import MOST_RECORDS
from privfair.fairness.tracking import SealedFeatures, SharedScores
from privfair.federated.algorithms.mmd_fedavg import EmbeddingTracking, MmdFedAvg, takes_part
from privfair.federated.messages import (
    Counts,
    CountsRequest,
    EmbeddingsRequest,
    EvaluateRequest,
    MeasureRequest,
    Objective,
    OwnPenalty,
    PrivateWork,
    Request,
    Reweighted,
    ScoreRelease,
    ScoresRequest,
    Task,
    Tracked,
    TrainRequest,
)
from privfair.federated.release_plan import RELEASE_PLANS, ReleasePlan
from privfair.federated.round import ExactCounts
from privfair.privacy.negotiation import PrivateCounts
from privfair.runs.assembly import RunSpec

OBJECTIVES: dict[str, type] = {
    "mmd_fedavg": Tracked,
    "fedavg": Task,
    "agnostic": Task,
    "local_fairness": OwnPenalty,
    "fairfed": OwnPenalty,
    "fedfb": Reweighted,
}
NOISE = ("steps", "sampling_rate", "noise_multiplier", "max_grad_norm")  # what privacy rests on: to the last bit


class Declined(Refused):
    """A request that is not the agreed one."""


def negotiator_of(parts: RunSpec) -> ExactCounts | PrivateCounts:
    """How terms follow from counts where nobody sees all ledgers: repetitions of lost counts are planned for."""
    if parts.planner is None:
        return ExactCounts()
    releases = 1 + parts.config.privacy.retries
    return PrivateCounts(parts.planner, lambda: releases)


def require_acceptable(
    release_plan: ReleasePlan, before: ReleasePlan | None, parts: RunSpec, me: int, own: Counts | None
) -> None:
    """Raise `Declined` unless these terms follow from the plan and from counts of which this holder's are its own.

    `own`: the counts that this holder released in this run; None before it did (or, in a run without privacy, where it
    lost its folder). With public counts they are exact; with
    noisy ones they are the released ones, so that no refusal depends on more than has left the holder already.

    What a server can gain by forging the rest of the counts:

    - Of this holder: nothing. Rates, numbers of scores and the noise that they need follow from `own`, or the terms
      leave the holder out: then it trains in no round, and has no cell of which it would send a score or a sum.
    - Of other holders: it can change this holder's rates and numbers of scores, but then the noise has to meet the
      target with those, for a record (or client) of this holder as well: the plan is for the worst of all clients.
      Under client-level privacy the noise is for the largest weight, and this holder's is at most that.

    Noise that somebody else calibrated is held against the target. Terms change only where later clients may join, and
    then neither the noise nor the counts of those who are there.
    """
    negotiator = negotiator_of(parts)
    if release_plan.records.shape != (parts.clients,) or release_plan.cells.shape != (parts.clients, len(parts.cells)):
        raise Declined("The terms are not those of so many data holders and groups.")
    possible = (release_plan.records >= 0).all() and (release_plan.records <= MOST_RECORDS).all()
    _require(bool(possible and (np.abs(release_plan.cells) <= MOST_RECORDS).all()), "The terms have impossible counts.")
    if release_plan.records[me] or release_plan.cells[me].any():
        if own is None and parts.planner is not None:
            raise Declined("This data holder takes no part before it has reported its counts in this run.")
        same = own is None or (release_plan.records[me] == own.records and _equal(release_plan.cells[me], own.cells))
        _require(bool(same), "The terms have other counts of this data holder than it reported.")
    if RELEASE_PLANS.to_text(_settled(release_plan, negotiator)) != RELEASE_PLANS.to_text(release_plan):
        raise Declined(
            "The terms (noise, rates, numbers of scores) are not those that follow from the agreed plan. Another "
            "version of privfair, or of its requirements?"
        )
    if before is not None:
        same = negotiator.admits_later and _noise(before) == _noise(release_plan) and _grown(before, release_plan)
        _require(same, "The terms have changed for data holders that were there before.")


def _settled(release_plan: ReleasePlan, negotiator: ExactCounts | PrivateCounts) -> ReleasePlan:
    """The terms that follow from the counts in these; the claim as told, if it is that of the noise up to rounding."""
    counts = [Counts(int(n), cells) for n, cells in zip(release_plan.records, release_plan.cells, strict=True)]
    try:
        if isinstance(negotiator, ExactCounts):
            return negotiator.settle(counts)
        multiplier = None if release_plan.updates is None else release_plan.updates.noise_multiplier
        if release_plan.client_updates is not None:
            multiplier = release_plan.client_updates.noise.multiplier
        settled = negotiator.settle(counts, (release_plan.fairness_noise, multiplier))
    except InputError as error:
        raise Declined(f"No terms follow from these counts: {error}") from None
    mine, reported = settled.claim, release_plan.claim
    if (
        mine
        and reported
        and all(math.isclose(getattr(mine, m), getattr(reported, m), rel_tol=1e-9) for m in ("rdp", "pld"))
    ):
        settled = replace(settled, claim=replace(mine, rdp=reported.rdp, pld=reported.pld))
    return settled


def _noise(release_plan: ReleasePlan) -> tuple[Any, ...]:
    updates = release_plan.updates or release_plan.client_updates
    return (release_plan.fairness_noise, updates and asdict(updates), release_plan.evaluation, release_plan.claim)


def _grown(before: ReleasePlan, after: ReleasePlan) -> bool:
    known = before.records > 0
    return _equal(before.records[known], after.records[known]) and _equal(before.cells[known], after.cells[known])


def require_planned(request: Request, parts: RunSpec, release_plan: ReleasePlan | None, me: int) -> None:
    """Nothing, if this is what the plan has this data holder answer; otherwise `Declined`, with the reason."""
    if isinstance(request, CountsRequest):
        agreed = None if parts.planner is None else parts.planner.count_noise
        _require(request.noise == agreed, "The counts are asked for with other noise than agreed.")
        return
    if release_plan is None:
        raise Declined("Nothing but counts is told before there are terms.")
    if isinstance(request, ScoresRequest | EmbeddingsRequest | TrainRequest):
        rounds = parts.config.federation.rounds
        _require(0 <= request.round < rounds, f"The plan has {rounds} rounds, and no round {request.round}.")
    match request:
        case ScoresRequest():
            _scores(request, parts, release_plan, me)
        case EmbeddingsRequest():
            _embeddings(request, parts, release_plan, me)
        case TrainRequest():
            _training(request, parts, release_plan, me)
        case MeasureRequest():
            known = parts.planner is None and set(request.quantities) <= set(parts.algorithm.measures)
            _require(known, "The plan has no local figures told.")
        case EvaluateRequest():
            agreed_noise = release_plan.evaluation is not None and request.noise == release_plan.evaluation
            _require(agreed_noise, "The plan has no evaluation with this noise.")


def _scores(request: ScoresRequest, parts: RunSpec, release_plan: ReleasePlan, me: int) -> None:
    _require(isinstance(parts.algorithm, MmdFedAvg), "The plan has no scores told.")
    _require(request.quotas.shape == (len(parts.cells),) and bool((request.quotas >= 0).all()), "No such scores.")
    if release_plan.sharing is None:
        exact = parts.planner is None or parts.config.privacy.predictions == "none"
        _require(exact and request.release is None, "The plan has no such scores told.")
        return
    rates = None if release_plan.sharing.rates is None else release_plan.sharing.rates[me]
    agreed = ScoreRelease(release_plan.sharing.noise, rates)
    found = request.release
    same = found is not None and found.noise == agreed.noise and _equal(found.rates, rates)
    _require(
        same and _equal(request.quotas, release_plan.sharing.quotas[me]), "The scores are not asked for as agreed."
    )


def _embeddings(request: EmbeddingsRequest, parts: RunSpec, release_plan: ReleasePlan, me: int) -> None:
    _require(isinstance(parts.algorithm, EmbeddingTracking), "The plan has no features of scores told.")
    exact = parts.planner is None or parts.config.privacy.predictions == "none"
    noise = None if release_plan.embedding is None else release_plan.embedding.noise
    _require((noise is None) == exact and request.release == noise, "The features are not asked for as agreed.")
    _require(_equal(request.cells, takes_part(release_plan)[me]), "The features are not asked for as agreed.")


def _training(request: TrainRequest, parts: RunSpec, release_plan: ReleasePlan, me: int) -> None:
    plan, optimizer, private = parts.plan, parts.optimizer, parts.planner is not None
    cohort = plan.cohort(request.round, parts.clients)
    _require(
        me in cohort and release_plan.records[me] > 0, f"This data holder does not train in round {request.round}."
    )
    agreed = release_plan.work(me, plan.work(request.round, optimizer.proximal))
    _require(type(request.work) is type(agreed), "The training is not asked for as agreed (DP-SGD, or not).")
    for name, value in asdict(agreed).items():
        found = getattr(request.work, name)
        exact = not isinstance(value, float) or (isinstance(agreed, PrivateWork) and name in NOISE)
        same = found == value if exact else math.isclose(found, value, rel_tol=1e-9)
        _require(same, f"The training is not asked for as agreed: {name} is {found}, and was to be {value}.")
    _require(
        request.release == release_plan.release(me), "The training is not asked for as agreed: clipping and noise."
    )
    share = len(cohort) / parts.clients
    _require(request.participation == share, "The training is not asked for as agreed: participation.")
    _require(request.correct == optimizer.uses_control, "The training is not asked for as agreed: control variates.")
    snapshot = request.snapshot_at is not None
    _require(snapshot == parts.algorithm.snapshots, "The training is not asked for as agreed: snapshots.")
    weight, most = request.weight, 1 / share
    if private:
        same = math.isclose(weight, float(release_plan.weights[me]) / share, rel_tol=1e-9)
        _require(same, "The weight is not that of the released counts.")
    _require(0 <= weight <= most * (1 + 1e-9), "The weight is no share of a whole.")
    _objective(request.objective, parts, release_plan)


def _objective(objective: Objective, parts: RunSpec, release_plan: ReleasePlan) -> None:
    method = parts.config.federation.method
    _require(isinstance(objective, OBJECTIVES[method]), f"{method} has another objective.")
    fairness = parts.config.fairness
    if isinstance(objective, OwnPenalty):
        same = (objective.kernel, objective.strength) == (fairness.kernel, fairness.strength)
        _require(same, "The penalty is not the agreed one.")
    if isinstance(objective, Tracked) and isinstance(objective.shared, SealedFeatures):
        _features(objective, parts, release_plan)
    elif isinstance(objective, Tracked):
        shared = objective.shared
        if not isinstance(shared, SharedScores) or not isinstance(parts.algorithm, MmdFedAvg):
            raise Declined("The penalty is not the agreed one.")
        same = (shared.kernel, shared.strength) == (fairness.kernel, fairness.strength)
        _require(
            same and objective.drift == parts.config.federation.drift_correction, "The penalty is not the agreed one."
        )
        count = len(parts.cells)
        sizes = {len(shared.scores), len(shared.weights), len(shared.counts)}
        whole = sizes == {count} and all(s.shape == w.shape for s, w in zip(shared.scores, shared.weights, strict=True))
        _require(whole, "The shared scores are not those of the agreed groups.")
        _require((shared.noisy is None) == (release_plan.sharing is None), "The shared scores are not noisy as agreed.")


def _features(objective: Tracked, parts: RunSpec, release_plan: ReleasePlan) -> None:
    """Nothing, if the sealed features are those of the plan, of no more records than were told."""
    shared, algorithm = objective.shared, parts.algorithm
    if not isinstance(shared, SealedFeatures) or not isinstance(algorithm, EmbeddingTracking):
        raise Declined("The penalty is not the agreed one.")
    same = (shared.kernel, shared.strength, objective.drift) == (
        algorithm.plan.kernel,
        algorithm.strength,
        algorithm.drift,
    )
    _require(same, "The penalty is not the agreed one.")
    _require(_equal(shared.counts, release_plan.cell_totals), "The counts are not those of the terms.")
    reported = np.where(takes_part(release_plan), release_plan.cells, 0).sum(axis=0)
    _require(
        shared.shares.shape == reported.shape
        and bool((shared.shares >= 0).all() and (shared.shares <= reported).all()),
        "The shared features are not those of the agreed groups.",
    )


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise Declined(reason)


def _equal(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one, other))
