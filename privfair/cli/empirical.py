"""`privfair audit --empirical`: attack the real pipeline, and hold what was seen against what is claimed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from privfair.cli.books import shown
from privfair.cli.console import Console, escape

if TYPE_CHECKING:
    from privfair.empirical.findings import Finding, Findings


def empirical_audit(
    path: Path,
    channels: Sequence[str] = (),
    *,
    trials: int = 2000,
    minutes: float = 5.0,
    ledger: str | None = None,
    figure: Path | None = None,
    as_json: bool = False,
) -> None:
    """Print the measured lower bound on ε beside the claimed upper bound; exit code 1 if it exceeds it."""
    import torch

    from privfair.empirical.audit import Effort, audit
    from privfair.empirical.subject import prepare, read

    effort = Effort(trials, minutes)
    config, terms = read(path)
    if ledger is not None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"ledger": ledger})})
    torch.set_num_threads(1)  # small tensors are faster without threads
    with tempfile.TemporaryDirectory(prefix="privfair-audit-") as folder:
        subject = prepare(config, Path(folder), terms)
        if as_json:
            found = audit(subject, effort, channels)
            print(json.dumps(found.to_json(), ensure_ascii=False, allow_nan=False))
        else:
            with _progress() as progress:
                tasks: dict[str, object] = {}

                def report(channel: str, done: int, total: int) -> None:
                    if channel not in tasks:
                        tasks[channel] = progress.add_task(channel, total=total)
                    progress.update(tasks[channel], completed=done)  # type: ignore[arg-type]

                found = audit(subject, effort, channels, report)
            print_findings(Console(highlight=False), found)
    if figure is not None:
        from privfair.cli.empirical_figure import write_findings

        write_findings(found, figure)
    if not found.fine:
        raise typer.Exit(1)


def print_findings(console: Console, found: Findings) -> None:
    """The findings as a table, the sentence about membership, the verdict, and what it does not show."""
    console.print(
        f"[bold]Empirical audit[/]   δ = {found.delta:g}, neighbours: {found.adjacency}; all lower bounds together at "
        f"{100 * found.confidence:g}% confidence",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("attack", no_wrap=True)
    table.add_column("seen by", no_wrap=True)
    for name in ("ε ≥", "ε claimed", "right\nof 100", "allowed", "trials", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.findings:
        table.add_row(*_row(one))
    table.add_section()
    table.add_row("[bold]whole plan[/]", "", f"[bold]{_down(found.lower)}[/]", f"[bold]{shown(found.planned)}[/]")
    if found.collusion is not None:
        table.add_row("", "server and client", _down(found.collusion[0]), shown(found.collusion[1]))
    console.print(table)
    for name, reason in found.skipped:
        console.print(f"{escape(name)}: {escape(reason)}", style="dim", soft_wrap=True)
    console.print(f"[bold]{escape(found.sentence)}[/]", soft_wrap=True)
    console.print(f"[bold {'green' if found.fine else 'red'}]{escape(found.verdict)}[/]", soft_wrap=True)
    from privfair.empirical.findings import NOT_SHOWN

    for line in (
        "White-box: every message of the client, and the models between. Black-box: the final model alone.",
        "The larger of two bounds is told: one rests on nothing, one on the stated law of the noise (--json has both).",
        *NOT_SHOWN,
    ):
        console.print(f"• {line}", style="dim", soft_wrap=True)


def _row(one: Finding) -> list[str]:
    lower = f"[bold red]{_down(one.lower)}[/]" if one.contradicts else _down(one.lower)
    right, allowed = f"{100 * one.accuracy:.0f}", f"{100 * one.allowed_accuracy:.0f}"
    trials = f"{one.trials:,}" if one.channel != "canaries" else f"{one.trials:,} runs"
    return [
        escape(one.channel),
        escape(one.adversary),
        lower,
        shown(one.upper),
        right,
        allowed,
        trials,
        f"{one.seconds:.0f}",
    ]


def _down(value: float) -> str:
    """A lower bound for people, never rounded up."""
    return f"{int(value * 1000) / 1000:.3f}"


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
