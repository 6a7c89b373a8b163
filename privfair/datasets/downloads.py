"""Datasets before they are loaded: what the registry knows of them, where their files are, and their download."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from accountant.errors import InputError
from privfair.datasets.records import Federation

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
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


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


# ---- What the registry knows about a dataset.

COMMON = ("seed", "test_fraction")  # every loader takes these; the rest are its own options
REQUIRED = "(required)"
_TOPIC = re.compile(r"[A-Z][\w ,']{2,25}( \([^)]*\))?:")


@dataclass(frozen=True)
class Dataset:
    """A loader with where its data come from. The loader's docstring is the documentation of its preprocessing."""

    name: str
    description: str
    source: str
    licence: str
    load: Callable[..., Federation]
    files: tuple[SourceFile, ...] = ()

    def options(self) -> dict[str, Any]:
        """The loader's own options with their defaults."""
        parameters = inspect.signature(self.load).parameters.values()
        return {
            p.name: REQUIRED if p.default is inspect.Parameter.empty else p.default
            for p in parameters
            if p.name not in COMMON
        }

    def info(self) -> DatasetInfo:
        """What `describe` lists."""
        files = tuple(FileInfo(file.name, file.sha256, file.urls, locate(file.name)) for file in self.files)
        documentation = inspect.getdoc(self.load) or ""
        return DatasetInfo(self.name, self.description, self.source, self.licence, files, self.options(), documentation)


@dataclass(frozen=True)
class FileInfo:
    """A file of a dataset, and where it was found on this machine."""

    name: str
    sha256: str
    urls: tuple[str, ...]
    found: Path | None


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset of the registry as `privfair data list` shows it."""

    name: str
    description: str
    source: str
    licence: str
    files: tuple[FileInfo, ...]
    options: Mapping[str, Any]
    preprocessing: str = field(repr=False)

    @property
    def available(self) -> bool:
        """Whether all its files are on this machine."""
        return all(file.found is not None for file in self.files)

    def paragraphs(self) -> list[str]:
        """The documentation of the preprocessing, one topic ("Features: …") per paragraph, without line breaks."""
        lines = [line.strip() for line in self.preprocessing.splitlines()]
        joined = "\n".join(f"\n{line}" if _TOPIC.match(line) else line for line in lines)
        return [paragraph.replace("\n", " ").strip() for paragraph in re.split(r"\n{2,}", joined) if paragraph.strip()]


# ---- Downloads of published files.

MIRROR_VARIABLE = "PRIVFAIR_DATA_URL"
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
CHUNK = 1 << 16
Progress = Callable[[str, int, int], None]


class FetchError(InputError):
    """A file could not be downloaded from any of its addresses."""


@dataclass(frozen=True)
class Fetched:
    """Where a file is now, and whether it had to be downloaded."""

    name: str
    path: Path
    downloaded: bool


def fetch(dataset: Dataset, *, timeout: float = 60.0, progress: Progress | None = None) -> list[Fetched]:
    """The dataset's files, each downloaded into the user's cache unless the published one is on this machine already.

    Addresses are those of the registry, or $PRIVFAIR_DATA_URL/NAME where that variable names a mirror. They must be
    https (http for this machine only). A file appears in the cache only whole and with the published SHA-256.
    `progress` is called with the file's name, the bytes so far and the bytes in all.
    """
    if not dataset.files:
        raise InputError(f"dataset {dataset.name}", "must have published files", "none", "There is nothing to fetch.")
    return [_fetch_file(file, timeout, progress) for file in dataset.files]


def _fetch_file(file: SourceFile, timeout: float, progress: Progress | None) -> Fetched:
    import pooch

    present = locate(file.name)
    target = cache_folder() / file.name
    if present is not None and digest(present) == file.sha256:
        return Fetched(file.name, present, downloaded=False)
    if present is not None and present != target:
        remedy = f"Remove it, or point {FOLDER_VARIABLE} elsewhere: it would hide the published file."
        raise FetchError(f"file {present}", "must be the published one", "another SHA-256", remedy)
    pooch.get_logger().setLevel("WARNING")
    reasons = []
    for url in _addresses(file):
        download = pooch.HTTPDownloader(progressbar=_Bar(file, progress), chunk_size=CHUNK, timeout=timeout)
        try:
            pooch.retrieve(url, f"sha256:{file.sha256}", target.name, target.parent, downloader=download)
        except (OSError, ValueError) as error:  # of requests, of a wrong hash, or of `_Bar`
            reasons.append(f"{url}: {getattr(error, 'found', error)}")
        else:
            return Fetched(file.name, target, downloaded=True)
    remedy = f"Without a network, copy the file into a folder yourself and set {FOLDER_VARIABLE} to it."
    raise FetchError(f"file {file.name}", "must be had from its public source", "; ".join(reasons), remedy)


def _addresses(file: SourceFile) -> list[str]:
    """The addresses to try; raise if one is not safe."""
    mirror = os.environ.get(MIRROR_VARIABLE)
    urls = [f"{mirror.rstrip('/')}/{file.name}"] if mirror else list(file.urls)
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in THIS_MACHINE):
            raise InputError(MIRROR_VARIABLE, "must be an https address", url, "http is for this machine only.")
    return urls


class _Bar:
    """Pooch's progress bar; it also stops a download beyond the published size, which pooch does not."""

    def __init__(self, file: SourceFile, progress: Progress | None) -> None:
        self._file, self._progress = file, progress
        self.total = self._done = 0

    def update(self, size: int) -> None:
        if max(self.total, self._done) > self._file.size:
            raise FetchError(f"file {self._file.name}", f"must have {self._file.size} bytes", "more bytes")
        self._done += size
        if self._progress is not None:
            self._progress(self._file.name, min(self._done, self._file.size), self._file.size)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        """Nothing is open."""
