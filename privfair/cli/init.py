"""`privfair init`: a commented configuration for a CSV file, after a look at it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from accountant.errors import InputError
from privfair.cli.books import JsonOption
from privfair.cli.console import Console

if TYPE_CHECKING:
    from privfair.datasets.guess import Guess


def init(
    path: Annotated[Path, typer.Argument(metavar="CSV", help="A table; its first line names the columns.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write; by default the CSV's name with .toml, in this folder.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    sensitive: Annotated[
        str | None, typer.Option(help="The column of the groups that are to be treated alike.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="The column that says who holds each record.")] = None,
    encoding: Annotated[str, typer.Option(help="How the table's text is encoded, for example cp1252.")] = "utf-8",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file to write.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a CSV file and write a commented configuration for `privfair train`.

    Label, sensitive column and client column are guessed by their names, unless they are given; the file says what was
    guessed and what to check. It runs as it stands, as a simulation: ranges and categories that are read off the
    records are not public, and must be declared before the data get a lifetime budget.

    Example: privfair init people.csv --label hired
    """
    from accountant.delimited import find_delimiter
    from privfair.cli.init_file import configuration
    from privfair.datasets.guess import guess
    from privfair.datasets.number_format import find_format
    from privfair.datasets.tables import read_table

    if not path.is_file():
        raise InputError("CSV", "must be a file that exists", str(path), "Check the path; nothing was written.")
    if path.stat().st_size == 0:
        remedy = "Its first line names the columns, and every further line is a record."
        raise InputError("CSV", "must have a first line that names the columns", "an empty file", remedy)
    target = out or Path(path.stem + ".toml")
    _require_free(target, path, force=force)
    delimiter = find_delimiter(path, encoding)
    table = read_table(path, delimiter=delimiter, encoding=encoding)
    _require_names(table.columns, path)
    form, table = find_format(table)
    found = guess(table, label=label, sensitive=sensitive, client=client)
    read = {"delimiter": (delimiter, ","), "encoding": (encoding, "utf-8"), **form.options}
    options = {option: given for option, (given, usual) in read.items() if given != usual}
    _write(target, configuration(str(path), options, found), force=force)
    if as_json:
        about = {
            "out": str(target), "path": str(path), "delimiter": delimiter, "encoding": encoding,
            "decimal": form.decimal, "thousands": form.thousands, "records": found.records,
            "label": found.label, "task": found.task, "positive": found.positive, "sensitive": found.sensitive,
            "client": found.client, "features": list(found.features), "left_out": dict(found.left_out),
            "reasons": dict(found.reasons), "public": False, "notes": list(table.notes),
            "without_group": found.columns[found.sensitive].missing,
            "in_small_groups": found.columns[found.sensitive].rare,
        }  # fmt: skip
        print(json.dumps(about))
        return
    _print(found, target, [*form.notes, *table.notes])


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


def _print(found: Guess, target: Path, notes: Sequence[str]) -> None:
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
        console.print(Text(f"No client column ({found.reasons['client']}): one client, “all”. Name it with --client."))
    groups = found.columns[found.sensitive]
    if groups.missing:
        told = f"{groups.missing} of {found.records} records have no {found.sensitive}: they are a group of their own, "
        console.print(Text(told + "“other”, which can set the largest gap, unless unknown = “drop” is set."))
    if groups.rare:
        told = f"{groups.rare} of {found.records} records are in groups of fewer than {RARE}, which the declaration in "
        console.print(Text(told + "the file does not name: add those that exist, or their records are left out by it."))
    for note in notes:
        console.print(Text(note))
    console.print(Text(f"Written: {target}"), soft_wrap=True)  # lines to copy: never wrapped
    console.print(Text(f"Check the guesses in it, then: privfair train {shlex.quote(str(target))}"), soft_wrap=True)
    console.print(
        "[bold yellow]not public:[/] ranges and categories are read off the records, which is for simulations only. "
        "Declare them in the file before the data get a lifetime budget."
    )
