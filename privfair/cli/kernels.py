"""`privfair kernels`: kernels with and without privacy noise, side by side."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from accountant.errors import InputError
from privfair.cli.console import Console
from privfair.cli.kernels_tables import mmd2_tables, print_table, value_tables

if TYPE_CHECKING:
    from privfair.kernels.base import Kernel
    from privfair.kernels.comparison import Check, Comparison
    from privfair.kernels.mmd import Estimate
    from privfair.mechanisms.noise import Noise

DISTANCES = "0,0.1,0.3,1"


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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Compare kernels with and without privacy noise: values, spectra and the MMD² between two groups.

    Noise on shared scores turns a kernel into its convolution with the noise. The table shows what that does, and
    what taking the noise off again (deconvolution) costs in variance; a simulation checks the closed forms.

    Example: privfair kernels --kernel gaussian:0.3 --kernel energy --noise laplace:0.2

    With sliders, in a browser: privfair kernels --html kernels.html
    """
    import numpy as np

    from privfair.kernels.comparison import compare
    from privfair.kernels.parse import parse_kernel, parse_noise
    from privfair.reports import kernel_files

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
    page = {} if html is None else {"page": _write_page(pairs, html)}
    console = Console(quiet=as_json, highlight=False)
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
    """The folder for the results, before any work is done for it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", f"must be a folder that can be written ({error.strerror})", str(path)) from None


def _write_page(pairs: list[tuple[Kernel, Noise]], path: Path) -> Path:
    """The kernel explorer, written before the comparison: a bad path is told at once."""
    from privfair.reports.explorer import write_explorer

    return write_explorer(pairs, path)


def _built_in_groups(rng: Any) -> dict[str, Any]:
    """Two groups of 400 scores in [0, 1] that a model treats differently."""
    return {"group A": rng.beta(2, 5, 400), "group B": rng.beta(4, 4, 400)}


def _read_groups(path: Path, score_column: str, group_column: str) -> dict[str, Any]:
    """The scores of the two groups in a CSV file."""
    from privfair.datasets.columns import numbers
    from privfair.datasets.inference import is_missing
    from privfair.datasets.options import nearest
    from privfair.datasets.tables import read_table
    from privfair.kernels.elementwise import as_scores

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
    """What the words in the tables mean."""
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
