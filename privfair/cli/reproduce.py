"""`privfair reproduce`: the paper's experiments, and which of its claims they confirm."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accountant.errors import InputError
from privfair.cli.console import Console, escape, plain_table
from privfair.cli.ledger import JsonOption
from privfair.cli.sweep import print_areas, watched

if TYPE_CHECKING:
    from privfair.sweeps.paper import Experiment
    from privfair.sweeps.sweep import Sweep

_COLOURS = {"confirmed": "green", "not confirmed": "bold red", "undecided": "yellow"}
QUICK_WARNING = (
    "A quick run: fewer values, seeds, rounds and epochs than the full run, some with larger steps. It shows the "
    "shape; its verdicts are not those of the full run."
)


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="synthetic, communities, compas, samples, convergence, heterogeneity, heterogeneity-sizes; beyond the "
            "paper: private, trackers-compas, trackers-adult, trackers-communities, secure-sums, secure-sums-adult, "
            "secure-sums-compas, secure-sums-clients."
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer values, seeds and steps: a few minutes.")] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value for every run, for example federation.local_epochs=10"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Runs of each point. Default: 10, as in the paper; trackers and secure sums: 20.", min=1),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the results; continued if it holds some. Default: results/paper/NAME."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Begin no more runs after so long, and report what there is; thinner, not shorter.", min=0),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes at once. Default: one for each core.", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment of Rychener, Kuhn & Hu (AISTATS 2025) with the paper's settings, and check its claims.

    `private` and `trackers-…` go beyond the paper: the same trade-off at ε = 1, 3, 10 and without privacy, and by what
    is shared for fairness (noisy scores, or sums of features), checked against what we expected.
    Every run is written to results.csv as it finishes (started again, the command continues). Figures follow the
    paper's arrangement; claims.md says for each claim whether the runs confirm it, with numbers and the rule.
    """
    from dataclasses import replace

    from privfair.reports import sweep_files
    from privfair.sweeps.frontiers import areas_of, as_table
    from privfair.sweeps.paper import EXPERIMENTS
    from privfair.sweeps.paper.claims import Evidence
    from privfair.sweeps.sweep import require_no_budget, run_sweep

    if name not in EXPERIMENTS:
        raise InputError("experiment", f"must be one of {', '.join(EXPERIMENTS)}", name)
    experiment = EXPERIMENTS[name]
    if seeds is not None:
        experiment = replace(experiment, seeds=seeds, quick_seeds=seeds)
    wishes = list(overrides or ())
    where = out or Path("results") / "paper" / (f"{name}-quick" if quick else name)
    configuration = {
        "experiment": name,
        "quick": quick,
        "set": sorted(w for w in wishes if not w.startswith("run.engine")),
    }
    own_ledger = experiment.private and not any(wish.startswith("run.ledger") for wish in wishes)
    # seeded runs on public data belong in no user's ledger: they get one beside the results
    aside = [f"run.ledger=sqlite:///{where / 'ledger.sqlite'}"] if own_ledger else []
    if own_ledger:  # the data may have a budget in the usual ledger, which must not be evaded
        usual = experiment.jobs(quick=quick, overrides=wishes)
        require_no_budget(usual[0].config, len(usual))
    started = time.perf_counter()
    with watched(f"reproduce {name}", quiet=as_json, out=where) as watch:
        jobs = experiment.jobs(quick=quick, overrides=[*wishes, *aside])
        limit = math.inf if minutes is None else minutes
        done = run_sweep(jobs, where, configuration=configuration, workers=workers, minutes=limit, **watch.callbacks)
        evidence = Evidence(done.jobs, done.rows, done.histories)
        claims = [
            {"claim": claim.text, "outcome": verdict.outcome, "numbers": verdict.numbers, "how": claim.how}
            for claim, verdict in ((claim, claim.decide(evidence)) for claim in experiment.claims)
        ]
        table = as_table(evidence.points, "accuracy")
        summary = sweep_files.write_summary(table, done.out / "summary.csv", quality="accuracy")
        files = [done.out / "results.csv", summary]
        parquet = sweep_files.write_parquet(done.rows, done.out / "results.parquet")
        files += [parquet] if parquet else []
        files += experiment.draw(evidence, done.out) if evidence.points else []
        about = _about(experiment, done, quick, wishes, seeds, time.perf_counter() - started)
        areas = areas_of(evidence.points, done.rows, "accuracy") if experiment.areas else None
        files += [sweep_files.write_areas(areas, done.out / "areas.csv")] if areas else []
        files.append(sweep_files.write_claims(about, claims, areas, done.out / "claims.md"))
    if as_json:
        answer = {
            **about,
            "claims": claims,
            "hypervolume": areas,
            "points": table,
            "files": [str(path) for path in files],
        }
        print(json.dumps(answer, allow_nan=False, ensure_ascii=False))
    else:
        _print(Console(), about, claims, areas, files)
    if not done.done:
        raise typer.Exit(1)


def _about(
    experiment: Experiment, done: Sweep, quick: bool, wishes: list[str], seeds: int | None, seconds: float
) -> dict[str, Any]:
    options = [*(["--quick"] if quick else []), *([] if seeds is None else [f"--seeds {seeds}"])]
    options += [f"--set {wish}" for wish in wishes]
    return {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "title": experiment.title,
        "source": experiment.source,
        "command": " ".join(["privfair reproduce", experiment.name, *options]),
        "quick": quick,
        "notes": [*([QUICK_WARNING] if quick else []), *experiment.notes],
        "runs": done.counts(),
        "seconds": seconds,
        "failures": [f"{row['series']}, seed {row['seed']}: {row['reason']}" for row in done.failed],
        "out": str(done.out),
    }


def _print(
    console: Console,
    about: dict[str, Any],
    claims: list[dict[str, Any]],
    areas: dict[str, Any] | None,
    files: list[Path],
) -> None:
    runs = about["runs"]
    failed = f", {runs['failed']} failed" if runs["failed"] else ""
    console.print(
        f"[bold]{escape(about['title'])}[/] ({escape(about['source'])}): {runs['done']} of {runs['all']} runs{failed}, "
        f"{math.ceil(about['seconds'])} s."
    )
    table = plain_table("")
    table.add_column("our runs", no_wrap=True)
    table.add_column("claim of the paper, numbers, rule" if about["paper"] else "expectation, numbers, rule")
    for claim in claims:
        outcome = claim["outcome"]
        text = f"{escape(claim['claim'])}\n{escape(claim['numbers'])}\n[dim]{escape(claim['how'])}[/]"
        table.add_row(f"[{_COLOURS[outcome]}]{outcome}[/]", text)
        table.add_section()
    console.print(table)
    if areas is not None:
        print_areas(console, areas)
    for line in (*about["failures"][:5], *about["notes"]):
        console.print(line, style="dim", markup=False)
    for path in files:
        console.print(f"  {path}", markup=False, soft_wrap=True)
