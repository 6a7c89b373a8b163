"""The fenced blocks of a page of the documentation, and what a test is to do with each.

    ```python                       is run, in one namespace for the page
    ```python title="models.py"     is written to that file; so are toml and text blocks with a title
    ```text                         after a python block: what that block prints
    ```sh                           is run as one script
    ```console                      `$ command` lines are run one by one; the lines after each are what it shows, `…`
                                    standing for anything; output that begins with "error:" means that the command fails
    ```toml                         is a configuration of privfair
    <!-- not run: why -->           on the line before: is left alone, and counted

A page with <!-- slow: why --> runs with the long tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
DEPLOYMENT = DOCS / "deploy.md"  # of several machines: tests/flower/test_deployment_docs.py follows it to the letter

FENCE = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>[^\n]*?) -->\n+)?"
    r"^(?P<indent>[ ]*)```(?P<kind>[^\s`]*)(?P<attributes>[^\n]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
KINDS = ("python", "text", "sh", "console", "toml")


@dataclass(frozen=True)
class Block:
    """One fence of a page."""

    kind: str
    title: str | None
    text: str
    line: int
    not_run: str | None


@dataclass(frozen=True)
class Command:
    """One command of a console block, and the lines it is said to show."""

    text: str
    shown: tuple[str, ...]

    @property
    def fails(self) -> bool:
        """Whether it is shown to end with an error."""
        return bool(self.shown) and self.shown[0].startswith("error:")


def pages() -> list[Path]:
    """Every page, except the reports of the paper's experiments, which are results."""
    return sorted(path for path in DOCS.rglob("*.md") if "paper" not in path.relative_to(DOCS).parts)


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order."""
    content = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(content):
        title = re.search(r'title="([^"]+)"', found["attributes"])
        line = content.count("\n", 0, found.start("kind")) + 1
        yield Block(found["kind"], title and title[1], dedent(found["text"]), line, found["reason"])


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        end = next(i for i, line in enumerate(lines) if not line.endswith("\\"))
        yield Command("\n".join(lines[: end + 1]), tuple(line for line in lines[end + 1 :] if line.strip()))


def slow(page: Path) -> str | None:
    """Why the page is left to the long tests."""
    found = re.search(r"<!-- slow: (.*?) -->", page.read_text(encoding="utf-8"))
    return found and found[1]


def difference(shown: tuple[str, ...], printed: str) -> str | None:
    """The first shown line that was not printed where it should be; None if all were.

    `…` stands for any text in a line, and alone on a line for any lines. Widths of gaps and empty lines do not count.
    """
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    at, anywhere = 0, False
    for wanted in (" ".join(line.split()) for line in shown):
        if wanted == "…":
            anywhere = True
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("…")))
        reachable = range(at, len(lines) if anywhere else min(at + 1, len(lines)))
        hit = next((i for i in reachable if pattern.fullmatch(lines[i])), None)
        if hit is None:
            return wanted
        at, anywhere = hit + 1, False
    if at < len(lines) and shown and not anywhere:
        return f"(nothing more, and there was:) {lines[at]}"
    return None
