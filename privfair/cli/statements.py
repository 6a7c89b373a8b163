"""The ε of a run's statement beside the ε of the run's rows in the ledger, at the same δ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privfair.cli.books import json_number, shown

if TYPE_CHECKING:
    from accountant.audit import AuditReport
    from accountant.exposure import Epsilon

SAME = 1e-9  # sums in another order


@dataclass(frozen=True)
class Statement:
    """What a statement says of a run; after an audit also what the rows say, and how the two go together."""

    run: str
    ledger: str
    delta: float | None
    rdp: float | None  # None: the statement has no ε
    pld: float | None
    of: str  # "releases" or "plan"
    rows: Epsilon | None = None
    holds: bool = True
    verdict: str = "it is of a run in another ledger."

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rows = None if self.rows is None else {"rdp": json_number(self.rows.rdp), "pld": json_number(self.rows.pld)}
        said = {"rdp": self.rdp, "pld": self.pld}
        return {
            "run": self.run, "delta": self.delta, "epsilon": said, "epsilon_of": self.of, "epsilon_of_rows": rows,
            "holds": self.holds, "verdict": self.verdict,
        }  # fmt: skip

    def beside(self, rows: Epsilon) -> Statement:
        """The statement with the ε of its run's rows, and what follows."""
        if self.rdp is None or self.delta is None:
            return replace(self, rows=rows, verdict="it has no ε.")
        pairs = [(self.rdp, rows.rdp), *([(self.pld, rows.pld)] if None not in (self.pld, rows.pld) else [])]
        said, found = (f"ε = {shown(value)}" for value in pairs[-1])
        method = "PLD" if len(pairs) > 1 else "RDP"
        at = f"{said} at δ = {self.delta:g} by {method}"
        if any(row > claimed * (1 + SAME) for claimed, row in pairs if claimed is not None and row is not None):
            rule = f"it says {at}, and the rows of the run cost {found}: MORE THAN IT SAYS."
            return replace(self, rows=rows, holds=False, verdict=rule)
        if self.of == "plan":
            told = f"{at}, the bound of its plan; what its rows say was released costs {found}. Quote the bound."
        elif all(abs(row - claimed) <= SAME * claimed for claimed, row in pairs if claimed and row is not None):
            told = f"{at}, and the rows of the run give the same."
        else:
            told = f"{at}; the rows of the run give {found}."
        return replace(self, rows=rows, verdict=told)


def read_statements(path: Path) -> list[Statement]:
    """The statements in a JSON file; none if it is no file, or has none."""
    if not path.is_file():
        return []
    return [found for found in _found(json.loads(path.read_text(encoding="utf-8"))) if found is not None]


def _found(value: object) -> list[Statement | None]:
    if isinstance(value, list):
        return [found for item in value for found in _found(item)]
    if not isinstance(value, dict):
        return []
    own = [_statement(value)] if {"epsilon", "delta", "ledger"} <= value.keys() else []
    return own + [found for item in value.values() for found in _found(item)]


def _statement(said: dict[str, Any]) -> Statement | None:
    """The statement, if its fields are what they are in one; anything else has no figure to compare."""
    ledger, epsilon = said["ledger"], said["epsilon"]
    if not isinstance(ledger, dict) or not isinstance(epsilon, dict):
        return None
    run, known, delta = ledger.get("run"), ledger.get("id"), said["delta"]
    if not isinstance(run, str) or not isinstance(known, str) or not _is_number(delta) or not 0 < delta < 1:
        return None
    rdp, pld = (value if _is_number(value) else None for value in (epsilon.get("rdp"), epsilon.get("pld")))
    return Statement(run, known, float(delta), rdp, pld, str(said.get("epsilon_of", "releases")))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def compared(statements: Sequence[Statement], report: AuditReport) -> list[Statement]:
    """Every statement beside the line of its run."""
    lines = {line.name: line for dataset in report.datasets for line in dataset.by_run}
    result = []
    for statement in statements:
        line = lines.get(statement.run)
        if statement.ledger != report.ledger_id:
            result.append(statement)
        elif line is None:
            result.append(replace(statement, holds=False, verdict="its run has no rows in this ledger."))
        elif line.epsilon is None:
            result.append(replace(statement, verdict="its data are a simulation, for which no ε is claimed."))
        else:
            result.append(statement.beside(line.epsilon))
    return result
