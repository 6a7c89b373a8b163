"""Every command, program and configuration in the documentation works, and shows what the page says it shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DEPLOYMENT, DOCS, KINDS, Block, blocks, commands, difference, pages, slow
from tests.docs.session import Session

# Blocks that no test runs, by page. Each says why on the page; a new one is a decision, so it is counted here.
NOT_RUN = {"empirical.md": 1, "howto/sweeps.md": 1, "tutorial.md": 1}


def _name(page: Path) -> str:
    return str(page.relative_to(DOCS))


def _cases() -> list[object]:
    followed = [page for page in pages() if page != DEPLOYMENT and any(blocks(page))]
    return [pytest.param(p, id=_name(p), marks=[pytest.mark.slow] if slow(p) else []) for p in followed]


@pytest.mark.parametrize("page", _cases())
def test_the_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    session = Session(page, tmp_path)
    try:
        for block in blocks(page):
            if block.not_run is None:
                session.follow(block)
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_blocks_are_of_a_kind_that_is_checked(page: Path) -> None:
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(list(blocks(page)))
    for block in blocks(page):
        assert block.kind in KINDS, f"{page}:{block.line}"
        assert block.kind != "console" or list(commands(block)), f"{page}:{block.line}: no $ command"


def test_blocks_that_are_not_run_are_counted_and_have_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    left = [(page, block) for page in pages() for block in blocks(page) if block.not_run is not None]
    with capsys.disabled():
        for page, block in left:
            print(f"\n  not run: {_name(page)}:{block.line}: {block.not_run}", end="")
    counts: dict[str, int] = {}
    for page, block in left:
        assert block.not_run is not None
        assert len(block.not_run.split()) >= 3, f"{page}:{block.line}: say why"
        counts[_name(page)] = counts.get(_name(page), 0) + 1
    assert counts == NOT_RUN


@pytest.mark.parametrize(
    ("shown", "printed", "missing"),
    [
        (("a", "b"), "a\n\nb\n", None),
        (("a", "b"), "a\nc\nb\n", "b"),
        (("a", "…", "b"), "a\nc\nd\nb\n", None),
        (("a",), "a\nb\n", "(nothing more, and there was:) b"),
        (("a", "…"), "a\nb\n", None),
        (("ε = … by PLD",), "ε  =   2.85 by PLD", None),
        (("ε = … by PLD",), "ε = 2.85 by RDP", "ε = … by PLD"),
    ],
)
def test_shown_lines_are_compared(shown: tuple[str, ...], printed: str, missing: str | None) -> None:
    assert difference(shown, printed) == missing


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    session = Session(tmp_path / "page.md", tmp_path)
    with pytest.raises(AssertionError, match="not there: two"):
        session.follow(Block("console", None, "$ echo one\ntwo\n", 1, None))
    with pytest.raises(AssertionError, match="exit 3"):
        session.follow(Block("sh", None, "exit 3\necho fine\n", 1, None))
    with pytest.raises(AssertionError, match="exit 0"):
        session.follow(Block("console", None, "$ echo fine\nerror: no\n", 1, None))
    session.follow(Block("console", None, "$ echo error: bad; exit 2\nerror: bad\n", 1, None))
    session.follow(Block("python", None, "print('one')\n", 1, None))
    with pytest.raises(AssertionError, match="not there: two"):
        session.follow(Block("text", None, "two\n", 5, None))
