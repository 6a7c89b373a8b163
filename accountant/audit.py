"""How a dataset's spending grew: ε so far, and what was left of its budget, at points along the ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import Connection

from accountant.audit_scan import AuditScan, BudgetChange, Segment, view
from accountant.budget import Budget
from accountant.budget import require_budget_delta as require_delta
from accountant.conversion import epsilon_from_rdp
from accountant.errors import InputError
from accountant.events import Adjacency, Neighbouring, Unit
from accountant.ledger import chain, outbox
from accountant.ledger import datasets as books
from accountant.ledger.chain import ChainCheck, Head, LedgerBroken, Problem, Rows
from accountant.ledger.datasets import DatasetState
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import Seen
from accountant.ledger.signing import OwnerKey
from accountant.ledger.storage import fetch
from accountant.ledger.totals import SAME, Position, derive_totals, older
from accountant.rdp import DEFAULT_ORDERS, Array
from accountant.spending import Payer, Source, add_up, folded, worst_record
from accountant.worst_case import Epsilon, Releases, WorstCase, clients, sum_of_curves


@dataclass(frozen=True)
class Point:
    """ε spent by then (by RDP), and the share of the budget left, if there was one."""

    at: str
    epsilon: float
    left: float | None


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


# ---- An audit: are the books intact, and what has been spent on each dataset, by whom, through which channel?
#
# Everything is derived from the chained rows in one pass; rows of totals are only compared with what it adds up to.


DEFAULT_DELTA = 1e-5
BURN_DOWN_POINTS = 100


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
        """Whether the books are intact."""
        return self.problems_found == 0

    @property
    def fine(self) -> bool:
        """Whether the books are intact and every budget is kept."""
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
        for contradiction in outbox.contradictions(connection):
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
    require_delta(chosen, budget.people if budget else None)
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
                own_delta = require_delta(run_deltas[name])
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
    by_group = lines("group", {group for _, group in whole if group})
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
    )


def _no_more_than(total: Epsilon, points: Iterable[Point]) -> Iterable[Point]:
    """The points of a burn-down, none above ε of everything: they are computed on a coarser grid of orders."""
    return (replace(point, epsilon=min(point.epsilon, total.rdp)) for point in points)


def _changing(state: DatasetState, whole: Releases, worst_case: WorstCase) -> tuple[Line, ...]:
    if state.simulation or state.neighbouring != Neighbouring(Adjacency.ADD_OR_REMOVE, Unit.RECORD):
        return ()
    groups = {group for _, group in whole if group}
    result = []
    for attribute in sorted({group.partition("=")[0] for group in groups}):
        releases = sum(sum(counts.values()) for (_, group), counts in whole.items()
                       if group.partition("=")[0] == attribute)  # fmt: skip
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
    """Every dataset's newest budget, at whose order all is added up; the pass tells whether its row is intact."""
    found: dict[str, Budget] = {}
    for (number,) in fetch(connection, "SELECT source FROM entries WHERE kind = ? ORDER BY sequence", books.BUDGET):
        source = sources.get(number)
        try:
            if source is not None:
                found[folded(source.dataset)] = Budget.from_json(json.dumps(json.loads(source.body)["budget"]))
        except (KeyError, TypeError, ValueError):
            continue  # reported by the tally
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
        cached = {state.name: state for state in books.read_states(connection)}
    except LedgerBroken as error:
        scan.check.report(0, f"what is kept about the datasets cannot be read: {error}")
        return
    for name in sorted(cached.keys() | scan.states.keys()):
        if folded(name) not in set(map(folded, merged)) and cached.get(name) != scan.states.get(name):
            scan.check.report(0, f"what is kept about dataset {name!r} differs from what its rows say")


def _require_its_key(ledger: Ledger, key: OwnerKey) -> None:
    """Nothing, if the ledger says that it is signed with this key, or says so in a row that does not hold.

    Row 1 names the key. If it is as it was written, and by another key or none, the key is the wrong one; else the
    audit goes on, and tells what was changed.
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
