"""The built site: complete, without dead links, and usable from a folder without a network."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """Where a page links to, what it loads, and the names in it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.anchors |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        loading = tag in ("img", "script", "iframe") or (tag == "link" and "canonical" not in found.get("rel", ""))
        self.loads += [found[key] for key in ("src", "href") if loading and key in found]


def pages(site: Path) -> dict[Path, Page]:
    # 404.html is for servers, whose addresses begin at the root
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_links_and_anchors_lead_somewhere(site: Path) -> None:
    found = pages(site)
    assert len(found) >= 25
    links = 0
    for path, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment and target in found:
                assert unquote(parts.fragment) in found[target].anchors, f"{path.name}: {link}"
            links += 1
    assert links >= 500


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path, page in pages(site).items():
        for source in page.loads:
            parts = urlsplit(source)
            assert not parts.netloc, f"{path.name}: {source}"
            assert parts.scheme == "data" or (path.parent / unquote(parts.path)).is_file(), f"{path.name}: {source}"


def test_addresses_that_were_there_before_stay(site: Path) -> None:
    assert (site / "deploy.html").is_file()
    assert (site / "paper" / "index.html").is_file()
    assert (site / "paper" / "compas" / "claims.html").is_file()


@pytest.mark.parametrize("package", ["privfair", "accountant", "privfair.kernels", "privfair.mechanisms"])
def test_public_names_have_a_place(site: Path, package: str) -> None:
    anchors = set().union(*(page.anchors for path, page in pages(site).items() if path.parent.name == "reference"))
    missing = [n for n in importlib.import_module(package).__all__ if f"{package}.{n}" not in anchors]
    assert missing == []


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_from_a_folder_and_can_be_searched(site: Path, browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 850})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for path in pages(site):
        page.goto(path.as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{path.name} is {wide} wide"
        broken = page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
        assert broken == []
    page.goto((site / "index.html").as_uri())
    if width < 800:
        page.click("label.md-header__button[for=__search]")
    page.click("input[name=query]")
    page.keyboard.type("deconvolution")
    page.wait_for_selector(".md-search-result__item a", timeout=60_000)
    assert "kernels" in page.locator(".md-search-result__item a").first.get_attribute("href")
    assert said == []
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
