"""The schema that the owner of a CSV file declares: ranges, categories and the meaning of the label."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from accountant.errors import InputError, require_finite
from privfair.datasets.columns import Categorical, Column, Numeric
from privfair.datasets.options import choice, nearest
from privfair.toml_values import why_unreadable

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
    [numeric] age = [18, 100], income = {range = [0, 1e6], transform = "log1p"};
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
    """The column of `[low, high]` or of `{range = [low, high], transform = "log1p"}`."""
    fields = declared if isinstance(declared, Mapping) else {"range": declared}
    _only(name, fields, ("range", "transform"))
    ends = _range(f"range of {name}", fields.get("range"))
    if ends is None:
        raise InputError(f"range of {name}", "must be declared", declared, "For example [0, 100].")
    return Numeric(name, *ends, fields.get("transform", "linear"))


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
