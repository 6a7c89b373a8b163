"""`privfair sweep`: accuracy against unfairness over λ, seeds, methods and ε."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accountant.errors import InputError
from privfair.cli.console import Console
from privfair.cli.sweep_tables import print_sweep, watched

if TYPE_CHECKING:
    from privfair.config import Config
    from privfair.sweeps.carrying_out import Sweep

LAMBDAS = "0,0.01,0.1,0.5,1,2,5,10"
QUICK_LAMBDAS, QUICK_SEEDS, QUICK_ROUNDS = "0,0.1,1,10", 2, 10


def sweep(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; every key has a default.")] = None,
    lambdas: Annotated[str | None, typer.Option(help=f"Strengths of the penalty. Default: {LAMBDAS}.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each point, with seeds from run.seed on. Default: 5.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods to compare, separated by commas. Default: the configuration's.")
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option(help="Privacy budgets, for example 1,3,inf; inf: none. Default: the configuration's.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, for example federation.rounds=50")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; one that holds a sweep is continued. Default: new.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes at once. Default: one for each core.", min=1)] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"At most {QUICK_ROUNDS} rounds, {QUICK_SEEDS} seeds, four λ: a first look.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Map the trade-off between accuracy and unfairness: every method at every λ, over several seeds.

    Each finished run is written to results.csv at once. A sweep that was stopped goes on where it was when it is
    started again with the same --out; λ, seeds, methods and ε can be added that way, too. At the end, of all finished
    runs in the folder: a table of means with the Pareto points marked, the frontiers compared by the area they
    dominate, and figures.

    Example: privfair sweep examples/compas.toml --lambdas 0,0.5,2,8 --seeds 10 --methods mmd_fedavg,local_fairness
    """
    from privfair.config import Config
    from privfair.sweeps.carrying_out import carry_out, comparable
    from privfair.sweeps.jobs import Grid, default_epsilon

    wishes = list(overrides or ())
    base = Config.read(config, wishes) if config else Config.build({}, wishes)
    if quick:
        wishes.append(f"federation.rounds={min(base.federation.rounds, QUICK_ROUNDS)}")
        base = Config.read(config, wishes) if config else Config.build({}, wishes)
    grid = Grid(
        strengths=_numbers("--lambdas", lambdas or (QUICK_LAMBDAS if quick else LAMBDAS)),
        seeds=seeds if seeds is not None else (QUICK_SEEDS if quick else 5),
        methods=_words(methods) if methods is not None else (base.federation.method,),
        epsilons=_numbers("--epsilons", epsilons) if epsilons is not None else (default_epsilon(base),),
    )
    where = out or (Path(base.run.out) if base.run.out else _default_directory(base))
    with watched(f"sweep on {base.data.name}", quiet=as_json, out=where) as watch:
        done = carry_out(
            grid.jobs(base), where, configuration=_compared(comparable(base)), workers=workers, **watch.callbacks
        )
        whole = done.whole()
        notion = next((row["notion"] for row in whole.done), base.fairness.notion)  # of one's own: by its own name
        summary = summarise_sweep(whole, base.data.name, notion)
    if as_json:
        print(json.dumps(summary, allow_nan=False, ensure_ascii=False))
    else:
        print_sweep(Console(highlight=False), summary)
    if not done.done:
        raise typer.Exit(1)


def summarise_sweep(done: Sweep, data: str, notion: str) -> dict[str, Any]:
    """Tables, figures and frontiers of a sweep as plain values; writes the files beside results.csv."""
    from privfair.reports import sweep_figures, sweep_files
    from privfair.sweeps.budgets import NOT_COVERED
    from privfair.sweeps.frontiers import areas_of
    from privfair.sweeps.points import as_table, points_of, quality_name, warnings_of

    points, quality = points_of(done.rows), quality_name(done.done)
    table = as_table(points, quality)
    files = {"results": done.out / "results.csv", "summary": done.out / "summary.csv"}
    sweep_files.write_summary(table, files["summary"], quality=quality)
    parquet = sweep_files.write_parquet(done.rows, done.out / "results.parquet")
    files |= {"parquet": parquet} if parquet else {}
    if points:
        names: dict[str, Any] = {"quality": quality, "notion": notion, "title": data}
        files["frontier"] = sweep_figures.frontier_figure(points, done.out / "frontier", **names)[0]
        files["scatter"] = sweep_figures.scatter_figure(points, done.out / "scatter", **names)[0]
    targets = (*(job.epsilon for job in done.jobs), *(row["epsilon_target"] for row in done.rows))
    private = any(not math.isinf(epsilon) for epsilon in targets)
    return {
        "data": data,
        "notion": notion,
        "quality": quality,
        "runs": done.counts(),
        "points": table,
        "warnings": warnings_of(points),
        "hypervolume": areas_of(points, done.rows, quality),
        "failures": [
            {key: _json(row[key]) for key in ("series", "value", "seed", "epsilon_target", "reason")}
            for row in done.failed
        ],
        "privacy": {"private": private, "not_covered": [NOT_COVERED] if private else []},
        "out": str(done.out),
        "files": {name: str(path) for name, path in files.items()},
    }


def _compared(tables: dict[str, Any]) -> dict[str, Any]:
    """The configuration without what the grid varies."""
    varied = {"fairness": ("lambda",), "federation": ("method",), "privacy": ("epsilon",)}
    return {
        section: {key: value for key, value in table.items() if key not in varied.get(section, ())}
        for section, table in tables.items()
    }


def _default_directory(config: Config) -> Path:
    return Path("results") / f"sweep-{config.data.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in _words(text))
    except ValueError:
        raise InputError(name, "must be numbers separated by commas", text, "For example 0,0.1,1.") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _json(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value
