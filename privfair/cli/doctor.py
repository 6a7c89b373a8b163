"""`privfair doctor`: what is installed, what works, what is found on this machine."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from privfair.cli.books import JsonOption
from privfair.cli.console import Console
from privfair.cli.doctor_checks import CHECKS, MARK
from privfair.versions import installed

LONGEST_SECONDS = 300
LONGEST_TEXT = 300


@dataclass(frozen=True)
class Outcome:
    """What came of a check."""

    name: str
    required: bool
    works: bool
    found: Any
    remedy: str
    seconds: float | None


def doctor(as_json: JsonOption = False) -> None:
    """Tell what is installed and try what privfair needs: training, noise, encryption, ledger, Flower, data.

    Every part is really tried, in another process, and nothing is left behind. The exit code is 1 if a part does
    not work that privfair needs; optional parts that are missing are told with how to get them.
    """
    console = Console(stderr=True)
    with console.status("trying …") as status:
        outcomes = diagnose(list(CHECKS), begins=lambda name: status.update(f"trying {CHECKS[name].title} …"))
    healthy = all(outcome.works for outcome in outcomes if outcome.required)
    versions, machine = installed(), about_machine()
    if as_json:
        data = next((outcome.found for outcome in outcomes if outcome.name == "datasets" and outcome.works), None)
        told = [outcome for outcome in outcomes if outcome.name != "datasets" or not outcome.works]
        parts = {outcome.name: {k: v for k, v in asdict(outcome).items() if k != "name"} for outcome in told}
        about = {"healthy": healthy, "versions": versions, "machine": machine, "parts": parts, "datasets": data}
        print(json.dumps(about))
    else:
        _print(Console(highlight=False), outcomes, versions, machine, healthy=healthy)
    if not healthy:
        raise typer.Exit(1)


def about_machine() -> dict[str, Any]:
    """System, cores that may be used, and memory in gigabytes where the system tells it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        pages, free, size = (os.sysconf(f"SC_{name}") for name in ("PHYS_PAGES", "AVPHYS_PAGES", "PAGE_SIZE"))
        memory: dict[str, float | None] = {
            "memory_gb": round(pages * size / 1e9, 1),
            "free_gb": round(free * size / 1e9, 1),
        }
    except (ValueError, OSError, AttributeError):
        memory = {"memory_gb": None, "free_gb": None}
    return {"system": f"{platform.system()} {platform.machine()}", "cores": cores, **memory}


def diagnose(names: list[str], *, begins: Callable[[str], None] = lambda name: None) -> list[Outcome]:
    """The outcome of every check; one that ends the trying process is told as such, and the others go on after it."""
    waiting, outcomes = list(names), []
    while waiting:
        told, crashed = _try(waiting, begins)
        for line in told:
            found = _short(line["found"])
            outcomes.append(_outcome(line["name"], bool(line["works"]), found, line["seconds"]))
        if len(told) < len(waiting):
            outcomes.append(_outcome(waiting[len(told)], False, crashed, None))
        waiting = waiting[len(told) + 1 :]
    return outcomes


def _outcome(name: str, works: bool, found: Any, seconds: float | None) -> Outcome:
    check = CHECKS[name]
    return Outcome(name, check.required, works, found, "" if works else check.remedy, seconds)


def _try(names: list[str], begins: Callable[[str], None]) -> tuple[list[dict[str, Any]], str]:
    """The answers of one process that tries these checks, and how it ended if there are fewer."""
    command = [sys.executable, "-P", "-m", "privfair.cli.doctor_checks", *names]
    told = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8") as process:
        clock = threading.Timer(LONGEST_SECONDS, process.kill)
        clock.start()
        for text in process.stdout or ():
            if text.startswith(MARK):
                line = json.loads(text.removeprefix(MARK))
                begins(line["name"]) if line.get("begins") else told.append(line)
        code = process.wait()
        late = not clock.is_alive()
        clock.cancel()
    if late:
        return told, f"no answer within {LONGEST_SECONDS} seconds"
    return told, f"it ended the process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _short(found: Any) -> Any:
    """The first line of a long message."""
    if not isinstance(found, str):
        return found
    first = next((line for line in found.splitlines() if line.strip()), found)
    return first if len(first) <= LONGEST_TEXT else first[:LONGEST_TEXT] + "…"


def _print(
    console: Console, outcomes: list[Outcome], versions: dict[str, Any], machine: dict[str, Any], *, healthy: bool
) -> None:
    """Everything for a reader."""
    console.print(Text(", ".join(f"{name} {found}" for name, found in versions.items() if found)))
    missing = [name for name, found in versions.items() if found is None]
    if missing:
        console.print(Text(f"not installed: {', '.join(missing)}"))
    memory = f", {machine['memory_gb']} GB memory ({machine['free_gb']} free)" if machine["memory_gb"] else ""
    console.print(Text(f"{machine['system']}, {machine['cores']} cores{memory}"))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for outcome in outcomes:
        if outcome.name == "datasets" and outcome.works:
            continue
        bad = "[red]broken[/]" if outcome.required else "[yellow]not here[/]"
        told = Text(str(outcome.found)) if outcome.works else Text(f"{outcome.found}\n→ {outcome.remedy}")
        table.add_row(CHECKS[outcome.name].title, "[green]works[/]" if outcome.works else bad, told)
    console.print(table)
    for outcome in outcomes:
        if outcome.name == "datasets" and outcome.works:
            _print_datasets(console, outcome.found)
    if healthy:
        console.print("[bold green]Everything that privfair needs works.[/]")
    else:
        console.print("[bold red]Something that privfair needs does not work:[/] see what is broken above.")


def _print_datasets(console: Console, datasets: dict[str, dict[str, str | None]]) -> None:
    """Which datasets' files are on this machine, and where they are looked for."""
    here = [name for name, files in datasets.items() if all(files.values())]
    folder = os.environ.get("PRIVFAIR_DATA")
    looked = f"in {folder} (PRIVFAIR_DATA) and the user's cache" if folder else "in the cache; PRIVFAIR_DATA is not set"
    console.print(Text(f"data here: {', '.join(here) or 'none'} (looked {looked})"))
    absent = [name for name in datasets if name not in here]
    if absent:
        console.print(Text(f"not here: {', '.join(absent)} → privfair data fetch {absent[0]}"))
