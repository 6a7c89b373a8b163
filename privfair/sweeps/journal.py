"""results.csv and history.csv of a sweep: lines that are added as runs finish, durable at once, and read again."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from accountant.errors import InputError, Refused
from privfair.storage import write_json
from privfair.sweeps.jobs import Job, Key
from privfair.sweeps.rows import COLUMNS, HISTORY, SCHEMA, Row, as_text, from_text

RESULTS, HISTORIES, ABOUT = "results.csv", "history.csv", "sweep.json"


class Lines:
    """A CSV file that only grows; opening it drops a last line that a crash left half-written."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        """Open or create the file; its header must be that of this version."""
        self.path, self.columns = path, columns
        self._file: IO[bytes] = path.open("a+b")
        try:
            self._repair()
        except BaseException:
            self._file.close()
            raise

    def _repair(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        if whole == 0:
            self._write([list(self.columns)])
            return
        header = content[: content.find(b"\n")].decode("utf-8", errors="replace").strip()
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
                rows.append(from_text(fields))
            except (ValueError, TypeError, AttributeError):
                remedy = "Delete that line; its run is then made again."
                raise InputError(f"{self.path}, line {number}", "must be a line of a sweep", fields, remedy) from None
        return rows

    def lock(self) -> None:
        """Keep others out until the file is closed."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"Another sweep is writing to {self.path.parent}: wait for it, or take another --out."
            ) from None

    def close(self) -> None:
        """Let go of the file, and of the lock."""
        self._file.close()


class Journal:
    """The folder of a sweep: what was asked for, and a line for every run that is finished."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Open or create; a folder of another configuration is refused, and nothing in it is touched.

        `about["configuration"]` must be the same as before; the grid may grow.
        """
        self.folder = folder
        known = _read_about(folder)
        if known is not None:
            _require_same(folder, known, about)
        elif (folder / RESULTS).exists():
            raise InputError("--out", f"must have a {ABOUT} beside its {RESULTS}", str(folder), "Take another folder.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._results = Lines(folder / RESULTS, COLUMNS)
        except OSError as error:
            raise InputError("--out", f"must be a folder that can be written ({error.strerror})", str(folder)) from None
        try:
            self._results.lock()
            self._history = Lines(folder / HISTORIES, HISTORY)
            write_json(folder / ABOUT, {"schema": SCHEMA, **about})
        except BaseException:
            self._results.close()
            raise

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self._history.close()
        self._results.close()

    def add(self, job: Job, row: Mapping[str, Any]) -> Row:
        """Write a finished run down; the history first, so that a line in results.csv is complete. Returns the line."""
        known = job.columns()
        if "history" in row:
            self._history.append({**known, **line} for line in row["history"])
        whole = {**dict.fromkeys(COLUMNS), **known, **row, "schema": SCHEMA}
        whole.pop("history", None)
        self._results.append([whole])
        return whole

    def finished(self) -> dict[Key, Row]:
        """The newest line of every run that gave a result; failed ones are tried again."""
        found: dict[Key, Row] = {}
        for row in self._results.read():
            if row["status"] == "done":
                found[key_of(row)] = row
        return found

    def histories(self) -> dict[Key, list[Row]]:
        """The lines of every run by round; of a round that is there twice (a run that was killed), the newest."""
        found: dict[Key, dict[int, Row]] = {}
        for row in self._history.read():
            found.setdefault(key_of(row), {})[row["round"]] = row
        return {key: [lines[number] for number in sorted(lines)] for key, lines in found.items()}


def key_of(row: Mapping[str, Any]) -> Key:
    """What the run of a line is found by."""
    return Key(row["series"], row["value"], row["seed"], row["epsilon_target"])


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


def _require_same(folder: Path, known: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Nothing, if the sweep in the folder has this configuration."""
    if known.get("schema") != SCHEMA:
        raise InputError(str(folder / ABOUT), f"must have schema {SCHEMA}", known.get("schema"), "Take another --out.")
    before, now = _flat(known.get("configuration", {})), _flat(about["configuration"])
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        told = "; ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in changed[:4])
        remedy = "Give the configuration it was started with, or another --out."
        raise InputError("--out", "must be a new folder or a sweep of the same configuration", told, remedy)


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with one key per value."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat
