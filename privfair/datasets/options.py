"""Checks of the options that loaders take."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

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
