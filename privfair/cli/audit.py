"""`privfair audit`: is the ledger intact, and who has spent what? As tables, as JSON, as a figure and as a page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from accountant.errors import InputError, NotThere
from privfair.cli.console import Console, escape, full_disk_behind
from privfair.cli.ledger import JsonOption, KeyOption, LedgerOption, json_number, load_key, open_ledger, percent, shown
from privfair.cli.statements import Statement, compared, read_statements
from privfair.reports.audit_remarks import beyond, largest_first, line_name, remarks, time_window

if TYPE_CHECKING:
    from accountant.audit import AuditReport, BudgetChange, DatasetAudit, Line, NotedHead
    from accountant.worst_case import Epsilon


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe, Ito
SHOWN_LINES = 10
TRIALS, MINUTES = 2000, 5.0


def audit(
    ledger: LedgerOption = None,
    delta: Annotated[
        float | None, typer.Option(help="δ for every ε. Default: each budget's own; 1e-5 without a budget.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the burn-down over time to this PNG; with --empirical, the bounds.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write everything to this HTML file: one page that works offline.")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="A head noted earlier (64 digits), or a statement's JSON file. Finds a cut tail; the run of a "
            "statement is shown at its own δ, and its ε is compared."
        ),
    ] = None,
    key: KeyOption = None,
    pld: Annotated[bool, typer.Option("--pld/--no-pld", help="Also ε by privacy loss distributions.")] = True,
    rebuild_totals: Annotated[
        bool, typer.Option("--rebuild-totals", help="Afterwards derive the kept totals from the rows again.")
    ] = False,
    empirical: Annotated[
        Path | None,
        typer.Option(help="Attack the pipeline of this run or configuration instead: ε measured beside ε claimed."),
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(
            help="With --empirical: counts, predictions, updates, canaries, run, … (default: all that apply)."
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="With --empirical: releases of each of two neighbouring datasets.")
    ] = TRIALS,
    minutes: Annotated[
        float, typer.Option(help="With --empirical: stop after so long, but for the fewest trials of each attack.")
    ] = MINUTES,
    as_json: JsonOption = False,
) -> None:
    """Verify the ledger's hash chain, and report what was spent: by dataset, client, group, channel and run.

    ε by RDP and by PLD are of the rows, at --delta, and hold for plans fixed before their first release. To quote one
    run, take ε and δ of its statement (privacy.json): at the same δ it is the ε of the run's line here, unless the
    statement has the larger bound of its whole plan. A budget's share left is that of its Rényi filter, which also
    holds when releases were chosen one after the other. Exit code 1 means that a budget is exceeded, that the ledger
    was changed, or that a given statement says less than its rows.

    With --empirical the real client code is attacked, on made-up records: how much of the claimed ε can be seen? Exit
    code 1 means that a claim is violated: more was seen than it allows, and than chance explains.

    Example: privfair audit --ledger sqlite:///ledger.sqlite --figure burn-down.png
    """
    if empirical is not None:
        from privfair.cli.audit_empirical import empirical_audit

        if delta is not None or head or html is not None:
            rule = "goes with --channel, --trials, --minutes, --figure and --ledger only"
            raise InputError("--empirical", rule, "other options")
        empirical_audit(
            empirical, channel or (), trials=trials, minutes=minutes, ledger=ledger, figure=figure, as_json=as_json
        )
        return
    if channel or trials != TRIALS or minutes != MINUTES:
        remedy = "Name the run or configuration to attack: --empirical PATH."
        raise InputError("--channel, --trials and --minutes", "go with --empirical only", "no --empirical", remedy)
    from accountant import audit as auditing
    from accountant.errors import LedgerBroken

    heads = [noted for given in head or [] for noted in _heads(given)]
    statements = [found for given in head or [] for found in read_statements(Path(given))]
    try:
        owner = load_key(key)
        with open_ledger(ledger, owner) as opened:
            deltas = {s.run: s.delta for s in statements if s.ledger == opened.ledger_id and s.delta is not None}
            report = auditing.audit(opened, delta=delta, pld=pld, heads=heads, key=owner, run_deltas=deltas)
            if rebuild_totals:
                opened.rebuild_totals()
    except LedgerBroken as error:
        if full_disk_behind(error):  # that the disk is full says nothing of the rows
            raise
        _say_broken(error, as_json)
        raise typer.Exit(1) from None
    statements = compared(statements, report)
    undrawn, unwritten = _failure(write_burn_down, report, figure), _failure(_write_page, report, html)
    drawn, page = None if undrawn else figure, None if unwritten else html
    failure = undrawn or unwritten
    if as_json:
        print(json.dumps(report_json(report, drawn, page, statements), ensure_ascii=False, allow_nan=False))
    else:
        _print(report, drawn, page, statements)
    if not report.fine or not all(statement.holds for statement in statements):
        if failure is not None:
            Console(stderr=True, highlight=False).print(escape(str(failure)), soft_wrap=True)
        raise typer.Exit(1)
    if failure is not None:
        raise failure


def _failure(write: Callable[[AuditReport, Path], None], report: AuditReport, path: Path | None) -> InputError | None:
    """Why a file that was asked for could not be written: the audit itself is worth more and comes first."""
    try:
        if path is not None:
            write(report, path)
    except InputError as error:
        return error
    return None


def _write_page(report: AuditReport, html: Path) -> None:
    from privfair.reports.audit_page import audit_page
    from privfair.reports.pages import write_page

    write_page(audit_page(report), html, option="--html")


def _heads(given: str) -> list[str]:
    """The heads meant: one hash, or those in a JSON file, wherever it has a key "head"."""
    path = Path(given)
    if not path.is_file():
        if any(sign in given for sign in "/\\."):
            remedy = "It may also be a head itself: 64 hexadecimal digits."
            raise NotThere("--head", "must be a statement's JSON file that exists", given, remedy)
        return [given.strip().lower()]
    try:
        found = list(_find_heads(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise InputError("head", "must be a JSON file that opens", given, str(error)) from None
    if not found:
        raise InputError("head", 'must be a file with a key "head"', given)
    return found


def _find_heads(value: object) -> list[str]:
    if isinstance(value, list):
        return [head for item in value for head in _find_heads(item)]
    if not isinstance(value, dict):
        return []
    found = [value["head"]] if isinstance(value.get("head"), str) else []
    return found + [head for item in value.values() for head in _find_heads(item)]


def _say_broken(error: Exception, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"fine": False, "chain": {"verified": False, "problems": [str(error)]}}))
    else:
        Console(highlight=False).print(f"[bold red]The ledger is broken.[/] {escape(str(error))}")


def _print(report: AuditReport, figure: Path | None, page: Path | None, statements: Sequence[Statement]) -> None:
    console = Console(highlight=False)
    state = "[bold green]chain verified[/]" if report.verified else "[bold red]THE LEDGER WAS CHANGED[/]"
    console.print(f"[bold]{escape(report.ledger)}[/]   {report.rows:,} rows   {state}", soft_wrap=True)
    console.print(f"head {report.head.hash}   signatures: {report.signatures}", style="dim", soft_wrap=True)
    for noted in report.noted_heads:
        console.print(f"noted head {noted.hash}: {_where(noted, report.rows)}", soft_wrap=True)
    for problem in report.problems:
        console.print(f"  [red]•[/] {escape(str(problem))}", soft_wrap=True)
    if report.problems_found > len(report.problems):
        console.print(f"  [red]•[/] and {report.problems_found - len(report.problems):,} more")
    for dataset in report.datasets:
        _print_dataset(console, dataset)
    for statement in statements:
        style = "" if statement.holds else "bold red"
        console.print(f"Statement of {statement.run}: {statement.verdict}", style=style, markup=False)
    if not report.datasets:
        console.print("Nothing has been spent.")
    if figure is not None:
        console.print(f"Burn-down: {escape(str(figure))}", soft_wrap=True)
    if page is not None:
        console.print(f"Page: {escape(str(page))}", soft_wrap=True)


def _where(noted: NotedHead, rows: int) -> str:
    if noted.row is None:
        return "[bold red]not in the ledger[/]"
    newer = rows - noted.row
    return f"[green]found, row {noted.row:,}[/]" + (f"; {newer:,} newer" if newer else ", the newest")


def _print_dataset(console: Console, dataset: DatasetAudit) -> None:
    console.print(f"\n{_title(dataset)}", soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("spent by", style="dim", no_wrap=True)
    table.add_column("name", min_width=30, overflow="fold")
    table.add_column("releases", justify="right", no_wrap=True)
    table.add_column("ε (RDP)", justify="right", no_wrap=True)
    table.add_column("ε (PLD)", justify="right", no_wrap=True)
    total = dataset.epsilon
    table.add_row(
        "worst", f"[bold]the {_protected(dataset)} with the largest ε[/]", f"{dataset.releases:,}",
        f"[bold]{shown(total.rdp if total else None)}[/]", shown(total.pld if total else None),
    )  # fmt: skip
    for kind, lines in (
        ("client", dataset.by_client),
        ("group", dataset.by_group),
        ("changing", dataset.changing),
        ("channel", dataset.by_channel),
        ("run", dataset.by_run),
    ):
        _add_lines(table, kind, lines)
    console.print(table)
    for remark in remarks(dataset):
        console.print(remark, style="dim", markup=False)


def _protected(dataset: DatasetAudit) -> str:
    known = dataset.state.neighbouring
    return "record" if known is None else str(known.unit)


def _add_lines(table: Table, kind: str, lines: tuple[Line, ...]) -> None:
    if not lines or (len(lines) == 1 and not lines[0].name):
        return
    table.add_section()
    for line in largest_first(lines)[:SHOWN_LINES]:
        epsilon = line.epsilon
        table.add_row(
            kind, escape(line_name(line)), f"{line.releases:,}",
            shown(epsilon.rdp if epsilon else None), shown(epsilon.pld if epsilon else None),
        )  # fmt: skip
    if len(lines) > SHOWN_LINES:
        claimed = "" if all(line.epsilon is None for line in lines) else ", none larger"
        table.add_row(kind, f"[dim]… {len(lines) - SHOWN_LINES} more{claimed}: --json[/]", "", "", "")


def _title(dataset: DatasetAudit) -> str:
    state, budget = dataset.state, dataset.state.budget
    name = f"[bold cyan]{escape(state.name)}[/]"
    if state.simulation:
        return f"{name}   simulation: noise may be seeded, no ε is claimed"
    whom = f"δ = {dataset.delta:g}" + (f", {state.neighbouring}" if state.neighbouring else "")
    if budget is None:
        return f"{name}   {whom}   no budget"
    left = f"[bold red]EXCEEDED ({percent(dataset.left)} left)[/]" if dataset.exceeded else (
        f"[bold green]{percent(dataset.left)} left[/]"
    )  # fmt: skip
    bound = "" if state.fingerprint else "   [yellow](bound to the name only)[/]"
    return f"{name}   {whom}   budget ε = {budget.epsilon:g} at δ = {budget.delta:g}: {left}{bound}"


def report_json(
    report: AuditReport,
    figure: Path | None = None,
    page: Path | None = None,
    statements: Sequence[Statement] = (),
) -> dict[str, Any]:
    """Everything the report holds; ε is null where none is claimed, and "inf" where it is infinite."""
    return {
        "fine": report.fine and all(statement.holds for statement in statements),
        "ledger": report.ledger,
        "ledger_id": report.ledger_id,
        "rows": report.rows,
        "head": report.head.hash,
        "noted_heads": [
            {"head": noted.hash, "found": noted.row is not None, "row": noted.row} for noted in report.noted_heads
        ],
        "chain": {
            "verified": report.verified,
            "signatures": report.signatures,
            "problems_found": report.problems_found,
            "problems": [{"row": problem.row, "what": problem.what} for problem in report.problems],
        },
        "datasets": {dataset.state.name: _dataset(dataset) for dataset in report.datasets},
        "statements": [statement.to_json() for statement in statements],
        "figure": str(figure) if figure else None,
        "html": str(page) if page else None,
    }


def _dataset(dataset: DatasetAudit) -> dict[str, Any]:
    state = dataset.state
    return {
        "simulation": state.simulation,
        "fingerprint": state.fingerprint or None,
        "adjacency": state.neighbouring.adjacency.value if state.neighbouring else None,
        "unit": state.neighbouring.unit.value if state.neighbouring else None,
        "delta": dataset.delta,
        "epsilon": _epsilon(dataset.epsilon),
        "rdp_for_pld": dataset.rdp_for_pld,
        "collusion": None
        if dataset.collusion is None
        else {
            "cohorts": [{"n": n, "colluders": k, "smallest_cohort": c} for n, k, c in dataset.collusion.cohorts],
            "epsilon_beyond": _epsilon(beyond(dataset)),
        },
        "remarks": remarks(dataset),
        "releases": dataset.releases,
        "budget": _budget(dataset),
        "budget_changes": [_change(change) for change in dataset.budget_changes],
        "by_client": _lines(dataset.by_client),
        "by_group": _lines(dataset.by_group),
        "by_attribute_change": _lines(dataset.changing),
        "by_channel": _lines(dataset.by_channel),
        "by_run": _lines(dataset.by_run),
        "burn_down": [
            {"at": point.at, "epsilon": json_number(point.epsilon), "left": json_number(point.left)}
            for point in dataset.burn_down
        ],
    }


def _epsilon(epsilon: Epsilon | None) -> dict[str, Any] | None:
    return None if epsilon is None else {"rdp": json_number(epsilon.rdp), "pld": json_number(epsilon.pld)}


def _lines(lines: tuple[Line, ...]) -> dict[str, Any]:
    return {
        line.name: {
            "releases": line.releases,
            "epsilon": _epsilon(line.epsilon),
            **({} if line.delta is None else {"delta": line.delta}),
        }
        for line in lines
    }


def _budget(dataset: DatasetAudit) -> dict[str, Any] | None:
    budget = dataset.state.budget
    if budget is None or dataset.spent is None:
        return None
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "order": budget.order,
        "capacity": budget.capacity,
        "spent": json_number(dataset.spent),
        "left": json_number(dataset.left),
        "exceeded": dataset.exceeded,
        "epsilon_spent": json_number(dataset.filter_epsilon),
    }


def _change(change: BudgetChange) -> dict[str, Any]:
    return {
        "at": change.at,
        "actor": change.actor,
        "reason": change.reason,
        "epsilon": change.budget.epsilon,
        "delta": change.budget.delta,
    }


def write_burn_down(report: AuditReport, path: Path) -> None:
    """Write the figure: left, ε spent (dashed: the budget); right, the share of the budget that is left."""
    import matplotlib.dates
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    claimed = [dataset for dataset in report.datasets if dataset.burn_down]
    if not claimed:
        raise InputError("figure", "needs spending to draw", "none", "Simulations claim no ε and have no burn-down.")
    dates: Any = matplotlib.dates  # it has no types
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    spent, left = figure.subplots(1, 2)
    for dataset, colour in zip(claimed, COLOURS * len(claimed), strict=False):
        _draw_burn_down(spent, left, dataset, colour)
    spent.set(title="Privacy spent by the worst record or client", ylabel="ε so far (RDP)", ylim=(0, None))
    left.set(title="Budget left", ylabel="share of the budget", ylim=(min(0.0, left.get_ylim()[0]), 1.05))
    left.axhline(0, color="0.3", linewidth=0.8)
    left.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    window = time_window([point.at for dataset in claimed for point in dataset.burn_down])
    for axes in (spent, left):
        if window is not None:
            axes.set_xlim(*window)
        locator = dates.AutoDateLocator(minticks=3)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if any(dataset.state.budget for dataset in claimed):
        left.legend(frameon=False, loc="best")
    else:
        left.text(0.5, 0.5, "no dataset has a budget", ha="center", va="center", transform=left.transAxes)
    spent.legend(frameon=False, loc="best")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError("figure", "must be a file that can be written", str(path), str(error)) from None


def _draw_burn_down(spent: Any, left: Any, dataset: DatasetAudit, colour: str) -> None:
    times = [datetime.fromisoformat(point.at) for point in dataset.burn_down]
    epsilons = [point.epsilon if math.isfinite(point.epsilon) else math.nan for point in dataset.burn_down]
    name = dataset.state.name
    infinite = any(math.isinf(point.epsilon) for point in dataset.burn_down)
    label = f"{name} (∞: a release was not private)" if infinite else name
    spent.step(times, epsilons, where="post", color=colour, label=label, marker="o", markersize=2.5)
    budget = dataset.state.budget
    if budget is None:
        return
    spent.axhline(budget.epsilon, color=colour, linestyle="--", linewidth=1, label=f"budget, ε = {budget.epsilon:g}")
    shares = [(at, point.left) for at, point in zip(times, dataset.burn_down, strict=True) if point.left is not None]
    drawn = [(at, share) for at, share in shares if math.isfinite(share)]
    times_left, finite = [at for at, _ in drawn], [share for _, share in drawn]
    gone = name if drawn else f"{name} (nothing: a release was not private)"
    left.step(times_left, finite, where="post", color=colour, label=gone, marker="o", markersize=2.5)
