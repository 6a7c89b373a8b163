"""`privfair sweep`: accuracy against unfairness over λ, seeds, methods and ε, with a progress bar and tables."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from accountant.errors import InputError
from privfair.cli.console import Console, escape, plain_table, reporting
from privfair.cli.ledger import JsonOption

if TYPE_CHECKING:
    from privfair.config import Config
    from privfair.sweeps.sweep import Sweep

LAMBDAS = "0,0.01,0.1,0.5,1,2,5,10"
QUICK_LAMBDAS, QUICK_SEEDS, QUICK_ROUNDS = "0,0.1,1,10", 2, 10
LINE_SECONDS = 30.0  # between two lines of progress where there is no terminal
MOST_WARNINGS = 10
MOST_LINES = 60  # of a table in the terminal; beyond, only Pareto points are shown


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
    as_json: JsonOption = False,
) -> None:
    """Map the trade-off between accuracy and unfairness: every method at every λ, over several seeds.

    Each finished run is written to results.csv at once. Started again with the same --out, a sweep continues where it
    stopped; λ, seeds, methods and ε can be added that way, too. At the end it reports on all finished runs in the
    folder: a table of means with the Pareto points marked, the frontiers compared by the area they dominate, and
    figures.

    Example: privfair sweep examples/compas.toml --lambdas 0,0.5,2,8 --seeds 10 --methods mmd_fedavg,local_fairness
    """
    from privfair.config import Config
    from privfair.sweeps.jobs import Grid, default_epsilon
    from privfair.sweeps.sweep import comparable, run_sweep

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
        done = run_sweep(
            grid.jobs(base), where, configuration=_compared(comparable(base)), workers=workers, **watch.callbacks
        )
        whole = done.whole()
        notion = next((row["notion"] for row in whole.done), base.fairness.notion)  # of one's own: by its own name
        summary = summarise_sweep(whole, base.data.name, notion)
    if as_json:
        print(json.dumps(summary, allow_nan=False, ensure_ascii=False))
    else:
        print_sweep(Console(), summary)
    if not done.done:
        raise typer.Exit(1)


def summarise_sweep(done: Sweep, data: str, notion: str) -> dict[str, Any]:
    """Tables and frontiers of a sweep as plain values; writes files and figures beside results.csv."""
    from privfair.reports import sweep_files
    from privfair.sweeps import figures as sweep_figures
    from privfair.sweeps.frontiers import areas_of, as_table, points_of, quality_name, warnings_of
    from privfair.sweeps.jobs import NOT_COVERED

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


class Watch:
    """A progress bar over runs with the time left, on stderr; a line now and then if that is no terminal."""

    def __init__(self, progress: Progress, what: str) -> None:
        """Show a bar without a total, which `started` sets."""
        self._progress, self._what = progress, what
        self._task = progress.add_task(what, total=None, left="")
        self._failed = 0
        self._total, self._done = 0, 0.0
        self._began = self._spoken = time.monotonic()
        self._first: tuple[float, float] | None = None  # (when, runs) after the first step: planning comes before it

    @property
    def callbacks(self) -> dict[str, Any]:
        """The callbacks of `run_sweep`."""
        return {"started": self._started, "finished": self._finished, "progress": self._advance}

    def _started(self, there: int, total: int) -> None:
        # the bar leaves out runs that exist already: the time left follows from the speed of new ones
        self._total = total - there
        self._began = self._spoken = time.monotonic()
        self._progress.reset(self._task, total=self._total, left="")
        if there:
            self._progress.console.print(f"{there} of {total} runs are there already", style="dim")

    def _advance(self, runs: float) -> None:
        now = time.monotonic()
        self._done += runs
        self._first = self._first or (now, self._done)
        left = time_left(now - self._first[0], self._done - self._first[1], self._total - self._done)
        self._progress.update(self._task, completed=self._done, left=left)
        if not self._progress.console.is_terminal and now - self._spoken >= LINE_SECONDS:
            self._spoken = now
            line = f"{self._what}: {self._done:.1f} of {self._total} runs in {_clock(now - self._began)}"
            self._progress.console.print(line + (f", {left}" if left else ""), markup=False, soft_wrap=True)

    def _finished(self, job: Any, row: dict[str, Any]) -> None:
        if row["status"] != "done":
            self._failed += 1
            self._progress.update(self._task, description=f"{self._what}, {self._failed} failed")
            if self._failed <= 5:
                self._progress.console.print(
                    f"[yellow]failed:[/] {escape(job.series)}: {escape(row['reason'])}", soft_wrap=True
                )


def time_left(seconds: float, done: float, more: float) -> str:
    """The time left in words, from the mean speed so far; "" before anything is done.

    The mean is over all steps, because runs of different methods end at different times.
    """
    return f"about {_clock(seconds * more / done)} left" if done > 0 and more > 0 else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class _Runs(ProgressColumn):
    """Runs, with parts of them: rounds count."""

    def render(self, task: Task) -> Text:
        """`3.4/20 runs`."""
        total = "?" if task.total is None else f"{task.total:.0f}"
        done = f"{task.completed:.1f}" if task.total is None or task.completed < task.total - 0.05 else total
        return Text(f"{done}/{total} runs")


@contextmanager
def watched(what: str, *, quiet: bool, out: Path) -> Iterator[Watch]:
    """Show a bar while a sweep runs, unless `quiet`. If it ends early, report what is saved in `out`."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Runs(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    console = Console(stderr=True, quiet=quiet)
    with (  # the bar disappears before anything is printed
        reporting(lambda: f"{_saved(out)} Continue with: {_same_command(out)}"),
        Progress(*columns, console=console, transient=True) as progress,
    ):
        yield Watch(progress, what)


def _saved(out: Path) -> str:
    from privfair.sweeps.journal import saved_runs

    saved, runs = saved_runs(out)
    return f"{saved} of {runs} runs are saved." if runs else "No run was begun."


def _same_command(out: Path) -> str:
    """The command of this process, with its folder, which may have been a new one."""
    words = ["privfair", *sys.argv[1:]]
    named = any(word.partition("=")[0] == "--out" for word in words)
    return shlex.join(words if named else [*words, "--out", str(out)])


def print_sweep(console: Console, summary: dict[str, Any]) -> None:
    """Print the tables, warnings, frontiers and files of a sweep."""
    runs = summary["runs"]
    failed = f", {runs['failed']} failed" if runs["failed"] else ""
    before = runs["all"] - runs["done"] - runs["failed"]  # a sweep tries all that it is asked for
    failed += f", {before} failed in an earlier call" if before else ""
    console.print(
        f"[bold]sweep[/] on {escape(summary['data'])}: {runs['done']} of {runs['all']} runs{failed}, "
        f"{runs['seconds']:.0f} s of computing. Means over seeds ± standard error, on pooled test records."
    )
    if summary["points"]:
        console.print(_points(summary))
    for warning in summary["warnings"][:MOST_WARNINGS]:
        console.print(f"warning: {warning}", style="bold yellow", markup=False)
    if len(summary["warnings"]) > MOST_WARNINGS:
        console.print(f"… and {len(summary['warnings']) - MOST_WARNINGS} more, in summary.csv", style="bold yellow")
    print_areas(console, summary["hypervolume"])
    for failure in summary["failures"][:5]:
        value = "" if failure["value"] is None else f" at {failure['value']:g}"
        console.print(
            f"failed: {failure['series']}{value}, seed {failure['seed']}: {failure['reason']}",
            style="yellow",
            markup=False,
        )
    if len(summary["failures"]) > 5:
        console.print(f"… and {len(summary['failures']) - 5} more, in results.csv", style="yellow")
    for line in summary["privacy"]["not_covered"]:
        console.print(f"privacy: {line}", style="yellow", markup=False)
    for name, path in summary["files"].items():
        console.print(f"  {name:9} {path}", markup=False, soft_wrap=True)


def _points(summary: dict[str, Any]) -> Table:
    quality, points = summary["quality"], summary["points"]
    title = ""
    if len(points) > MOST_LINES:
        points = [point for point in points if point["pareto_of_series"]]
        title = "Pareto points of each series; all points are in summary.csv"
    private = any(point["epsilon"] is not None for point in points)
    table = plain_table(title)
    for name in ("series", *(["ε"] if private else []), "λ", "runs", quality, "unfairness", "Pareto"):
        table.add_column(name, justify="left" if name in ("series", "Pareto") else "right", no_wrap=True)
    before = None
    for point in points:
        if before not in (None, (point["series"], point["epsilon"])):
            table.add_section()
        epsilon = "∞" if point["epsilon"] is None else f"{point['epsilon']:g}"
        table.add_row(
            escape(point["series"]) if before != (point["series"], point["epsilon"]) else "",
            *([epsilon] if private else []),
            "–" if point["value"] is None else f"{point['value']:.4g}",
            str(point["runs"]),
            plus_minus(point[quality], point[f"{quality}_se"]),
            plus_minus(point["unfairness"], point["unfairness_se"]),
            "● all" if point["pareto"] else ("○ own" if point["pareto_of_series"] else ""),
        )
        before = (point["series"], point["epsilon"])
    return table


def print_areas(console: Console, hypervolume: dict[str, Any]) -> None:
    """Print the frontiers by the area they dominate."""
    reference = hypervolume["reference"]
    if reference is None:
        return
    table = plain_table("Frontiers: area dominated (more is better), 95% bootstrap intervals over seeds")
    for name in ("series", "area", "interval", "to first", "interval "):  # a long name wraps, a number never
        table.add_column(name, justify="left" if name == "series" else "right", no_wrap=name != "series")
    for number, area in enumerate(hypervolume["series"]):
        difference = f"{area['difference_to_first']:+.4f}" if number else "–"
        table.add_row(
            escape(area["series"]), f"{area['value']:.4f}", _interval(area["interval"]), difference,
            _interval(area["difference_interval"], signed=True),
        )  # fmt: skip
    console.print(table)
    (name, value) = next(iter(reference.items()))
    console.print(
        f"Reference: {name} {value:.4f}, unfairness {reference['unfairness']:.4f} ({reference['origin']}).",
        style="dim", markup=False,
    )  # fmt: skip


def plus_minus(value: float, error: float | None) -> str:
    """A mean with its standard error, if there is one."""
    return f"{value:.4f}" + ("" if error is None or math.isnan(error) else f" ± {error:.4f}")


def _interval(interval: tuple[float, float] | None, *, signed: bool = False) -> str:
    if interval is None:
        return "–"
    sign = "+" if signed else ""
    return f"{interval[0]:{sign}.4f} … {interval[1]:{sign}.4f}"
