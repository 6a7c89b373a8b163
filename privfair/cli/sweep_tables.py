"""What the terminal shows of a sweep: a bar with the time left, the table of means, the frontiers."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from privfair.cli.console import Console, escape
from privfair.cli.faults import telling

LINE_SECONDS = 30.0  # between two lines of progress where there is no terminal
MOST_WARNINGS = 10
MOST_LINES = 60  # of a table in the terminal; beyond, only Pareto points are shown


class Watch:
    """A bar over runs with the time left, on stderr; where that is no terminal, a line now and then."""

    def __init__(self, progress: Progress, what: str) -> None:
        """Nothing is known before `started`."""
        self._progress, self._what = progress, what
        self._task = progress.add_task(what, total=None, left="")
        self._failed = 0
        self._total, self._done = 0, 0.0
        self._began = self._spoken = time.monotonic()
        self._first: tuple[float, float] | None = None  # (when, runs) after the first step: planning comes before it

    @property
    def callbacks(self) -> dict[str, Any]:
        """What `carry_out` is given."""
        return {"started": self._started, "finished": self._finished, "progress": self._advance}

    def _started(self, there: int, total: int) -> None:
        # runs that are there already are not in the bar: the time left is estimated from what it has seen
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
            told = f"{self._what}: {self._done:.1f} of {self._total} runs in {_clock(now - self._began)}"
            self._progress.console.print(told + (f", {left}" if left else ""), markup=False, soft_wrap=True)

    def _finished(self, job: Any, row: dict[str, Any]) -> None:
        if row["status"] != "done":
            self._failed += 1
            self._progress.update(self._task, description=f"{self._what}, {self._failed} failed")
            if self._failed <= 5:
                self._progress.console.print(
                    f"[yellow]failed:[/] {escape(job.series)}: {escape(row['reason'])}", soft_wrap=True
                )


def time_left(seconds: float, done: float, more: float) -> str:
    """How long it takes if it goes on like that, in words; nothing before there is something to tell from.

    From the mean speed of all steps: runs of different methods end at different times.
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
    """A bar while a sweep runs; silent with `quiet`. What ends it early tells what is saved in `out`."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Runs(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    console = Console(stderr=True, quiet=quiet, highlight=False)
    with (  # the bar goes away before anything is said
        telling(lambda: f"{_saved(out)} Continue with: {_same_command(out)}"),
        Progress(*columns, console=console, transient=True) as progress,
    ):
        yield Watch(progress, what)


def _saved(out: Path) -> str:
    from privfair.sweeps.journal import saved_runs

    saved, runs = saved_runs(out)
    return f"{saved} of {runs} runs are saved." if runs else "No run was begun."


def _same_command(out: Path) -> str:
    """What this process was started with, and its folder, which may have been a new one."""
    words = ["privfair", *sys.argv[1:]]
    named = any(word.partition("=")[0] == "--out" for word in words)
    return shlex.join(words if named else [*words, "--out", str(out)])


def print_sweep(console: Console, summary: dict[str, Any]) -> None:
    """The whole answer for people."""
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
    """Frontiers by the area they dominate."""
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


def plain_table(title: str) -> Table:
    """A table with room for its columns on 80 characters."""
    return Table(
        title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False,
    )  # fmt: skip


def plus_minus(value: float, error: float | None) -> str:
    """A mean with its standard error, where there is one."""
    return f"{value:.4f}" + ("" if error is None or math.isnan(error) else f" ± {error:.4f}")


def _interval(interval: tuple[float, float] | None, *, signed: bool = False) -> str:
    if interval is None:
        return "–"
    sign = "+" if signed else ""
    return f"{interval[0]:{sign}.4f} … {interval[1]:{sign}.4f}"
