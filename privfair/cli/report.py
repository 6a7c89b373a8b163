"""`privfair report`: a run or a sweep as one HTML page for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from accountant.errors import InputError
from privfair.cli.console import Console, escape
from privfair.cli.ledger import JsonOption


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, of a sweep or of reproduce.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: report.html (or report-private.html) in the folder."),
    ] = None,
    include_private: Annotated[
        bool,
        typer.Option(
            "--include-private",
            help="Also exact figures, which were not released; the page is marked. Refused for data with a budget.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a report for readers who are not programmers: one HTML file that works offline and on paper.

    What was trained on what, for whom it is fair, what it cost in privacy, what went over the wire, how to check and
    repeat it. It shows released figures only; exact figures of a simulation need --include-private.

    Example: privfair report runs/compas-mmd_fedavg-20260131-120000
    """
    kind = kind_of(folder)
    where = out or folder / (
        "report-private.html" if include_private else "report.html"
    )  # a page to pass on is not replaced
    size = write_report(folder, kind, where, include_private=include_private)
    figures = "private" if include_private else "released"
    if as_json:
        print(json.dumps({"out": str(where), "kind": kind, "figures": figures, "bytes": size}, ensure_ascii=False))
        return
    console = Console()
    console.print(f"Report of the {kind}: {escape(str(where))}", soft_wrap=True)
    if include_private:
        console.print("It contains figures that were not released; do not pass it on.", style="bold yellow")


def kind_of(folder: Path) -> str:
    """Whether the folder holds a "run" or a "sweep"."""
    if (folder / "config.toml").is_file():
        return "run"
    if (folder / "sweep.json").is_file():
        return "sweep"
    found = "no such folder" if not folder.is_dir() else f"neither in {folder}"
    raise InputError("folder", "must have a config.toml (a run) or a sweep.json (a sweep) in it", found)


def write_report(folder: Path, kind: str, where: Path, *, include_private: bool) -> int:
    """The number of bytes of the page that was written."""
    from privfair.reports.pages import require_ours, write_page

    require_ours(where)  # before the work
    if kind == "run":
        from privfair.reports.run_page import run_page

        return write_page(run_page(folder, include_private=include_private), where)
    from privfair.reports.sweep_page import sweep_page

    return write_page(sweep_page(folder, include_private=include_private), where)
