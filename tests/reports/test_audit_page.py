"""The page of an audit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from accountant import Budget, Gaussian, Laplace, Ledger
from accountant.audit import AuditReport, audit
from accountant.spending import Spend
from privfair.reports.audit_page import audit_page
from privfair.reports.figures import burn_down_figure, shown_guesses
from tests.reports.reading import Page


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger with a budget, a dataset without one and a simulation."""
    address = f"sqlite:///{tmp_path}/ledger.sqlite"
    with Ledger(address) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5), reason="<b>board</b>")
        for client in ("north", "<i>south</i>"):
            ledger.reserve([Spend("patients", Gaussian(9.0), client, "", "updates", "r1", count=9)])
            ledger.reserve([Spend("patients", Laplace(30.0), client, f"sex={g}", "scores", "r1") for g in "FM"])
        ledger.reserve([Spend("free", Gaussian(9.0))])
        ledger.register("toy", simulation=True)
        ledger.reserve([Spend("toy", Gaussian(1.0))])
    return address


def audited(url: str) -> AuditReport:
    with Ledger(url, create=False) as ledger:
        return audit(ledger)


def test_the_numbers_are_the_audits(url: str) -> None:
    report = audited(url)
    page = Page(audit_page(report))
    patients = next(d for d in report.datasets if d.state.name == "patients")
    assert patients.epsilon is not None
    wanted = [float(patients.releases), patients.epsilon.rdp, patients.epsilon.pld]
    totals = [row[1:] for name, rows in page.numbers.items() if name.startswith("ε of everything") for row in rows]
    assert wanted in totals
    clients = {row[0]: value[1:] for row, value in zip(page.rows("By data holder"), page.exact("By data holder"),
                                                       strict=True)}  # fmt: skip
    for line in patients.by_client:
        assert line.epsilon is not None
        assert clients[line.name] == [float(line.releases), line.epsilon.rdp, line.epsilon.pld]
    drawn = page.exact("What was spent on patients")[1:]
    assert list(dict.fromkeys(row[1] for row in drawn)) == list(dict.fromkeys(p.epsilon for p in patients.burn_down))
    read = [tuple(row) for row in page.rows("What was spent on patients")]
    assert all(one != next_one for one, next_one in pairwise(read))
    assert patients.left is not None
    assert f"{100 * (1 - patients.left):.1f}% used" in page.text
    assert report.head.hash in page.text
    assert "Everything is in order." in page.text


def test_what_can_be_guessed_is_told_from_the_budget(url: str) -> None:
    """ε over runs that were chosen one after the other is certain for the budget only."""
    text = Page(audit_page(audited(url))).text
    assert f"is right in at most {shown_guesses(3.0, 1e-5)} of cases" in text
    assert text.count("A coin is right in 50%") == 1
    assert "No budget is set: nothing limits what is spent on these data." in text
    assert "A simulation: noise may be seeded, so no ε is claimed." in text


def test_names_are_shown_and_not_obeyed(url: str) -> None:
    text = audit_page(audited(url))
    assert "<i>south</i>" in Page(text).text
    assert "<b>board</b>" in Page(text).text
    assert "<i>south" not in text
    assert "<b>board" not in text


def test_a_broken_chain_is_told(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("DROP TRIGGER entries_no_update")
        connection.execute("UPDATE entries SET count = 1 WHERE sequence = 3")
        connection.commit()
    report = audited(url)
    assert not report.verified
    text = Page(audit_page(report)).text
    assert "Its chain is broken: the ledger was changed." in text
    assert "Not everything is in order." in text
    assert str(report.problems[0]) in text


def test_an_exceeded_budget_is_told(url: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(1.4, 1e-5), reason="stricter")
    report = audited(url)
    assert not report.fine
    page = Page(audit_page(report))
    assert "The budget is exceeded" in page.text
    assert "100.0% used, exceeded" in page.text
    assert [row[4] for row in page.rows("How the budget was set")[1:]] == ["<b>board</b>", "stricter"]


def test_an_empty_ledger(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger:
        text = audit_page(audit(ledger))
    assert "Nothing has been spent." in text
    assert len(text) < 60_000


def test_a_noted_head_is_told_to_be_found(url: str) -> None:
    with Ledger(url, create=False) as ledger:
        head = ledger.head()
        page = Page(audit_page(audit(ledger, pld=False, heads=[head.hash, "0" * 64])))
    assert f"The head noted as {head.hash[:12]}… is in row {head.sequence}." in page.text
    assert "The head noted as 000000000000… is not in it." in page.text


def test_a_single_moment_is_drawn_on_a_day(tmp_path: Path) -> None:
    at = datetime(2026, 5, 12, 9, 30, tzinfo=UTC)
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite", clock=lambda: at) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5))
        (dataset,) = audit(ledger, pld=False).datasets
    figure = burn_down_figure("0", dataset)
    assert figure is not None
    day = ["2026-05-11T21:30:00Z", "2026-05-12T21:30:00Z"]
    assert figure.layout["xaxis"]["range"] == day
    assert figure.data[1]["x"] == day  # the line of the budget
    (later,) = (replace(point, at="2026-05-12T11:30:00.000000Z") for point in dataset.burn_down)
    figure = burn_down_figure("0", replace(dataset, burn_down=(*dataset.burn_down, later)))
    assert figure is not None
    assert "range" not in figure.layout["xaxis"]
