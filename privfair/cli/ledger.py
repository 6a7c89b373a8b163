"""`privfair ledger`: which copy of a ledger is the newest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from privfair.cli.books import JsonOption, KeyOption, LedgerOption, load_key, open_ledger

if TYPE_CHECKING:
    from accountant.chain import Head
    from accountant.ledger import Ledger

app = typer.Typer(no_args_is_help=True, help="Copies of ledgers: say which one is the newest.")


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
    with open_ledger(ledger, load_key(key)) as books:
        before = books.seen
        head = books.trust(reason=reason)
        told = "was known already" if before is not None else "is remembered from now on"
        _print(books, head, as_json, f"{books.url}, verified to row {head.sequence:,}, {told}.")


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
    with open_ledger(ledger, load_key(key)) as books:
        lost = books.seen
        head = books.restore(reason=reason)
        told = (
            ""
            if lost is None
            else f" This machine had seen row {lost.head.sequence:,}; what came after the copy is lost."
        )
        _print(books, head, as_json, f"{books.url} goes on at row {head.sequence:,}.{told}")


def _print(books: Ledger, head: Head, as_json: bool, told: str) -> None:
    if as_json:
        print(json.dumps({"ledger": books.url, "id": books.ledger_id, "rows": head.sequence, "head": head.hash}))
    else:
        Console(highlight=False, soft_wrap=True).print(told, markup=False)
