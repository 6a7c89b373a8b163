"""The page of all commands, from the program itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import typer

from privfair.cli import app

HEAD = """# Commands

This page is made from the program by `python docs/generate/pages.py`. Every command has `--help`, which says the same,
and `--json`, with which it prints one JSON object on stdout and nothing else there.

Commands are in `.venv/bin` (or run `source .venv/bin/activate` first). `privfair --install-completion`, and a new
shell, completes commands and options with the Tab key (bash, zsh, fish, PowerShell).

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | the answer is no: over budget, chain broken, audit failed |
| 2 | wrong usage or bad input |
| 3 | a fault: a full disk, a crash |
| 130 | interrupted (Ctrl-C) |
| 141 | nobody reads the output (`privfair audit \\| head`) |
| 143 | terminated (SIGTERM) |

A run that ends early says how to resume it.

"""


def cli_page() -> str:
    """Markdown: one section a command."""
    return HEAD + "\n".join(_sections(typer.main.get_command(app), "privfair"))


def _sections(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    children = getattr(command, "commands", {})
    if children:
        yield from () if name == "privfair" else (f"## {name}\n", f"{command.help}\n")
        for word in sorted(children):
            yield from _sections(children[word], f"{name} {word}")
        return
    yield f"{'#' * name.count(' ')}# {name}\n"
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{name} {pieces}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        line = " ".join(paragraph.split())  # a line of its own that begins with "privfair" would be a command
        example = line.removeprefix("Example: ")
        yield f"{line}\n" if example == line else f"```text\n{example}\n```\n"
    yield "| option | value | meaning |\n|---|---|---|"
    for parameter in command.params:
        yield _row(parameter, context)
    yield ""


def _row(parameter: click.Parameter, context: click.Context) -> str:
    names = " / ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.make_metavar(context)}`"
    flag = getattr(parameter, "is_flag", False)
    kind = "" if flag or parameter.param_type_name == "argument" else f"{parameter.make_metavar(context)}"
    reported = [str(getattr(parameter, "help", "") or "")]
    if parameter.required:
        reported.append("Required.")
    elif getattr(parameter, "show_default", False) and parameter.default is not None and not flag:
        reported.append(f"Default: `{parameter.default}`.")
    cells = (names, kind, " ".join(reported))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
