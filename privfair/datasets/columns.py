"""Columns: how a value of a file becomes numbers that a model can use.

Ranges and categories are declared, never taken from the records here, so that no record has a say in how another one
is encoded. A value that cannot be used is replaced, never refused: an error would reveal something about the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, require_finite
from privfair.datasets.table import Values, as_numbers, as_texts, choice, flag, nearest, read_columns

TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: x,
    "log": np.log,
    "log1p": np.log1p,
    "symlog": lambda x: np.sign(x) * np.log1p(np.abs(x)),
}
OTHER = "other"
MOST_EDGES = 100
LARGEST_FEATURE = float(np.finfo(np.float32).max)
LONGEST_NUMBER = 40  # an array of text has the width of its longest value: never make one of a long text


@dataclass(frozen=True)
class Numeric:
    """A number in a public range, mapped to [−1, 1]: t ↦ (t − middle) / (half the range), t = transform(value).

    Values outside the range are clipped to it; missing and non-finite ones become the middle, 0. Transforms: linear,
    log, log1p, symlog (sign(x)·ln(1 + |x|)).
    With edges e₁ < … < eₘ there are m + 1 more features, 0 or 1: below e₁, from e₁ to below e₂, …, from eₘ; all 0 for a
    missing value.
    """

    name: str
    low: float
    high: float
    transform: str = "linear"
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check the range."""
        choice(f"transform of {self.name}", self.transform, TRANSFORMS)
        if not (isfinite(self.high - self.low) and self.low < self.high):
            raise InputError(
                f"range of {self.name}",
                "must be two finite numbers, the smaller first",
                f"{self.low!r} to {self.high!r}",
            )
        smallest = {"log": 0.0, "log1p": -1.0}.get(self.transform)
        if smallest is not None and self.low <= smallest:
            remedy = "Use another transform or a higher lower end."
            raise InputError(
                f"range of {self.name}", f"must be above {smallest:g} for {self.transform}", self.low, remedy
            )
        inside = all(low < high for low, high in pairwise((self.low, *self.edges, self.high)))
        if not inside or len(self.edges) > MOST_EDGES:
            rule = f"must be at most {MOST_EDGES} growing numbers between {self.low:g} and {self.high:g}"
            raise InputError(f"bins of {self.name}", rule, self.edges)

    @property
    def range(self) -> tuple[float, float]:
        """The two ends."""
        return self.low, self.high

    def feature_names(self) -> tuple[str, ...]:
        """The names of the features it gives."""
        if not self.edges:
            return (self.name,)
        ends = [f"{edge:.12g}" for edge in self.edges]
        between = (f"{low} to {high}" for low, high in pairwise(ends))
        return (self.name, *(f"{self.name}: {bin_}" for bin_ in (f"below {ends[0]}", *between, f"from {ends[-1]}")))

    def scale(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """The scaled number and the bins it is in, (n, 1 + bins)."""
        missing = ~np.isfinite(raw)
        change = TRANSFORMS[self.transform]
        start, end = float(change(self.low)), float(change(self.high))
        clipped = np.clip(np.where(missing, self.low, raw), self.low, self.high)
        scaled = (change(clipped) - (start + end) / 2) / ((end - start) / 2)
        features = np.zeros((len(raw), len(self.feature_names())))
        features[:, 0] = np.where(missing, 0.0, scaled)
        if self.edges:
            known = np.flatnonzero(~missing)
            features[known, 1 + np.searchsorted(self.edges, raw[known], side="right")] = 1.0
        return features

    def encode(self, values: Sequence[str]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """The features of each value, and notes on what was replaced."""
        raw = numbers(values)
        missing = ~np.isfinite(raw)
        outside = int((~missing & ((raw < self.low) | (raw > self.high))).sum())
        notes = []
        if missing.any():
            notes.append(f"{self.name}: {int(missing.sum())} missing values set to the middle of the range.")
        if outside:
            notes.append(f"{self.name}: {outside} values clipped to the range {self.low:g} to {self.high:g}.")
        return self.scale(raw), tuple(notes)


@dataclass(frozen=True)
class Categorical:
    """One of the declared values, as one 0/1 feature each; all others, and missing ones, are "other".

    Without `other` there is no feature for "other": such a record has 0 everywhere.
    """

    name: str
    values: tuple[str, ...]
    other: bool = True

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.values or len(set(self.values)) != len(self.values):
            raise InputError(f"categories of {self.name}", "must be different from each other", self.values)

    @property
    def all_values(self) -> tuple[str, ...]:
        """The declared values, and "other" if it counts as one."""
        return self.values if not self.other or OTHER in self.values else (*self.values, OTHER)

    def feature_names(self) -> tuple[str, ...]:
        """The names of the features it gives."""
        return tuple(f"{self.name}={value}" for value in self.all_values)

    def codes(self, values: Sequence[str]) -> NDArray[np.int64]:
        """The index of each value in `all_values`; that of "other" for an undeclared one, −1 if there is none."""
        index = {value: code for code, value in enumerate(self.all_values)}
        other = index.get(OTHER, -1)
        return np.array([index.get(value, other) for value in values], dtype=np.int64)

    def encode(self, values: Sequence[str]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """One feature per category, and notes on what was replaced."""
        codes = self.codes(values)
        features = np.zeros((len(values), len(self.all_values)))
        known = np.flatnonzero(codes >= 0)
        features[known, codes[known]] = 1.0
        return features, self.unknown_note(values)

    def unknown_note(self, values: Sequence[str]) -> tuple[str, ...]:
        """A note on values outside the declared ones, if there are any."""
        unknown = len(values) - sum(map(frozenset(self.values).__contains__, values))
        return (f'{self.name}: {unknown} missing or undeclared values are "{OTHER}".',) if unknown else ()


@dataclass(frozen=True)
class Plain:
    """A number that is a feature as it stands, for drawn data; missing and non-finite ones become 0."""

    name: str

    def feature_names(self) -> tuple[str, ...]:
        """The names of the features it gives."""
        return (self.name,)

    def scale(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """One feature per number, (n, 1)."""
        return np.where(np.isfinite(raw), np.clip(raw, -LARGEST_FEATURE, LARGEST_FEATURE), 0.0)[:, None]

    def encode(self, values: Sequence[str]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """One feature per value, and a note on what was replaced."""
        raw = numbers(values)
        missing = int((~np.isfinite(raw)).sum())
        return self.scale(raw), (f"{self.name}: {missing} missing values set to 0.",) if missing else ()


Column = Numeric | Categorical | Plain


def numbers(values: Sequence[str]) -> NDArray[np.float64]:
    """The values as numbers, NaN where there is none."""
    if max(map(len, values), default=0) > LONGEST_NUMBER:
        return _one_by_one(values)
    try:
        return np.array(values, dtype=np.str_).astype(np.float64)
    except ValueError:
        return _one_by_one(values)


def _one_by_one(values: Sequence[str]) -> NDArray[np.float64]:
    return np.fromiter(map(_number, values), dtype=np.float64, count=len(values))


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return np.nan


def encode_all(
    columns: Sequence[Column], read: Callable[[str], Sequence[str]], count: int
) -> tuple[NDArray[np.float32], tuple[str, ...], tuple[str, ...]]:
    """The features of all columns side by side, their names, and the notes; `read` gives a column's values."""
    encoded = [column.encode(read(column.name)) for column in columns]
    features = np.column_stack([part for part, _ in encoded]) if encoded else np.zeros((count, 0))
    names = tuple(name for column in columns for name in column.feature_names())
    return features.astype(np.float32), names, tuple(note for _, notes in encoded for note in notes)


# ---- Columns taken from the records themselves: for simulations only.


MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))
MOST_CATEGORIES = 100
MOST_GROUPS = 20
DECLARE = "Declare its values in the schema"


def is_missing(value: str) -> bool:
    """Whether a value stands for none."""
    return value.casefold() in MISSING


def infer_column(name: str, values: Sequence[str]) -> Column:
    """A number from smallest to largest if all values are numbers, otherwise the categories that occur."""
    present = [value for value in values if not is_missing(value)]
    parsed = numbers(present)
    if not np.isnan(parsed).any():
        finite = parsed[np.isfinite(parsed)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)
        if low == high:  # a constant is encoded as 0, the middle
            low, high = low - max(1.0, abs(low)), high + max(1.0, abs(high))
        return Numeric(name, low, high)
    categories = tuple(sorted(set(present)))
    if len(categories) > MOST_CATEGORIES:
        rule = f"must have at most {MOST_CATEGORIES} different values, or numbers only"
        raise InputError(f"column {name}", rule, len(categories), f"{DECLARE}, or leave it out of the features.")
    return Categorical(name, categories, other=len(present) < len(values))


def infer_groups(name: str, values: Sequence[str]) -> Categorical:
    """The groups that occur."""
    present = [value for value in values if not is_missing(value)]
    groups = tuple(sorted(set(present)))
    if not groups:
        raise InputError(f"sensitive column {name}", "must have values", "only missing ones")
    if len(groups) > MOST_GROUPS:
        rule = f"must have at most {MOST_GROUPS} groups"
        raise InputError(f"sensitive column {name}", rule, len(groups), f"{DECLARE}; the rest become one group.")
    return Categorical(name, groups, other=len(present) < len(values))


# ---- The encoder, which is kept with a trained model so that it can be used on new rows.

VERSION = 1
FIELDS = {
    "numeric": ("name", "low", "high", "transform"),
    "binned": ("name", "low", "high", "transform", "edges"),  # a kind of its own: earlier versions must refuse it
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
        case Numeric(name, low, high, transform, edges):
            about = {"name": name, "low": float(low), "high": float(high), "transform": transform}
            more = {"kind": "binned", "edges": [float(edge) for edge in edges]} if edges else {"kind": "numeric"}
            return {**more, **about}
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
    if kind in ("numeric", "binned"):
        low, high = (require_finite(f"{end} of {name}", fields[end]) for end in ("low", "high"))
        edges = fields.get("edges", [])
        if not isinstance(edges, list):
            raise InputError(f"edges of {name}", "must be a list of numbers", edges)
        edges = tuple(require_finite(f"edges of {name}", edge) for edge in edges)
        return Numeric(name, low, high, fields["transform"], edges)
    values = fields["values"]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"values of {name}", "must be a list of texts", values)
    return Categorical(name, tuple(values), flag(f"other of {name}", fields["other"]))
