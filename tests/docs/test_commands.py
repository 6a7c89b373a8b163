"""Commands and options that the README and the pages name exist, also where they are only mentioned."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from privfair.cli import app
from tests.docs.blocks import README, ROOT, pages

PAGES = [README, ROOT / "CONTRIBUTING.md", *pages()]
PROGRAM = typer.main.get_command(app)


def mentioned(page: Path) -> Iterator[str]:
    """Every command line of privfair on a page: in blocks, in indented text, and between backticks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    yield from re.findall(r"`(privfair [^`\n]+)`", text)
    yield from re.findall(r"^(?:    |\$ )?(privfair [a-z-][^\n]*)$", re.sub(r"`privfair[^`]*`", "", text), re.MULTILINE)


def problem(line: str) -> str | None:
    """What is wrong with a command line: an unknown command, or an unknown option; None if nothing is."""
    line = re.split(r" [|>#&;]|…", line)[0]
    command, words = PROGRAM, shlex.split(line)[1:]
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"no command {words[0]!r}"
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h", "--install-completion", "--show-completion"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    wrong = {line: problem(line) for line in mentioned(page) if problem(line)}
    assert wrong == {}


def test_enough_are_found() -> None:
    assert len(set(mentioned(README))) >= 8
    assert sum(len(set(mentioned(page))) for page in [README, *pages()]) >= 80


def test_what_does_not_exist_is_found() -> None:
    assert problem("privfair trian x.toml") == "no command 'trian'"
    assert problem("privfair budget sett x") == "no command 'sett'"
    assert problem("privfair train --sett a=b") == "no option --sett"
    assert problem("privfair budget set NAME --epsilon 3 | tail --lines 3") is None
