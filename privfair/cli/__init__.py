"""The command line: `privfair`."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from accountant.errors import InputError, LedgerUnavailable, Refused
from privfair.cli import (
    audit,
    budget,
    calibrate,
    data,
    doctor,
    init,
    kernels,
    keys,
    ledger,
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
    """Nothing to do before a command."""


def main() -> None:
    """Run a command; what goes wrong is explained on stderr, without a traceback.

    Exit code 2: bad input. Exit code 1: the answer is no (over budget, ledger broken, token used twice). Exit code 3:
    it could not be done, for instance because a disk is full.
    """
    sys.path.insert(0, "")  # a model of one's own may be in this folder
    try:
        app()
    except InputError as error:
        _explain(error)
        sys.exit(2)
    except Refused as error:
        _explain(error)
        sys.exit(1)
    except LedgerUnavailable as error:
        _explain(error)
        sys.exit(3)


def _explain(error: Exception) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")
