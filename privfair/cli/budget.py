"""`privfair budget`: lifetime budgets of datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from accountant.errors import InputError
from privfair.cli.console import Console, escape
from privfair.cli.ledger import JsonOption, KeyOption, LedgerOption, json_number, load_key, open_ledger, percent, shown
from privfair.run_names import require_whole_noise

if TYPE_CHECKING:
    from accountant.budget import Budget
    from accountant.ledger.datasets import DatasetState
    from accountant.ledger.ledger import Ledger
    from accountant.ledger.signing import OwnerKey

app = typer.Typer(no_args_is_help=True, help="Lifetime budgets of datasets: set and show them.")


@app.command("set")
def set_budget(
    name: Annotated[str, typer.Argument(help="The dataset.")],
    epsilon: Annotated[float, typer.Option(help="ε for the dataset's whole life.")],
    delta: Annotated[float, typer.Option(help="δ; far below one over the number of records.")],
    ledger: LedgerOption = None,
    adjacency: Annotated[
        str | None, typer.Option(help="add-or-remove or replace-one; settled by the first budget or release.")
    ] = None,
    unit: Annotated[str | None, typer.Option(help="What is protected: record or client.")] = None,
    people: Annotated[
        int | None, typer.Option(help="The released number of records, if any; δ must be below 1/people.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The CSV file: binds the budget to this data (needs --key).")
    ] = None,
    delimiter: Annotated[str, typer.Option(help="What separates the values of the CSV file.")] = ",",
    encoding: Annotated[str, typer.Option(help="How the CSV file's text is encoded.")] = "utf-8",
    changed: Annotated[
        bool, typer.Option("--changed", help="The data behind this name changed; what was spent stays spent.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; written into the ledger.")] = "",
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set or change a dataset's budget. Everything it ever released counts.

    Once something was released the budget's Rényi order stays, and later budgets change the size only. Every change
    is a row of the ledger: who, when and why.

    Example: privfair budget set patients --epsilon 3 --delta 1e-6 --reason "ethics board, 12 May"
    """
    from accountant.budget import Budget
    from accountant.events import as_adjacency, as_unit
    from accountant.spending import require_name, require_text

    owner = load_key(key)
    # Before a new ledger is made for a budget that cannot be.
    Budget(epsilon, delta, as_adjacency(adjacency or "add-or-remove"), as_unit(unit or "record"), people)
    require_name("dataset", name)
    require_text("reason", reason, empty=True)
    fingerprint = _fingerprint(data, owner, delimiter, encoding)
    with _open_to_write(ledger, owner, binds=data is not None) as opened:
        before = opened.dataset(name)
        known = before.neighbouring
        budget = Budget(
            epsilon,
            delta,
            adjacency=as_adjacency(adjacency or (known.adjacency if known else "add-or-remove")),
            unit=as_unit(unit or (known.unit if known else "record")),
            people=people,
        )
        if fingerprint:
            opened.register(name, fingerprint=fingerprint, renew=changed)
        require_whole_noise(name, opened.runs(name))
        opened.set_budget(name, budget, reason=reason)
        _note_others(opened, name, fingerprint)
        _print(opened, [opened.dataset(name)], as_json, single=True)


@app.command("show")
def show(
    name: Annotated[str | None, typer.Argument(help="One dataset; left out, all of them.")] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show budgets, the ε spent and what is left of them. Exit code 1 when one is exceeded.

    Example: privfair budget show
    """
    with open_ledger(ledger) as opened:
        states = [state for state in opened.datasets() if name in (None, state.name)]
        if name is not None and not states:
            known = ", ".join(state.name for state in opened.datasets()) or "none"
            raise InputError("dataset", "must be in the ledger", name, f"It knows: {known}.")
        fine = _print(opened, states, as_json, single=name is not None)
    if not fine:
        raise typer.Exit(1)


@app.command("new-key")
def new_key(
    path: Annotated[Path, typer.Argument(help="Where to write the key; must not exist.")],
    as_json: JsonOption = False,
) -> None:
    """Make an owner's key, for signing a new ledger's rows and for fingerprints of data.

    Keep it away from those who could change the ledger: whoever has it can also sign.

    Example: privfair budget new-key owner.key
    """
    from accountant.ledger.signing import OwnerKey

    key = OwnerKey.create(path)
    if as_json:
        print(json.dumps({"key": str(path), "key_id": key.key_id}))
    else:
        Console(highlight=False).print(f"Key {key.key_id} written to {escape(str(path))} (mode 600).")


def _open_to_write(url: str | None, owner: OwnerKey | None, *, binds: bool) -> Ledger:
    """The ledger with the key, if it is signed (or new); without, if it was created without one.

    binds: the key is for a fingerprint too. It then has a use in a ledger without signatures.
    """
    opened = open_ledger(url, owner, create=True)
    if owner is None or opened.signed_by:
        return opened
    where = opened.url
    opened.close()
    if not binds:
        remedy = f"Nothing was set. {_SIGNED_FROM_THE_START} To go on without signatures, leave out --key."
        raise InputError("--key", "can only sign a ledger that was created with a key", where, remedy)
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"[yellow]note:[/] {escape(where)} was created without a key: --key binds the data, but no row is signed. "
        f"{_SIGNED_FROM_THE_START}"
    )
    return open_ledger(url)


def _note_others(opened: Ledger, name: str, fingerprint: str) -> None:
    """Say where else these data have a budget: nobody adds the two up."""
    from accountant.ledger.machine_state import State

    others = [known.url for known in State().budgets(name, fingerprint) if known.ledger_id != opened.ledger_id]
    if others:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[yellow]note:[/] on this machine data of this name also have a budget in {escape(', '.join(others))}: if "
            "they are the same data, what both allow adds up."
        )


_SIGNED_FROM_THE_START = (
    "A ledger is signed from its first row on. If nothing was released yet, set the budget in a new one (--ledger "
    "sqlite:///NEW-FILE --key KEY); otherwise that would forget what was spent (Ledger.record_past carries it over)."
)


def _fingerprint(data: Path | None, owner: OwnerKey | None, delimiter: str, encoding: str) -> str:
    """The data's fingerprint; "" when none was given."""
    from accountant.ledger.signing import fingerprint_csv

    if data is None:
        return ""
    if owner is None:
        raise InputError("--key", "must be given with --data", None, "Make one: privfair budget new-key owner.key")
    return fingerprint_csv(data, owner, delimiter=delimiter, encoding=encoding)


def _print(opened: Ledger, states: list[DatasetState], as_json: bool, *, single: bool) -> bool:
    """Print the budgets; False when one is exceeded."""
    found = {state.name: _facts(opened, state) for state in states}
    if as_json:
        one = {"dataset": states[0].name, **found[states[0].name]} if single else {"datasets": found}
        print(json.dumps({"ledger": opened.url, **one}, ensure_ascii=False, allow_nan=False))
    else:
        _print_table(opened, states, found)
    return not any(facts["budget"] and facts["budget"]["exceeded"] for facts in found.values())


def _facts(opened: Ledger, state: DatasetState) -> dict[str, Any]:
    from accountant.audit import budget_left
    from accountant.spending import worst_record

    budget = state.budget
    facts: dict[str, Any] = {
        "simulation": state.simulation,
        "fingerprint": state.fingerprint or None,
        "adjacency": state.neighbouring.adjacency.value if state.neighbouring else None,
        "unit": state.neighbouring.unit.value if state.neighbouring else None,
        "budget": None,
    }
    if budget is not None:
        spent, client, groups = worst_record(opened.spent(state.name))
        left, room = budget_left(budget, spent), budget.remaining(spent)
        facts["budget"] = {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "order": budget.order,
            "capacity": budget.capacity,
            "spent": json_number(spent),
            "left": json_number(left),
            "exceeded": spent > budget.capacity,
            "epsilon_spent": json_number(budget.epsilon_at(spent)),
            "epsilon_spent_is": _SPENT,
            "epsilon_fits": {"gaussian": room.gaussian, "pure": room.pure},
            "worst_client": client,
            "worst_groups": list(groups),
        }
    return facts


def _print_table(opened: Ledger, states: list[DatasetState], found: dict[str, dict[str, Any]]) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{escape(opened.url)}[/]", soft_wrap=True)
    if not states:
        console.print("No dataset has a budget or has spent anything.")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("dataset", "protects", "ε", "ε spent", "δ", "order", "left", "bound to"):
        number = column in ("ε", "ε spent", "δ", "order")
        table.add_column(column, justify="right" if number or column == "left" else "left", no_wrap=number)
    for state in states:
        budget, facts = state.budget, found[state.name]["budget"]
        protects = str(state.neighbouring) if state.neighbouring else "–"
        if budget is None:
            what = "simulation, no ε claims" if state.simulation else "no budget"
            table.add_row(escape(state.name), protects, "–", "–", "–", "–", "–", f"[dim]{what}[/]")
            continue
        bound = (
            f"data {state.fingerprint.rpartition('-')[2][:12]}…" if state.fingerprint else "[yellow]the name only[/]"
        )
        order, size, spent = f"{budget.order:.4g}", f"{budget.epsilon:g}", shown(float(facts["epsilon_spent"]))
        left = f"[bold red]{_exceeded(float(facts['left']))}[/]"
        if not facts["exceeded"]:
            left = f"[bold green]{percent(float(facts['left']))}[/]"
        table.add_row(escape(state.name), protects, size, spent, f"{budget.delta:g}", order, left, bound)
    console.print(table)
    for state in states:
        if state.budget is not None:
            console.print(f"{escape(state.name)}: {_what_fits(state.budget, found[state.name]['budget'])}")
    if any(state.budget is not None for state in states):
        console.print(_SPENT, style="dim")


_SPENT = (
    "ε spent: what all releases so far stand for together, at the budget's δ, by a Rényi filter of one fixed order. It "
    "holds also where runs were chosen after a look at earlier ones, so at one δ it is never below what privfair audit "
    "adds up (RDP). It is not the ε of one run: that is in the run's statement (privacy.json). The first release "
    "takes it to what the order costs by itself; from there on it grows as the share left falls."
)


def _exceeded(left: float) -> str:
    """How far below nothing it is: "exceeded by 134.0%"."""
    return f"exceeded by {percent(left).lstrip('-')}" if left >= -10 else "exceeded by more than 1000%"


def _what_fits(budget: Budget, facts: dict[str, Any]) -> str:
    """The budget in a sentence."""
    from accountant.budget import rounded_down

    reported = f"ε = {shown(float(facts['epsilon_spent']))} of {budget.epsilon:g} is spent"
    if facts["exceeded"]:
        return f"[bold red]{reported}: the budget is exceeded.[/] Nothing more fits."
    fits = facts["epsilon_fits"]
    if not fits["pure"]:
        return f"{reported}. Nothing more fits."
    reported += f". What certainly still fits: ε of at most {rounded_down(fits['pure'])} with δ = 0"
    if fits["gaussian"]:
        most = rounded_down(fits["gaussian"])
        reported += f", or ε of at most {most} at δ = {budget.delta:g} by Gaussian noise on all records"
    return f"{reported}."
