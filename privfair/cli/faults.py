"""How a command ends when something goes wrong: its exit code, and what it says on stderr.

0 fine · 1 the answer is no · 2 bad input · 3 a fault (disk full, a crash) · 130 Ctrl-C · 141 nobody reads the output ·
143 SIGTERM. A crash never exits 1, which scripts take for an answer.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from accountant.errors import InputError, LedgerUnavailable, Refused
from privfair.cli.console import Console, escape

ANSWER_IS_NO, BAD_INPUT, FAULT, INTERRUPTED = 1, 2, 3, 128 + signal.SIGINT
NOBODY_READS, TERMINATED = 128 + signal.SIGPIPE, 128 + signal.SIGTERM
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SQLITE_FULL = ("SQLITE_FULL", "SQLITE_IOERR")  # SQLite says the latter of a limit, and of a disk that fails
EXPLAINED = (InputError, Refused, click.ClickException, click.exceptions.Exit, click.Abort, SystemExit, GeneratorExit)


class Terminated(BaseException):
    """SIGTERM arrived; like a KeyboardInterrupt it passes every `except Exception`, and every `finally` is run."""


def ended(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; whatever it raises is explained on stderr, without a traceback."""
    with _sigterm():
        return _ended(command)


def _ended(command: Callable[[], Any]) -> int:
    try:
        code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (InputError, Refused, LedgerUnavailable) as error:
        if behind := full_disk_behind(error):
            return _explain_fault(behind, error)
        if isinstance(error, LedgerUnavailable):
            return _explain_fault(error)
        explain(error)
        return BAD_INPUT if isinstance(error, InputError) else ANSWER_IS_NO
    except click.ClickException as error:
        _show_usage_error(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        _say("Interrupted.", error)
        return INTERRUPTED
    except Terminated as error:
        _say("Terminated (SIGTERM).", error)
        return TERMINATED
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich and click exit with 1
            return _stop_writing()
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BrokenPipeError as error:
        return _stop_writing() if _output_is_closed() else _explain_fault(error)
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it is, it must not look like an answer
        return _explain_fault(error)


@contextmanager
def telling(what_is_kept: Callable[[], str]) -> Iterator[None]:
    """While a command has something to lose: whatever ends it (Ctrl-C, SIGTERM, a fault) also tells what is kept.

    Ctrl-C is answered here, because the command line library would turn it into a bare exit code.
    """
    try:
        yield
    except EXPLAINED as error:
        if full_disk_behind(error):
            error.add_note(what_is_kept())
        raise
    except BaseException as error:
        error.add_note(what_is_kept())
        if isinstance(error, KeyboardInterrupt):
            _say("Interrupted.", error)
            raise click.exceptions.Exit(INTERRUPTED) from None
        raise


def explain(error: Exception) -> None:
    """The error on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")


def is_full(error: BaseException) -> bool:
    """Whether a disk is full, or a limit on a file's size is reached; of a database, its own error tells."""
    if isinstance(error, OSError):
        return error.errno in FULL
    name = getattr(getattr(error, "orig", error), "sqlite_errorname", "")
    return str(name).startswith(SQLITE_FULL)


def full_disk_behind(error: BaseException) -> BaseException | None:
    """The full disk for which an error was raised, if that is why: then it is no fault of the input, and no answer."""
    behind = error.__context__
    while behind is not None and not is_full(behind):
        behind = behind.__context__
    return behind


def _explain_fault(error: BaseException, noted: BaseException | None = None) -> int:
    """Say what happened without the text of an unknown exception, which may contain records."""
    if is_full(error):
        where = getattr(error, "filename", None)
        told = "The disk is full, or fails" + (f" ({where})" if where else "") + ". Make room."
    elif isinstance(error, OSError) and error.strerror:
        told = f"The system says: {error.strerror}" + (f" ({error.filename})." if error.filename else ".")
    elif isinstance(error, LedgerUnavailable):
        told = str(error)
    elif isinstance(error, MemoryError):
        told = "There is not enough memory."
    else:
        told = f"privfair crashed: {type(error).__name__}{_place(error)}. {_logged(error)}"
    _say(f"fault: {told}", noted or error)
    return FAULT


def _place(error: BaseException) -> str:
    """Where it was raised: the last line of ours on the way."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if {"privfair", "accountant"} & set(Path(frame.filename).parts)]
    if not (ours or frames):
        return ""
    frame = (ours or frames)[-1]
    return f" in {'/'.join(Path(frame.filename).parts[-2:])}, line {frame.lineno}"


def _logged(error: BaseException) -> str:
    """Where the traceback was written, in a file that only this user can read."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="privfair-crash-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError as unwritten:
        return f"Its traceback could not be written ({unwritten.strerror})."
    return f"Its traceback is in {file.name}; it may contain values of your data, so look before you pass it on."


def _say(message: str, error: BaseException) -> None:
    """A message, and what is kept, on stderr; a stderr that is closed or full keeps nobody from ending."""
    notes = getattr(error, "__notes__", [])
    try:
        Console(stderr=True, highlight=False).print(" ".join([message, *notes]), markup=False, soft_wrap=True)
    except (OSError, SystemExit):
        _redirect(2)


def _show_usage_error(error: click.ClickException) -> None:
    from typer.rich_utils import rich_format_error

    rich_format_error(error)


@contextmanager
def _sigterm() -> Iterator[None]:
    """While it is active, SIGTERM raises `Terminated`; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _output_is_closed() -> bool:
    """Whether the pipe that broke is our own output."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False


def _stop_writing() -> int:
    """End as a tool does whose reader has gone, `head` for example: quietly, and not with an answer."""
    _redirect(1)
    return NOBODY_READS


def _redirect(descriptor: int) -> None:
    """Let what is still in the buffers vanish: Python flushes them at its end, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
