"""The command line: `privfair`."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from accountant.errors import InputError
from privfair.cli import kernels

app = typer.Typer(
    name="privfair",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated training that is fair over all the data, with its privacy cost written down.",
)
app.command()(kernels.kernels)


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
    """Run a command. Bad input is explained on stderr, without a traceback, and the exit code is 2."""
    try:
        app()
    except InputError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {_plain(error)}")
        sys.exit(2)


def _plain(error: Exception) -> str:
    """The message with nothing that Rich would take for markup."""
    from rich.markup import escape

    return escape(str(error))
