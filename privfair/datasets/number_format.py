"""How the numbers of a file are written: 1234.5, 1234,5, 1,234.5 or 1.234,5.

What is not known is asked for. A column of numbers with decimal commas is text to a reader that expects points; made
into categories it would train a model on one 0/1 column for every number that occurs, without a warning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.datasets.columns import is_missing, numbers
from privfair.datasets.table import Table

DECIMALS = (".", ",")
THOUSANDS = (",", ".", " ", "'")
MOSTLY = 0.8  # a column is one of numbers if so large a share of its values are
_SPACES = " \u00a0\u2009\u202f"  # spreadsheets write spaces that do not break


@dataclass(frozen=True)
class NumberFormat:
    """The mark before decimals, and the mark between groups of three digits, if there is one."""

    decimal: str = "."
    thousands: str = ""

    @staticmethod
    def read(decimal: Any, thousands: Any) -> NumberFormat:
        """The format of the options `decimal` and `thousands`, None where they are not given."""
        if decimal is not None and decimal not in DECIMALS:
            raise InputError("decimal", 'must be "." or ","', decimal)
        if thousands is not None and (thousands not in THOUSANDS or thousands == (decimal or ".")):
            rule = 'must be ",", ".", " " or "\'", and not the decimal mark'
            raise InputError("thousands", rule, thousands, 'With thousands = ".", set decimal = ",".')
        return NumberFormat(decimal or ".", thousands or "")

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        digits = r"\d+"
        if self.thousands:
            mark = f"[{_SPACES}]" if self.thousands == " " else re.escape(self.thousands)
            digits = rf"(?:[1-9]\d{{0,2}}(?:{mark}\d{{3}})+|\d+)"
        d = re.escape(self.decimal)
        return re.compile(rf"[-+]?(?:{digits}(?:{d}\d*)?|{d}\d+)(?:[eE][-+]?\d+)?", re.ASCII)

    @property
    def usual(self) -> bool:
        """Whether numbers are written as Python writes them."""
        return self == NumberFormat()

    def fits(self, value: str) -> bool:
        """Whether a value is a number in this format."""
        return self._pattern.fullmatch(value) is not None

    def reads(self, values: Sequence[str]) -> bool:
        """Whether all values but missing ones are numbers in this format."""
        return all(self.fits(value) or is_missing(value) for value in values)

    def plain(self, value: str) -> str:
        """A number with a decimal point and without marks between its digits; anything else counts as missing."""
        if not self.fits(value):
            return value if is_missing(value) or np.isnan(numbers([value])[0]) else ""
        if self.thousands:
            value = re.sub(f"[{_SPACES}]" if self.thousands == " " else re.escape(self.thousands), "", value)
        return value.replace(self.decimal, ".")

    @property
    def options(self) -> dict[str, tuple[str, str]]:
        """The options of this format, each with what it is by default."""
        return {"decimal": (self.decimal, "."), "thousands": (self.thousands, "")}

    @property
    def notes(self) -> list[str]:
        """What to check about numbers that are not written in the usual way."""
        return [] if self.usual else [f"Numbers are read with {self}, by the look of them: check that."]

    def __str__(self) -> str:
        """The options that ask for this format."""
        reported = ['decimal = ","'] if self.decimal == "," else []
        return ", ".join([*reported, f'thousands = "{self.thousands}"'] if self.thousands else reported)


_OTHERS = (
    NumberFormat(".", ","), NumberFormat(",", ""), NumberFormat(",", "."), NumberFormat(",", " "),
    NumberFormat(".", " "), NumberFormat(",", "'"), NumberFormat(".", "'"),
)  # fmt: skip


def unread_format(values: Sequence[str], current: NumberFormat) -> NumberFormat | None:
    """The format in which most values are numbers, where they are not in the current one; None where there is none."""
    unread, present = _unread(values, current)
    if not unread:
        return None

    def fitting(other: NumberFormat) -> int:
        return sum(count for value, count in unread.items() if other.fits(value))

    best = max(_OTHERS, key=fitting)
    more = fitting(best)
    return best if more and present - unread.total() + more >= MOSTLY * present else None


def find_format(table: Table) -> tuple[NumberFormat, Table]:
    """The format in which the most columns are numbers, a guess, and the table with decimal points in them."""
    formats = Counter(filter(None, (unread_format(table.column(name), NumberFormat()) for name in table.columns)))
    if not formats:
        return NumberFormat(), table
    found = formats.most_common(1)[0][0]
    columns = ((name, table.column(name)) for name in table.columns)
    return found, table.rewritten({name: list(map(found.plain, v)) for name, v in columns if found.reads(v)})


def require_format(name: str, values: Sequence[str], current: NumberFormat, *, declared: bool) -> None:
    """Raise if numbers are written in another format, or if most values of a declared column are not numbers."""
    found = unread_format(values, current)
    remedy = ""
    if found is not None:
        remedy = f"Say how they are written: data.{str(found).replace(', thousands', ', data.thousands')}"
        remedy += ' (or data.decimal = "," if the comma stands before decimals)' if found == _OTHERS[0] else ""
        remedy += "." if declared else '. If they are categories and no numbers, data.decimal = ".".'
    if not declared and found is not None:
        rule = "must have numbers with a decimal point and nothing else between the digits"
        raise InputError(f"column {name}", rule, f"numbers in another format ({found})", remedy)
    if declared:
        unread, present = _unread(values, current)
        if 2 * unread.total() > present:
            rule = "must have numbers, as it is declared"
            raise InputError(f"column {name}", rule, f"{unread.total()} of {present} values that are none", remedy)


def mixed_note(name: str, values: Sequence[str], current: NumberFormat) -> list[str]:
    """A note on a column that becomes categories though most of its values are numbers."""
    words, present = _unread(values, current)
    if not 0 < words.total() <= (1 - MOSTLY) * present:
        return []
    return [
        f"{name}: {words.total()} of {present} values are no numbers, so that it is encoded as categories; declare its "
        "range in a schema to use it as a number."
    ]


def _unread(values: Sequence[str], current: NumberFormat) -> tuple[Counter[str], int]:
    """How often each value occurs that is not a number in this format, and how many values there are."""
    present = [value for value in values if not is_missing(value)]
    strange = np.isnan(numbers(present)).tolist() if current.usual else [not current.fits(value) for value in present]
    return Counter(value for value, none in zip(present, strange, strict=True) if none), len(present)
