"""`privfair init`: a commented configuration for a CSV file, after a look at it."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accountant.errors import InputError
from privfair.cli.books import JsonOption

if TYPE_CHECKING:
    from privfair.datasets.guess import Guess

DELIMITERS = ",;\t|"
LINES_COMPARED = 20


def init(
    path: Annotated[Path, typer.Argument(metavar="CSV", help="A table in UTF-8; its first line names the columns.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write; by default the CSV's name with .toml, in this folder.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    sensitive: Annotated[
        str | None, typer.Option(help="The column of the groups that are to be treated alike.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="The column that says who holds each record.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file to write.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a CSV file and write a commented configuration for `privfair train`.

    Label, sensitive column and client column are guessed by their names, unless they are given; the file says what was
    guessed and what to check. It runs as it stands, as a simulation: ranges and categories that are read off the
    records are not public, and must be declared before the data get a lifetime budget.

    Example: privfair init people.csv --label hired
    """
    from privfair.cli.init_file import configuration
    from privfair.datasets.guess import guess
    from privfair.datasets.tables import read_table

    if not path.is_file():
        raise InputError("CSV", "must be a file that exists", str(path), "Check the path; nothing was written.")
    if path.stat().st_size == 0:
        remedy = "Its first line names the columns, and every further line is a record."
        raise InputError("CSV", "must have a first line that names the columns", "an empty file", remedy)
    target = out or Path(path.stem + ".toml")
    _require_free(target, path, force=force)
    delimiter = _delimiter(path)
    table = read_table(path, delimiter=delimiter)
    _require_names(table.columns, path)
    found = guess(table, label=label, sensitive=sensitive, client=client)
    _write(target, configuration(str(path), delimiter, found), force=force)
    if as_json:
        about = {
            "out": str(target), "path": str(path), "delimiter": delimiter, "records": found.records,
            "label": found.label, "task": found.task, "positive": found.positive, "sensitive": found.sensitive,
            "client": found.client, "features": list(found.features), "left_out": dict(found.left_out),
            "reasons": dict(found.reasons), "public": False, "renamed": list(table.renamed),
            "without_group": found.columns[found.sensitive].missing,
            "in_small_groups": found.columns[found.sensitive].rare,
        }  # fmt: skip
        print(json.dumps(about))
        return
    _print(found, target, table.renamed)


def _require_free(target: Path, source: Path, *, force: bool) -> None:
    """Nothing, if the file may be written."""
    if target.exists() and (target.is_dir() or target.samefile(source)):
        raise InputError("--out", "must be a file other than the CSV, and no folder", str(target))
    if target.exists() and not force:
        raise InputError("--out", "must not exist yet", str(target), "Choose another --out, or overwrite with --force.")


def _write(target: Path, text: str, *, force: bool) -> None:
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError("--out", f"must be a file that can be written ({error.strerror})", str(target)) from None


def _delimiter(path: Path) -> str:
    """The separator that gives the first lines the same number of values, and the most of them."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line, _ in zip(file, range(LINES_COMPARED), strict=False)]
        rows = {mark: [row for row in csv.reader(lines, delimiter=mark) if row] for mark in DELIMITERS}
    except (OSError, UnicodeDecodeError, csv.Error):
        return ","  # reading the table tells what is wrong
    if not rows[","]:
        return ","

    def fit(mark: str) -> tuple[bool, bool, int]:
        widths = [len(row) for row in rows[mark]]
        return widths[0] > 1, max(widths) <= widths[0], sum(width == widths[0] for width in widths) * widths[0]

    return max(DELIMITERS, key=fit)


def _require_names(columns: tuple[str, ...], path: Path) -> None:
    """Nothing, if the first line holds names: a record's values must not be taken for names and written down."""
    from privfair.datasets.columns import numbers

    numeric = int((~(numbers(columns) != numbers(columns))).sum())
    if numeric * 2 > len(columns):
        remedy = "Put a line with the columns' names before the records."
        rule = "must have a first line that names the columns"
        raise InputError(
            f"file {path.name}", rule, f"a first line of which {numeric} of {len(columns)} are numbers", remedy
        )


def _print(found: Guess, target: Path, renamed: Sequence[str]) -> None:
    """The roles of the columns, what to check, and the next step."""
    from privfair.datasets.profile import RARE

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("column", overflow="fold")
    table.add_column("use", no_wrap=True)
    table.add_column("why", overflow="fold")
    roles = {found.label: "label", found.sensitive: "sensitive"} | ({found.client: "client"} if found.client else {})
    for name, column in found.columns.items():
        role = roles.get(name) or ("feature" if name in found.features else "left out")
        kind = "numbers" if column.kind == "numeric" else f"{column.distinct} values"
        why = found.reasons.get(role) or found.left_out.get(name) or kind
        if role == "label" and found.positive is not None:
            why += f"; {found.positive!r} counts as 1"
        table.add_row(Text(name), role, Text(why))
    console.print(table)
    if found.client is None:
        console.print(f"No client column ({found.reasons['client']}): one client, “all”. Name it with --client.")
    groups = found.columns[found.sensitive]
    if groups.missing:
        told = f"{groups.missing} of {found.records} records have no {found.sensitive}: they are a group of their own, "
        console.print(Text(told + "“other”, until the column is declared with unknown = “drop”."))
    if groups.rare:
        told = f"{groups.rare} of {found.records} records are in groups of fewer than {RARE}, which the declaration in "
        console.print(Text(told + "the file does not name: add those that exist, or their records are left out by it."))
    if renamed:
        console.print(Text(f"Named more than once, and called otherwise here: {', '.join(renamed)}."))
    console.print(Text(f"Written: {target}"), soft_wrap=True)  # lines to copy: never wrapped
    console.print(Text(f"Check the guesses in it, then: privfair train {shlex.quote(str(target))}"), soft_wrap=True)
    console.print(
        "[bold yellow]not public:[/] ranges and categories are read off the records, which is for simulations only. "
        "Declare them in the file before the data get a lifetime budget."
    )
