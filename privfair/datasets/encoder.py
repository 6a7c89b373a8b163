"""Labels of a CSV file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite
from privfair.datasets.columns import Categorical, Column, Numeric, Plain, is_missing, numbers
from privfair.datasets.table import Values, as_numbers, as_texts, choice, flag, nearest, read_columns

BINARY = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}
MOST_BAD = 0.05  # a larger share of other values is a mistake about the column, not a few bad records


def binary_labels(
    name: str, values: Sequence[str], positive: str | None, *, declared: bool
) -> tuple[NDArray[np.float64], list[str]]:
    """0 or 1 for every record, NaN where the label is missing or useless; and notes.

    With a `positive` label every other one counts as 0; that no record has it is an error, and a note where the schema
    is declared: it may be so at one data holder. Without, labels are 0 and 1 (or false and true); where the
    schema is declared a few other values are let pass as useless, so that one bad record is no error.
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


# ---- How raw rows become features, kept with a trained model so that it can be used on new rows.


VERSION = 1
FIELDS = {
    "numeric": ("name", "low", "high", "transform"),
    "categorical": ("name", "values", "other"),
    "plain": ("name",),
}


@dataclass(frozen=True)
class Encoder:
    """Declared columns, which turn raw rows into features as the loader of the dataset did.

    Nothing is learnt from the rows, and no value is an error: what cannot be used is replaced, as in training. Where
    the schema was inferred, ranges and categories are those of the records it was inferred from.
    """

    parts: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Check that there are columns, each once."""
        if not self.parts or len(set(self.columns)) != len(self.parts):
            raise InputError("columns of the encoder", "must be at least one, with different names", self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the raw columns that are needed."""
        return tuple(column.name for column in self.parts)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the encoded features."""
        return tuple(name for column in self.parts for name in column.feature_names())

    def encode(self, rows: Any) -> NDArray[np.float32]:
        """The features (n, d) of raw rows: a data frame, a list of dictionaries, or a dictionary of lists.

        Columns that are not needed are ignored; one that is needed and is not there is an `InputError`.
        """
        values = read_columns(rows, self.columns)
        encoded = [_encode(column, given) for column, given in zip(self.parts, values, strict=True)]
        return np.column_stack(encoded).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        """Plain values from which `from_json` makes the same encoder."""
        return {"version": VERSION, "columns": [_column_json(column) for column in self.parts]}

    @staticmethod
    def from_json(data: Any) -> Encoder:
        """The encoder that `to_json` wrote."""
        if not isinstance(data, Mapping) or "version" not in data:
            raise InputError("encoder", "must be a table with a version", type(data).__name__)
        if type(data["version"]) is not int or data["version"] != VERSION:
            remedy = "It was written by another version of privfair."
            raise InputError("version of the encoder", f"must be {VERSION}", data["version"], remedy)
        if set(data) != {"version", "columns"} or not isinstance(data["columns"], list):
            raise InputError("encoder", "must have a version and a list of columns", sorted(map(str, data)))
        return Encoder(tuple(_column(entry) for entry in data["columns"]))


def _encode(column: Column, values: Values) -> NDArray[np.float64]:
    if isinstance(column, Categorical):
        return column.encode(as_texts(values, column.all_values))[0]
    return column.scale(as_numbers(values))


def _column_json(column: Column) -> dict[str, Any]:
    match column:
        case Numeric(name, low, high, transform):
            return {"kind": "numeric", "name": name, "low": float(low), "high": float(high), "transform": transform}
        case Categorical(name, values, other):
            return {"kind": "categorical", "name": name, "values": list(values), "other": other}
        case Plain(name):
            return {"kind": "plain", "name": name}


def _column(entry: Any) -> Column:
    """The column of one entry, if it has exactly the fields of its kind."""
    if not isinstance(entry, Mapping):
        raise InputError("column of the encoder", "must be a table", entry)
    kind = choice("kind of an encoder's column", entry.get("kind"), FIELDS)
    fields = {key: value for key, value in entry.items() if key != "kind"}
    for key in FIELDS[kind]:
        if key not in fields:
            raise InputError(f"{kind} column of the encoder", f"must have the field {key}", sorted(map(str, fields)))
    for key in fields:
        if key not in FIELDS[kind]:
            raise InputError(f"field {key} of the encoder", "must be known", key, nearest(str(key), FIELDS[kind]))
    name = fields["name"]
    if not isinstance(name, str):
        raise InputError("name of an encoder's column", "must be text", name)
    if kind == "plain":
        return Plain(name)
    if kind == "numeric":
        low, high = (require_finite(f"{end} of {name}", fields[end]) for end in ("low", "high"))
        return Numeric(name, low, high, fields["transform"])
    values = fields["values"]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"values of {name}", "must be a list of texts", values)
    return Categorical(name, tuple(values), flag(f"other of {name}", fields["other"]))
