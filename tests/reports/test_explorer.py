"""The kernel explorer's page as text, and how the command line writes it. What the page does: tests/browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from accountant.errors import InputError
from privfair.cli import app
from privfair.kernels.families import parse_kernel, parse_noise
from privfair.reports.explorer import explorer_page, write_explorer


def pair(kernel: str, noise: str) -> tuple[object, object]:
    return parse_kernel(kernel), parse_noise(noise)


def start_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="start">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    answer: dict[str, object] = json.loads(found[1])
    return answer


@pytest.mark.parametrize(
    ("kernel", "noise"),
    [
        ("gaussian:0.123456789012345", "laplace:0.2"),
        ("energy", "gaussian:0.333333333333"),
        ("0.5*gaussian:0.3+energy+2.25*rq:0.4:1.75", "laplace:1"),
        ("matern52:0.2+cauchy:0.7", "gaussian:1"),
    ],
)
def test_the_page_starts_at_the_kernel_and_noise_with_all_digits(kernel: str, noise: str) -> None:
    start = start_of(explorer_page([pair(kernel, noise)]))
    assert parse_kernel(str(start["kernel"])) == parse_kernel(kernel)
    assert parse_noise(str(start["noise"])) == parse_noise(noise)


def test_further_pairs_are_links() -> None:
    page = explorer_page([pair("gaussian:0.3", "laplace:0.2"), pair("energy", "laplace:0.2")])
    assert 'href="#k=energy&amp;n=laplace:0.2"' in page
    assert "Start from" not in explorer_page([pair("energy", "laplace:0.2")])


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = explorer_page([pair("gaussian:0.3", "laplace:0.2")])
    assert not re.search(r"https?:|\bsrc=|@import|url\((?!#)|fetch\(|XMLHttpRequest|\beval\(", page)
    assert len(page.encode()) < 200_000
    assert page.count("<script>") == 9


def test_quadrature_for_the_price_of_deconvolution_integrates_moments() -> None:
    quadrature = start_of(explorer_page([pair("gaussian:0.3", "laplace:0.2")]))["quadrature"]
    assert isinstance(quadrature, dict)
    for kind, fourth in (("gaussian", 3.0), ("laplace", 24.0)):
        nodes, weights = (np.array(quadrature[kind][name]) for name in ("nodes", "weights"))
        assert weights.sum() == pytest.approx(1.0, rel=1e-12)
        assert weights @ nodes**4 == pytest.approx(fourth, rel=1e-10)


def test_what_the_page_cannot_show_is_refused() -> None:
    with pytest.raises(InputError, match=r"--kernel must have bandwidths and factors between 0\.001 and 1000.*1e-05"):
        explorer_page([pair("gaussian:1e-5", "laplace:0.2")])
    with pytest.raises(InputError, match=r"--noise must have a scale between 0\.001 and 1000 for the page; found"):
        explorer_page([pair("gaussian:1", "laplace:5000")])


def test_only_pages_of_ours_are_replaced(tmp_path: Path) -> None:
    path, pairs = tmp_path / "page.html", [pair("energy", "laplace:0.2")]
    assert write_explorer(pairs, path) == path
    write_explorer([pair("gaussian:0.3", "laplace:0.2")], path)
    assert start_of(path.read_text())["kernel"] == "gaussian:0.3"
    other = tmp_path / "notes.html"
    other.write_text("mine")
    with pytest.raises(InputError, match=r"--html must be a new file.*It was not written by privfair"):
        write_explorer(pairs, other)
    assert other.read_text() == "mine"


def test_the_command_writes_the_page_and_names_it(tmp_path: Path) -> None:
    options = ["--kernel", "matern52:0.2", "--noise", "gaussian:0.1", "--repeats", "20", "--out", str(tmp_path / "out")]
    html = tmp_path / "deep" / "kernels.html"
    result = CliRunner().invoke(app, ["kernels", *options, "--html", str(html), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["out"]["page"] == str(html)
    assert start_of(html.read_text())["kernel"] == "matern52:0.2"
