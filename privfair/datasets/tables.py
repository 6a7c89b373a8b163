"""Tables of text, as they stand in a file, before anything is made of the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from accountant.delimited import Delimited, read_delimited
from accountant.errors import InputError
from privfair.datasets.options import nearest


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
