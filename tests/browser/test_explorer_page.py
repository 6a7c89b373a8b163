"""The kernel explorer as somebody uses it: sliders, keys, addresses, a phone, a printer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privfair.kernels.families import parse_kernel, parse_noise
from privfair.kernels.mmd import mmd2_estimate
from privfair.reports.explorer import write_explorer
from tests.browser.explorer_pages import DONE, open_page
from tests.browser.waiting import wait_until

pytestmark = pytest.mark.slow

DESK = {"viewport": {"width": 1280, "height": 900}}
CHARTS = ("kernel", "spectrum", "witness", "scores", "draws")
CURVES = """ids => ids.map(id =>
    Array.from(document.querySelectorAll(`#${id} g path`)).map(p => p.getAttribute("d")).join())"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's file."""
    pairs = [(parse_kernel(k), parse_noise("laplace:0.2")) for k in ("gaussian:0.3", "energy")]
    return write_explorer(pairs, tmp_path_factory.mktemp("explorer") / "kernels.html")


@pytest.fixture
def page(browser: Any, path: Path) -> Iterator[Any]:
    """The page, open on a desk."""
    opened = open_page(browser, path, **DESK)
    yield opened
    assert opened.troubles == []
    opened.close()


def curves(page: Any) -> dict[str, str]:
    return dict(zip(CHARTS, page.evaluate(CURVES, list(CHARTS)), strict=True))


def state(page: Any) -> Any:
    return page.evaluate("privfairExplorer.page.state")


def test_every_plot_is_drawn_and_named(page: Any) -> None:
    for chart, drawn in curves(page).items():
        assert len(drawn) > 300, chart
        assert "NaN" not in drawn
        assert len(page.get_attribute(f"#{chart}", "aria-label")) > 40
    assert page.locator("h1").inner_text() == "Kernels with and without privacy noise"


@pytest.mark.parametrize(
    ("slider", "moves"),
    [
        ("bandwidth-0", {"kernel", "spectrum", "witness", "draws"}),
        ("scale", {"kernel", "spectrum", "witness", "scores", "draws"}),
        ("epsilon", {"kernel", "spectrum", "witness", "scores", "draws"}),
        ("difference", {"witness", "scores", "draws"}),
        ("spread", {"witness", "scores", "draws"}),
        ("count", {"witness", "scores", "draws"}),
        ("rounds", set()),
    ],
)
def test_keys_on_a_slider_redraw_what_depends_on_it(page: Any, slider: str, moves: set[str]) -> None:
    before, address = curves(page), page.url
    page.focus(f"#{slider}")
    for _ in range(3):
        page.keyboard.press("PageUp")
    page.wait_for_selector(DONE, state="attached")
    after = curves(page)
    assert {chart for chart in CHARTS if before[chart] != after[chart]} == moves
    assert page.url != address
    assert page.evaluate("document.activeElement.id") == slider


def test_epsilon_and_scale_move_together(page: Any) -> None:
    page.fill("#epsilon-number", "2")
    assert state(page)["noise"] == {"kind": "laplace", "scale": 0.5}
    page.fill("#scale-number", "0.1")
    page.press("#scale-number", "Tab")
    assert float(page.input_value("#epsilon-number")) == pytest.approx(10)
    page.check("[name=noise][value=gaussian]", force=True)
    shown = float(page.input_value("#epsilon-number"))
    exact = page.evaluate('privfairExplorer.oneRelease({ kind: "gaussian", scale: 0.1 }, 1e-5)')
    assert shown == pytest.approx(exact, rel=1e-3)


def test_without_noise_nothing_is_promised(page: Any) -> None:
    page.check("[name=noise][value=none]", force=True)
    page.wait_for_selector('html[data-draws="none"]', state="attached")
    assert "ε = ∞" in page.inner_text("#price")
    assert page.is_disabled("#scale")
    assert page.locator("#mmd2 tr").count() == 1
    assert "--noise" not in page.inner_text("#command")


def test_the_table_is_the_mmd_of_the_scores_on_the_page(page: Any) -> None:
    c = page.evaluate(
        "(() => { const c = privfairExplorer.page.current; return [c.x, c.y, c.nx, c.ny].map(a => Array.from(a)) })()"
    )
    x, y, noisy_x, noisy_y = (np.array(a) for a in c)
    kernel, noise = parse_kernel("gaussian:0.3"), parse_noise("laplace:0.2")
    expected = [
        mmd2_estimate(x, y, kernel),
        mmd2_estimate(noisy_x, noisy_y, kernel),
        mmd2_estimate(x, y, kernel.convolve(noise).convolve(noise)),
        mmd2_estimate(noisy_x, noisy_y, kernel.deconvolve(noise, sides=2)),
    ]
    shown = page.locator("#mmd2 tr td:nth-child(2)").all_inner_texts()
    assert shown == [f"{float(f'{e.value:.3g}'):g} ± {float(f'{e.standard_error:.3g}'):g}" for e in expected]


@pytest.mark.parametrize(
    "view",
    ["#k=gaussian:0.3&n=laplace:0.2", "#k=matern52:0.3&n=laplace:0.15&s=7", "#k=gaussian:0.5&n=gaussian:0.2"],
)
def test_draws_of_the_noise_are_right_on_average(browser: Any, path: Path, view: str) -> None:
    """The mean of 200 draws is the prediction within 5 standard errors: noisy, and with the noise taken off."""
    page = open_page(browser, path, view, **DESK)
    draws, clean, convolved = page.evaluate(
        """(() => {
            const p = privfairExplorer.page, m = p.current.mmd2;
            return [p.draws, m.clean.value, m.convolved.value];
        })()"""
    )
    values = np.array(draws)
    assert values.shape == (200, 2)
    error = values.std(axis=0, ddof=1) / np.sqrt(200)
    assert np.all(np.abs(values.mean(axis=0) - [convolved, clean]) < 5 * error)
    page.close()


def test_the_address_holds_the_view(browser: Any, path: Path, page: Any) -> None:
    page.click("#add")
    page.fill('[data-value="factor-1"] [type=number]', "0.5")
    page.select_option("#shape", "peaks")
    page.fill("#count-number", "120")
    page.click("#redraw")
    page.wait_for_selector(DONE, state="attached")
    again = open_page(browser, path, page.url[page.url.index("#") :], **DESK)
    assert state(again) == state(page)
    assert curves(again) == curves(page)
    assert state(page)["parts"][1] == {"kind": "energy", "factor": 0.5}
    assert page.inner_text("#command").startswith(
        "privfair kernels --kernel gaussian:0.3+0.5*energy --noise laplace:0.2"
    )
    again.click("#reset")
    assert state(again)["parts"] == [{"kind": "gaussian", "bandwidth": 0.3, "factor": 1}]
    again.click("text=energy with laplace:0.2")
    wait_until(again, 'privfairExplorer.page.state.parts[0].kind === "energy"')
    again.close()


def test_a_wrong_address_does_no_harm(browser: Any, path: Path) -> None:
    view = "#k=<img src=x>&n=laplace:-3&p=2:abc:7&g=nowhere:9:9:9&s=zzz&%3Cscript%3E"
    page = open_page(browser, path, view, **DESK)
    assert state(page)["parts"] == [{"kind": "gaussian", "bandwidth": 0.3, "factor": 1}]
    assert state(page)["noise"] == {"kind": "laplace", "scale": 0.2}
    assert page.locator("main img").count() == 0
    assert page.troubles == []
    broken = open_page(browser, path, "#k=%E0%A4%A", **DESK)
    assert state(broken)["parts"][0]["kind"] == "gaussian"
    assert broken.troubles == []
    page.close()
    broken.close()


def test_where_no_deconvolution_exists_the_page_says_why(browser: Any, path: Path) -> None:
    page = open_page(browser, path, "#k=energy&n=gaussian:0.3", **DESK)
    remedy = "Gaussian noise of scale 0.3 can only be taken off a Gaussian kernel whose bandwidth is above 0.3"
    assert remedy in page.inner_text("#why-box")
    assert not page.is_visible("#why-twice-box")
    page.evaluate('location.hash = "k=matern32:0.3&n=laplace:0.2"')
    page.wait_for_selector("#why-twice-box:visible")
    assert not page.is_visible("#why-box")
    assert "Gaussian, rational quadratic and Matérn-5/2 kernels" in page.inner_text("#why-twice")
    page.close()


def test_a_number_that_cannot_be_is_marked_and_not_taken(page: Any) -> None:
    page.fill("#scale-number", "-1")
    assert page.get_attribute("#scale-number", "aria-invalid") == "true"
    assert state(page)["noise"]["scale"] == 0.2
    page.press("#scale-number", "Tab")
    assert page.input_value("#scale-number") == "0.2"


def test_charts_are_read_by_keys(page: Any) -> None:
    page.focus("#kernel")
    page.keyboard.press("ArrowRight")
    first = page.inner_text("#kernel-readout")
    assert first.startswith("at distance 0.04: clean 0.991")
    page.keyboard.press("End")
    assert page.inner_text("#kernel-readout").startswith("at distance 2:")


def test_all_controls_are_reached_by_tab_and_have_names(page: Any) -> None:
    wanted = page.evaluate(
        """Array.from(document.querySelectorAll("#form input, #form select, #form button, .chart"))
            .filter(e => !e.hidden && !e.disabled && (e.type !== "radio" || e.checked)).length"""
    )
    nameless = page.evaluate(
        """Array.from(document.querySelectorAll("#form input, #form select, #form button")).filter(e =>
            !(e.labels && e.labels.length) && !e.getAttribute("aria-label") && !e.textContent.trim())
            .map(e => e.outerHTML)"""
    )
    assert nameless == []
    page.focus("#content")
    reached = set()
    for _ in range(wanted + 12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 90) + document.activeElement.id"))
    for name in ("scale", "epsilon", "rounds", "shape", "redraw", "share", "kernel", "draws"):
        assert any(element.endswith(name) for element in reached), name


@pytest.mark.parametrize("width", [360, 768, 1100])
def test_the_page_is_never_wider_than_the_screen(browser: Any, path: Path, width: int) -> None:
    page = open_page(
        browser, path, "#k=0.5*gaussian:0.3+matern52:0.123456&n=gaussian:0.3", viewport={"width": width, "height": 740}
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width == 360:
        assert not page.is_visible("#scale")
        page.click("#controls summary")
        page.focus("#scale")
        before = curves(page)["kernel"]
        page.keyboard.press("PageUp")
        assert curves(page)["kernel"] != before
        top = page.evaluate("document.getElementById('controls').getBoundingClientRect().top")
        assert top > 300  # there is still room for a plot above
    assert page.troubles == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_background(browser: Any, path: Path, scheme: str) -> None:
    """At least 4.5 : 1 (WCAG AA), by the colours the browser computes."""
    page = open_page(browser, path, "#k=energy&n=laplace:0.2", color_scheme=scheme, **DESK)
    poor = page.evaluate(
        """() => {
            const light = c => { const v = c / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
            const luminance = c => 0.2126 * light(c[0]) + 0.7152 * light(c[1]) + 0.0722 * light(c[2]);
            const numbers = text => text.match(/[\\d.]+/g).map(Number);
            const behind = e => {
                for (; e; e = e.parentElement) {
                    const c = numbers(getComputedStyle(e).backgroundColor);
                    if (c.length < 4 || c[3] === 1) return c;
                }
                return [255, 255, 255];
            };
            const poor = [];
            for (const e of document.querySelectorAll("main *, header *")) {
                const own = Array.from(e.childNodes).some(n => n.nodeType === 3 && n.textContent.trim());
                if (!own || e.closest("script, option, [hidden]") || !e.getClientRects().length) continue;
                const style = getComputedStyle(e);
                const ink = e.namespaceURI.endsWith("svg") ? style.fill : style.color;
                const [a, b] = [luminance(numbers(ink)), luminance(behind(e))].sort((p, q) => q - p);
                if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${e.outerHTML.slice(0, 80)} ${ink}`);
            }
            return poor;
        }"""
    )
    assert poor == []
    page.close()


def test_it_prints(page: Any) -> None:
    document = page.pdf(format="A4")
    assert document.startswith(b"%PDF")
    assert 1 < document.count(b"/Type /Page\n") + document.count(b"/Type /Page ") <= 5
