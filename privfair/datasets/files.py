"""Where the data files are, and whether they are the published ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from accountant.errors import InputError

FOLDER_VARIABLE = "PRIVFAIR_DATA"


@dataclass(frozen=True)
class SourceFile:
    """A published file: its name here, its SHA-256, its size, and the public addresses to fetch it from."""

    name: str
    sha256: str
    size: int
    urls: tuple[str, ...]


def cache_folder() -> Path:
    """The user's cache: $XDG_CACHE_HOME/privfair, or ~/.cache/privfair."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "privfair"


def locate(name: str) -> Path | None:
    """The file in $PRIVFAIR_DATA, or else in the user's cache; None if it is in neither."""
    folder = os.environ.get(FOLDER_VARIABLE)
    for candidate in ([Path(folder) / name] if folder else []) + [cache_folder() / name]:
        if candidate.is_file():
            return candidate
    return None


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return sha256(path.read_bytes()).hexdigest()


def require(dataset: str, file: SourceFile) -> tuple[Path, tuple[str, ...]]:
    """The file's path, with a note if its content is not the published one."""
    path = locate(file.name)
    if path is None:
        folder = os.environ.get(FOLDER_VARIABLE)
        looked = f"not in {folder}, not in {cache_folder()}" if folder else f"not in {cache_folder()}"
        remedy = f"Run `privfair data fetch {dataset}`, or set {FOLDER_VARIABLE} to the folder that has it."
        raise InputError(f"dataset {dataset}", f"needs the file {file.name}", looked, remedy)
    if digest(path) == file.sha256:
        return path, ()
    return path, (f"{file.name} is not the published file (its SHA-256 differs): figures may differ too.",)
