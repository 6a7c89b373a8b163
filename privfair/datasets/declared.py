"""What the owner of a CSV file declares: ranges and categories, labels, conditioning sets, and the roles of columns."""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite
from privfair.datasets.columns import MOST_EDGES, Categorical, Column, Numeric, is_missing, numbers
from privfair.datasets.table import Table, choice, nearest, words
from privfair.util import why_unreadable

KEYS = ("task", "positive", "label_range", "numeric", "categories")
EXAMPLE = 'For example numeric = {age = [18, 100]} and categories = {sex = ["F", "M"]}.'


@dataclass(frozen=True)
class Declaration:
    """What is known about the columns before any record is read.

    `dropping` names the columns whose undeclared values drop the record instead of making it "other".
    """

    task: Literal["binary", "regression"] = "binary"
    positive: str | None = None
    label_range: tuple[float, float] | None = None
    columns: Mapping[str, Column] | None = None
    dropping: frozenset[str] = frozenset()

    @property
    def inferred(self) -> bool:
        """Whether the columns must be taken from the data."""
        return self.columns is None


def read_declaration(schema: Any) -> Declaration:
    """The declaration in a TOML file (a path) or in a mapping with the same keys.

    task = "binary" (or "regression", with label_range = [low, high]); positive = "yes", the label that counts as 1;
    [numeric] age = [18, 100], income = {range = [0, 1e6], transform = "log1p", bins = [20000, 50000]};
    [categories] job = ["clerk", "nurse"], sex = {values = ["F", "M"], unknown = "drop"}.
    """
    if isinstance(schema, str | Path):
        schema = _read_toml(Path(schema))
    if not isinstance(schema, Mapping):
        raise InputError("schema", "must be the path of a TOML file or a table", schema, EXAMPLE)
    for key in schema:
        if key not in KEYS:
            raise InputError(f"schema key {key}", "must be known", key, nearest(str(key), KEYS))
    columns: dict[str, Column] = {}
    dropping = set()
    for name, declared in _table(schema, "numeric").items():
        columns[name] = _numeric(name, declared)
    for name, declared in _table(schema, "categories").items():
        if name in columns:
            raise InputError(f"column {name}", "must be numeric or have categories, not both", name)
        columns[name], drops = _categorical(name, declared)
        dropping |= {name} if drops else set()
    if not columns:
        raise InputError("schema", "must declare the columns", "none", EXAMPLE)
    task, positive, label_range = read_task(
        schema.get("task", "binary"), schema.get("positive"), schema.get("label_range")
    )
    return Declaration(task, positive, label_range, columns, frozenset(dropping))


def read_task(
    task: Any, positive: Any, label_range: Any
) -> tuple[Literal["binary", "regression"], str | None, tuple[float, float] | None]:
    """The task, the positive label as text, and the range of the label."""
    name = cast(Literal["binary", "regression"], choice("task", task, ("binary", "regression")))
    if name == "binary" and label_range is not None:
        raise InputError("label_range", "must be left out for a binary task", label_range)
    if name == "regression" and positive is not None:
        raise InputError("positive", "must be left out for a regression task", positive)
    return name, None if positive is None else as_text(positive), _range("label_range", label_range)


def as_text(value: Any) -> str:
    """A declared value as it would stand in a file."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        rule = f"must be a TOML file that can be read ({why_unreadable(error)})"
        raise InputError("schema", rule, str(path)) from None


def _table(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = schema.get(key, {})
    if not isinstance(table, Mapping):
        raise InputError(f"schema key {key}", "must be a table of columns", table, EXAMPLE)
    return table


def _numeric(name: str, declared: Any) -> Numeric:
    """The column of `[low, high]` or of `{range = [low, high], transform = "log1p", bins = [edges]}`."""
    fields = declared if isinstance(declared, Mapping) else {"range": declared}
    _only(name, fields, ("range", "transform", "bins"))
    ends = _range(f"range of {name}", fields.get("range"))
    if ends is None:
        raise InputError(f"range of {name}", "must be declared", declared, "For example [0, 100].")
    return Numeric(name, *ends, fields.get("transform", "linear"), _edges(name, fields.get("bins", ()), ends))


def _edges(name: str, bins: Any, ends: tuple[float, float]) -> tuple[float, ...]:
    """The edges of the bins: as listed, or of so many bins of equal width over the range."""
    if isinstance(bins, list | tuple):
        return tuple(require_finite(f"bins of {name}", edge) for edge in bins)
    if not isinstance(bins, int) or isinstance(bins, bool) or not 2 <= bins <= MOST_EDGES:
        rule = f"must be a list of edges, or a whole number of bins from 2 to {MOST_EDGES}"
        raise InputError(f"bins of {name}", rule, bins, "For example bins = [25, 45, 65], or bins = 10.")
    return tuple(float(edge) for edge in np.linspace(*ends, bins + 1)[1:-1])


def _categorical(name: str, declared: Any) -> tuple[Categorical, bool]:
    """The column of a list of values, or of `{values = [...], unknown = "drop"}`; and whether it drops records."""
    fields = declared if isinstance(declared, Mapping) else {"values": declared}
    _only(name, fields, ("values", "unknown"))
    values = fields.get("values")
    if not isinstance(values, list | tuple):
        raise InputError(f"categories of {name}", "must be a list of values", declared, 'For example ["F", "M"].')
    drops = choice(f"unknown of {name}", fields.get("unknown", "other"), ("other", "drop")) == "drop"
    return Categorical(name, tuple(as_text(value) for value in values), other=not drops), drops


def _only(name: str, fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in fields:
        if key not in known:
            raise InputError(f"schema key {name}.{key}", "must be known", key, nearest(str(key), known))


def _range(name: str, ends: Any) -> tuple[float, float] | None:
    if ends is None:
        return None
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise InputError(name, "must be two numbers", ends, "For example [0, 100].")
    low, high = (require_finite(name, end) for end in ends)
    if low >= high:
        raise InputError(name, "must have the smaller number first", f"{low:g} to {high:g}")
    return low, high


# ---- Labels.

BINARY = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}
MOST_BAD = 0.05  # a larger share of other values is a mistake about the column, not a few bad records


def binary_labels(
    name: str, values: Sequence[str], positive: str | None, *, declared: bool
) -> tuple[NDArray[np.float64], list[str]]:
    """0 or 1 for every record, NaN where the label is missing or useless; and notes.

    With a `positive` label every other one counts as 0; that no record has it is an error, and a note where the schema
    is declared: it may be so at one data holder. Without, labels are 0 and 1 (or false and true); where the
    schema is declared a few other values count as missing, so that one bad record is not an error.
    """
    missing = np.array([is_missing(value) for value in values], dtype=np.bool_)
    if positive is not None:
        wanted = numbers([positive])[0]
        same = np.array([value == positive for value in values], dtype=np.bool_)
        same |= numbers(values) == wanted  # 1 and 1.0; NaN equals nothing
        missing &= ~same
        notes = [] if same.any() else _without_positive(name, positive, values, missing, declared=declared)
        return np.where(missing, np.nan, same.astype(np.float64)), notes
    labels = np.array([BINARY.get(value.casefold(), np.nan) for value in values], dtype=np.float64)
    bad = np.isnan(labels) & ~missing
    allowed = MOST_BAD * len(values) if declared else 0
    if bad.any() and (bad.sum() > max(1, allowed) or not declared or bad.all()):
        found = {value for value, wrong in zip(values, bad, strict=True) if wrong}
        example = "data.positive, for example --set data.positive=yes"
        remedy = f'Name the label that counts as 1 ({example}), or choose task = "regression".'
        raise InputError(f"label {name}", "must be 0 or 1", _others(found), remedy)
    return labels, []


def _without_positive(
    name: str, positive: str, values: Sequence[str], missing: NDArray[np.bool_], *, declared: bool
) -> list[str]:
    """A note, or where the schema is inferred an error, that there are labels and none is the positive one."""
    found = {value for value, none in zip(values, missing, strict=True) if not none}
    if not found:
        return []
    if declared:
        return [f"{name}: no record has the positive label {positive!r}; all labels are 0."]
    near = [label for label in found if label.casefold() == positive.casefold()]
    remedy = f"The column has {_others(found)}."
    remedy += " Capital and small letters are different: one of them differs in that only." if near else ""
    raise InputError("positive", f"must be one of the labels in the column {name}", positive, remedy)


def _others(found: set[str]) -> str:
    """How many labels there are, for an error: what they are stays with the records."""
    return f"{len(found)} other " + ("value" if len(found) == 1 else "values")


def regression_labels(
    name: str, values: Sequence[str], label_range: tuple[float, float] | None
) -> tuple[NDArray[np.float64], tuple[float, float], list[str]]:
    """A number in the range for every record, NaN where it is missing; the range, from them if None; and notes."""
    labels = numbers(values)
    labels[~np.isfinite(labels)] = np.nan
    known = labels[~np.isnan(labels)]
    if known.size == 0:
        raise InputError(f"label {name}", "must be a number", f"none in {len(values)} records")
    if label_range is None:
        low, high = float(known.min()), float(known.max())
        label_range = (low, high) if low < high else (low - 1.0, high + 1.0)
    low, high = label_range
    clipped = int(((known < low) | (known > high)).sum())
    notes = [f"{name}: {clipped} labels clipped to the range {low:g} to {high:g}."] if clipped else []
    return np.clip(labels, low, high), label_range, notes


# ---- Conditioning sets given by simple rules about one column.


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


def conditioned(conditions: Mapping[str, Any]) -> list[str]:
    """The columns that rules are about, as far as the rules alone tell."""
    rules = [rule.strip() for rule in conditions.values() if isinstance(rule, str)]
    return [parts["column"] if (parts := _RULE.match(rule)) else rule for rule in rules]


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


# ---- Which column of a CSV file is what.


@dataclass(frozen=True)
class Roles:
    """Which column is what."""

    label: str
    sensitive: tuple[str, ...]
    client: str | None
    test: str | None
    id: str | None
    conditions: Mapping[str, str]


def read_roles(
    table: Table, label: Any, sensitive: Any, client: Any, test: Any, identity: Any, conditions: Any
) -> Roles:
    """The roles, if all their columns exist and none has two that exclude each other."""
    attributes = words("sensitive", sensitive)
    if not isinstance(conditions, Mapping):
        raise InputError("conditions", "must be a table of names and rules", conditions)
    for name in conditions:
        if not isinstance(name, str):
            raise InputError("conditions", "must have names that are text", name)
    given = [("label", label), *(("sensitive", name) for name in attributes)]
    given += [(role, name) for role, name in (("client", client), ("test", test), ("id", identity)) if name is not None]
    for role, name in given:
        if name not in table:
            remedy = nearest(str(name), table.columns)
            if len(table.columns) == 1:
                remedy += ' If another character than a comma separates the values, name it: delimiter = ";".'
            raise InputError(role, "must be a column of the file", name, remedy)
        if role != "label" and name == label:
            raise InputError(role, "must be another column than the label", name)
    return Roles(label, tuple(attributes), client, test, identity, dict(conditions))


def choose_features(table: Table, roles: Roles, features: Any, declaration: Declaration) -> list[str]:
    """The names of the columns that are features."""
    if features is None:
        used = {roles.label, roles.client, roles.test, roles.id, *roles.sensitive}
        used |= plain_columns(roles.conditions, table)
        used |= {""}  # a column without a name holds the numbers of the rows
        candidates = table.columns if declaration.columns is None else tuple(declaration.columns)
        names = [name for name in candidates if name not in used]
    else:
        names = words("features", features)
    if not names:
        raise InputError("features", "must be at least one column", "none", "All columns are used otherwise.")
    if roles.label in names:
        raise InputError("features", "must not hold the label", roles.label)
    for name in names:
        if name not in table:
            raise InputError("features", "must be columns of the file", name, nearest(str(name), table.columns))
    return names
