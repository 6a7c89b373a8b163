"""`privfair plan`: what a run would release and its price, before any data are touched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accountant.errors import InputError, require_finite
from privfair.cli.console import Console
from privfair.cli.ledger import JsonOption, json_number, shown
from privfair.cli.statements import print_plan
from privfair.numbers import plural

if TYPE_CHECKING:
    from accountant.calibration import Channel
    from accountant.events import Event
    from privfair.config import Config
    from privfair.runs.planned import PlannedRun, PublicFacts

RecordsOption = Annotated[
    str | None,
    typer.Option(help="Training records of all clients, or of each: 1200,800. They stand for the released counts."),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option(help="Proportions of the groups, for example 70,30; once for each attribute. Default: equal."),
]
CountsOfOption = Annotated[
    Path | None, typer.Option(help="Instead of --records: the folder of a run, for the counts that it released.")
]


def plan(
    config: Annotated[Path, typer.Argument(help="The TOML file of a run.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, for example privacy.epsilon=2")
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Data holders, where the file does not say.")] = None,
    records: RecordsOption = None,
    groups: GroupsOption = None,
    counts_of: CountsOfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what `privfair train` would release, its price, and how often it still fits into the budget.

    Nothing is released, nothing is written, and a table with a declared schema is not opened. The plan depends on what
    the file declares: data.records (the number of records), run.clients or the values of the client column. What is not
    declared is assumed, and the output says so; --clients, --records and --counts-of state it instead. If what is
    declared is right, train prints the same plan; where it releases counts first, its rates follow from these.

    Example: privfair plan run.toml --set privacy.epsilon=1
    """
    with Console(stderr=True, quiet=as_json).status("Planning the run"):
        found = plans_of(config, overrides, clients, records, groups, counts_of)
        first = found.runs[0]
        room = first.room(found.facts.names)
        reports = [_report(run, budgeted=room["budget"] is not None) for run in found.runs]
    target = first.config.privacy.epsilon
    answer = answered(first, target) | {
        "notes": list(found.notes),
        "plans": [
            {"records": int(run.release_plan.records.sum()) if run.counted else None, **report}
            for run, report in zip(found.runs, reports, strict=True)
        ],
        "budget": room,
    }
    if as_json:
        print(json.dumps(answer, ensure_ascii=False, allow_nan=False))
        return
    _print(answer)


def _report(run: PlannedRun, *, budgeted: bool) -> dict[str, Any]:
    from privfair.runs.loop import report_of

    found = report_of(run.spec, run.release_plan, budgeted=budgeted, counted=run.counted)
    if not run.counted:
        found["notes"].append(
            "No size is declared (data.records = N). The price does not depend on it; how many scores are shared, and "
            "what to expect of training with this noise, does."
        )
    return found


def _print(answer: dict[str, Any]) -> None:
    console = Console()
    whom = answer["adjacency"] + ("" if answer["unit"] == "record" else f", unit {answer['unit']}")
    both = answer["epsilon_by"]
    console.print(
        f"[bold]ε = {epsilon_text(both['pld'])} by PLD[/], {epsilon_text(both['rdp'])} by RDP at δ = "
        f"{answer['delta']:g} ({whom}), {answer['plan']}. Nothing was released."
    )
    for note in answer["notes"]:
        console.print(note, style="yellow" if "ASSUMED" in note or "no ε" in note else "dim", markup=False)
    several = len(answer["plans"]) > 1
    for found in answer["plans"]:
        if several:
            console.print(f"\n[bold]With {found['records']:,} training records[/]")
        print_plan(console, found)
    room = answer["budget"]
    console.print(_room(room), style="bold yellow" if room["refused"] else "bold", markup=False)


def _room(room: dict[str, Any]) -> str:
    """How often the run fits, in words."""
    name, budget = room["dataset"], room["budget"]
    if room["refused"]:
        return f"privfair train would refuse this run: {room['refused']}"
    if budget is None:
        return f"{name!r} has no budget in {room['ledger']}: nothing limits how often it may run (privfair budget set)."
    runs, whole = room["runs"], f"of {name!r}, ε = {budget['epsilon']:g} at δ = {budget['delta']:g}"
    if not runs:
        return f"It does not fit into what is left of the budget {whole}: privfair budget show {name}."
    often = "once" if runs == 1 else f"at least {plural(runs, 'time')}" if runs == 1000 else plural(runs, "time")
    return f"It still fits {often} into the budget {whole}."


# ---- What `plan` and `calibrate` share.


@dataclass(frozen=True)
class Plans:
    """The plans of a file, that which costs most first, from these facts; `notes`: what was assumed."""

    runs: list[PlannedRun]
    facts: PublicFacts
    notes: tuple[str, ...]


def plans_of(
    path: Path,
    overrides: list[str] | None,
    clients: int | None,
    records: str | None,
    groups: list[str] | None,
    counts_of: Path | None,
) -> Plans:
    """The plans of the run in this file."""
    from privfair.config import Config
    from privfair.runs.planned import PublicFacts, planned_runs

    config = Config.read(path, overrides or ())
    facts = with_counts(config, PublicFacts.declared(config, clients), records, groups or [], counts_of)
    runs, notes = planned_runs(config, facts)
    return Plans(runs, facts, notes)


def with_counts(
    config: Config, facts: PublicFacts, records: str | None, groups: list[str], counts_of: Path | None
) -> PublicFacts:
    """The facts, with counts if any were given."""
    from privfair.runs.planned import counts_of as released
    from privfair.runs.planned import even_counts

    if records is not None and counts_of is not None:
        raise InputError("--records", "must be left out beside --counts-of", records)
    if groups and records is None:
        raise InputError("--groups", "goes with --records", groups[0])
    if counts_of is not None:
        return replace(facts, counts=released(counts_of))
    if records is None:
        return facts
    cells = facts.planner(config)[0].cells
    whole = [_whole("--records", text) for text in records.split(",")]
    shares = [[_number("--groups", text) for text in given.split(",")] for given in groups]
    return replace(facts, counts=even_counts(cells, facts.clients, whole, shares))


def _whole(option: str, text: str) -> int:
    number = _number(option, text)
    if number != int(number) or not 1 <= number <= 10**12:
        raise InputError(option, "must be whole numbers of at least 1", text)
    return int(number)


def _number(option: str, text: str) -> float:
    try:
        return require_finite(option, float(text))
    except ValueError:
        raise InputError(option, "must be numbers with commas between them", text, "For example 1200,800.") from None


def answered(
    run: PlannedRun, target: float | None, fixed: Sequence[str] = (), *, without_updates: bool = False
) -> dict[str, Any]:
    """The plan as one JSON object; `without_updates`: of the other channels alone."""
    planner, privacy = run.planner, run.config.privacy
    method = privacy.target_method
    by_rdp, by_pld = (run.claim.rdp, run.claim.pld)
    if without_updates:
        by_rdp, by_pld = planner.price(run.channels)
    both = {"rdp": json_number(by_rdp), "pld": json_number(by_pld)}
    return {
        "epsilon": both[method],
        "epsilon_by": both,
        "target": target,
        "delta": privacy.delta,
        "method": method,
        "adjacency": planner.adjacency.value,
        "unit": planner.unit.value,
        "plan": "one phase" if planner.one_phase else "two phases",
        "retries": privacy.retries,
        "without_noise": [] if without_updates else list(planner.without_noise),
        "channels": {channel.name: _facts(run, channel, channel.name in fixed) for channel in run.channels},
        "configuration": None if without_updates else _configuration(run, target),
    }


def _configuration(run: PlannedRun, target: float | None) -> dict[str, Any]:
    """The tables that give a run this very plan: all noise is given, and defaults are left out.

    Whether contributions are masked is named, and what is settled with that.
    """
    from privfair.federated.release_plan import NOISE_KEYS, noise_of

    privacy = {NOISE_KEYS[name]: value for name, value in noise_of(run.release_plan).items()}
    found = getattr(run.claim, run.config.privacy.target_method)
    if target is not None and found <= target:  # a target that the plan misses would be refused
        privacy = {"epsilon": target, **privacy}
    tables = run.config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    config, sums = run.config, ("masks", "colluders", "smallest_cohort")
    tables["privacy"] = {**tables["privacy"], "counts": config.privacy.counts, "epsilon": None, **privacy}
    tables["federation"] = {**tables.get("federation", {}), "learning_rate": config.federation.learning_rate}
    kept = {name: table for name, table in tables.items() if name in ("fairness", "federation", "privacy")}
    kept["aggregation"] = {key: getattr(config.aggregation, key) for key in sums}
    return {name: {k: v for k, v in table.items() if v is not None} for name, table in kept.items()}


def _facts(run: PlannedRun, channel: Channel, fixed: bool) -> dict[str, Any]:
    from accountant.events import Composed, Mechanism
    from privfair.federated.release_plan import noise_of
    from privfair.runs.planned import flat

    channel = flat(channel)
    event = channel.event
    parts = event.events if isinstance(event, Composed) else (event,)
    worst_case = max(parts, key=lambda part: getattr(part, "rate", 1.0), default=event)
    mechanism: Event = getattr(worst_case, "event", worst_case)
    scale, sensitivity = noise_of(run.release_plan).get(channel.name), None
    if scale is not None and isinstance(mechanism, Mechanism):  # its own numbers may be in steps of a grid
        sensitivity = mechanism.sensitivity * scale / mechanism.noise_scale
    by_rdp, by_pld = run.planner.price([channel])
    return {
        "mechanism": mechanism.kind,
        "releases": channel.count * max(1, len(parts)),
        "rate": getattr(worst_case, "rate", 1.0),
        "noise_scale": scale,
        "sensitivity": sensitivity,
        "fixed": fixed,
        "epsilon_alone": json_number(by_pld if run.config.privacy.target_method == "pld" else by_rdp),
        "event": event.to_json(),
    }


def epsilon_text(value: float | str | None) -> str:
    """An ε for people."""
    return shown(None if value is None else float(value))
