"""The release plan that a data holder agrees to: it follows from the configuration and from its own counts."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.channels.base import Declined, equal, require
from privfair.config import MOST_RECORDS
from privfair.federated.messages import Counts
from privfair.federated.release_plan import RELEASE_PLANS, ReleasePlan
from privfair.federated.round import ExactCounts
from privfair.privacy.planner import PrivateCounts
from privfair.runs.assembly import RunSpec


def require_acceptable(
    release_plan: ReleasePlan, before: ReleasePlan | None, spec: RunSpec, me: int, own: Counts | None
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

    Where counts are totals over all data holders, nobody has counts of its own in the terms, and only the server opens
    them. Forged totals change rates, and sizes of steps and grids. The noise must meet the target with those rates, for
    a record of this holder too, and with that grid; and masks of holders who were sent different terms do not cancel.
    """
    negotiator = spec.negotiator()
    if release_plan.records.shape != (spec.clients,) or release_plan.cells.shape != (spec.clients, len(spec.cells)):
        raise Declined("The terms are not those of so many data holders and groups.")
    possible = (release_plan.records >= 0).all() and (release_plan.records <= MOST_RECORDS).all()
    require(bool(possible and (np.abs(release_plan.cells) <= MOST_RECORDS).all()), "The terms have impossible counts.")
    if release_plan.totals:
        require(
            _even(release_plan, negotiator),
            "The terms do not divide the totals of counts evenly among the data holders.",
        )
    elif release_plan.records[me] or release_plan.cells[me].any():
        if own is None and spec.planner is not None:
            raise Declined("This data holder takes no part before it has reported its counts in this run.")
        same = own is None or (release_plan.records[me] == own.records and equal(release_plan.cells[me], own.cells))
        require(bool(same), "The terms have other counts of this data holder than it reported.")
    moments = release_plan.moments
    if moments is not None:  # their totals are nobody's to check: see `channels.moments` for why that costs no privacy
        require(moments.fits(len(spec.schema.features)), "The terms have impossible moments of features.")
        release_plan = replace(release_plan, moments=moments.bare)
    if RELEASE_PLANS.to_text(_settled(release_plan, negotiator)) != RELEASE_PLANS.to_text(release_plan):
        raise Declined(
            "The terms (noise, rates, numbers of scores) are not those that follow from the agreed plan. Another "
            "version of privfair, or of its requirements?"
        )
    if before is not None:
        known = before if before.moments is None else replace(before, moments=before.moments.bare)
        same = RELEASE_PLANS.to_text(known) == RELEASE_PLANS.to_text(release_plan)
        later = negotiator.admits_later and _noise(before) == _noise(release_plan) and _grown(before, release_plan)
        learned = before.moments is None or moments is None or moments.succeeds(before.moments)
        require((same or later) and learned, "The terms have changed for data holders that were there before.")


def _even(release_plan: ReleasePlan, negotiator: ExactCounts | PrivateCounts) -> bool:
    """Whether every data holder has an even part of totals in these terms."""
    totals = release_plan.cells.sum(axis=0)
    if isinstance(negotiator, ExactCounts):
        return False
    whole = totals if negotiator.planner.cells.notion.partition else np.append(totals, release_plan.records.sum())
    parts = negotiator.evenly(whole, len(release_plan.records))
    same = equal(np.stack([part.cells for part in parts]), release_plan.cells)
    return same and equal(np.array([part.records for part in parts]), release_plan.records)


def _settled(release_plan: ReleasePlan, negotiator: ExactCounts | PrivateCounts) -> ReleasePlan:
    """The plan that follows from the counts in this one; the claim as sent, if it fits the noise up to rounding."""
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
    return equal(before.records[known], after.records[known]) and equal(before.cells[known], after.cells[known])
