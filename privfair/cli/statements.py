"""Private runs on the terminal: the plan before training, the statement after, and how it compares with the ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from privfair.cli.console import Console, escape, plain_table
from privfair.cli.ledger import json_number, shown

if TYPE_CHECKING:
    from accountant.audit import AuditReport
    from accountant.worst_case import Epsilon

SAME = 1e-9  # relative: sums in another order differ by so much


def print_plan(console: Console, plan: dict[str, Any]) -> None:
    """Print the channels with noise, rates and price, and what to expect of them."""
    table = plain_table("privacy plan")
    for column in ("channel", "noise", "sampling", "ε alone"):
        table.add_column(column, justify="right" if column == "ε alone" else "left")
    for row in plan["channels"]:
        table.add_row(*map(escape, (row["channel"], row["noise"], row["sampling"])), _epsilon(row["epsilon"]))
    console.print(table)
    if plan["choices"]:
        chosen = plain_table("chosen for you (name a key to choose otherwise)")
        for column in ("key", "value", "because"):
            chosen.add_column(column, no_wrap=column == "key", overflow="fold")
        for choice in plan["choices"]:
            value = choice["value"]
            chosen.add_row(
                choice["key"],
                f"{value:.4g}" if isinstance(value, float) else json.dumps(value),
                escape(choice["reason"]),
            )
        console.print(chosen)
    for line in plan["notes"]:
        console.print(line, style="dim", markup=False)


def print_statement(console: Console, privacy: dict[str, Any]) -> None:
    """Print what the run cost, for whom, and what is not covered."""
    if "ledger" not in privacy:
        console.print(privacy["claim"], style="dim", markup=False)
        return
    console.print("privacy", style="bold")
    _print_indented(console, privacy["claim"], "bold" if privacy["private"] else "bold yellow")
    epsilon = privacy["epsilon"]
    _print_indented(
        console,
        f"ε = {_epsilon(epsilon['pld'])} by PLD, {_epsilon(epsilon['rdp'])} by RDP, at δ = {privacy['delta']:g}; "
        f"neighbours: {privacy['neighbours']}.",
    )
    if collusion := privacy.get("collusion"):
        masked = "epsilon_beyond" in collusion
        pooled = collusion["epsilon_beyond" if masked else "server_and_one_client"]
        whom = (
            f"if more than {collusion['colluders']} of the {collusion['n']} data holders collude with the server."
            if masked
            else "against the server with one client, who together can open single vectors."
        )
        _print_indented(console, f"ε = {_epsilon(pooled['pld'])} by PLD, {_epsilon(pooled['rdp'])} by RDP {whom}")
    for line in privacy.get("whole_noise", []):
        _print_indented(console, line)
    planned = privacy.get("epsilon_of_plan", {}).get("pld")
    if privacy["epsilon_of"] == "plan":
        text = "This is the planned upper bound; actual spending depends on the noisy counts, or on who responded."
        _print_indented(console, text)
    elif planned is not None:
        text = f"This is what was released. The plan allowed {shown(planned)} by PLD, with room for a crash."
        _print_indented(console, text)
    _print_indented(
        console,
        "Quote this ε with its δ for this run. privfair audit adds up all runs on the data; privfair budget show "
        "prints what is left.",
        "dim",
    )
    table = plain_table()
    for column in ("ε of", "", "PLD", "RDP"):
        table.add_column(column, justify="right" if column in ("PLD", "RDP") else "left")
    for kind in ("channel", "group", "client"):
        rows = list(privacy[f"by_{kind}"].items())
        for number, (name, value) in enumerate(_shortened(rows)):
            pld = "–" if value["pld"] is None and value["rdp"] is not None else _epsilon(value["pld"])
            table.add_row(kind if number == 0 else "", escape(name), pld, _epsilon(value["rdp"]))
    for attribute, value in privacy["change_of_group"].items():
        table.add_row("changing a person's", escape(attribute), "", _epsilon(value))
    console.print(table)
    _print_indented(console, f"Followed: {privacy['objective']}.")
    _print_indented(console, "Not covered:")
    for line in privacy["not_covered"]:
        _print_indented(console, line, "dim", bullet="· ")
    ledger = privacy["ledger"]
    console.print(
        f"  ledger  {ledger['url']}  ({ledger['rows']} rows of dataset {ledger['dataset']!r}; see privfair audit)",
        markup=False,
        soft_wrap=True,
    )


def _print_indented(console: Console, text: str, style: str = "", bullet: str = "") -> None:
    """Print a paragraph whose lines are all indented, below its bullet if it has one."""
    lines = Text(text, style).wrap(console, console.width - 2 - len(bullet))
    for number, line in enumerate(lines):
        console.print(Text("  " + (bullet if number == 0 else " " * len(bullet)), style) + line)


def _shortened(rows: list[tuple[str, dict[str, Any]]], most: int = 8) -> list[tuple[str, dict[str, Any]]]:
    """All rows, or if there are many those with the largest ε; None is an infinite one."""
    if len(rows) <= most:
        return rows
    largest = sorted(rows, key=lambda row: -math.inf if row[1]["rdp"] is None else -row[1]["rdp"])[: most - 1]
    rest = len(rows) - len(largest)
    return [*largest, (f"… and {rest} more, none larger (privacy.json)", {"pld": 0.0, "rdp": 0.0})]


def _epsilon(value: float | None) -> str:
    return "∞" if value is None else shown(value) if value else ""


@dataclass(frozen=True)
class Statement:
    """What a statement says of a run; after an audit, also what the ledger's rows say and whether they agree."""

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
            reported = f"{at}, the bound of its plan; what its rows say was released costs {found}. Quote the bound."
        elif all(abs(row - claimed) <= SAME * claimed for claimed, row in pairs if claimed and row is not None):
            reported = f"{at}, and the rows of the run give the same."
        else:
            reported = f"{at}; the rows of the run give {found}."
        return replace(self, rows=rows, verdict=reported)


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
