"""The report of an audit: which data have which budget, who has spent what, and whether the ledger is intact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accountant.audit import AuditReport, DatasetAudit, Line
from accountant.events import Adjacency, Neighbouring, Unit
from privfair.numbers import Cell, count, delta, epsilon_cell, percent, plural
from privfair.reports.audit_remarks import largest_first, line_name, remarks, shares
from privfair.reports.figures import Figure, burn_down_figure, shown_guesses
from privfair.reports.pages import render_page

KINDS = {
    "by_client": ("data holder", "By data holder: ε of its record that is exposed most"),
    "by_group": ("group", "By group: ε of a record of that group"),
    "by_channel": ("what was sent", "By kind of message, each alone; they do not simply add up"),
    "by_run": ("run", "By run, each alone; they do not simply add up"),
    "changing": ("attribute", "To hide a person's group: ε between datasets in which one person is in another group"),
}
WHOLE = {
    "by_client": ("data holder", "By data holder: ε of all of its records together")
}  # whole clients are protected


@dataclass(frozen=True)
class Dataset:
    """One dataset of the ledger, for the page."""

    name: str
    facts: dict[str, str]
    verdict: str
    kind: str  # good, care or bad: the look of the verdict
    share: float | None  # of the budget that is used, 0 to 1, for the bar
    over: bool
    totals: list[list[Any]]
    tables: list[dict[str, Any]]
    changes: list[list[str]]
    figure: Figure | None
    remark: str


def audit_page(report: AuditReport) -> str:
    """The page of an audit."""
    datasets = [_dataset(number, dataset) for number, dataset in enumerate(report.datasets)]
    return render_page(
        "audit.html",
        title="Audit of privacy budgets",
        plots=any(dataset.figure is not None for dataset in datasets),
        unreleased=False,
        report=report,
        datasets=datasets,
        more_problems=report.problems_found - len(report.problems),
        rows=plural(report.rows, "row"),
        summary=_summary(report),
    )


def _summary(report: AuditReport) -> list[str]:
    found = [
        f"The ledger has {plural(report.rows, 'row')} about {plural(len(report.datasets), 'dataset')}. "
        + ("Its chain is intact." if report.verified else "Its chain is broken: the ledger was changed.")
    ]
    found += [
        f"The head noted as {noted.hash[:12]}… is in row {count(noted.row)}."
        if noted.row is not None
        else f"The head noted as {noted.hash[:12]}… is not in it."
        for noted in report.noted_heads
    ]
    budgeted = [dataset for dataset in report.datasets if dataset.state.budget is not None]
    exceeded = [dataset.state.name for dataset in budgeted if dataset.exceeded]
    if exceeded:
        found.append(f"More than the budget was spent on {', '.join(exceeded)}.")
    elif budgeted:
        found.append("Every budget is kept." if len(budgeted) > 1 else "The budget is kept.")
    free = [d.state.name for d in report.datasets if d.state.budget is None and not d.state.simulation]
    if free:
        found.append(f"No budget limits what is spent on {', '.join(free)}.")
    return found


def _dataset(number: int, dataset: DatasetAudit) -> Dataset:
    state, budget = dataset.state, dataset.state.budget
    facts = {"Neighbouring datasets": str(state.neighbouring) if state.neighbouring else "–",
             "δ": delta(dataset.delta), "Releases": count(dataset.releases),
             "Bound to the data": "by a keyed fingerprint" if state.fingerprint else "by name only"}  # fmt: skip
    if budget is not None:
        facts = {"Budget": f"ε = {budget.epsilon:g} at δ = {delta(budget.delta)}", **facts}
    verdict, kind = _verdict(dataset)
    left = dataset.left
    epsilon = dataset.epsilon
    whole = state.neighbouring is not None and state.neighbouring.unit is Unit.CLIENT
    exposed = "the data holder exposed most" if whole else "the record exposed most"
    total: list[Any] = [exposed, Cell(count(dataset.releases), dataset.releases)]
    total += [epsilon_cell(epsilon.rdp if epsilon else None), epsilon_cell(epsilon.pld if epsilon else None)]
    return Dataset(
        state.name,
        facts,
        verdict,
        kind,
        None if left is None else min(1.0, max(0.0, 1.0 - left)),
        dataset.exceeded,
        [total],
        [
            {"caption": caption, "columns": [what, "releases", "ε (RDP)", "ε (PLD)"], "rows": _lines(found)}
            for name, (what, caption) in (KINDS | (WHOLE if whole else {})).items()
            if (found := getattr(dataset, name)) and not (len(found) == 1 and not found[0].name)
        ],
        [
            [change.at[:19].replace("T", " "), f"{change.budget.epsilon:g}", delta(change.budget.delta),
             change.actor or "–", change.reason or "–"]
            for change in dataset.budget_changes
        ],
        burn_down_figure(str(number), dataset),
        " ".join(remarks(dataset)),
    )  # fmt: skip


def _lines(lines: tuple[Line, ...]) -> list[list[Any]]:
    """Those with the largest ε first."""
    return [
        [
            line_name(line),
            Cell(count(line.releases), line.releases),
            epsilon_cell(line.epsilon.rdp if line.epsilon else None),
            epsilon_cell(line.epsilon.pld if line.epsilon else None),
        ]
        for line in largest_first(lines)
    ]


def _verdict(dataset: DatasetAudit) -> tuple[str, str]:
    """The verdict on a dataset, and its look on the page.

    What somebody can guess follows from the budget, which holds even if runs were chosen after seeing earlier releases.
    ε by RDP or PLD over several runs holds only if all of them were planned beforehand, which the ledger cannot know.
    """
    budget, neighbouring = dataset.state.budget, dataset.state.neighbouring
    if dataset.state.simulation:
        return "A simulation: noise may be seeded, so no ε is claimed.", "care"
    if budget is None:
        return "No budget is set: nothing limits what is spent on these data.", "care"
    if dataset.exceeded:
        return f"The budget is exceeded: {percent(dataset.left)} is left.", "bad"
    kept = f"The budget is kept: {percent(dataset.left)} of it is left."
    if shares(dataset):
        return f"{kept} Some noise was distributed, which a budget cannot count: see below.", "care"
    if neighbouring != Neighbouring(Adjacency.ADD_OR_REMOVE, Unit.RECORD):
        return kept, "good"
    return (
        f"{kept} While it is, somebody who sees every release in this ledger and guesses whether a certain record is "
        "among the data, thinking both equally likely, is right in at most "
        f"{shown_guesses(budget.epsilon, budget.delta)} of cases. A coin is right in 50%."
    ), "good"
