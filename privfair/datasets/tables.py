"""Tables of text, as they stand in a file, before anything is made of the values."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from accountant.errors import InputError
from privfair.datasets.options import nearest


@dataclass(frozen=True)
class Table:
    """Rows of stripped text under named columns. A row's text is what the split is decided on."""

    columns: tuple[str, ...]
    rows: list[list[str]]
    renamed: tuple[str, ...] = ()  # columns whose name in the file is also that of an earlier one

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def column(self, name: str) -> Sequence[str]:
        """The values of one column."""
        if name not in self.columns:
            raise InputError(f"column {name}", "must be in the table", name, nearest(name, self.columns))
        return self._by_column[name]

    @cached_property
    def _by_column(self) -> dict[str, Sequence[str]]:
        """The values of every column; made once, as walking over the rows is the slow part."""
        values = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.columns)
        return dict(zip(self.columns, values, strict=True))

    def where(self, kept: Iterable[bool]) -> Table:
        """The rows for which `kept` is true."""
        return replace(self, rows=[row for row, keep in zip(self.rows, kept, strict=True) if keep])

    def contents(self) -> list[bytes]:
        """Each row as bytes; different rows give different bytes."""
        return [ascii(row).encode() for row in self.rows]


def read_table(
    path: Path, *, columns: Sequence[str] | None = None, delimiter: str = ",", comment: str | None = None
) -> Table:
    """The table in a delimited text file, in UTF-8; without `columns` its first line names them.

    Empty lines are skipped, and lines that begin with `comment`. A short row is filled up with empty values.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = (line for line in file if comment is None or not line.startswith(comment))
            rows = [list(map(str.strip, row)) for row in csv.reader(lines, delimiter=delimiter) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        remedy = "It must be a text file in UTF-8 with one record per line."
        raise InputError(f"file {path.name}", f"must be readable ({error})", str(path), remedy) from None
    if columns is None:
        if not rows:
            raise InputError(f"file {path.name}", "must have a first line that names the columns", "an empty file")
        written, rows = rows[0], rows[1:]
        names = _unique(written)
    else:
        written, names = list(columns), tuple(columns)
    for number, row in enumerate(rows, start=1):
        if len(row) > len(names):
            rule = f"must have {len(names)} values in every record; record {number} has {len(row)}"
            raise InputError(f"file {path.name}", rule, delimiter.join(row)[:80], "A value with a comma needs quotes.")
        row.extend([""] * (len(names) - len(row)))
    return Table(names, rows, tuple(name for name, found in zip(names, written, strict=True) if name != found))


def _unique(names: list[str]) -> tuple[str, ...]:
    """The names, with .1, .2, … on the second and later columns of one name."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        unique.append(f"{name}.{seen[name]}" if seen[name] else name)
    return tuple(unique)
