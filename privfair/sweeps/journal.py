"""results.csv and history.csv of a sweep: a line per run, durable as soon as the run ends, and read back exactly."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from accountant.errors import InputError, Refused
from privfair.sweeps.jobs import Job, Key
from privfair.util import write_json

SCHEMA = 1
NOTIONS = ("statistical_parity", "equal_opportunity", "predictive_equality", "equalized_odds", "risk_parity")
TEXT = ("series", "method", "parameter", "status", "reason", "notion", "engine")
WHOLE = ("schema", "seed", "rounds", "bytes_up", "bytes_down")
COLUMNS: tuple[str, ...] = (
    "schema", "series", "method", "parameter", "value", "lambda", "seed", "epsilon_target", "status", "reason",
    "accuracy", "rmse", "notion", "unfairness", *(f"unfairness_{name}" for name in NOTIONS), "mmd2",
    "train_loss", "train_mmd2", "train_objective", "test_loss", "test_objective",
    "baseline_accuracy", "baseline_rmse", "epsilon_pld", "epsilon_rdp", "delta",
    "rounds", "bytes_up", "bytes_down", "seconds", "engine", "epsilon_beyond",
)  # fmt: skip
BEFORE_BEYOND = tuple(name for name in COLUMNS if name != "epsilon_beyond")  # as 0.2.0 wrote them
HISTORY: tuple[str, ...] = (
    "schema", "series", "value", "seed", "epsilon_target", "round", "accuracy", "unfairness",
    "train_loss", "train_mmd2", "train_objective", "test_loss", "test_mmd2", "test_objective",
)  # fmt: skip

RESULTS, HISTORIES, ABOUT = "results.csv", "history.csv", "sweep.json"
Row = dict[str, Any]


class Ended:
    """Runs by how they ended."""

    rows: tuple[Row, ...]

    @property
    def done(self) -> list[Row]:
        """The rows with a result."""
        return [row for row in self.rows if row["status"] == "done"]

    @property
    def failed(self) -> list[Row]:
        """The rows without one."""
        return [row for row in self.rows if row["status"] != "done"]


def failed_row(error: BaseException | str) -> Row:
    """The row of a run without a result, with its reason on one line."""
    text = str(error) or type(error).__name__
    if isinstance(error, BaseException) and not isinstance(error, InputError):
        text = f"{type(error).__name__}: {text}"
    return {"status": "failed", "reason": " ".join(text.split())}


def as_text(row: Mapping[str, Any], columns: tuple[str, ...]) -> list[str]:
    """The fields of a line; numbers are written so that they are read back exactly."""
    return [_field(SCHEMA if name == "schema" else row.get(name)) for name in columns]


def from_text(fields: Mapping[str, str]) -> Row:
    """The row that `as_text` wrote; ValueError if a number's field holds none."""
    row: Row = {}
    for name, text in fields.items():
        if name in TEXT:
            row[name] = text
        elif text == "":
            row[name] = None
        else:
            row[name] = int(text) if name in (*WHOLE, "round") else float(text)
    return row


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else repr(float(value))
    return " ".join(str(value).split())


class Lines:
    """A CSV file that only grows and that one process at a time has open; nothing changes before `repair`."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        """Open or create the file and lock it until it is closed; raise if another sweep is writing to it."""
        self.path, self.columns = path, columns
        self.filled: tuple[str, ...] = ()  # columns that the file has no place for
        self._file: IO[bytes] = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise Refused(f"Another sweep is writing to {path.parent}: wait for it, or take another --out.") from None
        except BaseException:
            self._file.close()
            raise

    def repair(self) -> None:
        """Drop a last line that a crash left half-written; write the header, or raise if it is another version's."""
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        if whole == 0:
            self._write([list(self.columns)])
            return
        header = content[: content.find(b"\n")].decode("utf-8", errors="replace").strip()
        if self.columns == COLUMNS and header == ",".join(BEFORE_BEYOND):
            # a sweep of an earlier version goes on in its own columns
            self.columns, self.filled = BEFORE_BEYOND, ("epsilon_beyond",)
        if header != ",".join(self.columns):
            remedy = f"This version writes schema {SCHEMA}; take another folder, or move the file away."
            raise InputError(str(self.path), "must have the columns of this version", header[:60] + "…", remedy)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines; they are on the disk when this returns."""
        self._write([as_text(row, self.columns) for row in rows])

    def _write(self, lines: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        self._file.write(text.getvalue().encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def read(self) -> list[Row]:
        """All lines."""
        self._file.seek(0)
        reader = csv.DictReader(io.StringIO(self._file.read().decode("utf-8")))
        rows = []
        for number, fields in enumerate(reader, start=2):
            try:
                rows.append({**dict.fromkeys(self.filled), **from_text(fields)})
            except (ValueError, TypeError, AttributeError):
                remedy = "Delete that line; its run is then made again."
                raise InputError(f"{self.path}, line {number}", "must be a line of a sweep", fields, remedy) from None
        return rows

    def close(self) -> None:
        """Close the file, which also releases the lock."""
        self._file.close()


class Journal:
    """The folder of a sweep: its configuration, and a line for every finished run."""

    def __init__(self, folder: Path, configuration: Mapping[str, Any], asked: Iterable[Key] = ()) -> None:
        """Open or create; raise on a folder of another configuration and leave it untouched.

        `configuration` must be the same as before; the grid may grow. The runs of the folder are those `asked` for now
        and those that have a line.
        """
        self.folder = folder
        _require_ours(folder, configuration)
        with ExitStack() as opened:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._results = opened.enter_context(closing(Lines(folder / RESULTS, COLUMNS)))
                _require_ours(folder, configuration)  # again: another process may have begun a sweep meanwhile
                self._results.repair()
                self._history = opened.enter_context(closing(Lines(folder / HISTORIES, HISTORY)))
                self._history.repair()
                runs = len(self.newest().keys() | set(asked))
                write_json(folder / ABOUT, {"schema": SCHEMA, "configuration": configuration, "runs": runs})
            except OSError as error:
                rule = f"must be a folder that can be written ({error.strerror})"
                raise InputError("--out", rule, str(folder)) from None
            self._open = opened.pop_all()

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self._open.close()

    def add(self, job: Job, row: Mapping[str, Any]) -> Row:
        """The line of a finished run, written after its history so that every line in results.csv is complete."""
        known = job.columns()
        if "history" in row:
            self._history.append({**known, **line} for line in row["history"])
        whole = {**dict.fromkeys(COLUMNS), **known, **row, "schema": SCHEMA}
        whole.pop("history", None)
        self._results.append([whole])
        return whole

    def newest(self) -> dict[Key, Row]:
        """The line that counts of every run."""
        return newest(self._results.read())

    def histories(self) -> dict[Key, list[Row]]:
        """The lines of every run by round."""
        return by_round(self._history.read())


def key_of(row: Mapping[str, Any]) -> Key:
    """What identifies the run of a line."""
    return Key(row["series"], row["value"], row["seed"], row["epsilon_target"])


def newest(rows: Iterable[Row]) -> dict[Key, Row]:
    """The line that counts of every run: its newest result, or its newest failure where it never gave one."""
    found: dict[Key, Row] = {}
    for row in rows:
        key = key_of(row)
        if row["status"] == "done" or key not in found or found[key]["status"] != "done":
            found[key] = row
    return found


def by_round(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """The history of every run; of a round that is there twice (a run that was killed), the newest line."""
    found: dict[Key, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(key_of(row), {})[row["round"]] = row
    return {key: [lines[number] for number in sorted(lines)] for key, lines in found.items()}


def read_lines(path: Path) -> list[Row]:
    """The lines of a file that another process may be writing; none if it does not exist."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        try:
            # a line that is being written, or was cut by a crash, has no end yet
            whole = [text for text in file if text.endswith("\n")]
            return [from_text(fields) for fields in csv.DictReader(whole)]
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(path.name, "must be whole and readable", str(path), f"({error})") from None


def saved_runs(folder: Path) -> tuple[int, int]:
    """(runs with a result, all runs) of the sweep in a folder; zeros if none has begun."""
    about = _read_about(folder) or {}
    ended = newest(read_lines(folder / RESULTS)).values()
    return sum(row["status"] == "done" for row in ended), about.get("runs", 0)


def _read_about(folder: Path) -> dict[str, Any] | None:
    path = folder / ABOUT
    try:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            str(path), f"must be readable JSON ({error})", "something else", "Take another --out."
        ) from None
    return known


def _require_ours(folder: Path, configuration: Mapping[str, Any]) -> None:
    """Raise if the folder holds a sweep of another configuration, or something that is no sweep."""
    known = _read_about(folder)
    if known is None:
        # only a header: another sweep is starting at this moment, or was stopped while it started
        if (folder / RESULTS).is_file() and not f"{','.join(COLUMNS)}\n".encode().startswith(_begin(folder / RESULTS)):
            raise InputError("--out", f"must have a {ABOUT} beside its {RESULTS}", str(folder), "Take another folder.")
        return
    if known.get("schema") != SCHEMA:
        raise InputError(str(folder / ABOUT), f"must have schema {SCHEMA}", known.get("schema"), "Take another --out.")
    before, now = _flat(known.get("configuration", {})), _flat(configuration)
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        found = "; ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in changed[:4])
        remedy = "Give the configuration it was started with, or another --out."
        raise InputError("--out", "must be a new folder or a sweep of the same configuration", found, remedy)


def _begin(path: Path) -> bytes:
    """Its first bytes, more than a header has; none if it cannot be read, which opening it will report."""
    try:
        with path.open("rb") as file:
            return file.read(10_000)
    except OSError:
        return b""


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with one key per value."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat
