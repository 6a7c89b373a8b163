"""What one column of an unknown table looks like: numbers, categories, or something that tells who a person is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privfair.datasets.columns import numbers
from privfair.datasets.inference import is_missing
from privfair.datasets.number_format import NumberFormat, unread_format

Kind = Literal["empty", "constant", "numeric", "categories", "identity", "place", "text", "mixed", "wide"]
MOST_CATEGORIES = 30  # fewer than the loader takes: with more values than that they are names rather than kinds
LONGEST_CATEGORY = 64
RARE = 5  # a value of fewer records is not written down: it may be what one person is known by
MOSTLY = 0.8
MOST_RARE = 10  # rare values that a column of kinds may have; with more, and more than common ones, they are names
LARGEST = 1e300
IDENTITY = frozenset((
    "id", "ids", "uuid", "guid", "ssn", "passport", "email", "mail", "phone", "telephone", "mobile", "fax",
    "address", "street", "name", "firstname", "lastname", "surname", "forename", "fullname", "username",
    "login", "account", "iban", "birthdate", "dob", "url", "ip", "index", "rowid", "vorname", "nachname", "nombre",
    "apellido",
))  # fmt: skip
PLACE = frozenset((
    "zip", "zipcode", "postcode", "postal", "postalcode", "plz", "pincode", "latitude", "longitude",
))  # fmt: skip
REASONS: dict[Kind, str] = {
    "empty": "it has no values",
    "constant": "it has one value only",
    "identity": "it looks like a name or a number of a person or record",
    "place": "it tells where a person lives",
    "text": "it has too many different values: free text, dates or codes",
    "mixed": "most values are numbers and some are not; it can be used once its range is declared",
    "wide": "its numbers are too large",
}


@dataclass(frozen=True)
class Profile:
    """A column: what kind of values it has, how many different ones, and those that are no secret of few records."""

    name: str
    kind: Kind
    distinct: int
    values: tuple[str, ...] = ()  # of a column of few values only, the common ones
    range: tuple[float, float] | None = None  # of numbers, rounded outwards: never a record's own value on purpose
    reason: str = ""  # why it should not be a feature
    missing: int = 0  # records without a value
    rare: int = 0  # records with a value of few records

    @property
    def words(self) -> frozenset[str]:
        """The words of its name, in small letters: `HomeAddress (2)` has home, address, 2."""
        return words_of(self.name)

    @property
    def usable(self) -> bool:
        """Whether something can be made of its values; a feature, unless there is a `reason` against it."""
        return self.kind in ("numeric", "categories")


def words_of(name: str) -> frozenset[str]:
    """The words of a name, in small letters, and all of them joined."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    found = re.findall(r"[^\W_]+", apart.casefold())
    return frozenset((*found, "".join(found)))


def profile(name: str, values: Sequence[str]) -> Profile:
    """What the column looks like."""
    present = [value for value in values if not is_missing(value)]
    counts, missing = Counter(present), len(values) - len(present)
    rare = sum(count for count in counts.values() if count < RARE)
    parsed = numbers(present)
    kind = _kind(name, counts, parsed)
    if kind == "numeric":
        few = tuple(sorted(counts)) if len(counts) <= MOST_CATEGORIES else ()
        finite = parsed[np.isfinite(parsed)]
        ends = rounded(float(finite.min()), float(finite.max()))
        return Profile(name, kind, len(counts), _common(few, counts), ends, missing=missing, rare=rare)
    listed = _common(sorted(counts), counts) if kind == "categories" else ()
    reason = REASONS.get(kind, "")
    if kind in ("text", "categories") and unread_format(values, NumberFormat()) is not None:
        reason = "its numbers are written in another way than those of other columns: write all of them alike"
    unusual = sum(count < RARE for count in counts.values())
    if kind == "categories" and unusual > max(MOST_RARE, len(counts) - unusual):
        reason = "most of its values are rare: names or codes"
    return Profile(name, kind, len(counts), listed, None, reason, missing, rare)


def _kind(name: str, counts: Counter[str], parsed: NDArray[np.float64]) -> Kind:
    """The kind of a column with these values, some of which are numbers."""
    total = len(parsed)
    if not counts:
        return "empty"
    if words_of(name) & IDENTITY or not name or name.casefold().startswith("unnamed:") or _counting(parsed):
        return "identity"
    if words_of(name) & PLACE:
        return "place"
    if len(counts) == 1:
        return "constant"
    missing = int(np.isnan(parsed).sum())
    if missing == 0:
        return "numeric" if _has_range(parsed) else "wide"
    if missing <= (1 - MOSTLY) * total:
        return "mixed"
    few = len(counts) <= MOST_CATEGORIES and (len(counts) == 2 or len(counts) * 2 <= total)
    return "categories" if few and max(map(len, counts)) <= LONGEST_CATEGORY else "text"


def _counting(parsed: NDArray[np.float64]) -> bool:
    """Whether the numbers are 0, 1, 2, … or 1, 2, 3, …, each once, or long whole numbers that are all different."""
    if len(parsed) < 3 or not np.isfinite(parsed).all() or (parsed != np.floor(parsed)).any():
        return False
    if len(np.unique(parsed)) < len(parsed):
        return False
    return bool(parsed.max() - parsed.min() == len(parsed) - 1 or parsed.min() >= 1e6)


def _has_range(parsed: NDArray[np.float64]) -> bool:
    """Whether some numbers are finite, and small enough that the distance of a range around them is."""
    finite = parsed[np.isfinite(parsed)]
    return bool(finite.size and np.abs(finite).max() <= LARGEST)


def _common(values: Sequence[str], counts: Counter[str]) -> tuple[str, ...]:
    return tuple(value for value in values if counts[value] >= RARE)


def rounded(low: float, high: float) -> tuple[float, float]:
    """A range around these numbers with ends of one or two digits, and 0 as an end where it is near."""
    width = high - low or max(1.0, abs(high))
    step = 10.0 ** np.floor(np.log10(width))
    bottom, top = float(np.floor(low / step) * step), float(np.ceil(high / step) * step)
    if 0 <= bottom <= width:
        bottom = 0.0
    if not (np.isfinite([step, bottom, top]).all() and step > 0 and bottom < top):
        return low, high if high > low else low + max(1.0, abs(low))
    return float(f"{bottom:.6g}"), float(f"{top:.6g}")
