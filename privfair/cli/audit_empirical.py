"""`privfair audit --empirical`: attack the real pipeline and compare what the attacks saw with what is claimed."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from accountant.errors import InputError
from privfair.cli.audit import COLOURS
from privfair.cli.console import Console, escape
from privfair.cli.ledger import shown

if TYPE_CHECKING:
    from privfair.audit.findings import Finding, Findings

VERDICT_COLOURS = {"consistent": "green", "inconclusive": "yellow", "violated": "red"}


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
    """Print what the attacks saw beside what is claimed; exit code 1 if, and only if, a claim is violated."""
    import torch

    from privfair.audit.attack import prepare, read
    from privfair.audit.audit import Effort, audit

    effort = Effort(trials, minutes)
    config, release_plan = read(path)
    if ledger is not None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"ledger": ledger})})
    torch.set_num_threads(1)  # small tensors are faster without threads
    with tempfile.TemporaryDirectory(prefix="privfair-audit-") as folder:
        subject = prepare(config, Path(folder), release_plan)
        if as_json:
            found = audit(subject, effort, channels)
            print(json.dumps(found.to_json(), ensure_ascii=False, allow_nan=False))
        else:
            Console(stderr=True).print(
                f"Attacking for about {minutes:g} minutes (--minutes); longer only where the fewest trials need more.",
                style="dim",
                soft_wrap=True,
            )
            with _progress() as progress:
                tasks: dict[str, object] = {}

                def report(channel: str, done: int, total: int) -> None:
                    if channel not in tasks:
                        tasks[channel] = progress.add_task(channel, total=total)
                    progress.update(tasks[channel], completed=done)  # type: ignore[arg-type]

                found = audit(subject, effort, channels, report)
            print_findings(Console(), found)
    if figure is not None:
        write_findings(found, figure)
    if not found.fine:
        raise typer.Exit(1)


def print_findings(console: Console, found: Findings) -> None:
    """The findings as a table, the sentence about membership, the verdict, and what it does not show."""
    console.print(
        f"[bold]Empirical audit[/]   δ = {found.delta:g}, neighbours: {found.adjacency}; a false alarm has a "
        f"probability of at most {1 - found.confidence:.2g}, all tests together",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # as narrow as a terminal
    table.add_column("attack", no_wrap=True)
    table.add_column("seen by", no_wrap=True)
    for name in ("ε ≥", "claimed", "right\nof 100", "allowed", "p", "trials"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for one in found.findings:
        table.add_row(*_row(one))
    table.add_row()
    table.add_row("[bold]whole plan[/]", "", f"[bold]{_down(found.lower)}[/]", f"[bold]{shown(found.planned)}[/]")
    if found.collusion is not None:
        pooled = next(one.adversary for one in found.findings if one.pooled is not None)
        table.add_row("", pooled, _down(found.collusion[0]), shown(found.collusion[1]))
    console.print(table)
    clients = max((one.clients for one in found.findings), default=1)
    if clients > 1:
        console.print(
            f"{clients} clients were attacked in every trial but those of canaries, run and holder, each by itself and "
            "all together.",
            style="dim",
            soft_wrap=True,
        )
    for name, reason in found.skipped:
        console.print(f"{escape(name)}: {escape(reason)}", style="dim", soft_wrap=True)
    console.print(f"[bold]{escape(found.sentence)}[/]", soft_wrap=True)
    console.print(f"[bold {VERDICT_COLOURS[found.outcome]}]{escape(found.verdict)}[/]", soft_wrap=True)
    from privfair.audit.findings import COLLUDERS, NOT_SHOWN, SHARED_NOISE

    masked = any(one.adversary == COLLUDERS for one in found.findings)
    for line in (
        "White-box: every message of the client, and the models between. Black-box: the final model alone.",
        *((SHARED_NOISE,) if masked else ()),
        "p: how likely such guesses are at most if the claim holds. Violated: p is below this attack's part of the "
        "false alarms, or ε ≥ exceeds the claim. Inconclusive: right more often than allowed; chance can explain it.",
        "Trials: of either dataset together, times the clients that are attacked in each.",
        "ε ≥: the larger of two bounds; one rests on nothing, one on the stated law of the noise (--json has both).",
        *NOT_SHOWN,
    ):
        console.print(f"• {line}", style="dim", soft_wrap=True)


def _row(one: Finding) -> list[str]:
    colour = VERDICT_COLOURS[one.verdict]
    trials = f"{one.trials:,}" if one.clients == 1 else f"{one.trials:,}×{one.clients}"
    if one.channel == "canaries":
        trials = f"{one.trials} runs"
    return [
        *(escape(one.channel), escape(one.adversary), _down(one.lower), shown(one.upper)),
        *(f"{100 * one.accuracy:.1f}", f"{100 * one.allowed_accuracy:.1f}", _chance(one.p_value)),
        *(trials, f"[{colour}]{one.verdict}[/]"),
    ]


def _chance(p_value: float) -> str:
    """A p-value for people, never rounded down to nothing."""
    return f"{p_value:.2f}" if p_value >= 0.01 else f"{p_value:.0e}" if p_value >= 1e-9 else "<1e-9"


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


def write_findings(found: Findings, path: Path) -> None:
    """Write the figure: left, what ε is at least of what is claimed; right, right guesses, of a coin and at most."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not found.findings:
        raise InputError("figure", "needs an attack to draw", "none", "Every channel was skipped.")
    figure = Figure(figsize=(10, 1.6 + 0.45 * len(found.findings)), layout="constrained")
    FigureCanvasAgg(figure)
    epsilon, right = figure.subplots(1, 2, sharey=True)
    for place, one in enumerate(found.findings):
        colour = COLOURS[1] if one.verdict == "violated" else COLOURS[0]
        if math.isfinite(one.upper):
            epsilon.barh(place, one.upper, color="0.88")
        epsilon.barh(place, one.lower, height=0.4, color=colour)
        right.barh(place, 100 * one.allowed_accuracy - 50, left=50, color="0.88")
        error = 200 * math.sqrt(one.accuracy * (1 - one.accuracy) / one.guesses)
        right.errorbar(100 * one.accuracy, place, xerr=error, fmt="o", color=colour, capsize=3)
    epsilon.set(title="ε at least, as measured (grey: claimed)", xlabel=f"ε at δ = {found.delta:g}")
    right.set(title="right guesses of 100", xlabel="grey: the claim allows; bars: ± 2 standard errors", xlim=(48, 101))
    epsilon.set_yticks(range(len(found.findings)), [f"{one.channel}, {one.adversary}" for one in found.findings])
    epsilon.invert_yaxis()
    for axes in (epsilon, right):
        axes.spines[["top", "right"]].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError("figure", "must be a file that can be written", str(path), str(error)) from None
