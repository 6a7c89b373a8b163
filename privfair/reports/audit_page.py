"""The page of an audit: which data have which budget, who has spent what, and whether the ledger is intact.

The terminal shows the same remarks below the same figures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accountant.audit import AuditReport, DatasetAudit, Line
from accountant.events import Adjacency, Neighbouring, Unit
from privfair.numbers import Cell, count, delta, epsilon_cell, percent, plural, shown
from privfair.privacy.run_ledger import has_inferred_schema, has_noise_in_shares
from privfair.reports.figures import Figure, burn_down_figure, shown_guesses
from privfair.reports.pages import render_page

_RDP_FOR_PLD = (
    "PLD takes long, and was computed for some of these lines only. In the others ε (PLD) is RDP's bound: larger, and "
    "still a bound."
)
_NOT_CLAIMED = (
    "Runs with “inferred” in their name read groups, categories and ranges off the records, which no ε covers: for "
    "them nothing is claimed."
)
_SEVERAL_RUNS = (
    "Over several runs ε by RDP and by PLD holds if all of them were planned before the first. For runs that were "
    "chosen after a look at earlier ones, what a budget counts does (a Rényi filter of fixed order)."
)
_IN_SHARES = (
    "In runs with “shares” in their name every client added a part of the noise, and this ledger has that of the sum: "
    "their ε holds as long as the server and a client do not pool what they see. If they do, the larger ε in the run's "
    "statement (privacy.json, collusion) holds."
)
_QUOTE = (
    "To quote one run, take ε and δ of its statement (privacy.json). Its rows here give the same ε at the same δ, or a "
    "smaller one where the statement has the bound of the whole plan. Rows do not have a run's δ: where it is not "
    "{delta}, give its statement (--head RUN/privacy.json) or --delta."
)
_FILTER = (
    "By the budget’s Rényi filter ε = {spent} of {size} is spent at δ = {delta} (privfair budget show). At one δ that "
    "is never below ε by RDP, for it also holds where runs were chosen after a look at earlier ones."
)

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


def remarks(dataset: DatasetAudit) -> list[str]:
    """Sentences, in order."""
    found = [_RDP_FOR_PLD] if dataset.rdp_for_pld else []
    if dataset.epsilon is not None and any(line.name for line in dataset.by_run):
        found.append(_QUOTE.format(delta=f"{dataset.delta:g}"))
    budget, spent = dataset.state.budget, dataset.filter_epsilon
    if budget is not None and spent:
        found.append(_FILTER.format(spent=shown(spent), size=f"{budget.epsilon:g}", delta=f"{budget.delta:g}"))
    if any(has_inferred_schema(line.name) for line in dataset.by_run):
        found.append(_NOT_CLAIMED)
    if shares(dataset):
        found.append(_IN_SHARES)
    if len(dataset.by_run) > 1:
        found.append(_SEVERAL_RUNS)
    return found


def shares(dataset: DatasetAudit) -> bool:
    """Whether the noise of some run was in shares."""
    return any(has_noise_in_shares(line.name) for line in dataset.by_run)


def largest_first(lines: Iterable[Line]) -> list[Line]:
    """The lines by ε: by RDP, then by PLD; equal ones in their order."""

    def size(line: Line) -> tuple[float, float]:
        epsilon = line.epsilon
        return (0.0, 0.0) if epsilon is None else (-epsilon.rdp, -(epsilon.pld or 0.0))

    return sorted(lines, key=size)


def line_name(line: Line) -> str:
    """What a line is of, with its δ where that is its own."""
    name = line.name or "(not named)"
    return name if line.delta is None else f"{name} (at its own δ = {line.delta:g})"


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
        found.append(f"Without a budget, so that nothing limits what is spent on it: {', '.join(free)}.")
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
    """What there is to say of a dataset, and in which look.

    What somebody can guess is derived from the budget: it holds whatever was chosen after seeing earlier releases. ε by
    RDP or PLD over several runs holds only where all of them were planned beforehand, which the ledger cannot know.
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
        return f"{kept} Some noise was in shares, which a budget cannot count: see below.", "care"
    if neighbouring != Neighbouring(Adjacency.ADD_OR_REMOVE, Unit.RECORD):
        return kept, "good"
    return (
        f"{kept} While it is, somebody who sees everything that this ledger says was released, and guesses whether a "
        "certain record is among the data, holding both for equally likely, is right in at most "
        f"{shown_guesses(budget.epsilon, budget.delta)} of cases. A coin is right in 50%."
    ), "good"
