"""The tables of `privfair kernels`: they are folded, split or made wider, and no number in them is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from privfair.cli.console import Console, escape

if TYPE_CHECKING:
    from privfair.kernels.base import Kernel
    from privfair.kernels.comparison import Check, Comparison
    from privfair.kernels.mmd import Estimate

NAME = 14  # longer names of kernels are folded
GAP = 2  # between columns, and at the two edges together


def _plain_table(title: str) -> Table:
    """A table with room for its columns on 80 characters."""
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )


def print_table(console: Console, table: Table) -> None:
    """Print a table in which no number is ever cut: if need be it is wider than the screen."""
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
    """Of a cell whose spaces at the beginning stay with its first word."""
    indent = len(cell) - len(cell.lstrip())
    return indent + max(map(cell_len, cell.split()), default=0)


def _foldable(kernel: Kernel, *, longer_than: int) -> str:
    """The kernel's name; a long one with spaces at which it is folded, instead of inside a number."""
    name = str(kernel)
    return escape(name if len(name) <= longer_than else name.replace("+", "+ "))


def value_tables(comparisons: list[Comparison], at: list[float], width: int) -> Iterator[Table]:
    """Kernel values at the chosen distances, so many of them in a table as fit."""
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
    table = _plain_table("Kernel values v(d) at distance d")
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
    table = _plain_table(title)
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
        tables.append(_plain_table(own if number else f"{title}\n\n{own}"))
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
