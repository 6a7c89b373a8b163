"""Notions of group fairness: which score is compared, on which records; and the cells that they compare.

A notion asks that the distribution of a score S(h(x), y) be the same in every group, on each of its conditioning
sets (Rychener, Kuhn & Hu 2025, Table 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.config import NOTION_ALIASES
from privfair.datasets.records import Records, Schema
from privfair.util import named_object, user_code

Score = Literal["prediction", "loss"]

# Columns of histories and results: the figure of a notion that is called like one of them would take its place.
COLUMNS = frozenset((
    "round", "accuracy", "rmse", "mmd2", "unfairness", "notion", "history",
    *(f"{part}_{figure}" for part in ("train", "test") for figure in ("loss", "mmd2", "objective")),
    "schema", "series", "method", "parameter", "value", "lambda", "seed", "epsilon_target", "status", "reason",
    "baseline_accuracy", "baseline_rmse", "epsilon_pld", "epsilon_rdp", "epsilon_beyond", "delta", "tracked_gap",
    "rounds", "bytes_up", "bytes_down", "seconds", "engine",
))  # fmt: skip


@dataclass(frozen=True)
class ConditioningSet:
    """A named part of the records."""

    name: str
    contains: Callable[[Records], NDArray[np.bool_]]

    def members(self, records: Records) -> NDArray[np.bool_]:
        """For each record, whether it is in the set."""
        rule = f"must say yes or no for each record: an array of shape {(len(records),)}"
        with user_code(f"conditioning set {self.name!r}", rule):
            found = np.asarray(self.contains(records), dtype=bool)
        if found.shape != (len(records),):
            raise InputError(f"conditioning set {self.name!r}", rule, f"shape {found.shape}")
        return found


@dataclass(frozen=True)
class Notion:
    """A score and the conditioning sets on which its distribution is compared between groups.

    Two public facts make private releases cheaper where they hold: no record is in two of the sets (`exclusive`), and
    every record is in exactly one (`partition`).
    """

    name: str
    score: Score
    sets: tuple[ConditioningSet, ...]
    exclusive: bool = False
    partition: bool = False

    def __post_init__(self) -> None:
        """Check the name, the score and the sets."""
        if not isinstance(self.name, str) or not self.name.strip():
            raise InputError("name of a notion", "must be a text that is not empty", self.name)
        if self.name in COLUMNS or self.name.startswith("unfairness_"):
            raise InputError("name of a notion", "must not be that of another figure", self.name, "Choose another.")
        if self.score not in get_args(Score):
            raise InputError(f"score of notion {self.name!r}", "must be prediction or loss", self.score)
        if not isinstance(self.sets, tuple | list) or not all(isinstance(s, ConditioningSet) for s in self.sets):
            rule, remedy = "must be a tuple of ConditioningSet", "One set: (SET,), with a comma."
            raise InputError(f"sets of notion {self.name!r}", rule, self.sets, remedy)

    @property
    def sets_of_a_record(self) -> int:
        """In how many of the sets one record can be."""
        return 1 if self.exclusive or self.partition else len(self.sets)

    def membership(self, records: Records) -> NDArray[np.bool_]:
        """One column per conditioning set: which records are in it.

        Where the sets are declared to exclude each other a record counts in its first one only: prices rest on that.
        """
        member = np.stack([s.members(records) for s in self.sets], axis=1)
        if self.sets_of_a_record == 1:
            member &= np.cumsum(member, axis=1) == 1
        return member

    def couples_records(self, records: Records, look_at: int = 50) -> bool:
        """Whether a record's sets change when it stands alone: they depend on other records, which no price allows."""
        some = range(0, len(records), max(1, len(records) // look_at))
        together = self.membership(records)
        return any(not np.array_equal(self.membership(records.take([i]))[0], together[i]) for i in some)


EVERYONE = ConditioningSet("everyone", lambda records: np.ones(len(records), dtype=bool))


def _with_label(value: float) -> ConditioningSet:
    return ConditioningSet(f"label {value:g}", lambda records: records.labels == value)


STATISTICAL_PARITY = Notion("statistical_parity", "prediction", (EVERYONE,), partition=True)
EQUAL_OPPORTUNITY = Notion("equal_opportunity", "prediction", (_with_label(1),))
PREDICTIVE_EQUALITY = Notion("predictive_equality", "prediction", (_with_label(0),))
EQUALIZED_ODDS = Notion("equalized_odds", "prediction", (_with_label(0), _with_label(1)), partition=True)
RISK_PARITY = Notion("risk_parity", "loss", (EVERYONE,), partition=True)

_NEEDS_LABELS = (EQUAL_OPPORTUNITY, PREDICTIVE_EQUALITY, EQUALIZED_ODDS)
_FIXED = {n.name: n for n in (STATISTICAL_PARITY, RISK_PARITY, *_NEEDS_LABELS)}
NAMES = (*_FIXED, "conditional_statistical_parity")


def known_notion(name: str) -> Notion | None:
    """The notion of this name that is the same for all data; None for one whose sets the data declare."""
    return _FIXED.get(NOTION_ALIASES.get(name, name))


def notion_by_name(name: str, schema: Schema) -> Notion:
    """The notion of this name for data of this schema.

    `demographic_parity` is another name of `statistical_parity`. `conditional_statistical_parity` compares predictions
    on each of the conditioning sets that the data declare. "package.module:name" is a notion of the user's own.
    """
    own = own_notion(name, schema)
    if own is not None:
        return own
    name = NOTION_ALIASES.get(name, name)
    if name == "conditional_statistical_parity":
        if not schema.conditions:
            rule = "needs conditioning sets, and the data declare none"
            raise InputError("fairness.notion", rule, name, "Declare data.conditions.")
        return Notion(name, "prediction", tuple(_declared(i, label) for i, label in enumerate(schema.conditions)))
    if name not in _FIXED:
        close = get_close_matches(name, NAMES, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        remedy = f"{hint}Known: {', '.join(NAMES)}; or one of your own: package.module:name."
        raise InputError("fairness.notion", "must be a known notion", name, remedy)
    notion = _FIXED[name]
    if notion in _NEEDS_LABELS and schema.task != "binary":
        raise InputError("fairness.notion", "conditions on binary labels, and the task is regression", name)
    return notion


def own_notion(name: str, schema: Schema) -> Notion | None:
    """The user's own notion that "package.module:name" names; None for any other name.

    What is named is a `Notion`, or a function that makes one of the schema (to find a feature by its name).
    """
    if ":" not in name:
        return None
    found = named_object("fairness.notion", name, "a notion")
    notion = found
    if callable(found) and not isinstance(found, Notion):
        with user_code("fairness.notion", "must name a Notion, or a function of the schema that makes one", name):
            notion = found(schema)
    if not isinstance(notion, Notion) or not notion.sets:
        rule = "must name a Notion with at least one conditioning set, or a function of the schema that makes one"
        raise InputError("fairness.notion", rule, notion, "See privfair.fairness.notions.Notion.")
    require_own_name(notion)
    return notion


def require_own_name(notion: Notion) -> None:
    """Raise if a notion of the user's own has the name of a known one: every history reports both."""
    known = _FIXED.get(notion.name)
    if notion.name in NOTION_ALIASES or (known is not None and notion != known):
        rule = "must not be that of a known notion, whose figure it would take the place of"
        raise InputError("name of a notion", rule, notion.name, "Choose another.")


def notion_figure(row: Mapping[str, float | int | None], notion: str) -> float | int | None:
    """The figure of the configured notion in a line of a history; None where it has none.

    That of "package.module:name" is in the column of the notion's own name: the only one that nothing else is called.
    """
    if ":" not in notion:
        return row.get(notion)
    return next((value for name, value in row.items() if name not in COLUMNS and name not in _FIXED), None)


def _declared(index: int, label: str) -> ConditioningSet:
    return ConditioningSet(label, lambda records: records.conditions[:, index])


# ---- Cells: which records are in which group and conditioning set.
#
# A cell is (sensitive attribute, conditioning set, group). The penalty compares every pair of groups of an attribute on
# every conditioning set.

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
        """How many of the counts that a client reports one record is in: its cells, and the total if it is reported."""
        return self.attributes * self.notion.sets_of_a_record + (not self.notion.partition)

    def tell(self, membership: NDArray[np.bool_]) -> Counts:
        """The counts that a client reports: of every cell and, where they do not add up to it, of all records, last."""
        counts = membership.sum(axis=0, dtype=np.int64)
        return counts if self.notion.partition else np.append(counts, len(membership))

    def read(self, reported: Counts) -> tuple[int, Counts]:
        """(all records, records of each cell) from the counts that a client reported."""
        if not self.notion.partition:
            return int(reported[-1]), reported[:-1]
        first = [cell for c in self.comparisons if c.attribute == 0 for cell in c.cells]
        return int(reported[first].sum()), reported

    def membership(self, records: Records) -> NDArray[np.bool_]:
        """(records, cells): which record is in which cell."""
        sets = self.notion.membership(records)
        member = np.zeros((len(records), len(self)), dtype=bool)
        for c in self.comparisons:
            for group, cell in enumerate(c.cells):
                member[:, cell] = sets[:, c.condition] & (records.groups[:, c.attribute] == group)
        return member
