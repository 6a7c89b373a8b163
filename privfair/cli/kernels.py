"""`privfair kernels`: kernels with and without privacy noise, side by side.

Tables are folded, split or made wider than the screen, so that no number in them is cut.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from accountant.errors import InputError
from privfair.cli.console import Console, escape, plain_table
from privfair.cli.ledger import JsonOption

if TYPE_CHECKING:
    from privfair.kernels.base import Kernel
    from privfair.kernels.comparison import Check, Comparison
    from privfair.kernels.mmd import Estimate

DISTANCES = "0,0.1,0.3,1"
NAME = 14  # longer names of kernels are folded
GAP = 2  # between columns, and at the two edges together


def kernels(
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            help="gaussian:ℓ, laplace:ℓ, energy, matern32:ℓ, matern52:ℓ, rq:ℓ:α, cauchy:ℓ; sums +, multiples *"
        ),
    ] = None,
    noise: Annotated[list[str] | None, typer.Option(help="gaussian:σ or laplace:b")] = None,
    distances: Annotated[str, typer.Option(help="Distances at which the kernels' values are printed.")] = DISTANCES,
    scores: Annotated[
        Path | None,
        typer.Option(help="A CSV with a score and a group column; without it two built-in groups are used."),
    ] = None,
    score_column: Annotated[str, typer.Option(help="The column of the scores.")] = "score",
    group_column: Annotated[str, typer.Option(help="The column of the groups: two different values.")] = "group",
    repeats: Annotated[int, typer.Option(help="Draws of noise in the Monte-Carlo check.", min=20)] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the built-in groups and of the simulated noise.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Folder for kernels.png, curves.csv and mmd2.csv.")] = Path(
        "results/kernels"
    ),
    html: Annotated[
        Path | None,
        typer.Option(
            help="Also write a page to explore kernels, noise and ε with sliders; it opens at the first pair."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare kernels with and without privacy noise: values, spectra and the MMD² between two groups.

    Noise on shared scores turns a kernel into its convolution with the noise. The table shows what that does, and
    what taking the noise off again (deconvolution) costs in variance; a simulation checks the closed forms.

    Example: privfair kernels --kernel gaussian:0.3 --kernel energy --noise laplace:0.2

    With sliders, in a browser: privfair kernels --html kernels.html
    """
    import numpy as np

    from privfair.kernels.comparison import compare
    from privfair.kernels.families import parse_kernel, parse_noise
    from privfair.reports import explorer as kernel_files

    pairs = [
        (parse_kernel(k), parse_noise(n))
        for k in kernel or ["gaussian:0.3", "energy"]
        for n in noise or ["laplace:0.2"]
    ]
    at = _numbers("distances", distances)
    rng = np.random.default_rng(seed)
    groups = _built_in_groups(rng) if scores is None else _read_groups(scores, score_column, group_column)
    names, (first, second) = list(groups), groups.values()

    _make_folder(out)
    page = {} if html is None else {"page": kernel_files.write_explorer(pairs, html)}  # first: its path may be bad
    console = Console(quiet=as_json)
    comparisons: list[Comparison] = []
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as progress:
        for k, n in progress.track(pairs, description="Comparing kernels"):
            comparisons.append(compare(k, n, first, second, repeats=repeats, rng=rng))
    written = {
        "figure": kernel_files.write_figure(comparisons, out / "kernels.png", rng=rng),
        "curves": kernel_files.write_curves(comparisons, out / "curves.csv"),
        "mmd2": kernel_files.write_mmd2(comparisons, out / "mmd2.csv"),
        **page,
    }
    if as_json:
        print(json.dumps(_as_json(comparisons, at, names, [len(first), len(second)], written), allow_nan=False))
        return
    for table in value_tables(comparisons, at, console.width):
        print_table(console, table)
    for table in mmd2_tables(comparisons, names, [len(first), len(second)], repeats, console.width):
        print_table(console, table)
    _print_notes(console, comparisons)
    for what, path in written.items():
        console.print(f"  {what:7} {path}", markup=False)


def _make_folder(path: Path) -> None:
    """Create the folder for the results before any work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", f"must be a folder that can be written ({error.strerror})", str(path)) from None


def _built_in_groups(rng: Any) -> dict[str, Any]:
    """Two groups of 400 scores in [0, 1] that a model treats differently."""
    return {"group A": rng.beta(2, 5, 400), "group B": rng.beta(4, 4, 400)}


def _read_groups(path: Path, score_column: str, group_column: str) -> dict[str, Any]:
    """The scores of the two groups in a CSV file."""
    from privfair.datasets.columns import is_missing, numbers
    from privfair.datasets.table import nearest, read_table
    from privfair.kernels.base import as_scores

    if not path.is_file():
        raise InputError("--scores", "must be a CSV file that exists", str(path))
    table = read_table(path)
    for option, column in (("--score-column", score_column), ("--group-column", group_column)):
        if column not in table:
            raise InputError(option, f"must be a column of {path.name}", column, nearest(column, table.columns))
    known = [not is_missing(group) for group in table.column(group_column)]
    if not all(known):
        table = table.where(known)
        Console(stderr=True).print(f"[dim]{len(known) - len(table)} rows without a group are left out[/]")
    values = sorted(set(table.column(group_column)))
    if len(values) != 2:
        raise InputError("--group-column", "must hold two groups", f"{len(values)} in {group_column}")
    scores, of = numbers(table.column(score_column)), table.column(group_column)
    groups = {v: as_scores(f"scores of group {v}", scores[[group == v for group in of]]) for v in values}
    for name, of_group in groups.items():
        if of_group.size < 3:
            raise InputError(f"group {name}", "must have three scores or more for a standard error", of_group.size)
        if abs(of_group).max() > 1e100:
            raise InputError(f"scores of group {name}", "must be below 1e100", "a larger one")
    return groups


def _numbers(name: str, text: str) -> list[float]:
    """The numbers of a comma-separated list."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(name, "must be numbers separated by commas", text, "For example 0,0.1,0.5.") from None
    if not all(math.isfinite(number) for number in numbers):
        raise InputError(name, "must be finite numbers", text)
    return numbers


def _print_notes(console: Console, comparisons: list[Comparison]) -> None:
    """Explain the words in the tables."""
    notes = [
        "convolved: what noise on a shared score makes of the kernel. deconvolved: the kernel that noise turns into "
        "the clean one, so that noisy scores give the noiseless answer on average.",
        "In MMD² both scores of a pair are noisy: noise is put on, or taken off, twice.",
        "bandwidth: distance at which v falls to e^(-1/2) of its peak. Var C′: how many times more scores the "
        "deconvolved kernel needs for the same error of the witness's slope.",
    ]
    notes += dict.fromkeys(f"none: {c.no_deconvolution}" for c in comparisons if c.no_deconvolution)
    for note in notes:
        console.print(note, style="dim", markup=False)
    console.print()


def _as_json(
    comparisons: list[Comparison], at: list[float], names: list[str], sizes: list[int], written: dict[str, Path]
) -> dict[str, Any]:
    """The whole answer as plain values."""
    return {
        "groups": [{"name": name, "size": size} for name, size in zip(names, sizes, strict=True)],
        "comparisons": [
            {
                "kernel": str(c.kernel),
                "noise": str(c.noise),
                "distances": at,
                "values": {form: _json_values(k, at) for form, k in _forms(c)},
                "effective_bandwidth": {form: None if k is None else k.effective_bandwidth for form, k in _forms(c)},
                "variance_factor": c.variance_factor,
                "mmd2": {
                    "clean": _json_estimate(c.mmd2_clean),
                    "noisy": _json_estimate(c.mmd2_noisy),
                    "convolved": _json_estimate(c.mmd2_convolved),
                    "deconvolved": _json_estimate(c.mmd2_deconvolved),
                },
                "check": {"noisy": _json_check(c.noisy_check), "deconvolved": _json_check(c.deconvolved_check)},
                "no_deconvolution": c.no_deconvolution or None,
            }
            for c in comparisons
        ],
        "out": {what: str(path) for what, path in written.items()},
    }


def _forms(c: Comparison) -> list[tuple[str, Any]]:
    return [("clean", c.kernel), ("convolved", c.convolved), ("deconvolved", c.deconvolved.kernel)]


def _json_values(kernel: Any, at: list[float]) -> list[float] | None:
    return None if kernel is None else [float(kernel.profile(d)) for d in at]


def _json_estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    error = estimate.standard_error
    return {"value": estimate.value, "standard_error": error if math.isfinite(error) else None}


def _json_check(check: Check | None) -> dict[str, float | bool] | None:
    if check is None:
        return None
    return {
        "mean": check.mean,
        "predicted": check.predicted,
        "standard_error": check.standard_error,
        "agrees": check.agrees,
    }


def print_table(console: Console, table: Table) -> None:
    """Print a table without cutting a number: wider than the screen if need be."""
    width = max(console.width, _least_width(table))
    console.print(table, width=width, crop=False, no_wrap=width > console.width, overflow="ignore")


def _least_width(table: Table) -> int:
    """How narrow the table can be made without cutting anything: some columns are folded between words."""
    total = 0
    for column in table.columns:
        cells = [Text.from_markup(str(cell)).plain for cell in (column.header, *column.cells)]
        total += GAP + max(cell_len(cell) if column.no_wrap else _longest_word(cell) for cell in cells)
    return total


def _longest_word(cell: str) -> int:
    """The longest word of a cell; leading spaces belong to its first word."""
    indent = len(cell) - len(cell.lstrip())
    return indent + max(map(cell_len, cell.split()), default=0)


def _foldable(kernel: Kernel, *, longer_than: int) -> str:
    """The kernel's name; a long one gets spaces to be folded at, instead of inside a number."""
    name = str(kernel)
    return escape(name if len(name) <= longer_than else name.replace("+", "+ "))


def value_tables(comparisons: list[Comparison], at: list[float], width: int) -> Iterator[Table]:
    """Kernel values at the chosen distances, as many in a table as fit."""
    start = 0
    while start < len(at):
        end = start + 1
        table = _value_table(comparisons, at[start:end])
        while end < len(at):
            wider = _value_table(comparisons, at[start : end + 1])
            if _least_width(wider) > width:
                break
            end, table = end + 1, wider
        yield table
        start = end


def _value_table(comparisons: list[Comparison], at: list[float]) -> Table:
    """Kernel values at these distances."""
    table = plain_table("Kernel values v(d) at distance d")
    table.add_column("d =")
    for d in at:
        table.add_column(f"{d:g}", justify="right", no_wrap=True)
    table.add_column("bandwidth", justify="right", no_wrap=True)
    table.add_column("Var C′", justify="right", no_wrap=True)
    seen = set()
    for c in comparisons:
        if c.kernel not in seen:
            seen.add(c.kernel)
            table.add_section()
            table.add_row(f"[bold]{_foldable(c.kernel, longer_than=NAME)}[/]", *_values(c.kernel, at), "×1")
        table.add_row(f"  convolved {escape(str(c.noise))}", *_values(c.convolved, at))
        if c.deconvolved.kernel is None:
            table.add_row(f"  [dim]deconvolved {escape(str(c.noise))}[/]", "[dim]none[/]")
        else:
            table.add_row(
                f"  deconvolved {escape(str(c.noise))}", *_values(c.deconvolved.kernel, at), f"×{c.variance_factor:.3g}"
            )
    return table


def _values(kernel: Kernel, at: list[float]) -> list[str]:
    width = kernel.effective_bandwidth
    return [*(f"{float(kernel.profile(d)):.3f}" for d in at), "–" if width is None else f"{width:.3g}"]


def mmd2_tables(
    comparisons: list[Comparison], names: list[str], sizes: list[int], repeats: int, width: int
) -> list[Table]:
    """MMD² with standard errors, and the checks; a table for each comparison where names leave no room for numbers."""
    first, second = (f"{escape(name)} ({size} scores)" for name, size in zip(names, sizes, strict=True))
    title = f"MMD² between {first} and {second}"
    table = plain_table(title)
    table.add_column("kernel, noise")
    _add_mmd2_columns(table, repeats)
    for c in comparisons:
        table.add_section()
        beside = [f"[bold]{_foldable(c.kernel, longer_than=NAME)}[/]", escape(str(c.noise)), "", ""]
        for name, row in zip(beside, _mmd2_rows(c), strict=True):
            table.add_row(name, *row)
    if _least_width(table) <= width:
        return [table]
    tables = []
    for number, c in enumerate(comparisons):
        own = f"{escape(str(c.kernel))}, noise {escape(str(c.noise))}"
        tables.append(plain_table(own if number else f"{title}\n\n{own}"))
        _add_mmd2_columns(tables[-1], repeats)
        for row in _mmd2_rows(c):
            tables[-1].add_row(*row)
    return tables


def _add_mmd2_columns(table: Table, repeats: int) -> None:
    for heading in ("scores", "kernel used"):
        table.add_column(heading, no_wrap=True)
    table.add_column("MMD² ± s.e.", justify="right", no_wrap=True)
    table.add_column(f"mean of {repeats} draws (s.e.)", no_wrap=True)


def _mmd2_rows(c: Comparison) -> list[list[str]]:
    """Clean and noisy scores under the kernels that go with them."""
    rows = [
        ["clean", "clean", _plus_minus(c.mmd2_clean)],
        ["noisy", "clean", _plus_minus(c.mmd2_noisy), _verdict(c.noisy_check, "convolved")],
        ["clean", "convolved", _plus_minus(c.mmd2_convolved)],
    ]
    if c.mmd2_deconvolved is None or c.deconvolved_check is None:
        return [*rows, ["[dim]noisy[/]", "[dim]deconvolved[/]", "[dim]none[/]"]]
    verdict = _verdict(c.deconvolved_check, "clean")
    return [*rows, ["noisy", "deconvolved", _plus_minus(c.mmd2_deconvolved), verdict]]


def _plus_minus(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} ± {estimate.standard_error:.4f}"


def _verdict(check: Check, target: str) -> str:
    colour = "green" if check.agrees else "bold red"
    return f"{check.mean:.4f} [{colour}]{'=' if check.agrees else '≠'} {target}[/] ({check.deviation:+.1f})"
