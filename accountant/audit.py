"""An audit: is the ledger intact, and what has been spent on each dataset, by whom, through which channel?

Everything is derived from the chained rows in one pass: `AuditScan` folds them, as they stream past, into counts of
equal events. Rows of totals are only compared with what the rows add up to.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain as chained
from operator import itemgetter
from typing import Any

import numpy as np
from sqlalchemy import Connection

from accountant.budget import Budget, require_budget_delta
from accountant.conversion import epsilon_from_rdp
from accountant.errors import InputError, LedgerBroken
from accountant.events import (
    Adjacency,
    InShares,
    Neighbouring,
    NeighbouringMismatch,
    NotPrivate,
    Unit,
    canonical_json,
    unshared,
)
from accountant.ledger import chain
from accountant.ledger.chain import ChainCheck, Head, Problem, Rows
from accountant.ledger.datasets import (
    BUDGET,
    DATASET,
    LEDGER,
    RESTORED,
    SAME,
    TOTALS,
    TRUSTED,
    DatasetState,
    Position,
    derive_totals,
    event_of,
    older,
    read_states,
)
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import Seen
from accountant.ledger.signing import OwnerKey
from accountant.ledger.storage import fetch
from accountant.rdp import DEFAULT_ORDERS, Array
from accountant.spending import SPEND, Payer, Source, add_up, attribute_of, folded, is_side, payer_of, worst_record
from accountant.worst_case import Epsilon, Releases, WorstCase, clients, sum_of_curves

DEFAULT_DELTA = 1e-5
BURN_DOWN_POINTS = 100
NOT_PRIVATE = canonical_json(NotPrivate())
# Rows whose source was deleted: nobody knows what they released.
UNKNOWN = Source("(unknown)", "", "", "", "", NOT_PRIVATE)
_KIND, _SOURCE_AND_COUNT = itemgetter(1), itemgetter(6, 4)


@dataclass(frozen=True)
class Point:
    """ε spent by then (by RDP), and the share of the budget left, if there was one."""

    at: str
    epsilon: float
    left: float | None


@dataclass(frozen=True)
class BudgetChange:
    """Who set which budget, when and why."""

    at: str
    actor: str
    reason: str
    budget: Budget


@dataclass(frozen=True)
class Line:
    """The spending of one client, group, channel or run: releases made, and ε of its worst record.

    delta: the δ of this line where it is not that of the dataset's other figures: a run's own.
    """

    name: str
    releases: int
    epsilon: Epsilon | None
    delta: float | None = None


@dataclass(frozen=True)
class Collusion:
    """What releases with noise in shares assume: (holders, colluders, smallest sum) of each kind; and ε beyond that."""

    cohorts: tuple[tuple[int, int, int], ...]
    beyond: Epsilon | None


@dataclass(frozen=True)
class DatasetAudit:
    """What was spent on one dataset. ε is None where none is claimed: for simulations.

    changing: per attribute, ε between datasets in which one person is in another of its groups.
    rdp_for_pld: whether RDP's bound stands for PLD's somewhere, as there were too many different sums to compute.
    """

    state: DatasetState
    delta: float
    releases: int
    epsilon: Epsilon | None
    spent: float | None
    by_client: tuple[Line, ...]
    by_group: tuple[Line, ...]
    changing: tuple[Line, ...]
    by_channel: tuple[Line, ...]
    by_run: tuple[Line, ...]
    budget_changes: tuple[BudgetChange, ...]
    burn_down: tuple[Point, ...]
    rdp_for_pld: bool = False
    collusion: Collusion | None = None

    @property
    def left(self) -> float | None:
        """The share of the budget that is left; None without a budget."""
        budget = self.state.budget
        return None if budget is None or self.spent is None else budget_left(budget, self.spent)

    @property
    def filter_epsilon(self) -> float | None:
        """ε of everything by the budget's Rényi filter: what `privfair budget show` prints; None without a budget."""
        budget = self.state.budget
        return None if budget is None or self.spent is None else budget.epsilon_at(self.spent)

    @property
    def exceeded(self) -> bool:
        """Whether some record has spent more than the budget."""
        return self.left is not None and self.left < -SAME


@dataclass(frozen=True)
class NotedHead:
    """A head that was noted elsewhere, and the row whose hash it is; None when it is not in the ledger."""

    hash: str
    row: int | None


@dataclass(frozen=True)
class AuditReport:
    """The outcome of an audit. `fine` is the answer in one word."""

    ledger: str
    ledger_id: str
    rows: int
    head: Head
    signatures: str
    problems: tuple[Problem, ...]
    problems_found: int
    datasets: tuple[DatasetAudit, ...]
    noted_heads: tuple[NotedHead, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether the ledger is intact."""
        return self.problems_found == 0

    @property
    def fine(self) -> bool:
        """Whether the ledger is intact and every budget is kept."""
        return self.verified and not any(dataset.exceeded for dataset in self.datasets)


def audit(
    ledger: Ledger,
    *,
    delta: float | None = None,
    pld: bool = True,
    heads: Collection[str] = (),
    key: OwnerKey | None = None,
    run_deltas: Mapping[str, float] | None = None,
) -> AuditReport:
    """The report on a ledger, in one pass over its rows and in memory that does not grow with them.

    delta: for every ε; left out, each budget's own, or 1e-5 where there is no budget.
    heads: hashes noted in statements; one that is not in the ledger means that rows were cut off or replaced.
    key: the owner's key, to check signatures; another key than the ledger's is an `InputError`.
    run_deltas: the δ of runs by their names, where it is known from their statements; no row has it.
    """
    noted = [chain.require_hash("head", head) for head in heads]
    if key is not None:
        _require_its_key(ledger, key)
    check = ChainCheck(ledger.signed_by, key, noted)
    with ledger.reading() as connection:
        head = chain.noted_head(connection)
        sources = chain.read_sources(connection)
        names = _one_spelling(connection, sources)
        scan = AuditScan(check, _renamed(sources, names), head.sequence // BURN_DOWN_POINTS)
        batch = max(1, min(256, scan.segment_rows))
        position = Position(ahead=_last_budgets(sources, connection))
        try:
            for rows in check.passing(chain.stream(connection, batch), sources):
                scan.add(rows)
                # Of changed rows there is nothing more to say.
                if check.intact:
                    _add(position, rows, sources, check)
        except LedgerBroken as error:
            check.report(0, str(error))
        check.finish(head)
        if ledger.seen is not None:
            _require_seen(connection, ledger.seen, check)
        scan.close()
        counts = scan.totals()
        _compare_caches(connection, scan, set(names.values()))
        for contradiction in chain.token_contradictions(connection):
            check.report(0, contradiction)
    if check.intact:
        plain = not ledger.signed_by and not any(state.budget for state in scan.states.values())
        ledger.note_audited(check.head, plain=plain)
    audits = tuple(
        _dataset(state, delta, pld, counts, scan.segments, scan.budgets.get(name, []), run_deltas or {})
        for name, state in sorted(scan.states.items())
    )
    return AuditReport(
        ledger.url, ledger.ledger_id, check.rows, check.head, _signatures(ledger, key), tuple(check.problems),
        check.found, audits, tuple(NotedHead(head, check.found_heads.get(head)) for head in dict.fromkeys(noted)),
    )  # fmt: skip


def _dataset(
    state: DatasetState,
    delta: float | None,
    pld: bool,
    all_counts: dict[Source, int],
    segments: list[Segment],
    changes: list[BudgetChange],
    run_deltas: Mapping[str, float],
) -> DatasetAudit:
    counts = {source: count for source, count in all_counts.items() if source.dataset == state.name}
    budget = state.budget
    chosen = delta if delta is not None else budget.delta if budget else DEFAULT_DELTA
    require_budget_delta(chosen, budget.people if budget else None)
    worst_case = WorstCase(chosen, with_pld=pld)
    whole = view(counts)

    def lines(column: str, names: Iterable[str]) -> tuple[Line, ...]:
        result = []
        own = {name: {s: n for s, n in counts.items() if getattr(s, column) == name} for name in names}
        for name in sorted(own, key=lambda name: (len({source.body for source in own[name]}), name)):
            chosen_counts = own[name]
            if column == "client":
                found = worst_case.of_worst(whole, client=name)
            elif column == "group":
                found = worst_case.of_worst(whole, group=name)
            elif column == "run" and run_deltas.get(name, chosen) != chosen:
                own_delta = require_budget_delta(run_deltas[name])
                found = WorstCase(own_delta, with_pld=pld).of_worst(view(chosen_counts))
                result.append(Line(name, sum(chosen_counts.values()), None if state.simulation else found, own_delta))
                continue
            else:
                found = worst_case.of_worst(view(chosen_counts))
            result.append(Line(name, sum(chosen_counts.values()), None if state.simulation else found))
        return tuple(sorted(result, key=lambda line: line.name))

    total = None if state.simulation else worst_case.of_worst(whole)
    # PLD is computed for so many sums only: first of runs and channels, which statements have too; then of clients.
    by_run = lines("run", {source.run for source in counts})
    by_channel = lines("channel", {source.channel for source in counts})
    by_client = lines("client", {source.client for source in counts})
    by_group = lines("group", {group for _, group in whole if group and not is_side(group)})
    return DatasetAudit(
        state,
        chosen,
        sum(counts.values()),
        total,
        _spent(budget, counts) if budget else None,
        by_client,
        by_group,
        _changing(state, whole, worst_case),
        by_channel,
        by_run,
        tuple(changes),
        () if total is None else tuple(_no_more_than(total, burn_down(state.name, segments, changes, chosen))),
        worst_case.rdp_for_pld,
        _collusion(state, whole, worst_case),
    )


def _collusion(state: DatasetState, whole: Releases, worst_case: WorstCase) -> Collusion | None:
    """What the releases assume of holders that collude, and ε where that fails; None where nothing is in shares."""
    shared = {event for events in whole.values() for event in events if isinstance(event, InShares)}
    if not shared:
        return None
    alone: Releases = {}
    for payer, events in whole.items():
        alone[payer] = Counter()
        for event, count in events.items():
            alone[payer][unshared(event)] += count
    cohorts = sorted({(event.holders, event.colluders, event.smallest) for event in shared})
    return Collusion(tuple(cohorts), None if state.simulation else worst_case.of_worst(alone))


def _no_more_than(total: Epsilon, points: Iterable[Point]) -> Iterable[Point]:
    """The points of a burn-down, none above ε of everything: they are computed on a coarser grid of orders."""
    return (replace(point, epsilon=min(point.epsilon, total.rdp)) for point in points)


def _changing(state: DatasetState, whole: Releases, worst_case: WorstCase) -> tuple[Line, ...]:
    if state.simulation or state.neighbouring != Neighbouring(Adjacency.ADD_OR_REMOVE, Unit.RECORD):
        return ()
    groups = {group for _, group in whole if group and not is_side(group)}
    result = []
    for attribute in sorted({attribute_of(group) for group in groups}):
        releases = sum(sum(counts.values()) for (_, group), counts in whole.items()
                       if attribute_of(group) == attribute)  # fmt: skip
        result.append(Line(attribute, releases, Epsilon(worst_case.on_change(whole, attribute).epsilon)))
    return tuple(result)


def _spent(budget: Budget, counts: dict[Source, int]) -> float:
    rows = ((source.client, source.group, source.body, count) for source, count in counts.items())
    return worst_record(derive_totals(budget, rows))[0]


def _add(position: Position, rows: Rows, sources: dict[int, Source], check: ChainCheck) -> None:
    """Add the rows up, and report rows of totals that say something else."""
    try:
        position.add(rows, sources)
    except LedgerBroken as error:
        check.report(0, str(error))


def _one_spelling(connection: Connection, sources: dict[int, Source]) -> dict[str, str]:
    """The first spelling of every dataset that an older version let be written in several, by each of them."""
    spellings: dict[str, set[str]] = {}
    for source in sources.values():
        spellings.setdefault(folded(source.dataset), set()).add(source.dataset)
    several = {name for names in spellings.values() if len(names) > 1 for name in names}
    if not several:
        return {}
    query = (
        "SELECT dataset, min(sequence) FROM entries JOIN sources ON sources.source = entries.source GROUP BY dataset"
    )
    first = dict(fetch(connection, query))
    return {name: min(spellings[folded(name)], key=lambda n: first.get(n, 0)) for name in several}


def _renamed(sources: dict[int, Source], names: dict[str, str]) -> dict[int, Source]:
    if not names:
        return sources
    return {number: s._replace(dataset=names.get(s.dataset, s.dataset)) for number, s in sources.items()}


def _last_budgets(sources: dict[int, Source], connection: Connection) -> dict[str, Budget]:
    """Every dataset's newest budget, at whose order all is added up; the scan finds out whether its row is intact."""
    found: dict[str, Budget] = {}
    for (number,) in fetch(connection, "SELECT source FROM entries WHERE kind = ? ORDER BY sequence", BUDGET):
        source = sources.get(number)
        try:
            if source is not None:
                found[folded(source.dataset)] = Budget.from_json(json.dumps(json.loads(source.body)["budget"]))
        except (KeyError, TypeError, ValueError):
            continue  # reported by the scan
    return found


def _require_seen(connection: Connection, seen: Seen, check: ChainCheck) -> None:
    """Report if the ledger lacks what this machine saw of it."""
    row = fetch(connection, "SELECT hash FROM entries WHERE sequence = ?", seen.head.sequence)
    used = not seen.token or fetch(connection, "SELECT 1 FROM redemptions WHERE token = ?", seen.token)
    if row != [(seen.head.hash,)] or not used:
        check.report(0, str(older(seen.head, check.head)))


def _compare_caches(connection: Connection, scan: AuditScan, merged: Collection[str]) -> None:
    """Report where the small table beside the chain does not say what the rows say.

    merged: datasets with several spellings, for which older versions kept several rows.
    """
    try:
        cached = {state.name: state for state in read_states(connection)}
    except LedgerBroken as error:
        scan.check.report(0, f"what is kept about the datasets cannot be read: {error}")
        return
    for name in sorted(cached.keys() | scan.states.keys()):
        if folded(name) not in set(map(folded, merged)) and cached.get(name) != scan.states.get(name):
            scan.check.report(0, f"what is kept about dataset {name!r} differs from what its rows say")


def _require_its_key(ledger: Ledger, key: OwnerKey) -> None:
    """Raise `InputError` if the ledger was created with another key, or with none.

    Row 1 names the key. If it is as it was written, and by another key or none, the key is the wrong one; else the
    audit goes on, and reports what was changed.
    """
    if key.key_id == ledger.signed_by:
        return
    check = ChainCheck()
    with ledger.reading() as connection:
        with closing(chain.stream(connection, 1)) as rows:
            first = next(rows, [])
        for _ in check.passing([first], chain.read_sources(connection)):
            pass
    if not check.intact or not first or key.signed(*first[0][-2:]):
        return
    rule = f"must be {ledger.signed_by}: this is not the key of this ledger"
    if not ledger.signed_by:
        rule = "must be left out: the rows of this ledger are not signed"
    remedy = "If the ledger was created with this key, it was replaced by another: put back a copy."
    raise InputError("key", rule, key.key_id, remedy)


def _signatures(ledger: Ledger, key: OwnerKey | None) -> str:
    if not ledger.signed_by:
        return "none"
    return f"checked with key {key.key_id}" if key else f"by key {ledger.signed_by}, not checked: no key given"


@dataclass
class Segment:
    """The releases between two points of the burn-down."""

    starts: int
    at: str
    numbers: dict[int, int] = field(default_factory=dict)
    counts: dict[Source, int] = field(default_factory=dict)


@dataclass
class AuditScan:
    """Counts of identical releases, and what the other rows settle about datasets."""

    check: ChainCheck
    sources: Mapping[int, Source]
    segment_rows: int = 10_000
    segments: list[Segment] = field(default_factory=list)
    states: dict[str, DatasetState] = field(default_factory=dict)
    budgets: dict[str, list[BudgetChange]] = field(default_factory=dict)
    # Sources of earlier rows in a batch that also settles something; all others are in the segments.
    _released: set[int] = field(default_factory=set)

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Count one batch of rows."""
        numbers = self._segment(rows[-1]).numbers
        spends = rows
        if set(map(_KIND, rows)) != {SPEND}:
            spends = [row for row in rows if row[1] == SPEND]
            for row in rows:
                if row[1] != SPEND:
                    self._settle(row[0], row[1], row[2], self.sources.get(row[6], UNKNOWN))
                else:
                    self._released.add(row[6])
        for (number, count), times in Counter(map(_SOURCE_AND_COUNT, spends)).items():
            if count < 1:
                self.check.report(0, f"rows {[row[0] for row in spends if row[4] == count]} count {count} releases")
            numbers[number] = numbers.get(number, 0) + max(1, count) * times

    def _segment(self, newest: tuple[Any, ...]) -> Segment:
        """The segment the batch belongs to; a new one when the last is long enough."""
        if not self.segments or newest[0] - self.segments[-1].starts > self.segment_rows:
            self.segments.append(Segment(newest[0], newest[2]))
        self.segments[-1].at = newest[2]
        return self.segments[-1]

    def totals(self) -> dict[Source, int]:
        """How often each release happened, over all segments."""
        total: Counter[Source] = Counter()
        for segment in self.segments:
            total.update(segment.counts)
        return dict(total)

    def close(self) -> None:
        """After the last row: replace what cannot be accounted for by "not private", and say so."""
        for segment in self.segments:
            for number, count in segment.numbers.items():
                source = self.sources.get(number, UNKNOWN)
                segment.counts[source] = segment.counts.get(source, 0) + count
        unreadable = self._unreadable({source.body for segment in self.segments for source in segment.counts})
        mixed = self._settle_neighbours()
        for segment in self.segments:
            for source in list(segment.counts):
                if source.body in unreadable or source.dataset in mixed:
                    spoiled = source._replace(body=NOT_PRIVATE)
                    segment.counts[spoiled] = segment.counts.get(spoiled, 0) + segment.counts.pop(source)

    def _unreadable(self, bodies: Iterable[str]) -> set[str]:
        unreadable = set()
        for body in bodies:
            try:
                event_of(body)
            except (ValueError, TypeError) as error:  # InputError and JSONDecodeError are ValueErrors
                self.check.report(0, f"an event cannot be read and counts as not private: {error}")
                unreadable.add(body)
        return unreadable

    def _settle_neighbours(self) -> set[str]:
        mixed = set()
        for dataset, body in sorted({(s.dataset, s.body) for segment in self.segments for s in segment.counts}):
            state = self.states.get(dataset, DatasetState(dataset))
            self.states[dataset] = state
            try:
                self.states[dataset] = state.keeping(event_of(body).neighbouring)
            except NeighbouringMismatch as error:
                self.check.report(0, f"dataset {dataset!r} mixes adjacencies and counts as not private: {error}")
                mixed.add(dataset)
            except (ValueError, TypeError):
                continue  # reported by _unreadable
        return mixed

    def _settle(self, sequence: int, kind: str, at: str, source: Source) -> None:
        dataset, body = source.dataset, source.body
        before = self.states.get(dataset, DatasetState(dataset))
        try:
            said = json.loads(body)
            if (kind == LEDGER and sequence == 1) or kind in (TOTALS, TRUSTED, RESTORED):
                return
            if kind == DATASET:
                simulation, fingerprint = bool(said["simulation"]), str(said["fingerprint"])
                if simulation and not before.simulation and self._known(dataset):
                    self.check.report(
                        sequence, f"makes dataset {dataset!r} a simulation after it was used as real data"
                    )
                    simulation = False
                self.states[dataset] = replace(before, simulation=simulation, fingerprint=fingerprint)
            elif kind == BUDGET:
                budget = self._budget(sequence, said["budget"])
                change = BudgetChange(at, str(said["actor"]), str(said["reason"]), budget)
                self.budgets.setdefault(dataset, []).append(change)
                self.states[dataset] = replace(before.keeping(budget.neighbouring), budget=budget)
            else:
                self.check.report(sequence, f"is of unknown kind {kind!r}")
        except (InputError, KeyError, TypeError, ValueError) as error:
            self.check.report(sequence, f"says nothing that can be read: {error}")

    def _known(self, dataset: str) -> bool:
        """Whether an earlier row is about the dataset."""
        released = chained((self._released,), (segment.numbers for segment in self.segments))
        numbers = {number for several in released for number in several}
        return dataset in self.states or any(self.sources.get(n, UNKNOWN).dataset == dataset for n in numbers)

    def _budget(self, sequence: int, said: dict[str, Any]) -> Budget:
        """The budget a row sets. One that states too large a capacity is reported, and held to its own (ε, δ)."""
        try:
            return Budget.from_json(json.dumps(said))
        except InputError as error:
            if error.name != "capacity":
                raise
            self.check.report(sequence, f"sets a budget that allows more than it says: {error}")
            return Budget.from_json(json.dumps({**said, "capacity": 0.0}))


def view(counts: Mapping[Source, int], **only: str) -> Releases:
    """How often each payer made each release, of those that agree with `only` (for instance run="r1")."""
    result: Releases = {}
    for source, count in counts.items():
        if all(getattr(source, name) == value for name, value in only.items()):
            event = event_of(source.body)
            result.setdefault(payer_of(source.client, source.group, event), Counter())[event] += count
    return result


def burn_down(dataset: str, segments: Sequence[Segment], changes: Sequence[BudgetChange], delta: float) -> list[Point]:
    """One point per stretch of the ledger in which the dataset or its budget appears."""
    points: list[Point] = []
    curves: dict[Payer, Array] = {}
    spent: dict[Payer, float] = {}
    previous = ""
    for segment in segments:
        new = view(segment.counts, dataset=dataset)
        changed = any(previous < change.at <= segment.at for change in changes)
        previous = segment.at
        if not new and not changed:
            continue
        for payer, costs in new.items():
            curves[payer] = curves.get(payer, 0.0) + sum_of_curves(costs, DEFAULT_ORDERS)
            if changes:
                # The order never changes after a release, so that of the last budget serves for the time before it too.
                cost = (changes[-1].budget.cost(event, count) for event, count in costs.items())
                spent[payer] = add_up(spent.get(payer, 0.0), *cost)
        in_force = [change.budget for change in changes if change.at <= segment.at]
        left = budget_left(in_force[-1], worst_record(spent)[0]) if in_force else None
        points.append(Point(segment.at, _worst_epsilon(curves, delta), left))
    return points


def _worst_epsilon(curves: dict[Payer, Array], delta: float) -> float:
    """ε of the worst record, for a figure: from the largest RDP of any record at each order of the grid.

    Where two records' curves cross this is a little above both; it is never below either.
    """
    totals = [client.largest(curves.__getitem__, len(DEFAULT_ORDERS)) for client in clients(curves)]
    return epsilon_from_rdp(DEFAULT_ORDERS, np.max(totals, axis=0), delta)[0]


def budget_left(budget: Budget, spent: float) -> float:
    """The share of the budget that is left: 1 when untouched, 0 when used up, below 0 when exceeded."""
    return -math.inf if math.isinf(spent) else 1.0 - spent / budget.capacity
