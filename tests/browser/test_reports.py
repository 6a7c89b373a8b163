"""Reports in a real browser: they open, draw, fit a phone and a sheet of paper, and can be read by everybody."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from accountant import Budget, Gaussian, Laplace, Ledger
from accountant.audit import audit
from accountant.spending import Spend
from privfair.numbers import shown
from privfair.reports.audit_page import audit_page
from privfair.reports.pages import write_page
from privfair.reports.run_page import run_page
from privfair.reports.sweep_page import sweep_page
from tests.browser.waiting import wait_until
from tests.reports.conftest import NOISE, SMALL
from tests.reports.folders import HOSTILE_CLIENTS, HOSTILE_GROUPS, make_people, make_run, make_sweep

pytestmark = pytest.mark.slow
Visit = Callable[..., Any]
NAMES = ("private", "open", "open, all figures", "sweep", "audit")

# The contrast of every text with what is behind it, as WCAG 2 computes it; large texts may have less.
CONTRAST = """() => {
  const channel = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const over = (a, b) => [0, 1, 2].map(i => a[3] * a[i] + (1 - a[3]) * b[i]).concat(1);
  const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const behind = e => {
    const layers = [];
    for (let n = e; n; n = n.parentElement) { layers.push(parse(getComputedStyle(n).backgroundColor)); }
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
  };
  const low = [];
  let seen = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || ["SCRIPT", "STYLE"].includes(e.tagName)) { continue; }
    if (e.closest("[aria-hidden]") || !e.getClientRects().length) { continue; }
    const svg = e.closest("svg");
    const style = getComputedStyle(e);
    const back = behind(svg ? svg.parentElement : e);
    const ink = over(parse(svg ? style.fill : style.color), back);
    const [a, b] = [light(ink), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) { low.push([walk.currentNode.textContent.trim().slice(0, 40), ratio]); }
  }
  return [seen, low];
}"""


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of every kind, and the run that the first is of."""
    folder = tmp_path_factory.mktemp("pages")
    private = make_run(
        folder / "private", data=SMALL, privacy={**NOISE, "evaluation": "laplace"},
        run={"ledger": f"sqlite:///{folder}/simulation.sqlite"},
    )  # fmt: skip
    table = make_people(folder / "people.csv", groups=HOSTILE_GROUPS, clients=HOSTILE_CLIENTS)
    data = {"name": "csv", "path": str(table), "label": "hired", "positive": "yes", "sensitive": "sex"}
    free = make_run(
        folder / "open", data={**data, "client": "branch"}, run={"ledger": f"sqlite:///{folder}/none.sqlite"}
    )
    sweep = make_sweep(folder / "sweep", data=SMALL)
    with Ledger(f"sqlite:///{folder}/books.sqlite") as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5))
        for client in ("north", "<i>south</i>"):
            ledger.reserve([Spend("patients", Gaussian(9.0), client, "", "updates", "r1", count=9)])
            ledger.reserve([Spend("patients", Laplace(30.0), client, f"sex={g}", "scores", "r1") for g in "FM"])
        run_ledger = audit_page(audit(ledger))
    texts = (run_page(private), run_page(free), run_page(free, include_private=True),
             sweep_page(sweep, include_private=True), run_ledger)  # fmt: skip
    found = {name: folder / f"{number}.html" for number, name in enumerate(NAMES)}
    for name, text in zip(NAMES, texts, strict=True):
        write_page(text, found[name])
    return {**found, "run": private}


@pytest.mark.parametrize(
    ("name", "plots"), [("private", 2), ("open", 1), ("open, all figures", 4), ("sweep", 1), ("audit", 1)]
)
def test_every_plot_is_drawn(pages: dict[str, Path], visit: Visit, name: str, plots: int) -> None:
    page = visit(pages[name])
    assert page.locator("figure.plot").count() == plots
    if name in ("private", "open"):  # pages that are passed on need no script
        assert pages[name].stat().st_size < 1_500_000
        for figure in page.locator("figure.plot .drawn svg").all():
            assert figure.locator("rect title, circle title").count() > 0
            assert figure.bounding_box()["height"] > 200
        return
    for figure in page.locator("figure.plot").all():
        assert figure.locator("svg.main-svg").count() > 0
        traces = figure.locator(".trace, .trace.bars").count()
        wanted = len(json.loads(figure.locator("script").text_content())["data"])
        assert traces >= wanted
        box = figure.locator("svg.main-svg").first.bounding_box()
        assert box["width"] > 400
        assert box["height"] > 200


def test_the_numbers_on_the_page_are_those_of_the_files(pages: dict[str, Path], visit: Visit) -> None:
    metrics = json.loads((pages["run"] / "metrics.json").read_text())
    page = visit(pages["private"])
    epsilon = min(metrics["privacy"]["epsilon"].values())
    tile = page.locator(".tile", has_text="Privacy cost").locator(".value")
    assert tile.inner_text() == shown(epsilon)
    assert float(tile.get_attribute("data-value")) == epsilon
    right = page.locator(".tile", has_text="Right decisions").locator(".value")
    assert right.inner_text() == f"{100 * metrics['released']['accuracy']:.1f}%"
    told = page.evaluate("[...document.querySelectorAll('#epsilon-rounds circle title')].map(e => e.textContent)")
    values = metrics["privacy"]["by_round"].values()
    assert told == [f"ε so far, {number + 1}: {value:.4g}" for number, value in enumerate(values)]
    bars = page.evaluate("[...document.querySelectorAll('figure.plot rect title')].map(e => e.textContent)")
    groups = metrics["released"]["groups"]["A"]
    assert bars[: len(groups)] == [
        f"A = {group}, all records: {100 * row['selection_rate']:.1f}%" for group, row in groups.items()
    ]


def test_hovering_tells_the_number(pages: dict[str, Path], visit: Visit) -> None:
    page = visit(pages["open, all figures"])
    page.locator("#rounds").scroll_into_view_if_needed()
    page.locator("#rounds .points path").last.hover(force=True)
    page.wait_for_selector("#rounds .hoverlayer text")
    assert "round 2" in page.locator("#rounds .hoverlayer").text_content()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [360, 768])
def test_a_phone_does_not_scroll_sideways(pages: dict[str, Path], visit: Visit, name: str, width: int) -> None:
    page = visit(pages[name], width=width)
    for details in page.locator("details").all():
        details.evaluate("element => { element.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    wide = page.evaluate(
        "w => [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg, .plot-area') && "
        "e.getClientRects().length && e.getBoundingClientRect().right > w + 1).map(e => e.outerHTML.slice(0, 80))",
        width,
    )
    assert wide == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dark", [False, True])
def test_texts_stand_out(pages: dict[str, Path], visit: Visit, name: str, dark: bool) -> None:
    page = visit(pages[name], dark=dark)
    seen, low = page.evaluate(CONTRAST)
    assert seen > 60
    assert low == []


def test_plots_follow_light_and_dark(pages: dict[str, Path], visit: Visit) -> None:
    page = visit(pages["open, all figures"])
    ink = "getComputedStyle(document.querySelector('.xtick text')).fill"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    wait_until(page, f"{ink} !== '{light}'")


@pytest.mark.parametrize("name", ["private", "open, all figures"])
def test_it_prints(pages: dict[str, Path], visit: Visit, name: str, tmp_path: Path) -> None:
    page = visit(pages[name])
    content = page.pdf(prefer_css_page_size=True)
    assert content.startswith(b"%PDF")
    assert content.count(b"/Type /Page\n") + content.count(b"/Type /Page ") in range(3, 12)
    page.emulate_media(media="print")
    drawing = ".main-svg" if name == "open, all figures" else ".drawn svg"
    wait_until(page, f"document.querySelector('{drawing}').getBoundingClientRect().width < 660")
    assert not page.locator(".page-nav").is_visible()
    mark = page.locator(".watermark")
    assert mark.count() == (1 if name == "open, all figures" else 0)
    if mark.count():
        assert mark.evaluate("element => getComputedStyle(element).position") == "fixed"  # so on every sheet
        assert mark.locator("span").is_visible()


def test_the_keyboard_reaches_everything_in_order(pages: dict[str, Path], visit: Visit) -> None:
    page = visit(pages["private"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page = visit(pages["private"])  # anew: after a jump to a part of the page, Tab goes on from there
    tops, kinds = [], []
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "() => { const e = document.activeElement; if (e === document.body) { return null; } "
            "const top = e.getBoundingClientRect().top + scrollY; "
            "return [e.tagName, top, getComputedStyle(e).outlineStyle]; }"
        )
        if found is None:
            break
        kinds.append(found[0])
        tops.append(found[1])
        assert found[2] != "none"
    assert kinds[:6] == ["A"] * 6
    assert kinds.count("SUMMARY") == page.locator("summary:visible").count()
    assert all(after >= before - 60 for before, after in pairwise(tops[1:]))


def test_names_do_nothing(pages: dict[str, Path], visit: Visit) -> None:
    page = visit(pages["open, all figures"])
    assert page.locator("img").count() == 0
    assert page.locator("th", has_text="<script>alert(1)</script>").count() > 0
    assert any("<script>alert(1)</script>" in text for text in page.locator(".legendtext").all_text_contents())
