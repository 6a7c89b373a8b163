"""The command line: `privfair`."""

from __future__ import annotations

import os
import sys

import typer

from privfair.cli import (
    audit,
    budget,
    calibrate,
    console,
    data,
    doctor,
    init,
    kernels,
    keys,
    ledger,
    plan,
    report,
    reproduce,
    sweep,
    train,
)

app = typer.Typer(
    name="privfair",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated training that is fair over all the data, with its privacy cost written down.",
)
app.command()(audit.audit)
app.add_typer(budget.app, name="budget")
app.command()(calibrate.calibrate)
app.add_typer(data.app, name="data")
app.command()(doctor.doctor)
app.command()(init.init)
app.command()(kernels.kernels)
app.add_typer(keys.app, name="keys")
app.add_typer(ledger.app, name="ledger")
app.command()(plan.plan)
app.command()(report.report)
app.command()(reproduce.reproduce)
app.command()(sweep.sweep)
app.command()(train.train)


def _show_version(asked: bool) -> None:
    if asked:
        from privfair import __version__

        print(f"privfair {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Take the options before a command."""


def main() -> None:
    """Run a command and exit with its code; `console.ended` explains on stderr what goes wrong."""
    # for workers, checks and Flower's programs: Python searches the current folder first where it starts with -m or -c
    os.environ["PYTHONSAFEPATH"] = "1"
    sys.exit(console.ended(lambda: app(standalone_mode=False)))
