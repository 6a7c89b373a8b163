"""`privfair ledger`, which copy of a ledger is the newest; and the options that all commands about ledgers share."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from privfair.numbers import percent, shown

if TYPE_CHECKING:
    from accountant.ledger.chain import Head
    from accountant.ledger.ledger import Ledger
    from accountant.ledger.signing import OwnerKey

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
app = typer.Typer(no_args_is_help=True, help="Copies of ledgers: say which one is the newest.")

__all__ = ["JsonOption", "KeyOption", "LedgerOption", "json_number", "load_key", "open_ledger", "percent", "shown"]


def open_ledger(given: str | None, key: OwnerKey | None = None, *, create: bool = False) -> Ledger:
    """The ledger, opened; without `create` it must exist."""
    from accountant.ledger.ledger import Ledger
    from accountant.ledger.storage import ledger_url

    return Ledger(ledger_url(given), create=create, key=key)


def load_key(path: Path | None) -> OwnerKey | None:
    """The owner's key, if a file was given."""
    from accountant.ledger.signing import OwnerKey

    return None if path is None else OwnerKey.load(path)


def json_number(value: float | None) -> float | str | None:
    """The number for JSON, which has no infinity: "inf"."""
    if value is None or math.isfinite(value):
        return value
    return "inf" if value > 0 else "-inf"


@app.command("trust")
def trust(
    ledger: LedgerOption = None,
    reason: Annotated[str, typer.Option(help="Why; written into the ledger.")] = "",
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say that a ledger this machine does not remember is the newest copy; all of its rows are verified first.

    A machine remembers the newest row of every ledger it used, in $PRIVFAIR_STATE (by default ~/.local/state/privfair),
    and refuses one that lacks it. Where nothing is remembered, for example on a new machine, an older copy cannot be
    told from the newest, and nothing is spent from a budget before somebody has said so. It is a row of the ledger,
    unless it may only be read.

    Example: privfair ledger trust --ledger sqlite:///ledger.sqlite --reason "moved to a new machine"
    """
    with open_ledger(ledger, load_key(key)) as opened:
        before = opened.seen
        head = opened.trust(reason=reason)
        reported = "was known already" if before is not None else "is remembered from now on"
        _print(opened, head, as_json, f"{opened.url}, verified to row {head.sequence:,}, {reported}.")


@app.command("restore")
def restore(
    reason: Annotated[str, typer.Option(help="Why an older copy is used; written into the ledger.")],
    ledger: LedgerOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with an older copy of a ledger, for example from a backup, because there is no newer one.

    What was spent in the rows that were lost is not counted any more: budgets look larger than they are. Who did it,
    when and why, and which row was the newest before, is a row of the ledger.

    Example: privfair ledger restore --reason "disk failed, backup of 12 May"
    """
    with open_ledger(ledger, load_key(key)) as opened:
        lost = opened.seen
        head = opened.restore(reason=reason)
        reported = (
            ""
            if lost is None
            else f" This machine had seen row {lost.head.sequence:,}; what came after the copy is lost."
        )
        _print(opened, head, as_json, f"{opened.url} goes on at row {head.sequence:,}.{reported}")


def _print(opened: Ledger, head: Head, as_json: bool, reported: str) -> None:
    if as_json:
        print(json.dumps({"ledger": opened.url, "id": opened.ledger_id, "rows": head.sequence, "head": head.hash}))
    else:
        Console(highlight=False, soft_wrap=True).print(reported, markup=False)
