"""Numbers as people read them. A privacy cost is never rounded down, a remaining budget never up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "–"
Interval = Sequence[float] | None


@dataclass(frozen=True)
class Cell:
    """A number in a table: how it reads, its exact value for machines, and a remark in small print."""

    text: str
    value: float | None = None
    remark: str = ""


def shown(value: float | None) -> str:
    """An ε for people, never rounded down: a privacy cost must not look smaller than it is."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    scale = 10.0 ** min(digits, 12)
    return f"{math.ceil(value * scale - 1e-9) / scale:.{min(digits, 12)}f}"


def percent(share: float | None) -> str:
    """A share of a budget that is left, rounded down."""
    if share is None:
        return MISSING
    if share < -10:
        return "below −1000%"
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f}%"


def rate(value: float | None) -> str:
    """A share of records: 12.3%."""
    return MISSING if value is None else f"{100 * value:.1f}%"


def rate_cell(value: float | None, interval: Interval = None) -> Cell:
    """A share of records with its interval."""
    return Cell(rate(value), value, span(interval))


def number_cell(value: float | None, interval: Interval = None) -> Cell:
    """A plain number with its interval, to three digits after the point."""
    remark = "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
    return Cell(MISSING if value is None else f"{value:.3f}", value, remark)


def epsilon_cell(value: float | None, *, infinite: bool = False) -> Cell:
    """An ε; None means unknown or, with `infinite`, that there is no bound."""
    return Cell("∞" if value is None and infinite else shown(value), value)


def span(interval: Interval) -> str:
    """An interval of shares: 1.2% to 3.4%."""
    return "" if interval is None else f"{rate(interval[0])} to {rate(interval[1])}"


def delta(value: float) -> str:
    """A δ without exponents, where it has few digits: 0.00001."""
    text = f"{value:.12f}".rstrip("0")
    return text if float(text) == value else f"{value:g}"


def points_span(interval: Interval) -> str:
    """An interval of differences of shares: 1.2 to 3.4 points."""
    return "" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f} points"


def points(value: float | None) -> str:
    """A difference of two shares: 1.2 percentage points."""
    return MISSING if value is None else f"{100 * value:.1f} percentage points"


def count(value: float) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,.0f}"


def plural(number: int, one: str, many: str = "") -> str:
    """`1 round`, `2 rounds`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def size(value: float) -> str:
    """Bytes in a unit that fits: 1.2 MB."""
    if value < 1000:
        return f"{value:.0f} bytes"
    power = min(3, int(math.log10(value) / 3))
    return f"{value / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON cannot express."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
