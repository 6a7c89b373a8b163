"""The page of a sweep, and of an experiment of the paper."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from accountant import Budget, Ledger
from accountant.errors import InputError, Refused
from privfair.reports.sweep_page import read_sweep, sweep_page
from privfair.sweeps.frontiers import areas_of, as_table, points_of
from tests.reports.reading import Page


def test_by_default_there_are_no_figures(sweep: Path) -> None:
    text = sweep_page(sweep)
    page = Page(text)
    about = json.loads((sweep / "sweep.json").read_text())
    assert about["configuration"]["data fingerprint"] not in text
    facts = read_sweep(sweep, include_private=False)
    exact = {repr(row[name]) for row in facts.rows for name in ("accuracy", "unfairness", "test_loss", "mmd2")}
    assert len(exact) > 10
    assert [figure for figure in exact if len(figure) > 6 and figure in text] == []
    assert page.rows("Runs by series")[1:] == [["mmd_fedavg", "∞", "4", "0"], ["local_fairness", "∞", "4", "0"]]
    assert f"privfair report {sweep} --include-private" in page.text
    assert 'notion = "statistical_parity"' in text.replace("&#34;", '"')


def test_the_figures_are_the_sweeps(sweep: Path) -> None:
    text = sweep_page(sweep, include_private=True)
    page = Page(text)
    facts = read_sweep(sweep, include_private=True)
    points = points_of(facts.rows)
    table = as_table(points, "accuracy")
    shown = page.exact("Means over seeds")[1:]
    assert [(row[4], row[5]) for row in shown] == [(row["accuracy"], row["unfairness"]) for row in table]
    areas = areas_of(points, facts.rows, "accuracy")["series"]
    assert [row[1] for row in page.exact("Frontiers compared")[1:]] == [area["value"] for area in areas]
    assert [row[2:4] for row in page.exact("The trade-off")[1:]] == [[r["accuracy"], r["unfairness"]] for r in table]
    drawn = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', text)[0])["data"]
    assert "mmd_fedavg: λ = 1, seeds 0, 1" in [reported for trace in drawn for reported in trace.get("text", [])]
    assert next(trace["y"] for trace in drawn if trace.get("text")) == [row["accuracy"] for row in table[:2]]
    assert "Contains figures that were not released; do not pass on" in page.text


def test_an_unfinished_sweep_tells_what_is_missing(sweep: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    lines = (folder / "results.csv").read_text().splitlines(keepends=True)
    failed = lines[7].replace(",done,", ",failed,<b>why</b>").split(",")
    (folder / "results.csv").write_text("".join(lines[:7]) + ",".join(failed) + lines[8][:20])
    page = Page(sweep_page(folder))
    assert "6 runs of 2 series are finished, 8 were planned." in page.text
    assert "1 run gave no result." in page.text
    assert page.values == [6, 1, 1]
    assert "why" not in " ".join(row[-1] for row in page.rows("Runs by series"))


def test_data_with_a_budget_are_refused(sweep: Path, tmp_path: Path) -> None:
    folder, url = tmp_path / "sweep", f"sqlite:///{tmp_path}/ledger.sqlite"
    shutil.copytree(sweep, folder)
    about = json.loads((folder / "sweep.json").read_text())
    about["configuration"]["run"]["ledger"] = url
    (folder / "sweep.json").write_text(json.dumps(about))
    assert sweep_page(folder, include_private=True)
    with Ledger(url) as ledger:
        ledger.set_budget("synthetic", Budget(1.0, 1e-5))
    with pytest.raises(Refused, match=r"Dataset 'synthetic' has a budget: exact figures of it are shown to nobody"):
        sweep_page(folder, include_private=True)
    assert "Runs finished" in sweep_page(folder)


def test_a_damaged_folder_is_named(sweep: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    (folder / "results.csv").write_text((folder / "results.csv").read_text().replace("mmd_fedavg,lambda,0.0", "a,b,c"))
    with pytest.raises(InputError, match=r"results.csv must be whole and readable"):
        sweep_page(folder)
    (folder / "sweep.json").write_text("{")
    with pytest.raises(InputError, match=r"sweep.json must be whole and readable"):
        sweep_page(folder)


def test_an_experiment_of_the_paper_shows_its_claims(sweep: Path, tmp_path: Path) -> None:
    """With runs of other series, so that every claim is there and none of them is decided for."""
    folder = tmp_path / "synthetic"
    shutil.copytree(sweep, folder)
    asked = {"experiment": "synthetic", "quick": True, "set": []}
    (folder / "sweep.json").write_text(json.dumps({"schema": 1, "configuration": asked, "runs": 8}))
    page = Page(sweep_page(folder, include_private=True))
    from privfair.sweeps.paper import EXPERIMENTS

    claims = page.rows("What our runs say")[1:]
    assert [claim[0] for claim in claims] == [claim.text for claim in EXPERIMENTS["synthetic"].claims]
    assert {claim[1] for claim in claims} == {"undecided"}
    assert "Rychener, Kuhn & Hu (AISTATS 2025)" in page.text
