"""Downloads of published files, kept only if they are the published ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit
from urllib.request import urlopen

from accountant.errors import InputError
from privfair.datasets.catalogue import Dataset
from privfair.datasets.files import FOLDER_VARIABLE, SourceFile, cache_folder, digest, locate

MIRROR_VARIABLE = "PRIVFAIR_DATA_URL"
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
CHUNK = 1 << 16
Progress = Callable[[str, int, int], None]


class FetchError(InputError):
    """A file could not be had from any of its addresses."""


@dataclass(frozen=True)
class Fetched:
    """Where a file is now, and whether it was there before."""

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
    present = locate(file.name)
    target = cache_folder() / file.name
    if present is not None and digest(present) == file.sha256:
        return Fetched(file.name, present, downloaded=False)
    if present is not None and present != target:
        remedy = f"Remove it, or point {FOLDER_VARIABLE} elsewhere: it would hide the published file."
        raise FetchError(f"file {present}", "must be the published one", "another SHA-256", remedy)
    reasons = []
    for url in _addresses(file):
        try:
            _download(url, file, target, timeout, progress)
        except (OSError, HTTPException, FetchError) as error:  # URLError and timeouts are OSErrors
            reasons.append(f"{url}: {getattr(error, 'found', error)}")
        else:
            return Fetched(file.name, target, downloaded=True)
    remedy = f"Without a network, copy the file into a folder yourself and set {FOLDER_VARIABLE} to it."
    raise FetchError(f"file {file.name}", "must be had from its public source", "; ".join(reasons), remedy)


def _addresses(file: SourceFile) -> list[str]:
    """The addresses to try, if their scheme is safe."""
    mirror = os.environ.get(MIRROR_VARIABLE)
    urls = [f"{mirror.rstrip('/')}/{file.name}"] if mirror else list(file.urls)
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in THIS_MACHINE):
            raise InputError(MIRROR_VARIABLE, "must be an https address", url, "http is for this machine only.")
    return urls


def _download(url: str, file: SourceFile, target: Path, timeout: float, progress: Progress | None) -> None:
    """The file at `target`, moved there at once when it is complete and verified."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out, urlopen(url, timeout=timeout) as response:
            found = _copy(response, out, file, progress)
        if found != file.sha256:
            raise FetchError(f"file {file.name}", f"must have SHA-256 {file.sha256}", f"SHA-256 {found}")
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _copy(response: IO[bytes], out: IO[bytes], file: SourceFile, progress: Progress | None) -> str:
    """The SHA-256 of what was copied; never more than the published size."""
    hashed = sha256()
    done = 0
    while chunk := response.read(CHUNK):
        done += len(chunk)
        if done > file.size:
            raise FetchError(f"file {file.name}", f"must have {file.size} bytes", "more bytes")
        hashed.update(chunk)
        out.write(chunk)
        if progress is not None:
            progress(file.name, done, file.size)
    return hashed.hexdigest()
