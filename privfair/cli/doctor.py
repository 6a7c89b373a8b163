"""`privfair doctor`: what is installed, what works, what is found on this machine.

Every check really uses what it checks. The checks run in another process (this module as a program), because a package
that does not fit the machine may end the process instead of raising.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from privfair.cli.console import Console, plain_table
from privfair.cli.ledger import JsonOption

MARK = "\x1eprivfair-doctor "  # libraries print, too; lines that begin so are ours
REINSTALL = "Install privfair again in a fresh environment: `make demo`, or pip install with constraints.txt."
POSTGRES_SECONDS = "5"
LONGEST_SECONDS, LONGEST_TEXT = 300, 300
PASSWORD = re.compile(r"(://[^:/@\s]*):[^\s]*@")  # in the address of a ledger: people show this output to others


@dataclass(frozen=True)
class Check:
    """Something to try: what it is good for, whether privfair can do without, the remedy, and how it is tried."""

    title: str
    required: bool
    remedy: str
    attempt: Callable[[], Any]


def _training() -> str:
    import torch

    weights = torch.zeros(3, requires_grad=True)
    loss = torch.nn.functional.softplus(-(torch.ones(4, 3) @ weights)).mean()
    loss.backward()
    if weights.grad is None or not bool(torch.isclose(weights.grad, torch.tensor(-0.5)).all()):
        raise RuntimeError(f"a gradient that must be −0.5 is {weights.grad}")
    return "a gradient was computed"


def _dp_sgd() -> str:
    from privfair.clients.opacus_engine import PerExampleGradients

    return f"Opacus' samplers for {len(PerExampleGradients.GRAD_SAMPLERS)} kinds of layers loaded"


def _encryption() -> str:
    import numpy as np

    from privfair.secure_aggregation import MODULI, FixedPoint, aggregators, new_keys

    code = FixedPoint(range=1.0, weight_sum=1.0, contributors=2, modulus=MODULI["bfv"])
    client, server = aggregators("bfv", new_keys("bfv"), fixed_point=code)
    first, second = np.array([0.5, -1.0]), np.array([0.25, 1.0])
    sent = [client.contribute(first, 0.25, client=0), client.contribute(second, 0.75, client=1)]
    total = client.open(server.add(sent, names=["a", "b"]))
    if not np.allclose(total, 0.25 * first + 0.75 * second, atol=2 * code.max_error):
        raise RuntimeError(f"an encrypted sum is wrong: {total}")
    return "two messages were encrypted, added and opened"


def _ledger() -> str:
    from accountant import Budget, Gaussian, Ledger, Spend
    from accountant.audit import audit
    from accountant.ledger.machine_state import not_remembered

    with (
        not_remembered(),
        tempfile.TemporaryDirectory() as folder,
        Ledger(f"sqlite:///{Path(folder) / 'trial.sqlite'}") as ledger,
    ):
        ledger.set_budget("trial", Budget(epsilon=3.0, delta=1e-6))
        ledger.reserve([Spend("trial", Gaussian(noise_scale=10.0), client="north", channel="updates")]).redeem()
        report = audit(ledger, pld=False)
        if not report.fine:
            raise RuntimeError(f"a new ledger does not pass its audit: {report.problems}")
        return f"{report.rows} rows written to a temporary ledger and audited"


def _stacked() -> str:
    import privfair.engines.batched.compiled.training  # noqa: F401  (the compiled steps)

    return "compiled steps loaded (the first sweep compiles them, half a minute)"


def _flower() -> str:
    import privfair.deployment.flower.client_app
    import privfair.deployment.flower.server_app  # noqa: F401

    return "server and client apps loaded"


def _ray() -> str:
    import ray

    return f"Ray {ray.__version__} loaded"


def _parquet() -> str:
    import io
    from importlib import import_module

    import_module("pyarrow")  # before pandas says that it is missing, in many more words
    import pandas as pd

    buffer = io.BytesIO()
    pd.DataFrame({"value": [1.0, 2.0]}).to_parquet(buffer, engine="pyarrow")
    return f"a table of {len(pd.read_parquet(io.BytesIO(buffer.getvalue())))} rows was written and read"


def _postgres() -> str:
    import psycopg

    return f"psycopg {psycopg.__version__} loaded"


def _default_ledger() -> str:
    from accountant.ledger.ledger import Ledger
    from accountant.ledger.storage import LEDGER_VARIABLE, exists, ledger_url

    os.environ.setdefault("PGCONNECT_TIMEOUT", POSTGRES_SECONDS)  # this program's own: a silent server is an answer
    url = ledger_url(None)
    where = f"${LEDGER_VARIABLE}" if os.environ.get(LEDGER_VARIABLE) else "the default"
    if not exists(url):
        return f"{url} ({where}): none yet, the first private run makes it"
    with Ledger(url, create=False) as ledger:
        return f"{ledger.url} ({where}): opens, {ledger.head().sequence} rows"


def _datasets() -> dict[str, Any]:
    from privfair.datasets import describe

    return {
        info.name: {file.name: str(file.found) if file.found else None for file in info.files}
        for info in describe()
        if info.files
    }


def _extra(name: str) -> str:
    return f"Only if you need it: pip install 'privfair[{name}]'"


CHECKS = {
    "training": Check("training (torch)", True, REINSTALL, _training),
    "dp_sgd": Check("private updates (Opacus)", True, REINSTALL, _dp_sgd),
    "encryption": Check("encrypted sums (TenSEAL)", True, REINSTALL, _encryption),
    "ledger": Check("privacy ledger (SQLite)", True, "See that the temporary folder (TMPDIR) is writable.", _ledger),
    "stacked": Check("sweeps (numba)", True, REINSTALL, _stacked),
    "default_ledger": Check(
        "your ledger", True, "Check $PRIVFAIR_LEDGER and the file; `privfair audit` tells more.", _default_ledger
    ),
    "datasets": Check("datasets", True, REINSTALL, _datasets),
    "flower": Check("several machines (Flower)", False, _extra("flower"), _flower),
    "ray": Check("Flower's simulation (Ray)", False, _extra("flower"), _ray),
    "postgres": Check("ledgers in PostgreSQL", False, _extra("postgres"), _postgres),
    "parquet": Check("sweeps as Parquet", False, _extra("parquet"), _parquet),
}


def _answer(**fields: Any) -> None:
    print(f"\n{MARK}{json.dumps(fields)}", flush=True)


def main(names: list[str]) -> None:
    """Try these checks; print one line when each begins and one with its result."""
    for name in names:
        _answer(name=name, begins=True)
        started = time.perf_counter()
        try:
            found, works = CHECKS[name].attempt(), True
        except Exception as error:  # noqa: BLE001  whatever a package raises is the answer
            found, works = PASSWORD.sub(r"\1:***@", f"{type(error).__name__}: {error}"), False
        _answer(name=name, works=works, found=found, seconds=round(time.perf_counter() - started, 2))


@dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    name: str
    required: bool
    works: bool
    found: Any
    remedy: str
    seconds: float | None


def doctor(as_json: JsonOption = False) -> None:
    """Show what is installed and try what privfair needs: training, noise, encryption, ledger, Flower, data.

    Every part is really tried, in another process, and nothing is left behind. The exit code is 1 if a part that
    privfair needs does not work; for missing optional parts the command to install them is shown.
    """
    from privfair.util import installed

    console = Console(stderr=True)
    with console.status("trying …") as status:
        outcomes = diagnose(list(CHECKS), begins=lambda name: status.update(f"trying {CHECKS[name].title} …"))
    healthy = all(outcome.works for outcome in outcomes if outcome.required)
    versions, machine = installed(), about_machine()
    if as_json:
        data = next((outcome.found for outcome in outcomes if outcome.name == "datasets" and outcome.works), None)
        reported = [outcome for outcome in outcomes if outcome.name != "datasets" or not outcome.works]
        parts = {outcome.name: {k: v for k, v in asdict(outcome).items() if k != "name"} for outcome in reported}
        about = {"healthy": healthy, "versions": versions, "machine": machine, "parts": parts, "datasets": data}
        print(json.dumps(about))
    else:
        _print(Console(), outcomes, versions, machine, healthy=healthy)
    if not healthy:
        raise typer.Exit(1)


def about_machine() -> dict[str, Any]:
    """System, usable cores, and memory in gigabytes if the system reports it."""
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
    """The outcome of every check; after one that ends the process, another process continues with the rest."""
    waiting, outcomes = list(names), []
    while waiting:
        reported, crashed = _try(waiting, begins)
        for line in reported:
            found = _short(line["found"])
            outcomes.append(_outcome(line["name"], bool(line["works"]), found, line["seconds"]))
        if len(reported) < len(waiting):
            outcomes.append(_outcome(waiting[len(reported)], False, crashed, None))
        waiting = waiting[len(reported) + 1 :]
    return outcomes


def _outcome(name: str, works: bool, found: Any, seconds: float | None) -> Outcome:
    check = CHECKS[name]
    return Outcome(name, check.required, works, found, "" if works else check.remedy, seconds)


def _try(names: list[str], begins: Callable[[str], None]) -> tuple[list[dict[str, Any]], str]:
    """The answers of one process that tries these checks, and how it ended if some are missing."""
    command = [sys.executable, "-P", "-m", "privfair.cli.doctor", *names]
    reported = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8") as process:
        clock = threading.Timer(LONGEST_SECONDS, process.kill)
        clock.start()
        for text in process.stdout or ():
            if text.startswith(MARK):
                line = json.loads(text.removeprefix(MARK))
                begins(line["name"]) if line.get("begins") else reported.append(line)
        code = process.wait()
        late = not clock.is_alive()
        clock.cancel()
    if late:
        return reported, f"no answer within {LONGEST_SECONDS} seconds"
    return reported, f"it ended the process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _short(found: Any) -> Any:
    """The first line of a long message."""
    if not isinstance(found, str):
        return found
    first = next((line for line in found.splitlines() if line.strip()), found)
    return first if len(first) <= LONGEST_TEXT else first[:LONGEST_TEXT] + "…"


def _print(
    console: Console, outcomes: list[Outcome], versions: dict[str, Any], machine: dict[str, Any], *, healthy: bool
) -> None:
    """Print versions, machine, checks and datasets."""
    console.print(Text(", ".join(f"{name} {found}" for name, found in versions.items() if found)))
    missing = [name for name, found in versions.items() if found is None]
    if missing:
        console.print(Text(f"not installed: {', '.join(missing)}"))
    memory = f", {machine['memory_gb']} GB memory ({machine['free_gb']} free)" if machine["memory_gb"] else ""
    console.print(Text(f"{machine['system']}, {machine['cores']} cores{memory}"))
    table = plain_table()
    table.add_column("part", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for outcome in outcomes:
        if outcome.name == "datasets" and outcome.works:
            continue
        bad = "[red]broken[/]" if outcome.required else "[yellow]not here[/]"
        reported = Text(str(outcome.found)) if outcome.works else Text(f"{outcome.found}\n→ {outcome.remedy}")
        table.add_row(CHECKS[outcome.name].title, "[green]works[/]" if outcome.works else bad, reported)
    console.print(table)
    for outcome in outcomes:
        if outcome.name == "datasets" and outcome.works:
            _print_datasets(console, outcome.found)
    if healthy:
        console.print("[bold green]Everything that privfair needs works.[/]")
    else:
        console.print("[bold red]Something that privfair needs does not work:[/] see what is broken above.")


def _print_datasets(console: Console, datasets: dict[str, dict[str, str | None]]) -> None:
    """Print which datasets are on this machine, and where their files were looked for."""
    here = [name for name, files in datasets.items() if all(files.values())]
    folder = os.environ.get("PRIVFAIR_DATA")
    looked = f"in {folder} (PRIVFAIR_DATA) and the user's cache" if folder else "in the cache; PRIVFAIR_DATA is not set"
    console.print(Text(f"data here: {', '.join(here) or 'none'} (looked {looked})"))
    absent = [name for name in datasets if name not in here]
    if absent:
        console.print(Text(f"not here: {', '.join(absent)} → privfair data fetch {absent[0]}"))


if __name__ == "__main__":
    main(sys.argv[1:])
