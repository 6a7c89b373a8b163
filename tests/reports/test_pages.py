"""Pages themselves: whole, offline, and never written over something else."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import jinja2
import pytest

from accountant.errors import InputError
from privfair.numbers import delta, percent, points, shown, size
from privfair.reports.pages import FOLDER, is_page, render_page, require_ours, write_page
from tests.reports.reading import Page


def test_a_page_asks_for_nothing(private_run: Path) -> None:
    from privfair.reports.run_page import run_page

    text = run_page(private_run)
    page = Page(text)
    assert not [a for tag, a in page.tags if tag in ("img", "iframe", "object") or (tag == "script" and a.get("src"))]
    assert [a["href"] for tag, a in page.tags if tag == "link"] == ["data:,"]
    assert all(str(a["href"]).startswith("#") for tag, a in page.tags if tag == "a")
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'")
    styles = (FOLDER / "style.css").read_text()
    assert "url(" not in styles
    assert "@import" not in styles


def test_headings_and_names_are_in_order(private_run: Path, sweep: Path) -> None:
    from privfair.reports.run_page import run_page
    from privfair.reports.sweep_page import sweep_page

    for text in (run_page(private_run), sweep_page(sweep, include_private=True)):
        page = Page(text)
        levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        names = [a["id"] for _, a in page.tags if "id" in a]
        assert len(names) == len(set(names))
        targets = [str(a["href"])[1:] for tag, a in page.tags if tag == "a"]
        assert set(targets) <= set(names)
        assert [tag for tag, _ in page.tags if tag in ("header", "nav", "main", "footer")] == [
            "header", "nav", "main", "footer",
        ]  # fmt: skip
        tables = [tag for tag, _ in page.tags if tag == "table"]
        assert len(tables) == len([tag for tag, _ in page.tags if tag == "caption"])
        assert all(a.get("scope") in ("col", "row") for tag, a in page.tags if tag == "th")
        areas = [a for _, a in page.tags if str(a.get("class", "")).startswith("plot-area")]
        assert areas
        assert all(a["role"] == "img" and len(str(a["aria-label"])) > 40 for a in areas)


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render_page("sweep.html", title="x", plots=False)


def test_only_our_own_pages_are_replaced(tmp_path: Path) -> None:
    page = render_page("base.html", title="A <title>", plots=False)
    path = tmp_path / "new" / "page.html"
    assert write_page(page, path) == path.stat().st_size
    assert is_page(path)
    assert write_page(page, path) == path.stat().st_size
    other = tmp_path / "thesis.html"
    other.write_text("<html>years of work</html>")
    with pytest.raises(InputError, match=r"--out must be a new file, or a page to be replaced; found .*thesis.html"):
        write_page(page, other)
    assert other.read_text() == "<html>years of work</html>"
    with pytest.raises(InputError, match=r"--html must be a new file"):
        require_ours(tmp_path, option="--html")
    blocked = tmp_path / "thesis.html" / "page.html"
    with pytest.raises(InputError, match=r"--out must be a file that can be written"):
        write_page(page, blocked)


def test_numbers_for_people() -> None:
    assert shown(1.23401) == "1.235"  # never less than it is
    assert percent(0.6479) == "64.7%"  # never more than it is
    assert points(0.0649) == "6.5 percentage points"
    assert [size(n) for n in (12, 999, 1000, 6_384_000, 2e9)] == ["12 bytes", "999 bytes", "1.0 kB", "6.4 MB", "2.0 GB"]
    assert [delta(d) for d in (1e-5, 1e-6, 0.05, 1e-15, 1 / 3)] == ["0.00001", "0.000001", "0.05", "1e-15", "0.333333"]
