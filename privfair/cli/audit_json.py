"""An audit report as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privfair.cli.books import json_number
from privfair.reports.audit_remarks import remarks

if TYPE_CHECKING:
    from accountant.audit import AuditReport, DatasetAudit, Line
    from accountant.exposure import Epsilon
    from accountant.tally import BudgetChange
    from privfair.cli.statements import Statement


def report_json(
    report: AuditReport,
    figure: Path | None = None,
    page: Path | None = None,
    statements: Sequence[Statement] = (),
) -> dict[str, Any]:
    """Everything the report holds; ε is null where none is claimed, and "inf" where it is infinite."""
    return {
        "fine": report.fine and all(statement.holds for statement in statements),
        "ledger": report.ledger,
        "ledger_id": report.ledger_id,
        "rows": report.rows,
        "head": report.head.hash,
        "noted_heads": [
            {"head": noted.hash, "found": noted.row is not None, "row": noted.row} for noted in report.noted_heads
        ],
        "chain": {
            "verified": report.verified,
            "signatures": report.signatures,
            "problems_found": report.problems_found,
            "problems": [{"row": problem.row, "what": problem.what} for problem in report.problems],
        },
        "datasets": {dataset.state.name: _dataset(dataset) for dataset in report.datasets},
        "statements": [statement.to_json() for statement in statements],
        "figure": str(figure) if figure else None,
        "html": str(page) if page else None,
    }


def _dataset(dataset: DatasetAudit) -> dict[str, Any]:
    state = dataset.state
    return {
        "simulation": state.simulation,
        "fingerprint": state.fingerprint or None,
        "adjacency": state.neighbouring.adjacency.value if state.neighbouring else None,
        "unit": state.neighbouring.unit.value if state.neighbouring else None,
        "delta": dataset.delta,
        "epsilon": _epsilon(dataset.epsilon),
        "rdp_for_pld": dataset.rdp_for_pld,
        "remarks": remarks(dataset),
        "releases": dataset.releases,
        "budget": _budget(dataset),
        "budget_changes": [_change(change) for change in dataset.budget_changes],
        "by_client": _lines(dataset.by_client),
        "by_group": _lines(dataset.by_group),
        "by_attribute_change": _lines(dataset.changing),
        "by_channel": _lines(dataset.by_channel),
        "by_run": _lines(dataset.by_run),
        "burn_down": [
            {"at": point.at, "epsilon": json_number(point.epsilon), "left": json_number(point.left)}
            for point in dataset.burn_down
        ],
    }


def _epsilon(epsilon: Epsilon | None) -> dict[str, Any] | None:
    return None if epsilon is None else {"rdp": json_number(epsilon.rdp), "pld": json_number(epsilon.pld)}


def _lines(lines: tuple[Line, ...]) -> dict[str, Any]:
    return {
        line.name: {
            "releases": line.releases,
            "epsilon": _epsilon(line.epsilon),
            **({} if line.delta is None else {"delta": line.delta}),
        }
        for line in lines
    }


def _budget(dataset: DatasetAudit) -> dict[str, Any] | None:
    budget = dataset.state.budget
    if budget is None or dataset.spent is None:
        return None
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "order": budget.order,
        "capacity": budget.capacity,
        "spent": json_number(dataset.spent),
        "left": json_number(dataset.left),
        "exceeded": dataset.exceeded,
        "epsilon_spent": json_number(dataset.filter_epsilon),
    }


def _change(change: BudgetChange) -> dict[str, Any]:
    return {
        "at": change.at,
        "actor": change.actor,
        "reason": change.reason,
        "epsilon": change.budget.epsilon,
        "delta": change.budget.delta,
    }
