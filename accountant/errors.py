"""Errors that say what is wrong and what to do about it."""

from __future__ import annotations

import datetime
import enum
import math
import numbers
from pathlib import PurePath

LONGEST_TEXT = 500  # a longer text is no name and no option, and may be a whole file
MOST_DIGITS = 40


class InputError(ValueError):
    """A value somebody gave breaks a rule.

    Every such message has the same four parts, so that a person can act on it:
    the name of the value, the rule it breaks, what was found, and the remedy.
    It goes to logs and to other people. What was found may be a table of records that somebody passed by mistake, so
    only numbers and short texts are shown; of everything else the type and the size (`described`).
    """

    reported = "found"

    def __init__(self, name: str, rule: str, found: object, remedy: str = "") -> None:
        """Put the four parts together."""
        self.name = name
        self.rule = rule
        self.found = described(found)
        self.remedy = remedy
        super().__init__(f"{name} {rule}; {self.reported} {self.found!r}." + (f" {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, object, str]]:
        """Survive the way back from a worker process."""
        return type(self), (self.name, self.rule, self.found, self.remedy)


class Description(str):
    """Words about a value, which stand in a message without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The words."""
        return str(self)


def described(value: object) -> object:
    """The value itself if it is a number, a short text or another single thing; otherwise its type and size."""
    if isinstance(value, Description) or value is None:
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else Description(f"a text of {len(value):,} characters")
    if isinstance(value, int) and not isinstance(value, bool | enum.Enum):
        digits = int(value.bit_length() * math.log10(2)) + 1
        return value if digits <= MOST_DIGITS else Description(f"a whole number of about {digits:,} digits")
    if isinstance(value, numbers.Number | PurePath | enum.Enum | datetime.date | datetime.time | datetime.timedelta):
        return value
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        size = f" of shape {tuple(shape)}"
    else:
        try:
            size = f" of length {len(value):,}"  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001  anybody's object: its size is no reason to fail
            size = ""
    kind = value.__qualname__ if isinstance(value, type) else type(value).__name__
    return Description(f"the type {kind}" if isinstance(value, type) else f"a value of type {kind}{size}")


class NotThere(InputError):
    """What somebody named does not exist; `found` is the name, under which nothing was found."""

    reported = "there is none at"


class Refused(RuntimeError):
    """The input is fine and the answer is no: over budget, a broken chain, a token used twice."""


class LedgerBroken(Refused):
    """The stored rows contradict each other: nothing may be added until somebody has looked."""


class OlderLedger(LedgerBroken):
    """Rows that this machine has seen are missing: an older copy was put back, or rows were cut off or replaced."""


class UnknownLedger(Refused):
    """A ledger with a budget or signatures that this machine does not remember: nobody said that it is the newest."""


class LedgerUnavailable(RuntimeError):
    """The ledger, or what this machine remembers of it, cannot be read or written now: a full disk, no permission.

    Neither bad input nor an answer: nothing was spent, and the same request may succeed later.
    """


def require_positive(name: str, value: float, remedy: str = "") -> float:
    """The value as a float, if it is a finite number above zero; otherwise `InputError`."""
    number = require_finite(name, value, remedy)
    if number <= 0:
        raise InputError(name, "must be above 0", value, remedy)
    return number


def require_finite(name: str, value: float, remedy: str = "") -> float:
    """The value as a float, if it is a finite number; otherwise `InputError`."""
    if isinstance(value, bool):
        raise InputError(name, "must be a number", value, remedy)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(name, "must be a number", value, remedy) from None
    except OverflowError:
        raise InputError(name, "must be below 1e308", "a larger whole number", remedy) from None
    if not math.isfinite(number):
        raise InputError(name, "must be finite", value, remedy)
    return number
