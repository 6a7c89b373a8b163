"""Files that survive a crash: whole or not there (written aside, synced, then renamed), or growing at their end."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file at once; a crash leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)  # half of it would only take room on a disk that is full
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Make the names of new files durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """As `write_bytes`, for plain values."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """As `write_bytes`, for named arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What `write_arrays` wrote."""
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


class GrowingFile:
    """A file that is only appended to, for what would otherwise be rewritten as a whole again and again.

    How much of it counts is written down elsewhere, as `size` and `digest`, after an append. Whatever a crash left
    behind that size is cut off by the next append.
    """

    def __init__(self, path: Path) -> None:
        """Nothing in it counts yet; no file is touched."""
        self.path, self.size = path, 0
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Of everything that counts."""
        return self._hash.hexdigest()

    def append(self, content: bytes) -> None:
        """Add to what counts; it is on the disk when this returns."""
        if not content:
            return
        new = not self.path.exists()
        with self.path.open("wb" if new else "r+b") as file:
            file.truncate(self.size)
            file.seek(self.size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            _sync_folder(self.path.parent)
        self.size += len(content)
        self._hash.update(content)

    def read(self, size: int, digest: str) -> bytes:
        """The first `size` bytes, which count from now on; a ValueError if they are not those of the digest."""
        content = b""
        if size:
            with self.path.open("rb") as file:
                content = file.read(size)
        found = hashlib.blake2b(content, digest_size=16)
        if len(content) < size or found.hexdigest() != digest:
            raise ValueError(f"its first {size:,} bytes are not those that were written")
        self.size, self._hash = size, found
        return content
