"""Links of the README and of all pages lead somewhere on a code host: to a file of the repository, to a heading of it.

The built site has its own test (test_site.py): there headings get their names from mkdocs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from tests.docs.blocks import DOCS, ROOT, pages

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages()]  # not the changelog: it names what was
# paths from the root of the repository, and modules between backticks
PATH = re.compile(r"(?<![\w./-])(?:(?:privfair|accountant|tests|tools|benchmarks|docs|examples|notebooks)/[\w./-]*\w)")
MODULE = re.compile(r"`(?:python -m )?((?:privfair|accountant|tools|benchmarks)(?:\.\w+)+)\b(?!/)")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")


def prose(page: Path) -> str:
    """The text of a page or notebook without its fenced and indented blocks."""
    if page.suffix == ".ipynb":
        reader = vars(nbformat)["read"]  # it has no types
        cells = reader(page, as_version=4).cells
        return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = re.sub(r"^[ ]*```.*?^[ ]*```[ ]*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<=\n\n)(?: {4}[^\n]*\n)+", "", text)


def links(text: str) -> Iterator[str]:
    """Where it links to, pictures included."""
    yield from LINK.findall(re.sub(r"`[^`\n]*`", "", text))


def anchors(text: str) -> set[str]:
    """The names that a code host gives to headings (lower case, no punctuation, hyphens for spaces), and own ones."""
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        count = 0
        while (name if count == 0 else f"{name}-{count}") in found:
            count += 1
        found.add(name if count == 0 else f"{name}-{count}")
    return found


def problem(page: Path, link: str, text: str) -> str | None:
    """What is wrong with a link of a page with this text; None if nothing is, or if it leads to another site."""
    parts = urlsplit(link)
    if parts.scheme:
        return None if parts.scheme in ("https", "mailto") else f"{link}: not https"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return f"{link}: no such file in the repository"
    if parts.fragment:
        there = text if target == page else prose(target) if target.suffix in (".md", ".ipynb") else ""
        if unquote(parts.fragment) not in anchors(there):
            return f"{link}: no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    text = prose(page)
    assert [found for link in links(text) if (found := problem(page, link, text))] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name == "upgrade.md":  # the first column of its table has names that were
        text = re.sub(r"^\| `[^|]*\|", "", text, flags=re.MULTILINE)
    assert [path for path in PATH.findall(text) if "NAME" not in path and not (ROOT / path).exists()] == []
    assert [name for name in MODULE.findall(text) if not _exists(name)] == []


def _exists(dotted: str) -> bool:
    """Whether it is a module, or a name in one, or a member of such a name."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def test_enough_are_found() -> None:
    assert sum(len(list(links(prose(page)))) for page in PAGES) >= 100
    assert sum("#" in link for page in PAGES for link in links(prose(page))) >= 8


def test_a_dead_link_is_found() -> None:
    text = "# One `[thing]`, and more\n\n## One thing and more\n\n[a](CHANGELOG.md) ![b](docs/none.png) `[c](d.md)`\n"
    assert list(links(text)) == ["CHANGELOG.md", "docs/none.png"]
    assert anchors(text) == {"one-thing-and-more", "one-thing-and-more-1"}
    page = ROOT / "README.md"
    assert problem(page, "CHANGELOG.md", text) is None
    assert problem(page, "#one-thing-and-more-1", text) is None
    assert problem(page, "docs/none.png", text) == "docs/none.png: no such file in the repository"
    assert problem(page, "CHANGELOG.md#no-such", text) == "CHANGELOG.md#no-such: no such heading"
    assert problem(page, "../elsewhere.md", text) == "../elsewhere.md: no such file in the repository"
    assert problem(page, "http://example.org", text) == "http://example.org: not https"
