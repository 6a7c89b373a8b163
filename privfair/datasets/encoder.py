"""How raw rows become features, kept with a trained model so that it can be used on new rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite
from privfair.datasets.columns import Categorical, Column, Numeric, Plain
from privfair.datasets.options import choice, flag, nearest
from privfair.datasets.raw import Values, as_numbers, as_texts, read_columns

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
