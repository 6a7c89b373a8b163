"""The terminal: text from data is printed as it is and has no effect; and how a command ends if something goes wrong.

Names of groups, columns, clients and files are anybody's text. Rich reads words in square brackets as markup: `[red]`
would vanish, and `[/nope]` would end a command whose run is done. So such text is printed through `escape`, and
brackets that are no markup are printed as they stand, never an error. Control characters would let a name move the
cursor, set the window's title or hide a line: they are shown as symbols.

Exit codes: 0 fine · 1 the answer is no · 2 bad input · 3 a fault (disk full, a crash) · 130 Ctrl-C · 141 nobody reads
the output · 143 SIGTERM. A crash never exits 1, which scripts take for an answer.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
import rich.console
from rich import box
from rich.errors import MarkupError
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from accountant.errors import InputError, LedgerUnavailable, Refused

__all__ = ["Console", "escape", "plain_table", "visible"]

_KEPT = "\n\t"
_SYMBOLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in _KEPT} | {0x7F: "␡"}
_SYMBOLS |= dict.fromkeys(range(0x80, 0xA0), "�")  # C1: control sequences of one byte
_SYMBOLS |= dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "�")  # direction


def visible(text: str) -> str:
    """The text with a symbol for every character that a terminal would obey instead of show."""
    return text.translate(_SYMBOLS)


class Console(rich.console.Console):
    """Rich's console for text of any origin."""

    def __init__(self, **options: Any) -> None:
        """Colour or replace nothing in a text because of how it looks."""
        super().__init__(**{"highlight": False, "emoji": False, **options})

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments, with symbols for control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def render_str(self, text: str, **options: Any) -> Text:
        """The text with its markup, or as it stands if its brackets are no markup."""
        try:
            return super().render_str(visible(text), **options)
        except MarkupError:
            return super().render_str(visible(text), **{**options, "markup": False})


def plain_table(title: str = "") -> Table:
    """A table whose columns leave room for each other on 80 characters."""
    return Table(
        title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False,
    )  # fmt: skip


ANSWER_IS_NO, BAD_INPUT, FAULT, INTERRUPTED = 1, 2, 3, 128 + signal.SIGINT
NOBODY_READS, TERMINATED = 128 + signal.SIGPIPE, 128 + signal.SIGTERM
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SQLITE_FULL = ("SQLITE_FULL", "SQLITE_IOERR")  # SQLite says the latter of a limit, and of a disk that fails
EXPLAINED = (InputError, Refused, click.ClickException, click.exceptions.Exit, click.Abort, SystemExit, GeneratorExit)


class Terminated(BaseException):
    """SIGTERM arrived. Like a KeyboardInterrupt it passes every `except Exception`, and every `finally` runs."""


def ended(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; explain on stderr whatever it raises, without a traceback."""
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
def reporting(what_is_kept: Callable[[], str]) -> Iterator[None]:
    """While a command has something to lose: whatever ends it (Ctrl-C, SIGTERM, a fault) also reports what is kept.

    Ctrl-C is handled here, because the command line library would turn it into a bare exit code.
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
    """Print the error on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")


def is_full(error: BaseException) -> bool:
    """Whether a disk is full or a limit on a file's size is reached; a database has its own error for that."""
    if isinstance(error, OSError):
        return error.errno in FULL
    name = getattr(getattr(error, "orig", error), "sqlite_errorname", "")
    return str(name).startswith(SQLITE_FULL)


def full_disk_behind(error: BaseException) -> BaseException | None:
    """The error of a full disk that caused this one, if any: then the input is not at fault, and there is no answer."""
    behind = error.__context__
    while behind is not None and not is_full(behind):
        behind = behind.__context__
    return behind


def _explain_fault(error: BaseException, noted: BaseException | None = None) -> int:
    """Report what happened, without the text of an unknown exception, which may contain records."""
    if is_full(error):
        where = getattr(error, "filename", None)
        reported = "The disk is full, or fails" + (f" ({where})" if where else "") + ". Make room."
    elif isinstance(error, OSError) and error.strerror:
        reported = f"The system says: {error.strerror}" + (f" ({error.filename})." if error.filename else ".")
    elif isinstance(error, LedgerUnavailable):
        reported = str(error)
    elif isinstance(error, MemoryError):
        reported = "There is not enough memory."
    else:
        reported = f"privfair crashed: {type(error).__name__}{_place(error)}. {_logged(error)}"
    _say(f"fault: {reported}", noted or error)
    return FAULT


def _place(error: BaseException) -> str:
    """Where it was raised: the last line of privfair's own code."""
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
    """Print a message and what is kept on stderr; a stderr that is closed or full must not keep us from ending."""
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
    """End quietly and without an answer, like any tool whose reader (`head` for example) has gone."""
    _redirect(1)
    return NOBODY_READS


def _redirect(descriptor: int) -> None:
    """Discard what is still in the buffers, which Python would flush at its end and complain about."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
