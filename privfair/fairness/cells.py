"""Cells: which records are in which group and conditioning set, and how the penalty weighs them.

A cell is (sensitive attribute, conditioning set, group). The penalty compares every pair of groups of an attribute on
every conditioning set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfair.datasets.records import Records, Schema
from privfair.fairness.notions import Notion

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Comparison:
    """One attribute on one conditioning set: the cells of its groups, by position in the flat list of all cells."""

    attribute: int
    condition: int
    cells: range


@dataclass(frozen=True)
class Cells:
    """The cells of a notion over a schema, flat."""

    notion: Notion
    comparisons: tuple[Comparison, ...]
    names: tuple[str, ...]

    @staticmethod
    def of(notion: Notion, schema: Schema) -> Cells:
        """Every attribute, every conditioning set, every group."""
        comparisons: list[Comparison] = []
        names: list[str] = []
        for a, attribute in enumerate(schema.sensitive):
            for j, condition in enumerate(notion.sets):
                comparisons.append(Comparison(a, j, range(len(names), len(names) + len(attribute.values))))
                names += [f"{attribute.name}={value}, {condition.name}" for value in attribute.values]
        return Cells(notion, tuple(comparisons), tuple(names))

    def __len__(self) -> int:
        """How many cells there are."""
        return len(self.names)

    @property
    def attributes(self) -> int:
        """How many sensitive attributes are compared."""
        return len({c.attribute for c in self.comparisons})

    @property
    def count_overlap(self) -> int:
        """In how many of the counts that a client tells one record is: its cells, and the total where that is told."""
        return self.attributes * self.notion.sets_of_a_record + (not self.notion.partition)

    def tell(self, membership: NDArray[np.bool_]) -> Counts:
        """The counts that a client tells: of every cell and, where they do not add up to it, of all records, last."""
        counts = membership.sum(axis=0, dtype=np.int64)
        return counts if self.notion.partition else np.append(counts, len(membership))

    def read(self, told: Counts) -> tuple[int, Counts]:
        """(all records, records of each cell) from what a client told."""
        if not self.notion.partition:
            return int(told[-1]), told[:-1]
        first = [cell for c in self.comparisons if c.attribute == 0 for cell in c.cells]
        return int(told[first].sum()), told

    def membership(self, records: Records) -> NDArray[np.bool_]:
        """(records, cells): which record is in which cell."""
        sets = self.notion.membership(records)
        member = np.zeros((len(records), len(self)), dtype=bool)
        for c in self.comparisons:
            for group, cell in enumerate(c.cells):
                member[:, cell] = sets[:, c.condition] & (records.groups[:, c.attribute] == group)
        return member
