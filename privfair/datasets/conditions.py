"""Conditioning sets given by simple rules about one column."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.datasets.columns import numbers
from privfair.datasets.options import nearest
from privfair.datasets.tables import Table

TRUE = frozenset(("1", "1.0", "true", "yes"))
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_RULE = re.compile(r"^(?P<column>.+?)\s*(?P<comparison>==|!=|<=|>=|<|>)\s*(?P<value>.+)$")
REMEDY = 'Write "column", a column of 0 and 1, or "column op value", op one of ==, !=, <, <=, >, >=.'


def plain_columns(conditions: Mapping[str, str], table: Table) -> set[str]:
    """The columns that are conditioning sets themselves, and so no features by default."""
    return {rule for rule in conditions.values() if rule in table}


def compared_columns(conditions: Mapping[str, str], table: Table) -> list[str]:
    """The columns that are compared with numbers."""
    rules = [_RULE.match(rule.strip()) for rule in conditions.values() if isinstance(rule, str) and rule not in table]
    return [rule["column"] for rule in rules if rule and not np.isnan(numbers([rule["value"].strip("'\"")])[0])]


def membership(table: Table, conditions: Mapping[str, str]) -> NDArray[np.bool_]:
    """For every record (rows) and conditioning set (columns), whether the record is in it.

    A missing value is in no set that compares numbers.
    """
    sets = [_members(table, name, rule) for name, rule in conditions.items()]
    return np.column_stack(sets) if sets else np.zeros((len(table), 0), dtype=np.bool_)


def _members(table: Table, name: str, rule: Any) -> NDArray[np.bool_]:
    if not isinstance(rule, str):
        raise InputError(f"condition {name}", "must be text", rule, REMEDY)
    if rule in table:
        return np.array([value.casefold() in TRUE for value in table.column(rule)], dtype=np.bool_)
    parts = _RULE.match(rule.strip())
    if parts is None:
        raise InputError(f"condition {name}", "must be a column or a comparison", rule, REMEDY)
    column, value = parts["column"], parts["value"].strip("'\"")
    if column not in table:
        rule = "must be about a column of the file"
        raise InputError(f"condition {name}", rule, column, nearest(column, table.columns))
    compare = COMPARISONS[parts["comparison"]]
    number = numbers([value])[0]
    values = table.column(column)
    if not np.isnan(number):
        parsed = numbers(values)
        return np.asarray(compare(parsed, number) & ~np.isnan(parsed), dtype=np.bool_)
    if parts["comparison"] not in ("==", "!="):
        raise InputError(f"condition {name}", "must compare with a number", value, REMEDY)
    return np.array([compare(text, value) for text in values], dtype=np.bool_)
