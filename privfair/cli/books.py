"""What the commands about ledgers share: where the ledger is, its key, and numbers for people and for JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privfair.reports.numbers import percent, shown

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
__all__ = ["JsonOption", "KeyOption", "LedgerOption", "json_number", "load_key", "open_ledger", "percent", "shown"]


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
