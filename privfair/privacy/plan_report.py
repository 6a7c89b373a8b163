"""The plan of a private run for people: noise, rates and price of every channel, and what to expect of fairness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from accountant.bounds import by_pld
from accountant.events import Nothing
from privfair.channels.base import registered
from privfair.config import Config
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import SMOOTHING, TargetPlan, out_of_reach
from privfair.fairness.verdict import PLANNED_RATE, least_target, records_for
from privfair.federated.algorithms.mmd_fedavg import standard_error, steering
from privfair.federated.release_plan import ClientUpdates, PrivateEmbedding, ReleasePlan
from privfair.numbers import shown
from privfair.privacy.planner import Planner
from privfair.privacy.requirements import whole_noise

# of a notion's conditioning sets, how many counts make up the number of positive decisions in one
LABELS_COUNTED = {"statistical_parity": 2, "equal_opportunity": 1, "predictive_equality": 1, "equalized_odds": 1}
NO_GAP = (
    "Fewer than two groups that could be compared are large enough to be heard: the fairness term is 0, and training "
    "follows the task alone. More ε, more records or a smaller count_noise would change that."
)


def plan_report(
    config: Config, release_plan: ReleasePlan, planner: Planner, *, budgeted: bool, counted: bool = True
) -> dict[str, Any]:
    """{"channels": rows for a table, "notes": lines}. `budgeted`: the data have a budget, and show no exact figures.

    `counted`: there are counts, and so it can be said what to expect of noise.
    """
    delta = config.privacy.delta if release_plan.claim is None else release_plan.claim.delta
    planned = {channel.name: channel.total for channel in planner.channels(release_plan)}
    channels = []
    for channel in registered():
        row = channel.describe(release_plan, config, planner.work)
        if row is not None:
            epsilon = by_pld(planned.get(channel.name, Nothing()) if row.event is None else row.event, delta)
            finite = epsilon if math.isfinite(epsilon) else None
            about = {"noise": row.noise, "sampling": row.sampling, "epsilon": finite}
            channels.append({"channel": channel.name, **about})
    notes = _notes(config, release_plan, planner)
    notes += _expected(config, release_plan, planner) if counted else []
    if budgeted and release_plan.evaluation is None:
        notes.append(
            "Data with a budget show no exact figures, and this plan has no noisy ones: the run will end without "
            'accuracy and unfairness. For noisy ones stop here and set privacy.evaluation = "gaussian".'
        )
    notes += _verdict_beforehand(config, release_plan, planner, counted=counted)
    return {"channels": channels, "notes": notes}


def why_no_verdict(config: Config, task: str = "binary") -> str:
    """Why a run of this configuration can have no verdict; "" where it can."""
    if task != "binary":
        return "the task is regression, and a verdict is about decisions"
    if config.privacy.client_level:
        return "client level: one client may change every count of test records, so none are released"
    if config.privacy.enabled and config.privacy.evaluation == "none":
        return 'no counts of test records are released (privacy.evaluation = "gaussian" releases them)'
    return ""


def _verdict_beforehand(config: Config, release_plan: ReleasePlan, planner: Planner, *, counted: bool) -> list[str]:
    """Whether the target can be met with so many test records and this noise, and what would make it possible.

    The test records are not counted beforehand: they are as many as the declared fraction makes them, and of the groups
    as the released counts of training records are, or else alike.
    """
    target, notion, fraction = config.fairness.target, planner.cells.notion.name, config.data.test_fraction
    if target is None:
        return []
    reason, noise = why_no_verdict(config), release_plan.evaluation
    if not reason and notion not in LABELS_COUNTED:
        reason = f"the conditioning sets of {notion} are not in counts by group and label"
    if reason or noise is None:
        return [f"The verdict will be: cannot tell. {(reason or 'There is no evaluation')[:1].upper()}{reason[1:]}."]
    clients, labels = len(release_plan.records), LABELS_COUNTED[notion]
    summed = release_plan.noise_of_evaluation if noise.shares > 1 else None
    scale, replies = (noise.scale, clients) if summed is None else (summed.scale, 1)
    variance = replies * labels * scale**2 * (2 if noise.kind == "laplace" else 1)
    laplace = replies * labels if noise.kind == "laplace" else 0
    declared = config.privacy.records
    sizes = []
    for comparison in planner.cells.comparisons:
        if counted and release_plan.counting is not None:
            cells = [max(1.0, float(release_plan.cell_totals[c])) for c in comparison.cells]
            sizes.append(np.array(cells) * fraction / (1 - fraction))
        elif declared is not None:
            each = declared * fraction / len(comparison.cells) / len(planner.cells.notion.sets)
            sizes.append(np.full(len(comparison.cells), each))
    if not sizes:
        return []
    worst = max(sizes, key=lambda own: least_target(own, variance=variance, laplace=laplace))
    least = least_target(worst, variance=variance, laplace=laplace)
    about = f"about {round(float(worst.min())):,} test records of the smallest group, and noise of ±{variance**0.5:.3g}"
    if least <= target:
        return [
            f"The target of {target:g} can be met: with {about}, up to an estimated gap of about {target - least:.2g} "
            f"(at a rate of {PLANNED_RATE:g})."
        ]
    enough = records_for(target, variance=variance, laplace=laplace)
    remedy = "" if enough is None else f" About {enough:,} test records of each of two groups would, with this noise;"
    return [
        f"The verdict cannot be that the target of {target:g} is met: with {about}, even an estimated gap of 0 leaves "
        f"{least:.3g} possible.{remedy} or a larger target, or more ε for the evaluation (privacy.evaluation_share)."
    ]


def _notes(config: Config, release_plan: ReleasePlan, planner: Planner) -> list[str]:
    claim, privacy = release_plan.claim, config.privacy
    lines = []
    if claim is not None and math.isfinite(claim.pld):
        kind = "made in two phases, from released counts," if claim.two_phases else "fixed beforehand"
        spare = f"{privacy.retries} release" + ("s" if privacy.retries != 1 else "")
        lines.append(
            f"Together ε = {shown(claim.pld)} by PLD, {shown(claim.rdp)} by RDP at δ = {claim.delta:g}; the plan is "
            f"{kind} and, as each line, has room for {spare} of each client and channel lost in a crash "
            "(privacy.retries)."
        )
    if claim is not None and claim.delta != privacy.delta:
        lines.append(
            f"δ = {claim.delta:.3g}, one over ten times the released number of records, "
            f"{int(release_plan.records.sum()):,}: "
            f"privacy.delta = {privacy.delta:g} is not below one over it."
        )
        if privacy.epsilon is not None and claim.pld > privacy.epsilon * (1 + 1e-9):
            lines.append(
                f"The noise that is settled meets ε = {privacy.epsilon:g} at δ = {privacy.delta:g}, and leaves nothing "
                "to calibrate at the smaller δ."
            )
    lines += whole_noise(config)
    if planner.without_noise:
        lines.append(f"Together ε = ∞: {' and '.join(planner.without_noise)} leave the clients without noise.")
    if privacy.equalise_groups and release_plan.sharing is not None:
        scores = release_plan.sharing.quotas.sum(axis=0)
        lines.append(
            f"One rate for all groups, and one ε: a round shows {int(scores.min())} scores of the smallest and "
            f"{int(scores.max())} of the largest, not {planner.work.samples} of each."
        )
    return lines


def _expected(config: Config, release_plan: ReleasePlan, planner: Planner) -> list[str]:
    """What to expect of training with this noise, for these counts."""
    lines = []
    left_out = int(np.count_nonzero(~release_plan.trains))
    if left_out:
        lines.append(f"Clients with a released count below {release_plan.least}, which take no part: {left_out}.")
    alone = unseen(release_plan, planner.cells)
    if alone:
        lines.append(
            f"Released counts below {release_plan.least} at every client: {'; '.join(alone)}. Nothing is "
            "shared of them, and the fairness term does not see them."
        )
    if release_plan.fairness_noise is not None:
        lines.append(_expected_error(release_plan, planner))
    if config.fairness.target is not None:
        lines += _target(config, config.fairness.target, release_plan, planner)
    if release_plan.client_updates is not None:
        lines.append(_update_error(release_plan, release_plan.client_updates, planner))
    elif release_plan.fairness_noise is not None and config.fairness.target is None:
        heaviest = (
            2 * config.fairness.strength * float(release_plan.records.sum()) / float(release_plan.cell_totals.min())
        )
        lines.append(
            f"Weight of the fairness term in the smallest cell, 2λ/P = {heaviest:.3g}, against a clipping norm of "
            f"{config.privacy.max_grad_norm:g}: gradients of small groups are clipped first."
        )
    return lines


def _target(config: Config, target: float, release_plan: ReleasePlan, planner: Planner) -> list[str]:
    """What λ will aim at, and what stands in the way of it."""
    from privfair.fairness import verdict  # SciPy's distributions take long to import

    plan, held_out = planner.work.embedding, config.data.test_fraction
    if plan is None:
        return []
    known, totals = steering(plan, release_plan, held_out / (1 - held_out)), release_plan.cell_totals
    following = TargetPlan.of(target, planner.cells, planner.work.rounds)
    sets = [list(own) for own in following.comparisons]
    error = max(verdict.standard_error(known.tests[own], verdict.PLANNED_RATE, known.noise) for own in sets)
    aim = following.aim(error)
    lines = [
        f"λ follows a tracked gap of {aim:.3g}, for a target of {target:g} and a verdict with a standard error of "
        f"{error:.2g}, where {verdict.PLANNED_RATE:.0%} of the decisions are 1; training goes by the tracked rates."
    ]
    if aim >= target:
        lines.append(out_of_reach(target))
    noise = max(math.hypot(*np.sort(known.errors[own] / totals[own])[-2:]) for own in sets)
    noise *= math.sqrt(SMOOTHING / (2 - SMOOTHING))
    if noise > aim:
        lines.append(
            f"Noise moves the tracked gap by ±{noise:.2g}, more than the aim of {aim:.3g}: λ will follow noise, and "
            "the gap may end above the target. More ε, or a larger share (privacy.prediction_share), would help."
        )
    return lines


def unseen(release_plan: ReleasePlan, cells: Cells) -> list[str]:
    """Groups of which no client shares anything, as their released counts are too small: tracking passes them over."""
    shared = release_plan.shared_cells
    if shared is None:
        return []
    return [name.removesuffix(", everyone") for n, name in enumerate(cells.names) if not shared[:, n].any()]


def _update_error(release_plan: ReleasePlan, updates: ClientUpdates, planner: Planner) -> str:
    """The noise of a round's mean update, beside how long the mean can be at most."""
    plan, noise = planner.work.updates, updates.noise
    takes = int(np.count_nonzero(release_plan.records))
    several = round((plan.participation if plan else 1.0) * takes)
    each = updates.max_norm * updates.largest_weight * noise.multiplier * math.sqrt(several / noise.shares)
    return (
        f"Expected noise of a round's mean update: ±{each:.3g} on each of {noise.count} parameters, a length of "
        f"{each * math.sqrt(noise.count):.3g}; the mean itself has a length of at most {updates.max_norm:g}."
    )


def _expected_error(release_plan: ReleasePlan, planner: Planner) -> str:
    """The error of the gap between groups as one round's messages show it."""
    if release_plan.embedding is not None and planner.work.embedding is not None:
        shared, unit = release_plan.embedding, planner.work.embedding.unit
        received = [c for c in range(len(planner.cells)) if shared.cells[:, c].any()]
        worst = _worst_pair({c: unit.slope_noise * sum_error(release_plan, shared, c) for c in received}, planner.cells)
        if not worst:
            return NO_GAP
        return (
            f"Expected fairness error: noise moves the slope C′ of a round's penalty by ±{worst:.3g} (root mean square "
            f"over scores), the features that are left out by {2 * unit.features.slope_error:.2g} at most, and by far "
            "less where scores are spread smoothly."
        )
    if release_plan.sharing is None:
        return ""
    sharing = release_plan.sharing
    received = [c for c in range(len(planner.cells)) if sharing.quotas[:, c].any()]
    worst = _worst_pair({c: standard_error(release_plan, sharing, c) for c in received}, planner.cells)
    if not worst:
        return NO_GAP
    reported = f"Expected fairness error: a round's scores show the gap between groups' mean scores to ±{worst:.3g}."
    width = sharing.noise.high - sharing.noise.low
    if worst >= width / 2:
        reported += f" Scores have a range of {width:g} only: in a single round noise hides any gap."
    return reported


def sum_error(release_plan: ReleasePlan, shared: PrivateEmbedding, cell: int) -> float:
    """The noise of a cell's mean vector, on each coordinate: √(clients)·(σ of one's noise) over the records."""
    takes = shared.cells[:, cell] > 0
    noisy = int(np.count_nonzero(shared.asked(release_plan.records))) if shared.noise.shares > 1 else int(takes.sum())
    return (
        shared.noise.multiplier * math.sqrt(noisy / shared.noise.shares) / float(release_plan.cells[takes, cell].sum())
    )


def _worst_pair(errors: dict[int, float], cells: Cells) -> float:
    """The largest error of a difference of two groups."""
    worst = 0.0
    for comparison in cells.comparisons:
        found = sorted(errors[cell] for cell in comparison.cells if cell in errors)
        if len(found) > 1:
            worst = max(worst, math.hypot(found[-1], found[-2]))
    return worst
