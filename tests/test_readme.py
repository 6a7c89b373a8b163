"""The README leads: what it is, a picture, install, one command, next steps; what it shows works.

Its commands are checked in tests/docs/test_commands.py, its links in tests/docs/test_links.py; the blocks of the other
pages are run in tests/docs/test_blocks.py.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from privfair.config import Config

README = Path(__file__).parent.parent / "README.md"
MOST_LINES = 150


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})


def test_configurations_are_right() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        Config.build(tomllib.loads(block))


def test_it_is_short_and_leads_with_what_a_newcomer_needs() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert text.count("![") == 1
    order = ["# privfair", "![", "## Install", "## One command", "## Three next steps"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_its_figures_are_those_of_the_evidence() -> None:
    pages = [README.parent / "docs" / name for name in ("evidence.md", "speed.md")]
    evidence = " ".join(page.read_text(encoding="utf-8") for page in pages)
    figures = re.findall(r"0\.\d+ ± 0\.\d+", README.read_text(encoding="utf-8"))
    assert len(figures) >= 6
    assert [figure for figure in figures if figure not in evidence] == []
