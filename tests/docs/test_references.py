"""The generated references are complete: every command and option, every key, every public name."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import click
import pytest
import typer

from privfair.cli import app
from privfair.config import Config
from tests.docs.blocks import DOCS, README, pages

GENERATE = DOCS / "generate"


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GENERATE))


def _section(text: str, name: str) -> str:
    found = re.search(rf"^##+ {re.escape(name)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def _commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    children = getattr(command, "commands", None)
    if not children:
        return [(name, command)]
    return [leaf for word, child in children.items() for leaf in _commands(child, f"{name} {word}")]


def test_committed_pages_are_those_that_the_program_makes(generators: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, make in importlib.import_module("pages").PAGES.items():
        assert (DOCS / name).read_text(encoding="utf-8") == make(), f"{name}: run python docs/generate/pages.py"


def test_every_command_and_option_is_described(generators: None) -> None:
    text = importlib.import_module("cli_page").cli_page()
    commands = _commands(typer.main.get_command(app), "privfair")
    assert len(commands) >= 14
    for name, command in commands:
        section = _section(text, name)
        assert str(command.help).split(".")[0].split("\n")[0] in section
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                row = next(
                    line for line in section.splitlines() if line.startswith("|") and f"`{parameter.opts[0]}`" in line
                )
                assert str(parameter.help) in row


def test_every_key_is_described_with_its_default_and_a_meaning(generators: None) -> None:
    page = importlib.import_module("configuration_page")
    text = page.configuration_page()
    for section, table in Config().model_dump(by_alias=True).items():
        for key, default in table.items():
            row = next(line for line in text.splitlines() if f'<a id="{section}-{key}">' in line)
            _, _, value, shown, meaning, _ = re.split(r"(?<!\\)\|", row)
            assert value.strip()
            assert meaning.strip()
            assert (shown.strip() == "–") == (default is None)
            if isinstance(default, str | bool | int | float):
                assert str(default).lower() in shown.lower()
    assert "| `epsilon`" in text
    assert "number, > 0" in text


def test_meanings_are_of_keys_that_exist(generators: None) -> None:
    meanings = importlib.import_module("keys")
    known = {f"{section}.{key}" for section, table in Config().model_dump(by_alias=True).items() for key in table}
    assert set(meanings.KEYS) <= known
    assert set(meanings.SECTIONS) == set(Config.model_fields)


@pytest.mark.parametrize("package", ["privfair", "accountant", "privfair.kernels", "privfair.mechanisms"])
def test_every_public_name_is_in_the_python_reference(package: str) -> None:
    reported = {line for page in (DOCS / "reference").glob("*.md") for line in page.read_text().splitlines()}
    missing = [name for name in importlib.import_module(package).__all__ if f"::: {package}.{name}" not in reported]
    assert missing == []
    for name in (line.removeprefix(f"::: {package}.") for line in reported if line.startswith(f"::: {package}.")):
        assert "." in name or hasattr(importlib.import_module(package), name), f"{package} has no {name}"


def test_examples_that_the_pages_name_exist() -> None:
    for page in [README, *pages()]:
        for name in re.findall(r"examples/\w+\.toml", page.read_text(encoding="utf-8")):
            assert (DOCS.parent / name).is_file(), f"{page}: {name}"


def test_pictures_are_those_that_privfair_draws(
    generators: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers in the pictures are compared to a twentieth of a point, words and shapes exactly."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    figures = importlib.import_module("figures")
    figures.write(tmp_path)
    number = re.compile(r"-?\d+\.\d+|-?\d+")
    for name in figures.FIGURES:
        kept, drawn = ((folder / name).read_text(encoding="utf-8") for folder in (DOCS / "images", tmp_path))
        remedy = "run python docs/generate/figures.py"
        assert number.sub("#", kept) == number.sub("#", drawn), f"{name}: {remedy}"
        pairs = zip(number.findall(kept), number.findall(drawn), strict=True)
        assert max(abs(float(a) - float(b)) for a, b in pairs) < 0.05, f"{name}: {remedy}"


def test_the_example_of_local_and_global_fairness_is_one(generators: None) -> None:
    data = importlib.import_module("example_data")
    (first, second) = (data.rates(federation) for federation in data.FEDERATIONS.values())
    assert [round(gap, 9) for _, _, gap in first.values()] == [0, 0, 0.36]
    assert [round(gap, 9) for _, _, gap in second.values()] == [0.4, 0.4, 0]


def test_the_guesser_s_limit_is_that_of_randomised_response(generators: None) -> None:
    """At δ = 0 the limit is reached: answer the truth with probability e^ε / (e^ε + 1)."""
    figures = importlib.import_module("figures")
    assert figures.most_right(1.0, 0.0) == pytest.approx(0.7310585786)
    assert figures.most_right(0.0, 0.0) == 0.5
    for epsilon in (0.1, 1.0, 3.0):
        assert 0.5 < figures.gaussian_right(epsilon) < figures.most_right(epsilon)
