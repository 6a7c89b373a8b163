"""Raw values from wherever a program has them: data frames, rows, columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError

Values = Sequence[Any] | NDArray[Any]
KINDS = "a data frame, a list of rows (dictionaries) or a dictionary of columns (lists)"


def read_columns(rows: Any, names: Sequence[str]) -> list[Values]:
    """The values of the named columns, all of one length.

    `rows` is anything with `columns` and `[name]`, such as a pandas.DataFrame, a list of dictionaries, or a dictionary
    of lists.
    """
    if hasattr(rows, "columns") and hasattr(rows, "__getitem__"):
        _require(names, list(rows.columns))
        return [_values(name, rows[name]) for name in names]
    if isinstance(rows, Mapping):
        _require(names, rows)
        columns = [_values(name, rows[name]) for name in names]
        lengths = {name: len(values) for name, values in zip(names, columns, strict=True)}
        if len(set(lengths.values())) > 1:
            raise InputError("rows", "must have as many values in every column", lengths)
        return columns
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise InputError("rows", f"must be {KINDS}", type(rows).__name__)
    for row in rows:
        _require(names, row)
    return [[row[name] for row in rows] for name in names]


def _require(names: Sequence[str], found: Iterable[Any]) -> None:
    """Nothing, if all names are there."""
    there = set(found)
    for name in names:
        if name not in there:
            remedy = f"Needed: {', '.join(names)}. A missing value is None, not a missing column."
            raise InputError(f"column {name}", "must be in the rows", ", ".join(map(str, found)) or "no column", remedy)


def _values(name: str, values: Any) -> Values:
    """The values of one column, as an array if they have a type in common."""
    if hasattr(values, "dtype"):
        values = np.asarray(values)
        usable = values.ndim == 1
    else:
        usable = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not usable:
        remedy = f"For one row give [row]. Rows are {KINDS}."
        raise InputError(f"column {name}", "must be one list of values", type(values).__name__, remedy)
    column: Values = values
    return column


def as_numbers(values: Values) -> NDArray[np.float64]:
    """The values as numbers, NaN where there is none; text is read as it would be in a file."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    return np.fromiter(map(_number, values), dtype=np.float64, count=len(values))


def as_texts(values: Values, declared: Sequence[str]) -> list[str]:
    """The values as they would stand in a file.

    Text is taken as it is, without the white space around it. A number or a truth value that a program has read from
    a file has lost how it was written there: it becomes the declared text that means the same (0.126 and "0.12600").
    """
    known = frozenset(declared)
    by_number = {number: text for text in reversed(declared) if isfinite(number := _number(text))}
    return [value.strip() if isinstance(value, str) else _text(value, known, by_number) for value in values]


def _text(value: Any, declared: frozenset[str], by_number: Mapping[float, str]) -> str:
    if value is None:
        return ""
    text = str(value)
    if text in declared:
        return text
    if isinstance(value, bool | np.bool_):
        return text.lower() if text.lower() in declared else by_number.get(float(value), text)
    return by_number.get(_number(text), text)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan
