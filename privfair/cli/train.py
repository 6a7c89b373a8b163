"""`privfair train`: one federated run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from accountant.errors import InputError, Refused
from privfair.cli.console import Console, escape, plain_table, reporting
from privfair.cli.ledger import JsonOption
from privfair.cli.statements import print_plan, print_statement
from privfair.numbers import plural

if TYPE_CHECKING:
    from privfair.api import Result
    from privfair.config import Config


def train(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG | TABLE]", help="A TOML file, every key has a default; or a table (CSV)."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Of a table: the column to predict.")] = None,
    sensitive: Annotated[
        str | None, typer.Option(help="Of a table: the column of the groups that are to be treated alike.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="Of a table: the column that says who holds each record.")] = None,
    positive: Annotated[str | None, typer.Option(help="Of a table: the label that counts as 1.")] = None,
    target: Annotated[
        float | None, typer.Option(help="With a table: the largest gap between groups (fairness.target).")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="With a table: ε of the whole run (privacy.epsilon).")] = None,
    delta: Annotated[float | None, typer.Option(help="With a table: δ (privacy.delta).")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, for example fairness.lambda=0.5")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default a new one under runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder after its last round.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train one model over all data holders, fair over all their records together.

    Without a config: the built-in synthetic federation. The folder of the run holds the resolved configuration, the
    history, the model and the metrics; after an interruption, --resume continues to the same result.

    Your own table: privfair train people.csv --label hired --sensitive sex --client branch --target 0.05 --epsilon 3.
    What is not named is guessed, as privfair init does, and printed; privfair init people.csv writes the configuration
    to check and to declare what is public, without which ε is computed and not claimed.

    Tables of the file: data (name and the dataset's options, see privfair data list), model (name hidden), fairness
    (notion target lambda kernel tracker), federation (method optimizer rounds local_epochs batch_size learning_rate
    drift_correction …), privacy (epsilon delta counts predictions updates …), aggregation (scheme), run (seed ledger).
    docs/reference/configuration.md lists all keys; for a wrong key the error names the nearest known one.
    """
    from privfair.api import default_directory, from_bare_table, is_table, require_no_roles
    from privfair.api import train as run_training
    from privfair.config import Config
    from privfair.fairness.notions import notion_figure

    named = {"label": label, "sensitive": sensitive, "client": client, "positive": positive}
    goal = {"target": target, "epsilon": epsilon, "delta": delta}
    found: str | None = None
    if resume is not None:
        require_no_roles({**named, **goal})
        if config is not None or overrides or out is not None:
            raise InputError("--resume", "takes its configuration from the run", "a config, --set or --out beside it")
        from privfair.runs.folder import RunDirectory

        resolved = RunDirectory.open(resume).read_config()
        arguments: dict[str, Any] = {"resume": resume}
    else:
        if is_table(config, named):
            resolved, _, found = from_bare_table(config, {}, overrides or (), named=named, goal=goal)
            Console(stderr=True, quiet=as_json).print(found, markup=False)
        else:
            require_no_roles({**named, **goal})
            resolved = Config.read(config, overrides or ()) if config else Config.build({}, overrides or ())
        where = out or (Path(resolved.run.out) if resolved.run.out else default_directory(resolved))
        arguments = {"config": resolved, "out": where}

    folder = arguments.get("resume") or arguments["out"]
    if as_json:
        with reporting(lambda: _kept(folder)):
            result = run_training(**arguments)
            _write_report(result)
        print(json.dumps(result.metrics | ({} if found is None else {"guessed": found}), allow_nan=False))
        return
    # the bar disappears before anything is printed
    with reporting(lambda: _kept(folder)), _progress() as progress:
        what = f"{resolved.data.name}, {resolved.federation.method}"
        task = progress.add_task(what, total=resolved.federation.rounds, accuracy="–", unfairness="–")

        def report(row: dict[str, Any]) -> None:
            accuracy, unfairness = _number(row.get("accuracy")), _number(notion_figure(row, resolved.fairness.notion))
            progress.update(task, completed=row["round"], accuracy=accuracy, unfairness=unfairness)

        def planned(plan: dict[str, Any]) -> None:
            print_plan(Console(stderr=True), plan)

        result = run_training(**arguments, report=report, planned=planned)
    _print(result, resolved)
    if found is not None and resolved.privacy.enabled:
        remedy = f"Nothing is declared about {config}, so that ε is computed and not claimed: privfair init {config} "
        remedy += "writes a file in which to declare what is public."
        Console().print(remedy, style="bold yellow", markup=False)
    _print_report(result)


def _kept(folder: Path) -> str:
    """What of an unfinished run is kept, and how to continue."""
    if (folder / "metrics.json").is_file():
        return f"The run itself is finished, in {folder}."
    if (folder / "config.toml").is_file():
        return f"Continue with: {shlex.join(['privfair', 'train', '--resume', str(folder)])}"
    return "No run was begun."


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}  unfairness {task.fields[unfairness]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _print(result: Result, config: Config) -> None:
    from privfair.sweeps.jobs import WITHOUT_LAMBDA

    console = Console()
    metrics = result.metrics
    records = sum(c.get("test", 0) for c in metrics["data"]["clients"].values())
    target = config.fairness.target
    strength = f", λ = {config.fairness.strength:g}" if target is None else f", target {target:g}"
    strength = "" if config.federation.method in WITHOUT_LAMBDA else strength
    clients = plural(len(metrics["data"]["clients"]), "client")
    console.print(
        f"[bold]{config.federation.method}[/] on {escape(config.data.name)}: {clients}, "
        f"{plural(metrics['rounds'], 'round')}{strength}, {metrics['seconds']['total']:.1f} s. "
        + (f"Figures on the {plural(records, 'test record')} of all clients." if records else "")
    )
    print_verdict(console, metrics["verdict"])
    for note in metrics.get("target", {}).get("notes", ()):
        console.print(f"note: {note}", style="yellow", markup=False)
    for warning in metrics["warnings"]:
        console.print(f"warning: {warning}", style="bold yellow", markup=False)
    if metrics["figures"] == "released":
        if result.accuracy is None:
            console.print('No figures: data with a budget show none. For noisy ones: privacy.evaluation = "gaussian".')
        else:
            console.print("Figures from noisy counts, the only ones of data with a budget.")
    figures = plain_table()
    figures.add_column("figure")
    figures.add_column("value", justify="right")
    figures.add_column("95% interval", justify="right")
    several = len(metrics["by_attribute"]) > 1
    if several:
        figures.add_column("between groups of")
    for name, value in {"accuracy": result.accuracy, "rmse": metrics["rmse"], **result.unfairness}.items():
        if value is not None:
            interval = metrics["confidence_intervals"].get(name)
            label = name if name in ("accuracy", "rmse") else f"unfairness: {escape(name)}"
            between = "all, added up" if name == "mmd2" else escape(metrics["unfairness_of"].get(name, ""))
            cells = [label, f"{value:.4f}", f"{interval[0]:.3f} – {interval[1]:.3f}" if interval else ""]
            figures.add_row(*cells, *([between] if several else []))
    if figures.row_count:
        console.print(figures)
    for attribute, table in metrics["groups"].items():
        console.print(_group_table(attribute, table))
    for attribute, about in metrics["by_attribute"].items() if several else ():
        gaps = ", ".join(f"{name} {value:.4f}" for name, value in about["unfairness"].items() if value is not None)
        console.print(f"unfairness by {attribute}: {gaps}", markup=False)
    for note in metrics["data"]["notes"]:
        style = "yellow" if "the largest gap" in note else "dim"
        console.print(f"{config.data.name}: {note}", style=style, markup=False)
    if metrics["unseen_groups"]:
        names = escape("; ".join(metrics["unseen_groups"]))
        console.print(f"[yellow]Not seen by the fairness term, too few records by released counts:[/] {names}")
    print_statement(console, metrics["privacy"])
    console.print(f"  run  {result.out}", markup=False)


STYLES = {"met": "bold green", "not met": "bold red", "cannot tell": "bold yellow"}


def print_verdict(console: Console, verdict: dict[str, Any]) -> None:
    """The verdict in one sentence, what it rests on, and how often these data were asked before."""
    answer = verdict["answer"]
    lead = "" if answer is None else f"Verdict: {answer}. "
    console.print(f"{lead}{verdict['sentence']}", style=STYLES.get(answer, "bold"), markup=False)
    if verdict["basis"] == "released":
        console.print("It rests on released counts of test records, with their noise.", style="dim", markup=False)
    if verdict["earlier"]:
        times = plural(verdict["earlier"], "earlier run")
        console.print(
            f"{times} on these data released counts of test records, too: training again until a target is met makes "
            "a wrong verdict more likely than 4%.",
            style="yellow",
            markup=False,
        )


def _print_report(result: Result) -> None:
    where = _write_report(result)
    if where is not None:
        Console().print(f"  report  {where}", markup=False, soft_wrap=True)


def _write_report(result: Result) -> Path | None:
    """Write the run's report, of released figures only. The run is done: print why if there can be no report."""
    from privfair.cli.report import write_report

    if result.out is None:
        return None
    where = result.out / "report.html"
    try:
        write_report(result.out, "run", where, include_private=False)
    except (InputError, Refused) as error:
        Console(stderr=True).print(f"No report was written: {error}", markup=False, soft_wrap=True)
        return None
    return where


SHORT = {"selection_rate": "selected", "true_positive_rate": "TPR", "false_positive_rate": "FPR", "mean_score": "score"}


def _group_table(attribute: str, groups: dict[str, dict[str, Any]]) -> Table:
    """Sizes and rates; ± is half the width of the 95% interval."""
    table = plain_table(f"by {escape(attribute)}")
    columns = [name for name in next(iter(groups.values())) if name != "intervals"]
    table.add_column(escape(attribute))
    for column in columns:
        table.add_column(SHORT.get(column, column), justify="right", no_wrap=True)
    for group, row in groups.items():
        table.add_row(escape(group), *(_rate(row, column) for column in columns))
    return table


def _rate(row: dict[str, Any], column: str) -> str:
    if column == "records":
        return f"{row[column]:.0f}"
    interval = row.get("intervals", {}).get(column)
    return _number(row[column]) + (f" ±{(interval[1] - interval[0]) / 2:.2f}" if interval else "")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
