"""Names in data, files and configurations are anybody's text: printed as they are, never obeyed, never a crash."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from accountant.errors import InputError
from privfair.cli import app
from privfair.cli.console import Console, escape, visible

GROUPS = ("[/nope]", "[red]", "a\x1b[31mb\x9bc", "[bold]x[/bold]\\")
CLIENTS = ("[/north]", "[link=http://x]south", ":smile:\x07 \x1b]0;title\x07")
COLUMN, GROUP, HOLDER, LABEL = "[blue]age", "[/sex]", "bran[/]ch", "hir\x1b[2Jed"
CONTROLS = frozenset(map(chr, (*range(10), *range(11, 32), *range(0x7F, 0xA0))))


def shown(name: str) -> str:
    """A name as it should stand in the output."""
    return visible(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with such names, its configuration, a finished run and a private one with its ledger."""
    where = tmp_path_factory.mktemp("names")
    draw = random.Random(5)
    with (where / "[red]people.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [
            [draw.randint(1, 9), draw.choice(GROUPS), draw.choice(CLIENTS), draw.choice("01"), draw.random()]
            for _ in range(300)
        ]
        csv.writer(file).writerows([[COLUMN, GROUP, HOLDER, LABEL, "score"], *rows])
    return where


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PRIVFAIR_LEDGER", "sqlite:///[bold]ledger.sqlite")
    monkeypatch.setenv("COLUMNS", "400")

    def invoke(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert result.exit_code == code, result.output
        assert not CONTROLS & set(result.output), sorted(CONTROLS & set(result.output))
        return result.output

    return invoke


DATA = [
    "--set", "data.name=csv", "--set", "data.path=[red]people.csv", "--set", 'data.label="hir\\u001b[2Jed"',
    "--set", f'data.sensitive="{GROUP}"', "--set", f'data.client="{HOLDER}"', "--set", "federation.rounds=2",
]  # fmt: skip
PRIVATE = ["--set", "privacy.epsilon=50", "--set", "privacy.dataset=[red]people", "--set", "aggregation.scheme=plain"]


def test_init(run) -> None:
    reported = run("init", "[red]people.csv", "--sensitive", GROUP, "--client", HOLDER, "--label", LABEL, "--force")
    for name in (COLUMN, GROUP, HOLDER, LABEL, "[red]people.toml"):
        assert shown(name) in reported


def test_data_check(run) -> None:
    reported = run(
        "data", "check", "csv", *(DATA[i].replace("data.", "", 1) if i % 2 else "--set" for i in range(2, 10))
    )
    for name in (*GROUPS, *CLIENTS, GROUP):
        assert shown(name) in reported


def test_train_report_and_the_report_of_the_run(run, folder: Path) -> None:
    reported = run("train", *DATA, "--out", "[/run]")
    for name in (*GROUPS, GROUP, "[/run]"):
        assert shown(name) in reported
    assert "[/run]" in run("report", "[/run]", "--include-private")
    page = (folder / "[/run]" / "report-private.html").read_text(encoding="utf-8")
    assert "[/nope]" in page


def test_a_private_run_its_budget_and_its_audit(run, folder: Path) -> None:
    """A ledger takes no names with control characters: they are refused before anything is released."""
    with pytest.raises(InputError, match="client must be printable text"):
        run("train", *DATA, *PRIVATE, "--out", "refused")
    text = (folder / "[red]people.csv").read_text(encoding="utf-8")
    for name in (*GROUPS, *CLIENTS):
        text = text.replace(name, "".join(letter for letter in name if letter.isprintable()))
    (folder / "[red]printable.csv").write_text(text, encoding="utf-8", newline="")
    words = [word.replace("[red]people.csv", "[red]printable.csv") for word in DATA]
    reported = run("train", *words, *PRIVATE, "--out", "[red]private")
    for name in (*GROUPS[:2], *CLIENTS[:2], "[red]people", "ledger.sqlite"):
        assert shown(name) in reported
    reported = run("audit")
    for name in (*GROUPS[:2], *CLIENTS[:2], "[red]people", "ledger.sqlite"):
        assert shown(name) in reported
    reported = run("budget", "set", "[/b]", "--epsilon", "1", "--delta", "1e-6")
    assert "[/b]" in reported
    assert "[red]people" in run("budget", "show")


def test_sweep(run) -> None:
    reported = run("sweep", *DATA, "--lambdas", "0,1", "--seeds", "1", "--out", "[/sweep]", "--workers", "1")
    assert "[/sweep]" in reported


def test_kernels(run) -> None:
    with Path("[two].csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["score", GROUP], *([i % 7 / 7, GROUPS[i % 2]] for i in range(40))])
    reported = run("kernels", "--scores", "[two].csv", "--group-column", GROUP, "--out", "[/k]", "--repeats", "20")
    for name in (*GROUPS[:2], "[/k]"):
        assert name in reported


def test_keys(run) -> None:
    assert "[/keys]" in run("keys", "new", "[/keys]")
    assert "[/keys]" in run("keys", "show", "[/keys]/client.key")


def test_html_reports_escape_names(run, folder: Path) -> None:
    """A group can be named like an element of a page."""
    text = (folder / "[red]people.csv").read_text(encoding="utf-8").replace(GROUPS[0], "<script>alert(1)</script>")
    (folder / "page.csv").write_text(text, encoding="utf-8", newline="")
    run("train", *[word.replace("[red]people.csv", "page.csv") for word in DATA], "--out", "page")
    run("report", "page", "--include-private")
    page = (folder / "page" / "report-private.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


# ── the console itself ─────────────────────────────────────────────────────────────────────────────────────────────


def printed(*what: object, **options: object) -> str:
    file = io.StringIO()
    Console(file=file, width=500).print(*what, **options)
    return file.getvalue()


@given(st.text(max_size=40))
def test_any_text_is_printed_as_it_is(text: str) -> None:
    """Through `escape`, as `Text`, without markup and as a table's cell, heading and title; nothing else reaches it."""
    table = Table(escape("heading " + text), title=escape("title " + text))
    table.add_row(escape("cell " + text))
    for reported in (printed(escape(text)), printed(Text(text)), printed(text, markup=False), printed(table)):
        assert not CONTROLS & set(reported)
    one_line = " ".join(visible(text).split())
    assert one_line in " ".join(printed(escape(text), soft_wrap=True).split()) or "\\" in text


@given(st.text(st.sampled_from("[]/abc=\\ \x1b"), max_size=12))
def test_text_that_was_not_escaped_is_no_crash(text: str) -> None:
    table = Table(text, title=text)
    table.add_row(text)
    for reported in (printed(text), printed(table), printed(f"[bold]{text}[/] after")):
        assert not CONTROLS & set(reported)
