"""Tables of text as they are in a file, raw values of a program, and checks of the options that loaders take."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.delimited import Delimited, read_delimited
from accountant.errors import InputError, require_finite

MOST_LISTED = 20
LONGEST = 100


def nearest(word: str, known: Iterable[str]) -> str:
    """A remedy that suggests the nearest known word, or lists the first of them."""
    words = list(known)
    close = get_close_matches(word[:LONGEST], words, n=1)
    more = f", … ({len(words)} in all)" if len(words) > MOST_LISTED else ""
    listed = ", ".join(name if len(name) <= LONGEST else name[:LONGEST] + "…" for name in words[:MOST_LISTED])
    return f"Did you mean {close[0]!r}?" if close else f"There are: {listed or 'none'}{more}."


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """The value, if it is one of the known words."""
    words = list(known)
    if not isinstance(value, str) or value not in words:
        raise InputError(name, f"must be one of {', '.join(words)}", value, nearest(str(value), words))
    return value


def flag(name: str, value: Any) -> bool:
    """The value, if it is true or false."""
    if not isinstance(value, bool):
        raise InputError(name, "must be true or false", value)
    return value


def whole_number(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> int:
    """The value as an int, if it is a whole number that is large enough, and not too large."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(name, "must be a whole number", value) from None
    if isinstance(value, bool) or number < at_least:
        raise InputError(name, f"must be a whole number, at least {at_least}", value)
    if at_most is not None and number > at_most:
        raise InputError(name, f"must be at most {at_most:,}", value)
    return number


def fraction(name: str, value: Any, *, below_one: bool = False, remedy: str = "") -> float:
    """The value as a float, if it is in [0, 1], or in [0, 1)."""
    if isinstance(value, str | bytes):
        raise InputError(name, "must be a number", value, remedy)
    number = require_finite(name, value, remedy)
    if number < 0 or number > 1 or (below_one and number == 1):
        raise InputError(name, f"must be in [0, 1{')' if below_one else ']'}", value, remedy)
    return number


def words(name: str, value: Any, remedy: str = "") -> list[str]:
    """The value as a list of different words, at least one; a single word is a list of one."""
    found = [value] if isinstance(value, str) else value
    usable = isinstance(found, list | tuple) and all(isinstance(word, str) for word in found)
    if not usable or not found or len(set(found)) != len(found):
        raise InputError(name, "must be one word or a list of different ones", value, remedy)
    return list(found)


# ---- Tables of text.


@dataclass(frozen=True)
class Table:
    """Rows of stripped text under named columns. A row's text is what the split is decided on."""

    columns: tuple[str, ...]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()  # what the owner of the file should know about how it was read

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        """Whether there is a column of this name."""
        return isinstance(name, str) and name in self._places

    def column(self, name: str) -> Sequence[str]:
        """The values of one column."""
        if name not in self:
            raise InputError(f"column {name}", "must be in the table", name, nearest(name, self.columns))
        return self._values[self._places[name]]

    @cached_property
    def _places(self) -> Mapping[str, int]:
        """Where every column is: a search through the names for each of them would be quadratic in the columns."""
        return {name: place for place, name in enumerate(self.columns)}

    @cached_property
    def _values(self) -> Sequence[Sequence[str]]:
        """The values of every column; made once, as walking over the rows is the slow part."""
        return list(zip(*self.rows, strict=True)) if self.rows else ((),) * len(self.columns)

    def where(self, kept: Iterable[bool]) -> Table:
        """The rows for which `kept` is true."""
        return replace(self, rows=[row for row, keep in zip(self.rows, kept, strict=True) if keep])

    def rewritten(self, columns: Mapping[str, Sequence[str]]) -> Table:
        """The same table with other values in these columns."""
        values = list(self._values)
        for name, written in columns.items():
            values[self._places[name]] = written
        return replace(self, rows=[list(row) for row in zip(*values, strict=True)]) if columns else self

    def contents(self) -> list[bytes]:
        """Each row as bytes; different rows give different bytes."""
        return [ascii(row).encode() for row in self.rows]


def read_table(
    path: Path,
    *,
    columns: Sequence[str] | None = None,
    delimiter: str = ",",
    quote: str = '"',
    encoding: str = "utf-8",
    comment: str | None = None,
    one_name_twice: bool = False,
) -> Table:
    """The table in a delimited text file, read strictly; without `columns` its first line names them.

    `accountant.delimited` says what is an error. With `one_name_twice` later columns of one name get .1, .2, …
    """
    found = read_delimited(
        path,
        delimiter=delimiter,
        quote=quote,
        encoding=encoding,
        width=None if columns is None else len(columns),
        comment=comment,
        one_name_twice=one_name_twice,
    )
    names = _unique([name.strip() for name in found.header]) if columns is None else tuple(columns)
    table = Table(names, [list(map(str.strip, record)) for record in found.records], tuple(_notes(found)))
    if columns is None:
        _require_names(path, table)
    return table


def _require_names(path: Path, table: Table) -> None:
    """Raise if the first line is a record: its values would be shown and written down as names.

    It is one if most of its words are values of their own columns. Numbers do not count, as they may be names.
    """
    words = [name for name in table.columns if name and not _is_number(name)]
    values = sum(name in table.column(name) for name in words)
    if values >= 2 and 2 * values > len(words):
        found = f"a first line like a record: {values} of its {len(words)} words are values of their columns"
        remedy = "Put a line with the columns' names before the records."
        raise InputError(f"file {path.name}", "must have a first line that names the columns", found, remedy)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _notes(found: Delimited) -> Iterable[str]:
    """What in the file may not be what its owner means, though every record could be read."""
    if found.without_name:
        places = ", ".join(map(str, found.without_name))
        yield f"Columns without a name and without values were left out: {places}."
    if found.copies:
        yield f"Columns that came twice, with the same values, were read once: {', '.join(found.copies)}."
    if found.spread:
        first, last = found.spread[0]
        yield (
            f"{len(found.spread)} records have a line break in a quoted value, the first on lines {first} to {last}. "
            "If they should not, quotes are missing or too many there."
        )


def _unique(names: list[str]) -> tuple[str, ...]:
    """The names, with .1, .2, … on the second and later columns of one name."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        unique.append(f"{name}.{seen[name]}" if seen[name] else name)
    return tuple(unique)


def table_of(frame: Any) -> Table:
    """The table of a data frame (pandas), its values as they would stand in a file."""
    names = tuple(str(name).strip() for name in frame.columns)
    if len(set(names)) < len(names):
        raise InputError("columns of the data frame", "must have different names", ", ".join(names[:MOST_LISTED]))
    columns = [frame.iloc[:, place] for place in range(len(names))]
    texts = [
        ["" if none else str(value).strip() for value, none in zip(column.tolist(), column.isna(), strict=True)]
        for column in columns
    ]
    return Table(names, [list(row) for row in zip(*texts, strict=True)])


# ---- Raw values: data frames, rows, columns.

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
    """Raise if a name is missing."""
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
