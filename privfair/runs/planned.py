"""The plan of a private run from its configuration and public facts: what `train` would release, and its price.

Nothing is priced here: the planner is the one that `train` uses. Of the data it needs only the schema, the number of
clients and, if rates follow from counts, the counts. Given counts lead to the plan of a run that releases just these.
A table with a declared schema is not opened; what nobody declared is assumed, and said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.budget import how_often
from accountant.calibration import Channel
from accountant.errors import InputError, NotThere, Refused
from accountant.events import Composed, Event, Repeated
from accountant.ledger.ledger import Ledger
from privfair.channels.base import PriceList
from privfair.channels.workload import Sampling
from privfair.config import Config
from privfair.datasets.csv_file import declared_facts
from privfair.datasets.records import Schema
from privfair.datasets.registry import load_configured
from privfair.fairness.notions import Cells, Notion
from privfair.federated.messages import Counts
from privfair.federated.release_plan import Claim, ReleasePlan
from privfair.privacy.forecast import count_spends, planned_spends
from privfair.privacy.planner import Planner, PrivateCounts
from privfair.privacy.requirements import require_decided, require_new
from privfair.privacy.run_ledger import budget_at_hand, cell_labels, require_allowed, require_its_budget, sides_of
from privfair.runs.assembly import RunSpec
from privfair.runs.folder import RunDirectory
from privfair.util import FloatArray

RATES = "privacy.sampling_rate and privacy.prediction_rate"
RESOLUTION = 10**9  # of rates that stand for a number of records out of a group
SIZES = (300, 30_000)  # training records of a client, a small and a large number, where none is declared
CLIENTS = 10  # where they are not declared


@dataclass(frozen=True)
class PlannedRun:
    """A run that has not begun: what follows from its configuration and schema, and its release plan."""

    spec: RunSpec
    planner: Planner
    release_plan: ReleasePlan
    counted: bool = True  # False: it is one of rates alone, and its numbers of records mean nothing

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self.spec.config

    @property
    def claim(self) -> Claim:
        """ε of the plan: `train` prints it before its first release, and a run that follows it cannot exceed it."""
        if self.release_plan.claim is None:
            raise InputError("release plan", "must have a claim in a private run", None)
        return self.release_plan.claim

    @property
    def channels(self) -> list[Channel]:
        """What is released, for the record or client with the highest cost."""
        return self.planner.channels(self.release_plan)

    def other_choice(self, noise: float, rounds: float, fixed: Sequence[str] = ()) -> tuple[float, float]:
        """(ε by RDP, ε by PLD) with so many times the noise and so many times the rounds.

        `fixed`: channels whose noise stays. In a plan of two phases the rates stay those of the given counts.
        """
        work = self.planner.work
        several = {name: max(1, round(getattr(work, name) * rounds)) for name in ("rounds", "most_trainings")}
        planner = replace(self.planner, work=replace(work, **several))
        free = [replace(channel, fixed=channel.name in fixed) for channel in planner.channels(self.release_plan)]
        return planner.price([channel.scaled(noise) for channel in free])

    def room(self, names: Sequence[str]) -> dict[str, Any]:
        """What the ledger at hand says of the data's budget, and how many such runs still fit; nothing is reserved.

        `names`: the clients', as far as they are declared; others are taken for clients that have spent nothing.
        """
        config, planner = self.config, self.planner
        url, dataset, budget = budget_at_hand(config, config.data.name)
        about: dict[str, Any] = {"ledger": url, "dataset": dataset, "budget": None, "runs": None, "refused": None}
        try:
            if budget is None:
                require_its_budget(config, dataset, url)
                return about
            about["budget"] = {"epsilon": budget.epsilon, "delta": budget.delta}
            require_allowed(config, self.spec.schema, dataset, budget.neighbouring, planner.without_noise)
            with Ledger(url, create=False) as ledger:
                spent = ledger.spent(dataset)
            unknown = sorted({client for client, _ in spent if client} - set(names)) if not names else []
            clients = [*names, *unknown, *(f"client {n + 1}" for n in range(self.spec.clients))][: self.spec.clients]
            labels, how, unit = cell_labels(self.spec.cells, self.spec.schema), planner.adjacency, planner.unit
            prices = [
                PriceList(
                    dataset,
                    "planned",
                    name,
                    labels,
                    self.spec.cells,
                    how,
                    own,
                    unit,
                    planner.work.cohort,
                    sides_of(config) if planner.sided else "",
                )
                for name, own in zip(clients, self.release_plan.cells, strict=True)
            ]
            rounds = range(config.federation.rounds)
            spends = planned_spends(self.release_plan, self.spec.plan, rounds, prices)
            spends += count_spends(self.release_plan, self.spec.plan, prices)
            about["runs"] = how_often(budget, spent, spends)
        except (InputError, Refused) as error:
            about |= {"refused": str(error), "runs": 0}
        return about


@dataclass(frozen=True)
class PublicFacts:
    """What a plan may depend on: schema and clients, and counts if they are public or were released.

    `names`: the clients', if they are declared; `notes`: what was assumed, and what was looked at.
    """

    schema: Schema
    clients: int
    counts: tuple[Counts, ...] | None = None
    notion: Notion | None = None
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @staticmethod
    def declared(config: Config, clients: int | None = None) -> PublicFacts:
        """What configuration and schema say of the data, which are not opened if they have a declared schema.

        `clients`: how many there are, where that is not declared.
        """
        known = declared_facts(config.data.options) if config.data.name == "csv" else None
        if known is None or (config.privacy.counts == "public" and not config.run.clients):
            facts = PublicFacts.of(config)
            if clients not in (None, facts.clients):
                raise InputError("--clients", f"must be {facts.clients}, as in the data", clients)
            if known is not None:
                return replace(facts, notes=("Counts are public, and were read off the table.",))
            if facts.schema.inferred:
                note = "No schema is declared: it was read off the records, and for such a run no ε is claimed."
                return replace(facts, notes=(f"{note} Declare data.schema: then the table is not opened here.",))
            return facts
        schema, names = known
        names = config.run.clients or names
        if names and clients not in (None, len(names)):
            raise InputError("--clients", f"must be {len(names)}, as declared", clients)
        if names or clients is not None:
            return PublicFacts(schema, len(names) or clients or 1, names=names)
        several = max(CLIENTS, config.federation.clients_per_round or 0, config.aggregation.smallest_cohort or 0)
        note = f"How many clients there are is not declared: {several} are ASSUMED (--clients N, or declare the values "
        return PublicFacts(schema, several, notes=(f"{note}of data.client in the schema).",))

    @staticmethod
    def of(config: Config) -> PublicFacts:
        """The schema and clients of the configured data, and counts that the owner declared public."""
        found = load_configured(config)
        names = config.run.clients or tuple(client.name for client in found.clients)
        facts = PublicFacts(found.schema, len(names), names=names)
        if config.privacy.counts != "public" or config.run.clients:
            return facts
        cells = RunSpec.of(config, found.schema, len(names)).cells
        members = [cells.membership(client.train) for client in found.clients]
        counts = tuple(Counts(len(member), member.sum(axis=0, dtype=np.int64)) for member in members)
        return replace(facts, counts=counts)

    def planner(self, config: Config) -> tuple[RunSpec, Planner]:
        """The spec of the run and its planner. Raise if the run is not private."""
        require_decided(config)
        spec = RunSpec.of(config, self.schema, self.clients, self.notion)
        if spec.planner is None:
            remedy = "Give privacy.epsilon, the budget of the whole run, or noise scales (privacy.noise_multiplier, …)."
            raise InputError("privacy.epsilon", "must be given to plan a private run", None, remedy)
        require_new(spec.config)
        spec.planner.require_plannable()
        return spec, spec.planner


def planned_runs(config: Config, facts: PublicFacts) -> tuple[list[PlannedRun], tuple[str, ...]]:
    """The plan of these facts, and what was assumed; where its rates follow from a size that nobody declared, two.

    They are of a small and a large number of records, those that cost more first. A declared number of records is
    divided evenly.
    """
    spec, planner = facts.planner(config)
    settled = spec.config
    size, beforehand = settled.privacy.records, planner.one_phase and settled.privacy.counts != "public"
    if facts.counts is not None or (beforehand and size is None):
        return [planned_run(config, facts)], facts.notes
    totals = [n * facts.clients for n in SIZES] if size is None else [round(size * (1 - settled.data.test_fraction))]
    even = "the same number in every client and group"
    note = (
        "Rates and noise follow from released counts, and no size is declared: "
        f"{' and '.join(f'{total:,}' for total in totals)} training records are ASSUMED, {even} (data.records = N, "
        "--records or --counts-of)."
        if size is None
        else f"Counts are ASSUMED: {totals[0]:,} training records of the declared {size:,}, {even}."
    )
    found, errors, notes = list[PlannedRun](), list[InputError](), [*facts.notes, note]
    for total in totals:
        try:
            found.append(planned_run(config, replace(facts, counts=even_counts(spec.cells, facts.clients, [total]))))
        except InputError as error:
            errors.append(error)
            notes.append(f"With {total:,} training records there is no such run: {error}")
    if not found:
        raise errors[0]
    return sorted(found, key=lambda run: -getattr(run.claim, settled.privacy.target_method)), tuple(notes)


def planned_run(config: Config, facts: PublicFacts) -> PlannedRun:
    """The plan that `train` makes of this configuration, on data with these facts."""
    spec, planner = facts.planner(config)
    config = spec.config
    if facts.counts is None and planner.one_phase and config.privacy.counts != "public":
        return PlannedRun(spec, planner, planner.terms_beforehand(facts.clients), counted=False)
    if facts.counts is None:
        rule = "must be known to plan this run: rates and noise follow from counts"
        remedy = f"Give --records, or --counts-of a finished run; or fix {RATES}, and the plan needs no counts."
        if config.privacy.counts == "public":
            remedy = "Give --records, or --counts-of a finished run."
        raise InputError("numbers of records", rule, None, remedy)
    shape, found = (facts.clients, len(spec.cells)), (len(facts.counts), len(facts.counts[0].cells))
    if found != shape:
        rule = f"must be of {shape[0]} clients and {shape[1]} groups (of every conditioning set)"
        raise InputError("numbers of records", rule, f"{found[0]} clients and {found[1]} groups")
    return PlannedRun(spec, planner, PrivateCounts(planner).settle(list(facts.counts)))


def planned_by_rates(config: Config, facts: PublicFacts) -> PlannedRun:
    """The plan of rates alone, for public counts that are not given.

    Every group is assumed so large that the configured rate of it is a whole number of records. A run rounds that
    number, so small groups may be shared at a higher rate and cost more: `planned_run` with counts says how much.
    """
    spec, planner = facts.planner(config)
    config = spec.config
    rate, privacy = config.privacy.sampling_rate or 1.0, config.privacy
    shape = (facts.clients, len(spec.cells))
    ratio = Fraction(math.ceil((privacy.prediction_rate or 1.0) * RESOLUTION), RESOLUTION)
    quotas, cells = np.full(shape, ratio.numerator), np.full(shape, ratio.denominator)
    shared = planner.work.shares_scores and privacy.predictions != "none"
    sampling = Sampling(rate, planner.steps(rate), quotas if shared else None, None)
    records = np.full(facts.clients, ratio.denominator)
    return PlannedRun(spec, planner, replace(planner, public_counts=cells).release_plan(sampling, records, cells, 1))


def even_counts(
    cells: Cells, clients: int, records: Sequence[int], groups: Sequence[Sequence[float]] = ()
) -> tuple[Counts, ...]:
    """Counts for a plan before there are any.

    `records`: of all clients together, in equal parts, or of each. `groups`: for each attribute the proportions of its
    groups, by default equal. Conditioning sets that exclude each other have equal parts of the records; each set that
    may overlap with others has half.
    """
    each = (
        [records[0] // clients + (k < records[0] % clients) for k in range(clients)] if len(records) == 1 else records
    )
    if len(each) != clients or min(each) < 1:
        rule = f"must be one number, or one for each of {clients} clients; at least 1 for each"
        raise InputError("--records", rule, ",".join(map(str, records)))
    if groups and len(groups) != cells.attributes:
        rule = f"must be given once for each of {cells.attributes} sensitive attributes"
        raise InputError("--groups", rule, len(groups))
    sets = cells.notion.sets
    part = 1.0 / len(sets) if cells.notion.partition else 0.5
    shares = np.zeros(len(cells))
    for comparison in cells.comparisons:
        proportions = np.asarray(
            groups[comparison.attribute] if groups else np.ones(len(comparison.cells)), dtype=float
        )
        if len(proportions) != len(comparison.cells) or not (np.isfinite(proportions) & (proportions > 0)).all():
            rule = f"must be {len(comparison.cells)} proportions above 0, one for each group"
            raise InputError("--groups", rule, ",".join(f"{value:g}" for value in proportions))
        shares[list(comparison.cells)] = part * proportions / proportions.sum()
    return tuple(Counts(n, _whole(n, shares, cells)) for n in each)


def _whole(records: int, shares: FloatArray, cells: Cells) -> NDArray[np.int64]:
    """The shares of so many records in whole numbers; of a partition they add up to all, for each attribute."""
    counts: NDArray[np.int64] = np.rint(records * shares).astype(np.int64)
    if cells.notion.partition:
        for attribute in range(cells.attributes):
            own = [cell for c in cells.comparisons if c.attribute == attribute for cell in c.cells]
            largest = max(own, key=lambda cell: counts[cell])
            counts[largest] += records - counts[own].sum()
    return counts


def counts_of(run: Path) -> tuple[Counts, ...]:
    """The counts that a run released, from its last checkpoint; using them again costs nothing."""
    checkpoint = RunDirectory.open(run).read_checkpoint()
    if checkpoint is None:
        raise NotThere("--counts-of", "must be the folder of a run that has begun", str(run))
    release_plan = checkpoint.release_plan
    if release_plan.claim is None:
        raise InputError("--counts-of", "must be a private run: others have exact counts", str(run))
    return tuple(Counts(int(n), own) for n, own in zip(release_plan.records, release_plan.cells, strict=True))


def flat(channel: Channel) -> Channel:
    """The channel as repeated releases of one event, if all its events are equal."""
    event: Event = channel.event
    count = channel.count
    while True:
        if isinstance(event, Repeated):
            count *= event.count
            event = event.event
        elif isinstance(event, Composed) and len(set(event.events)) == 1:
            count *= len(event.events)
            event = event.events[0]
        else:
            return replace(channel, event=event, count=count)
