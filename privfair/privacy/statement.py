"""Noise in shares: whom the ε of a run is for, and what is left against the server with a client's help."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

from accountant.accountant import Accountant
from accountant.bounds import TOLERATED, Method, by_pld, pld_or_rdp, spent
from accountant.errors import InputError
from accountant.events import Adjacency, Composed, Neighbouring, Nothing, Unit
from accountant.spending import Spend, attribute_of, is_side
from accountant.worst_case import released_epsilon
from privfair.channels.base import PriceList, registered
from privfair.channels.workload import Workload, sampling_of
from privfair.config import Config
from privfair.datasets.records import Schema
from privfair.federated.release_plan import Claim, ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.vector_release import VectorNoise
from privfair.privacy.forecast import beyond_plan
from privfair.privacy.planner import Planner
from privfair.privacy.requirements import whole_noise
from privfair.privacy.run_ledger import RunLedger
from privfair.secure_aggregation import SINGLE_KEY_WARNING
from privfair.secure_aggregation.masks import Cohort


def collusion(release_plan: ReleasePlan, planner: Planner) -> dict[str, Any] | None:
    """Whom the run's ε is for, and the ε beyond that, in words and numbers; None where no noise comes in shares."""
    shares, cohort = release_plan.noise_shares, release_plan.cohort
    if shares < 2:
        return None
    pooled = with_collusion(release_plan, replace(planner, count_releases=release_plan.count_releases))
    beyond = {name: value if math.isfinite(value) else None for name, value in pooled.items()}
    if cohort is not None:
        n, k, c = cohort.holders, cohort.colluders, cohort.smallest
        return {
            "n": n,
            "colluders": k,
            "smallest_cohort": c,
            "honest_shares": shares,
            "epsilon_beyond": beyond,
            "within": f"The run's ε: against the server{_truthful(cohort)} together with at most {k} of the {n} data "
            "holders, and against "
            f"everybody who gets the model. They learn sums of the vectors of at least {shares} honest data holders, "
            "and nothing about any single one; the noise of those alone carries the ε.",
            "beyond": f"If more than {k} data holders pool what they see with the server, the larger ε holds "
            "(epsilon_beyond; none is stated for a plan of two phases): then only a data holder's own share of the "
            "noise is certain to hide its records.",
            "assumes": "Every honest data holder draws its share of the noise, its keys stay its own, and nobody "
            "breaks the ciphers of the masks (X25519, Ed25519, AES-256): what hides single vectors is computational."
            + (NEIGHBOURS if cohort.among_neighbours else ""),
        }
    return {
        "nobody": "The run's ε: against the server, which opens nothing, and against every client, which opens sums "
        f"and knows its own share of their noise; at least {shares} shares remain.",
        "server_and_one_client": beyond,
        "assumes": f"The server adds as agreed, at least {shares + 1} vectors in a sum; clients draw their noise, "
        "and no client reads the others' traffic, which its key opens. Every further client that pools what it knows "
        "with another takes one share away.",
    }


NEIGHBOURS = (
    " Each of so many data holders masks with few others, which it draws itself. So the server must tell all data "
    "holders the same, and truly, who takes part and whose vectors arrived, and nobody may drop out because of who "
    "masks with whom: a server that calls all neighbours of a data holder dead, or some of its friends, can open that "
    "holder's vector, and then the larger ε (epsilon_beyond) is what holds. But for a probability of 2⁻⁸⁰ in every "
    "block of sums, colluders do not have the shares of an honest neighbour, and honest data holders are connected."
)


def _truthful(cohort: Cohort) -> str:
    return ", if it does not lie about survivors," if cohort.among_neighbours else ""


def with_collusion(release_plan: ReleasePlan, planner: Planner) -> dict[str, float]:
    """ε of the plan by RDP and PLD where only a client's own share of noise hides its vectors.

    With masks so it is against more colluding data holders than the plan allows for; without them against the server
    together with one client, whose key opens what others send.
    """
    planner, sampling = planner.under(release_plan).alone, sampling_of(release_plan)
    delta = planner.delta
    channels = []
    if release_plan.client_updates is not None:
        channels = planner.rest(sampling, None, release_plan.client_updates.noise.alone)
    elif release_plan.updates is not None:
        multiplier, gradient = release_plan.updates.noise_multiplier, release_plan.gradient
        channels = planner.rest(sampling, None, multiplier if gradient is None else gradient.noise.alone)
    noise = release_plan.fairness_noise
    if not planner.one_phase:  # other counts would have given other rates and noise, and another ε: no figure holds
        return {"rdp": math.inf, "pld": math.inf}
    if not channels or (planner.work.shares_scores and noise is None):  # something has no noise at all
        return {"rdp": math.inf, "pld": math.inf}
    if noise is not None:
        channels += planner.rest(sampling, noise.alone if isinstance(noise, VectorNoise) else noise, None)
    first, share = 0.0, 0.0
    if planner.together:
        channels = [*planner.fixed(), *channels]
    else:
        first, share = planner.price_of_first_phase("pld")
        channels = [*planner.scaling(), *channels]
    together = Composed(tuple(channel.total for channel in channels))
    tested = planner.price_of_test_side(planner.tested())
    return {
        "rdp": max(first + spent(together, delta - share, "rdp").epsilon, tested[0]),
        "pld": max(first + by_pld(together, delta - share), tested[1]),
    }


# ---- The privacy statement of a run, from the ledger's rows: what was released, its cost, what is not covered.


MOST_PLD = 16  # so many different PLD bounds are computed for one table; beyond, RDP alone

ABSENCE = (
    "That a client did not answer, and when: that must not depend on its records. Where few updates arrive, their sum "
    "says more about each."
)


def statement(
    config: Config,
    release_plan: ReleasePlan,
    run_ledger: RunLedger,
    planner: Planner,
    schema: Schema,
    *,
    plan: Schedule,
    prices: Sequence[PriceList],
    absent: bool = False,
) -> dict[str, Any]:
    """Everything as plain values; an infinite ε is None, and `unbounded` names the channels that make it so.

    `absent`: whether some clients did not respond at times. Who responds may depend on earlier releases, so the
    statement gives the plan's bound, which covers every subset of it, instead of the price of what was released.
    """
    spends = [spend for _, spend in run_ledger.ledger.spends(run=run_ledger.run)]
    groups = prices[0].labels if planner.unit is Unit.RECORD else ()
    accountant = account(spends, planner.neighbouring, groups)
    claim = release_plan.claim
    if claim is None:
        raise InputError("terms", "must have a claim in a private run", None)
    delta = claim.delta
    total = total_epsilon(config, release_plan, spends, plan=plan, prices=prices, absent=absent)
    unbounded = sorted({spend.channel for spend in spends if spend.event.neighbouring is None and _unbounded(spend)})
    head = run_ledger.ledger.head()
    return {
        "private": not (unbounded or total.broken or run_ledger.seeded or schema.inferred or config.masks_in_the_open),
        "claim": total.broken
        or _claim(
            run_ledger,
            schema,
            unbounded,
            planner.unit,
            shared=release_plan.noise_is_shared,
            cohort=release_plan.cohort,
            in_the_open=config.masks_in_the_open,
        ),
        "epsilon": {"rdp": _number(total.rdp), "pld": _number(total.pld)},
        "epsilon_of": total.of,
        "epsilon_of_plan": {"rdp": _number(claim.rdp), "pld": _number(claim.pld)},
        "delta": delta,
        "adjacency": str(planner.adjacency),
        "neighbours": neighbours(planner.neighbouring),
        "unit": str(planner.unit),
        "target": {"epsilon": config.privacy.epsilon, "method": config.privacy.target_method},
        "plan": "two phases" if claim.two_phases else "one phase",
        "unbounded": unbounded,
        "collusion": collusion(release_plan, planner),
        **({"whole_noise": own} if (own := whole_noise(config)) else {}),
        "by_client": _table(accountant.by_client(delta), lambda name, m: accountant.epsilon(delta, m, client=name)),
        "by_group": _table(accountant.by_group(delta), lambda name, m: accountant.epsilon(delta, m, group=name)),
        "by_channel": _table(accountant.by_channel(delta), lambda name, m: accountant.epsilon(delta, m, channel=name)),
        "by_round": {str(k): _number(v) for k, v in accountant.by_round(delta, "rdp").items()},
        "change_of_group": _changes(accountant, delta),
        "noise": noise(release_plan, config, planner.work),
        "objective": objective(config, release_plan, planner.cells.notion.name),
        "assumptions": _assumptions(planner, schema.inferred, claim),
        "not_covered": [
            *_not_covered(config, run_ledger, schema, min(plan.clients_per_round or len(prices), len(prices))),
            *([ABSENCE] if absent else []),
        ],
        "ledger": {
            "url": run_ledger.ledger.url,
            "id": run_ledger.ledger.ledger_id,
            "dataset": run_ledger.dataset,
            "run": run_ledger.run,
            "rows": len(spends),
            "head": head.hash,
            "head_row": head.sequence,
        },
    }


@dataclass(frozen=True)
class TotalEpsilon:
    """ε of a whole run by both methods, and whether it is claimed."""

    rdp: float
    pld: float
    of: Literal["plan", "releases"] = "plan"
    beyond: tuple[str, ...] = ()  # client and channel of what was released more often than planned
    broken: str = ""  # why the plan bounds nothing, in words; empty: it does


def total_epsilon(
    config: Config,
    release_plan: ReleasePlan,
    spends: Sequence[Spend],
    *,
    plan: Schedule,
    prices: Sequence[PriceList] | Mapping[int, PriceList],
    absent: bool = False,
) -> TotalEpsilon:
    """What a run with these rows states: the ε of its releases, or of its plan; never less than the rows cost.

    Only a plan that was fixed before its first release can be replaced by what was released of it. Where rates follow
    from released counts, and where released counts, or absences, decide who releases at all, the plan's ε holds:

    A client whose released count is too small is left out of everything but counts and evaluation, and one record can
    decide that. Let M release the counts ñ of this client and then, if ñ reaches the minimum, everything that a plan of
    one phase has for the client; let P release all of it whatever ñ is. The noise of P was fixed beforehand, and M is a
    function of what P releases (forget what does not belong to ñ), so M is (ε, δ)-private for the ε of P, that of the
    plan. No less is certain: between neighbours on the two sides of the minimum everything that P has may be there or
    not. So the rows of a client that was left out, which are fewer, bound nothing; and those of the other clients do
    not bound it either, for it might have trained more often than they did. Public counts are the same for both
    neighbours, so that there the rows stand.

    `absent`: see `statement`. Rows that cost more than the plan mean that the plan was not kept: the larger ε is given,
    and not claimed.
    """
    claim = release_plan.claim
    if claim is None:
        raise InputError("terms", "must have a claim in a private run", None)
    by_plan = math.isfinite(claim.pld) and (claim.two_phases or release_plan.silent or absent)
    if by_plan:
        beyond = beyond_plan(spends, release_plan, plan, config.federation.rounds, prices, config.privacy.retries)
        if beyond:
            why = f"No ε: more was released than the plan had, which alone has a bound ({'; '.join(beyond)})."
            return TotalEpsilon(math.inf, math.inf, beyond=tuple(beyond), broken=why)
    rdp = released_epsilon(spends, claim.delta, with_pld=False).rdp  # as an audit counts the rows
    if by_plan and rdp <= claim.pld:
        return TotalEpsilon(claim.rdp, claim.pld)
    rows = released_epsilon(spends, claim.delta)
    pld = rows.rdp if rows.pld is None else rows.pld
    # the grid of PLD is good to 1%; where it was too fine to be computed, `pld` is the bound by RDP
    if pld > claim.pld / TOLERATED and (pld < rdp or rdp > claim.rdp / TOLERATED):
        why = f"No ε is claimed: what was released costs ε = {pld:.4g}, and the plan had {claim.pld:.4g}."
        return TotalEpsilon(max(rdp, claim.rdp), max(pld, claim.pld), "releases", broken=why)
    return TotalEpsilon(claim.rdp, claim.pld) if by_plan else TotalEpsilon(rdp, pld, "releases")


def account(spends: Sequence[Spend], neighbouring: Neighbouring, groups: Sequence[str] = ()) -> Accountant:
    """An accountant with every row of the run.

    `groups`: those that there are. Of one that shared nothing for itself it knows that, and what it paid with others.
    """
    accountant = Accountant(neighbouring.adjacency, neighbouring.unit)
    for s in spends:
        accountant.compose(s.event, s.count, client=s.client, group=s.group, channel=s.channel, round=s.round)
    for group in dict.fromkeys(groups) if spends else ():
        accountant.compose(Nothing(), group=group, channel=spends[0].channel)
    return accountant


def noise(release_plan: ReleasePlan, config: Config, work: Workload) -> dict[str, Any]:
    """The noise of every channel that has any, with sampling rates."""
    described = {channel.name: channel.describe(release_plan, config, work) for channel in registered()}
    return {name: row.facts for name, row in described.items() if row is not None and row.facts is not None}


def objective(config: Config, release_plan: ReleasePlan, notion: str) -> str:
    """The penalty that is really followed, in words."""
    fairness = config.fairness
    if config.federation.method != "mmd_fedavg":
        return "the task loss alone"
    weight = (
        f"{fairness.strength:g}" if fairness.target is None else f"λ (by a target of {fairness.target:g} for the gap)"
    )
    name = f"{weight} × MMD² of {notion.replace('_', ' ')} under the kernel {fairness.kernel}"
    if fairness.tracker == "embedding":
        count = "" if release_plan.embedding is None else f"{release_plan.embedding.noise.count} "
        return f"task loss + {name}, by the means of {count}features of all scores; their noise does not change it"
    if release_plan.sharing is None:
        return f"task loss + {name}"
    s = release_plan.sharing
    what = f"{s.noise.kind} noise of scale {s.noise.scale:.4g}"
    if s.correction == "deconvolve":
        return f"task loss + {name}: the kernel that meets noisy scores is deconvolved, so this is the objective itself"
    return f"task loss + {name} convolved with {what} (Proposition 5.2): a smoother penalty than the plain kernel's"


def _unbounded(spend: Spend) -> bool:
    return spend.event.kind == "not-private"


def _claim(
    run_ledger: RunLedger,
    schema: Schema,
    unbounded: Sequence[str],
    unit: Unit,
    *,
    shared: bool,
    cohort: Cohort | None,
    in_the_open: bool,
) -> str:
    if unbounded:
        return f"No ε: {', '.join(unbounded)} left the clients without noise."
    if run_ledger.seeded:
        return "No ε towards anyone who knows the seed: noise and sampling were seeded (run.reproducible_noise)."
    if schema.inferred:
        return (
            "The ε below is that of a schema known beforehand. Here it was read off the records, one of which can move "
            "the features of all others: declare it (data.schema) for a claim."
        )
    whom = "For every record of every client" if unit is Unit.RECORD else "For every client with all of its records"
    also = "" if unit is Unit.RECORD else " The same ε bounds replacing one record, which is a part of that."
    if in_the_open:
        return (
            "The ε below is that of a run with masks. Here the parts of the sums were added up in the open "
            '(run.engine = "stacked"), each with a share of the noise only.'
        )
    if shared and cohort is not None:
        return (
            f"{whom}, everything that the server{_truthful(cohort)} and at most {cohort.colluders} of the "
            f"{cohort.holders} data holders see together, and the model, is (ε, δ)-differentially private; if more of "
            f"them collude{', or it lies' if cohort.among_neighbours else ''}, the larger ε holds (collusion).{also}"
        )
    if shared:
        return (
            f"{whom}, everything that anybody can read is (ε, δ)-differentially private, as long as the server and a "
            f"client do not pool what they see; if they do, the larger ε holds (collusion).{also}"
        )
    return f"{whom}, everything that left the client is (ε, δ)-differentially private.{also}"


def neighbours(neighbouring: Neighbouring) -> str:
    """Which datasets are neighbours, in words."""
    if neighbouring.unit is Unit.CLIENT:
        return (
            "all records of one client replaced by as many others: the same numbers in every group and conditioning "
            "set, on each side of the train/test split; counts, weights and who the clients are, are public"
        )
    if neighbouring.adjacency is Adjacency.ADD_OR_REMOVE:
        return "one record added at or removed from one client"
    return (
        "one record replaced by another of the same group and conditioning sets, on the same side of the train/test "
        "split, at one client; counts are public"
    )


def _table(by_rdp: dict[str, float], by_pld: Callable[[str, Method], float]) -> dict[str, dict[str, Any]]:
    """ε by RDP and PLD of every client, group or channel."""
    rows: dict[str, dict[str, Any]] = {}
    few = len(set(by_rdp.values())) <= MOST_PLD
    for name, value in by_rdp.items():
        exact = few and math.isfinite(value)
        pld = pld_or_rdp(partial(by_pld, name)) if exact else None
        rows[name] = {"rdp": _number(value), "pld": None if pld is None else _number(pld)}
    return rows


def _changes(accountant: Accountant, delta: float) -> dict[str, float | None]:
    """By attribute, ε between datasets in which one person is in another of its groups: of the costliest change."""
    if accountant.neighbouring.adjacency is not Adjacency.ADD_OR_REMOVE:
        return {}
    groups = {r.group for r in accountant.releases if r.group and not is_side(r.group)}
    clients = {r.client for r in accountant.releases if r.client}
    worst: dict[str, float] = {}
    for client in sorted(clients):
        for old, new in combinations(sorted(groups), 2):
            attribute = attribute_of(old)
            if attribute == attribute_of(new):
                found = accountant.spent_on_changing_group(client, old, new, delta).epsilon
                worst[attribute] = max(worst.get(attribute, 0.0), found)
    return {attribute: _number(value) for attribute, value in worst.items()}


def _assumptions(planner: Planner, schema_inferred: bool, claim: Claim) -> list[str]:
    two_phases = claim.two_phases
    found = [
        "One record per person: clients compose in parallel, and the run's ε is the worst client's.",
        "Who the data holders are is public, and each stays one without any single record.",
        "The train/test split is decided per record.",
    ]
    if planner.unit is Unit.CLIENT:
        found = [
            "All records of a person are with one client: clients compose in parallel, and the run's ε is the worst's.",
            "Who the data holders are, when each trains and how much its update weighs is public.",
        ]
    if not schema_inferred:
        found.append("The schema (groups, labels, categories, ranges) is public.")
    if planner.adjacency is Adjacency.ADD_OR_REMOVE and not two_phases:
        found.append(
            "The plan was fixed beforehand. Figures by client and group, and for a change of group, are those of what "
            "was released: clients and groups that released counts left out paid less."
        )
    if planner.adjacency is Adjacency.REPLACE_ONE:
        found.append("The owner declared the counts of all groups public.")
    if two_phases:
        found.append(
            "Rates and steps follow from released counts by a public rule. Counts cost a fixed ε, the rest at most "
            "what is left whatever the counts say: adaptive composition. Figures by client, group and channel, and for "
            "a change of group, are those of the plan that the released counts led to, as if it had been fixed "
            "beforehand: they describe it, and are not claimed."
        )
    if claim.delta != planner.config.delta:
        found.append(
            f"δ = {claim.delta:.3g} follows from released counts: {planner.config.delta:g} is too large for them. "
            "It is that of all outcomes in which they add up to as many records."
        )
    return found


def _not_covered(config: Config, run_ledger: RunLedger, schema: Schema, cohort: int) -> list[str]:
    found = []
    if schema.inferred:
        found.append("The schema (groups, categories, ranges): read off the records. Declare it for real data.")
    if run_ledger.seeded:
        found.append("Seeded noise: whoever knows run.seed can take it off.")
    if config.privacy.counts == "public":
        found.append("Counts of groups at every client: declared public.")
    if not run_ledger.budgeted:
        found.append(
            "Exact figures of a simulation in history.csv and metrics.json: accuracy, unfairness, numbers of records."
        )
    found += [
        "Other runs on this data (privfair audit adds them up), and hyper-parameters chosen by looking at it.",
        "Time: how long a client takes to answer.",
    ]
    if config.privacy.client_level:
        found.append("Whether a data holder takes part at all: its counts and its weight are public.")
    else:
        if seen := _seen(config):
            found.append(f"Facts about a client as a whole: the server sees its noisy {seen}.")
        if not config.sums_gradients:  # there all noise is whole numbers
            found.append(
                "Noise of updates: Gaussian in floating point, from the operating system's generator as a sum of four "
                "draws (not Opacus's secure_mode, which needs a package that is no longer kept). Scores and counts: "
                "integer noise."
                if not run_ledger.seeded
                else "Noise of updates: Gaussian in floating point."
            )
    if config.masks_in_the_open:
        found.append(
            "Masks were not computed: the stacked engine adds the same integers in the open. The ε is that of a run "
            'with masks (run.engine = "local").'
        )
    if config.masks:
        found.append(
            "Who takes part in a sum, who is absent, and the sums themselves: the server and all data holders see them."
        )
    elif config.scheme == "plain":
        found.append("Updates are not encrypted: the server sees each client's noisy update.")
    else:
        found.append(f"Encryption ({config.scheme}). {SINGLE_KEY_WARNING}")
        if cohort < 2:
            found.append("Only one client trains in a round: the sum is its own update.")
    if not run_ledger.ledger.dataset(run_ledger.dataset).fingerprint:
        found.append(f"The ledger knows the data by the name {run_ledger.dataset!r} only, not by a fingerprint.")
    return found


def _seen(config: Config) -> str:
    """What the server can read of every single client; empty: nothing."""
    counts = "" if config.sums_counts and config.privacy.counts != "public" else "counts"
    if config.fairness.tracker == "embedding" or config.federation.method != "mmd_fedavg":
        plain = config.scheme == "plain" and config.fairness.tracker == "embedding"
        return "sums of features and counts" if plain else counts
    return "scores and counts" if counts else "scores"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
