"""Fold the ledger's rows, as they stream past, into what an audit needs: equal events counted together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from typing import Any

from accountant.budget import Budget
from accountant.errors import InputError
from accountant.events import NeighbouringMismatch, NotPrivate, canonical_json
from accountant.ledger.chain import ChainCheck
from accountant.ledger.datasets import BUDGET, DATASET, LEDGER, RESTORED, TOTALS, TRUSTED, DatasetState, event_of
from accountant.spending import SPEND, Source, payer_of
from accountant.worst_case import Releases

NOT_PRIVATE = canonical_json(NotPrivate())
# Rows whose source was deleted: nobody knows what they released.
UNKNOWN = Source("(unknown)", "", "", "", "", NOT_PRIVATE)


@dataclass(frozen=True)
class BudgetChange:
    """Who set which budget, when and why."""

    at: str
    actor: str
    reason: str
    budget: Budget


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
        released = chain((self._released,), (segment.numbers for segment in self.segments))
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


_KIND, _SOURCE_AND_COUNT = itemgetter(1), itemgetter(6, 4)


def view(counts: Mapping[Source, int], **only: str) -> Releases:
    """How often each payer made each release, of those that agree with `only` (for instance run="r1")."""
    result: Releases = {}
    for source, count in counts.items():
        if all(getattr(source, name) == value for name, value in only.items()):
            event = event_of(source.body)
            result.setdefault(payer_of(source.client, source.group, event), Counter())[event] += count
    return result
