"""What the commands about ledgers share: where the ledger is, its key, and numbers for people and for JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from accountant.ledger import Ledger
    from accountant.signing import OwnerKey

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="sqlite:///FILE or postgresql://USER@HOST/DATABASE. Default: $PRIVFAIR_LEDGER, or "
        "privfair-ledger.sqlite in this folder.",
    ),
]
KeyOption = Annotated[Path | None, typer.Option("--key", help="The owner's key file, for signatures and fingerprints.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def open_ledger(given: str | None, key: OwnerKey | None = None, *, create: bool = False) -> Ledger:
    """The ledger, opened; without `create` it must exist."""
    from accountant.ledger import Ledger
    from accountant.storage import ledger_url

    return Ledger(ledger_url(given), create=create, key=key)


def load_key(path: Path | None) -> OwnerKey | None:
    """The owner's key, if a file was given."""
    from accountant.signing import OwnerKey

    return None if path is None else OwnerKey.load(path)


def json_number(value: float | None) -> float | str | None:
    """The number for JSON, which has no infinity: "inf"."""
    if value is None or math.isfinite(value):
        return value
    return "inf" if value > 0 else "-inf"


def shown(value: float | None) -> str:
    """An ε for people, never rounded down: a privacy cost must not look smaller than it is."""
    if value is None:
        return "–"
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
        return "–"
    if share < -10:
        return "below −1000%"
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f}%"
