"""`privfair init`: a commented configuration for a CSV file, which runs as it stands and says what to check."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from accountant.errors import InputError
from privfair.cli.console import Console, plain_table
from privfair.cli.ledger import JsonOption

if TYPE_CHECKING:
    from privfair.datasets.guess import Guess

PUBLIC = """
# ── What is public about the columns ────────────────────────────────────────────────────────────────────────────
# As this file stands, groups, categories and ranges are read off the records. That is for simulations only: they tell
# something about the records that no ε covers, privfair claims no privacy for such a run, and it refuses one on data
# with a lifetime budget.
# What follows was READ OFF THE DATA too (ranges rounded, values of fewer than {rare} records left out). It is NOT
# public knowledge. Before the data get a budget (privfair budget set NAME …), replace every range and list by what is
# known without looking at the records: a questionnaire, a code book, a law. Then take away the "# ", and delete the
# lines marked (*) above.
"""
REST = """
[model]
name = "logistic"              # "mlp" with hidden = [16]; a model of your own: "package.module:factory"

[fairness]
notion = "statistical_parity"  # which gap between groups is to be small; CHECK that it is the one you mean:
{notions}
lambda = 1.0                   # strength: 0 does nothing; try several with privfair sweep
# target = 0.05                # in place of lambda: the largest gap between decisions that you would accept

[federation]
rounds = 100
local_epochs = 1
batch_size = 100
learning_rate = 0.05

# Without this section nothing is protected. It needs the declared columns above for its claim to hold.
# [privacy]
# epsilon = 3.0                # of everything that leaves a client, for every record of it
# delta = 1e-5                 # well below 1 / number of records
# dataset = "NAME"             # the name under which the ledger keeps the budget of these data
# evaluation = "gaussian"      # the default: noisy counts of test records, on which the verdict rests

[run]
seed = 0
"""
BINS = 10  # that are proposed for a column of numbers
MANY = 10_000  # records from which on they are worth their parameters
NOTIONS = {
    "binary": "                               # equal_opportunity, equalized_odds, predictive_equality, risk_parity",
    "regression": "                               # or risk_parity; the others are for labels of 0 and 1",
}


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
    from privfair.datasets.guess import look_at

    target = out or Path(path.stem + ".toml")
    _require_free(target, path, force=force)
    look = look_at(path, encoding, label=label, sensitive=sensitive, client=client)
    found, read = look.guess, {"delimiter": ",", "encoding": encoding, "decimal": ".", "thousands": "", **look.options}
    _write(target, configuration(str(path), look.options, found), force=force)
    if as_json:
        about = {
            "out": str(target), "path": str(path), **read, "records": found.records,
            "label": found.label, "task": found.task, "positive": found.positive, "sensitive": found.sensitive,
            "client": found.client, "features": list(found.features), "left_out": dict(found.left_out),
            "reasons": dict(found.reasons), "public": False, "notes": list(look.table.notes),
            "without_group": found.columns[found.sensitive].missing,
            "in_small_groups": found.columns[found.sensitive].rare,
        }  # fmt: skip
        print(json.dumps(about))
        return
    _print(found, target, look.notes)


def _require_free(target: Path, source: Path, *, force: bool) -> None:
    """Raise if the file must not be written."""
    if source.is_file() and target.exists() and (target.is_dir() or target.samefile(source)):
        raise InputError("--out", "must be a file other than the CSV, and no folder", str(target))
    if target.exists() and not force:
        raise InputError("--out", "must not exist yet", str(target), "Choose another --out, or overwrite with --force.")


def _write(target: Path, text: str, *, force: bool) -> None:
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError("--out", f"must be a file that can be written ({error.strerror})", str(target)) from None


def _print(found: Guess, target: Path, notes: Sequence[str]) -> None:
    """Print the roles of the columns, what to check, and the next step."""
    from privfair.datasets.guess import RARE

    console = Console()
    table = plain_table()
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
        note = f"{groups.missing} of {found.records} records have no {found.sensitive}: they are a group of their own, "
        console.print(Text(note + "“other”, which can set the largest gap, unless unknown = “drop” is set."))
    if groups.rare:
        note = f"{groups.rare} of {found.records} records are in groups of fewer than {RARE}, which the declaration in "
        console.print(Text(note + "the file does not name: add those that exist, or their records are left out by it."))
    for note in notes:
        console.print(Text(note))
    console.print(Text(f"Written: {target}"), soft_wrap=True)  # lines to copy: never wrapped
    console.print(Text(f"Check the guesses in it, then: privfair train {shlex.quote(str(target))}"), soft_wrap=True)
    console.print(
        "[bold yellow]not public:[/] ranges and categories are read off the records, which is for simulations only. "
        "Declare them in the file before the data get a lifetime budget."
    )


def quoted(text: str) -> str:
    """The text as a TOML string on one line, whatever is in it; fit for a comment, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(name: str) -> str:
    """The name as a TOML key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def configuration(path: str, options: Mapping[str, str], guess: Guess) -> str:
    """The whole file; `options` say how the table is written."""
    from privfair.datasets.guess import RARE

    lines = [
        f"# privfair train on {quoted(path)}, written by privfair init after looking at {guess.records} records.",
        "# Everything marked GUESS was guessed by names and values. CHECK it: a wrong column gives a wrong answer.",
        "",
        "[data]",
        'name = "csv"',
        f"path = {quoted(path)}  # seen from the folder in which privfair train is started",
    ]
    lines += [f"{option} = {quoted(value)}" for option, value in options.items()]
    lines += [*_roles(guess), "", *_features(guess), *PUBLIC.format(rare=RARE).splitlines(), *_schema(guess)]
    return "\n".join(lines) + "\n" + REST.format(notions=NOTIONS[guess.task])


def _roles(guess: Guess) -> Iterable[str]:
    yield f"label = {quoted(guess.label)}  # {_why(guess, 'label')}"
    if guess.task == "regression":
        yield 'task = "regression"  # (*) GUESS: the label has more than two values, all numbers'
    elif guess.positive is not None:
        yield f"positive = {quoted(guess.positive)}  # (*) GUESS: the label that counts as 1; every other one is 0"
    yield f"sensitive = {quoted(guess.sensitive)}  # {_why(guess, 'sensitive')}: the groups to treat alike; or a list"
    if guess.columns[guess.sensitive].missing:
        yield '# unknown = "drop"  # (*) CHECK: records without it are a group of their own, "other"; this drops them'
    if guess.client is not None:
        yield f"client = {quoted(guess.client)}  # {_why(guess, 'client')}: who holds the record"
    else:
        yield f'# client = "COLUMN"  # {guess.reasons["client"]}: without it there is one client, "all"'
    if guess.identity is not None:
        yield f"# id = {quoted(guess.identity)}  # if it names a person: keeps all of a person's records on one side"
    if guess.test is not None:
        yield f"# test = {quoted(guess.test)}  # if 1 (or true, yes, test) marks the test records"


def _why(guess: Guess, role: str) -> str:
    reason = guess.reasons[role]
    return "GUESS by its name" if reason == "guessed by its name" else reason.replace("guessed:", "GUESS:")


def _features(guess: Guess) -> Iterable[str]:
    from privfair.datasets.guess import GROUPS

    yield "# GUESS. Take out what is known only after the outcome, or computed from it."
    yield "features = ["
    for name in guess.features:
        column = guess.columns[name]
        kind = "numbers" if column.kind == "numeric" else f"{column.distinct} categories"
        if column.words & set(GROUPS):
            kind += "; CHECK: may the decision depend on it? Otherwise leave it out, or name it under sensitive, too"
        yield f"    {quoted(name)},  # {kind}"
    yield "]"
    for name, reason in guess.left_out.items():
        yield f"# left out: {quoted(name)}: {reason}"


def _schema(guess: Guess) -> Iterable[str]:
    """The declaration of the columns, as comments."""
    yield "# [data.schema]"
    yield f"# task = {quoted(guess.task)}"
    if guess.positive is not None:
        yield f"# positive = {quoted(guess.positive)}"
    label = guess.columns[guess.label]
    if guess.task == "regression" and label.range is not None:
        yield f"# label_range = {_pair(label.range)}  # FROM THE DATA: replace"
    numeric = [name for name in guess.features if guess.columns[name].range is not None]
    if numeric:
        yield "# [data.schema.numeric]"
        for name in numeric:
            yield f"# {key(name)} = {_number(guess, name)}"
    yield "# [data.schema.categories]"
    for name in (name for name in guess.features if name not in numeric):
        yield f'# {key(name)} = [{_values(guess, name)}]  # FROM THE DATA: replace; all other values count as "other"'
    groups, rest = f"[{_values(guess, guess.sensitive)}]", 'all other values count as "other"'
    if guess.columns[guess.sensitive].values:
        groups, rest = f'{{ values = {groups}, unknown = "drop" }}', "records in no group of these are left out"
    yield f"# {key(guess.sensitive)} = {groups}  # FROM THE DATA: replace; {rest}"


def _number(guess: Guess, name: str) -> str:
    """The declaration of a column of numbers: its range, and bins as a proposal."""
    column = guess.columns[name]
    ends, replaced = _pair(column.range or (0, 1)), "FROM THE DATA: replace"
    if column.distinct <= 2 * BINS:
        return f"{ends}  # {replaced}"
    bins = f"{{ range = {ends}, bins = {BINS} }}"
    if guess.records >= MANY:
        return f"{bins}  # {replaced}; bins of equal width are a GUESS: list known edges, or leave them out"
    return f"{ends}  # {replaced}; GUESS, where an effect is no straight line: {bins}"


def _values(guess: Guess, name: str) -> str:
    return ", ".join(map(quoted, guess.columns[name].values)) or '"VALUE"'


def _pair(ends: tuple[float, float]) -> str:
    return "[" + ", ".join(repr(int(end)) if end == int(end) and abs(end) < 1e15 else repr(end) for end in ends) + "]"
