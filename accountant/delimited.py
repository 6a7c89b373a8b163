"""Delimited text files, read strictly: every record of the file, or an error with the line that is wrong.

Whatever reads a table of records reads it here, so that a budget's fingerprint and the training see the same rows.
RFC 4180 is taken at its word: a value with a delimiter, a line break or a quote in it stands in quotes, a quote inside
it is doubled, and no other value has a quote. A file in this form has an even number of quotes; one quote too many or
too few is therefore always found, and cannot make several lines one value. Errors name lines, never what is in them.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accountant.errors import InputError

DELIMITERS = ",;\t|"
LINES_COMPARED = 20
NAMES_SHOWN = 5
_BREAK = re.compile(r"\r\n|\r|\n")
_MARKS_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Delimited:
    """The first line's names, if it has names, and the records, all as they are written."""

    header: list[str]
    records: list[list[str]]
    spread: tuple[tuple[int, int], ...] = ()  # first and last line of every record that takes several
    without_name: tuple[int, ...] = ()  # columns, from 1, that had neither a name nor a value and were taken out
    copies: tuple[str, ...] = ()  # names of columns that came again with the same values, and were taken out


def read_delimited(
    path: Path,
    *,
    delimiter: str = ",",
    quote: str = '"',
    encoding: str = "utf-8",
    width: int | None = None,
    comment: str | None = None,
    one_name_twice: bool = False,
) -> Delimited:
    """The table in a delimited text file; an `InputError` with the line number where it is not one.

    Without `width`, the number of values of every record, the first line names the columns; `one_name_twice` lets some
    of them have the same name. Without `quote` (""), quotes are ordinary characters. Empty lines are skipped, and
    lines that begin with `comment`.
    """
    _require_format(delimiter, quote, encoding)
    lines = _Lines(_decoded(path, encoding), comment)
    if quote:
        reader = csv.reader(lines, delimiter=delimiter, quotechar=quote, strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    proper = _proper_record(delimiter, quote) if quote else None
    header: list[str] = []
    records: list[list[str]] = []
    spread = []
    while True:
        first = lines.begin()
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise _unreadable(path, first, lines.number, quote, str(error)) from None
        if row is None:
            break
        if not row or (len(row) == 1 and width != 1 and not lines.taken[-1].strip()):
            continue
        first = lines.number - len(lines.taken) + 1
        if proper is not None and any(quote in value for value in row) and not proper.fullmatch("".join(lines.taken)):
            raise _unreadable(path, first, lines.number, quote, "a quote inside a value")
        if width is None:
            header, width = row, len(row)
            continue
        if len(row) != width:
            raise _another_width(path, first, lines.number, width, len(row), header, delimiter)
        if lines.number > first:
            spread.append((first, lines.number))
        records.append(row)
    if width is None:
        remedy = "The first line names the columns, and every further line is a record."
        raise InputError(f"file {path.name}", "must have a first line that names the columns", "an empty file", remedy)
    taken_out = _without_name(header, records)
    copies: tuple[str, ...] = ()
    if header and not one_name_twice:
        copies = _without_copies(header, records)
        _require_different(path, header)
    return Delimited(header, records, tuple(spread), taken_out, copies)


def find_delimiter(path: Path, encoding: str = "utf-8") -> str:
    """The separator that gives the first lines the same number of values, and the most of them."""
    try:
        lines = list(_Lines(_decoded(path, encoding), None, LINES_COMPARED))
        rows = {mark: [row for row in csv.reader(lines, delimiter=mark) if row] for mark in DELIMITERS}
    except (InputError, csv.Error):
        return ","  # reading the table tells what is wrong
    if not rows[","]:
        return ","

    def fit(mark: str) -> tuple[bool, bool, int]:
        widths = [len(row) for row in rows[mark]]
        return widths[0] > 1, max(widths) <= widths[0], sum(width == widths[0] for width in widths) * widths[0]

    return max(DELIMITERS, key=fit)


class _Lines:
    """The lines of a text with their line breaks, counted from 1; `taken` are those since `begin`."""

    def __init__(self, text: str, comment: str | None, most: int | None = None) -> None:
        """Lines end as in a file opened with newline="": at LF, CR and CRLF."""
        self._lines = io.StringIO(text, newline="")
        self._comment = comment
        self._most = most
        self.number = 0
        self.taken: list[str] = []

    def begin(self) -> int:
        """Forget the lines taken so far; the number of the next one."""
        self.taken = []
        return self.number + 1

    def __iter__(self) -> Iterator[str]:
        """The lines without comments."""
        for line in self._lines:
            if self._most is not None and self.number >= self._most:
                return
            self.number += 1
            if self._comment is None or not line.startswith(self._comment):
                self.taken.append(line)
                yield line


def _require_format(delimiter: object, quote: object, encoding: object) -> None:
    """Raise if the format is none that text can have."""
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"':
        raise InputError("delimiter", "must be one character, no line break and no quote", delimiter)
    if not isinstance(quote, str) or len(quote) > 1 or (quote and quote in f"\r\n {delimiter}"):
        remedy = 'Use "" for a file in which quotes are ordinary characters.'
        raise InputError("quote", "must be one character other than the delimiter, or none", quote, remedy)
    try:
        "".encode(encoding if isinstance(encoding, str) else "")
    except (LookupError, ValueError):
        remedy = 'For example "utf-8", "cp1252" (Windows, Western Europe), "utf-16".'
        raise InputError("encoding", "must be the name of a text encoding", encoding, remedy) from None


def _decoded(path: Path, encoding: str) -> str:
    """The whole text of the file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"file {path.name}", f"must be readable ({error.strerror})", str(path)) from None
    try:
        text = raw.decode("utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding)
    except UnicodeError as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = _line_of(raw[:start].decode(encoding, "replace"))
        found = 'text in UTF-16: encoding = "utf-16"' if raw.startswith(_MARKS_16) else "bytes that are not"
        remedy = 'Save the file as UTF-8, or name its encoding, for example encoding = "cp1252" (older Windows files).'
        raise InputError(f"file {path.name}, line {line}", f"must be text in {encoding}", found, remedy) from None
    if "\0" in text:
        line = _line_of(text[: text.index("\0")])
        remedy = 'The file is damaged, no text, or in another encoding (for example encoding = "utf-16").'
        raise InputError(f"file {path.name}, line {line}", "must be text", "a NUL character", remedy)
    return text


def _line_of(text: str) -> int:
    """The number of the line that comes after this text."""
    return len(_BREAK.findall(text)) + 1


def _proper_record(delimiter: str, quote: str) -> re.Pattern[str]:
    """A record in which quotes stand around whole values and are doubled inside them."""
    d, q = re.escape(delimiter), re.escape(quote)
    value = rf"(?:{q}[^{q}]*(?:{q}{q}[^{q}]*)*{q}|[^{q}{d}\r\n]*)"
    return re.compile(rf"{value}(?:{d}{value})*[\r\n]*")


def _place(path: Path, first: int, last: int) -> str:
    return f"file {path.name}, line {first}" if last <= first else f"file {path.name}, lines {first} to {last}"


def _unreadable(path: Path, first: int, last: int, quote: str, error: str) -> InputError:
    """The error for a record that is none, in words about quotes where it is about quotes."""
    if "field larger" in error:
        remedy = f"A quote ({quote}) that is never closed makes the rest of a file one value." if quote else ""
        return InputError(
            _place(path, first, last),
            f"must have values of fewer than {csv.field_size_limit()} characters",
            error,
            remedy,
        )
    found = "a quote that is never closed" if "end of data" in error else "a quote inside a value"
    rule = "must have quotes around whole values only"
    remedy = (
        f'A quote inside a value is doubled, and the value is quoted: "5{quote}{quote} pipe". If quotes mean nothing '
    )
    remedy += 'in this file, set quote = "".'
    return InputError(_place(path, first, last), rule, found, remedy)


def _another_width(
    path: Path, first: int, last: int, width: int, found: int, header: Sequence[str], delimiter: str
) -> InputError:
    """The error for a record with too few or too many values."""
    rule = f"must have {width} values" + (", as the first line names" if header else "")
    if found > width:
        remedy = f"A value with {delimiter!r} in it needs quotes around it."
    else:
        remedy = "A missing value is written as nothing between two delimiters."
    if last > first:
        remedy += f" A quote on line {first} made several lines one record: it may be one too many."
    others = [mark for mark in DELIMITERS if mark != delimiter and width == 1 and any(mark in name for name in header)]
    if others:
        remedy += f" If another character separates the values, name it: delimiter = {others[0]!r}."
    return InputError(_place(path, first, last), rule, found, remedy)


def _without_name(header: list[str], records: list[list[str]]) -> tuple[int, ...]:
    """Take out the columns that delimiters at the end of every line make; which they were, counted from 1.

    One column may be without a name: tables are often written with the numbers of their rows in such a one.
    """
    unnamed = [at for at, name in enumerate(header) if not name.strip()]
    if len(unnamed) < 2:
        return ()
    empty = [at for at in unnamed if not any(record[at].strip() for record in records)]
    for row in (header, *records):
        for at in reversed(empty):
            del row[at]
    return tuple(at + 1 for at in empty)


def _without_copies(header: list[str], records: list[list[str]]) -> tuple[str, ...]:
    """Take out columns that have the name and all values of an earlier one; their names."""
    first: dict[str, int] = {}
    places = [first.setdefault(name.strip(), at) for at, name in enumerate(header)]
    again = [at for at, place in enumerate(places) if place != at]
    copies = [at for at in again if all(record[at].strip() == record[places[at]].strip() for record in records)]
    names = tuple(header[at].strip() for at in copies)
    for row in (header, *records) if copies else ():
        for at in reversed(copies):
            del row[at]
    return names


def _require_different(path: Path, header: Sequence[str]) -> None:
    """Raise if two columns have the same name."""
    counts = Counter(name.strip() for name in header)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        shown = ", ".join(name or "(no name)" for name in twice[:NAMES_SHOWN]) + (
            "…" if len(twice) > NAMES_SHOWN else ""
        )
        remedy = "Their values differ. Rename or remove one of them: which is meant cannot be guessed."
        raise InputError(f"file {path.name}, line 1", "must name every column once", f"twice or more: {shown}", remedy)
