"""What the terminal shows of a private run: its plan before training, its statement after."""

from __future__ import annotations

import math
from typing import Any

from rich import box
from rich.table import Table

from privfair.cli.books import shown
from privfair.cli.console import Console, escape


def print_plan(console: Console, plan: dict[str, Any]) -> None:
    """The channels with their noise, rates and price, and what to expect of them."""
    table = _table("privacy plan")
    for column in ("channel", "noise", "sampling", "ε alone"):
        table.add_column(column, justify="right" if column == "ε alone" else "left")
    for row in plan["channels"]:
        table.add_row(*map(escape, (row["channel"], row["noise"], row["sampling"])), _epsilon(row["epsilon"]))
    console.print(table)
    for line in plan["notes"]:
        console.print(line, style="dim", markup=False)


def print_statement(console: Console, privacy: dict[str, Any]) -> None:
    """What the run cost, whom, and what is not covered."""
    if "ledger" not in privacy:
        console.print(privacy["claim"], style="dim", markup=False)
        return
    style = "bold" if privacy["private"] else "bold yellow"
    console.print("privacy", style="bold")
    console.print(f"  {privacy['claim']}", style=style, markup=False)
    epsilon = privacy["epsilon"]
    console.print(
        f"  ε = {_epsilon(epsilon['pld'])} by PLD, {_epsilon(epsilon['rdp'])} by RDP, at δ = {privacy['delta']:g}; "
        f"neighbours: {privacy['neighbours']}.",
        markup=False,
    )
    if privacy.get("collusion"):
        pooled = privacy["collusion"]["server_and_one_client"]
        console.print(
            f"  ε = {_epsilon(pooled['pld'])} by PLD, {_epsilon(pooled['rdp'])} by RDP against the server with one "
            "client, who together can open single vectors.",
            markup=False,
        )
    planned = privacy.get("epsilon_of_plan", {}).get("pld")
    if privacy["epsilon_of"] == "plan":
        told = (
            "It is the plan's, which bounds whatever was released: that depends on released counts, or on who answered."
        )
        console.print(f"  {told}", markup=False)
    elif planned is not None:
        told = f"It is of what was released. The plan allowed {shown(planned)} by PLD, with room for a crash."
        console.print(f"  {told}", markup=False)
    console.print(
        "  Quote this ε with its δ for this run; privfair audit adds up all runs on the data, and privfair budget show "
        "tells what is left.",
        style="dim",
        markup=False,
    )
    table = _table("")
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
    console.print(f"  Followed: {privacy['objective']}.", markup=False)
    console.print("  Not covered:", markup=False)
    for line in privacy["not_covered"]:
        console.print(f"  · {line}", style="dim", markup=False)
    ledger = privacy["ledger"]
    console.print(
        f"  ledger  {ledger['url']}  ({ledger['rows']} rows of dataset {ledger['dataset']!r}; see privfair audit)",
        markup=False,
        soft_wrap=True,
    )


def _shortened(rows: list[tuple[str, dict[str, Any]]], most: int = 8) -> list[tuple[str, dict[str, Any]]]:
    """All rows, or of many those with the largest ε; None is an infinite one."""
    if len(rows) <= most:
        return rows
    largest = sorted(rows, key=lambda row: -math.inf if row[1]["rdp"] is None else -row[1]["rdp"])[: most - 1]
    rest = len(rows) - len(largest)
    return [*largest, (f"… and {rest} more, none larger (privacy.json)", {"pld": 0.0, "rdp": 0.0})]


def _epsilon(value: float | None) -> str:
    return "∞" if value is None else shown(value) if value else ""


def _table(title: str) -> Table:
    return Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
