"""What every package uses: the array type, threads, versions, TOML values, code of the user, safe files.

Numpy and torch are imported only where they are needed, so that commands without arithmetic start at once.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import platform
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from accountant.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privfair.codec import FloatArray as FloatArray


def __getattr__(name: str) -> Any:
    """`FloatArray`, made when the first module asks for it."""
    if name != "FloatArray":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from privfair import codec

    return codec.FloatArray


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for each operation: on small tensors threads only wait for each other.

    For torch this holds in this thread and those begun within it; for BLAS, which the compiled training calls, in the
    whole process.
    """
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        torch.set_num_threads(before)


# ---- Versions, and values written as TOML.

PACKAGES = (
    "privfair", "torch", "opacus", "tenseal", "numba", "numpy", "pandas", "dp-accounting", "opendp", "sqlalchemy",
    "flwr", "ray", "pyarrow", "psycopg",
)  # fmt: skip

ARITHMETIC = ("privfair", "torch", "opacus", "numba", "numpy")  # these decide the last bits of a holder's numbers


def installed() -> dict[str, str | None]:
    """The versions of Python and of the packages that matter; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def toml_value(text: str) -> Any:
    """The value of a text on the command line: `0.5`, `true`, `[16]`, `"a b"`; anything else is itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or a number of more digits than Python reads
        return text.strip()


def why_unreadable(error: Exception) -> str:
    """Why a TOML file could not be read, without what is in it."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, tomllib.TOMLDecodeError):
        return " ".join(str(error).split())
    if isinstance(error, RecursionError):
        return "its tables are nested too deeply"
    return "a name or number in it, or its path, is not possible"


# ---- Code of the user that a configuration names: "package.module:name".
#
# It may be in the folder in which the command was started. Other code there must not run: somebody who can write a file
# into a folder of data must not be able to run a program by naming it like a package, installed or not. So this folder
# is searched only for the module that a configuration names and for what such modules import, after everything
# installed.


class _OwnModules(MetaPathFinder):
    """Finds modules in the current folder: those allowed by name, and those that such a module imports."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def allow(self, module: str) -> None:
        """Find the package of this module, from now on."""
        self._names.add(module.partition(".")[0])
        if self not in sys.meta_path:
            sys.meta_path.append(self)  # last: what is installed cannot be replaced

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module in the folder, if it may come from there; None for all others and for parts of a package."""
        if path is not None or not (fullname in self._names or self._asked_by_one(sys._getframe(1))):
            return None
        found = PathFinder.find_spec(fullname, [os.getcwd()])
        if found is not None:
            self._names.add(fullname)
        return found

    def _asked_by_one(self, frame: FrameType | None) -> bool:
        """Whether the running import statement is in a module of the folder."""
        while frame is not None and _package(frame) in _IMPORTING:
            frame = frame.f_back
        return frame is not None and _package(frame) in self._names


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


_IMPORTING = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
_OWN = _OwnModules()


def named_object(key: str, name: str, what: str) -> Any:
    """The object that `name`, "package.module:name", stands for; `key` and `what` are for errors."""
    module_name, _, attribute = name.partition(":")
    _OWN.allow(module_name)
    with user_code(key, f"must name {what} that can be imported", name):
        return getattr(importlib.import_module(module_name), attribute)


@contextmanager
def user_code(name: str, rule: str, found: str | None = None, remedy: str = "") -> Iterator[None]:
    """Turn what code of the user raises into an `InputError` that names the exception.

    The exception is the value found or, where `found` is given, part of the rule. User code may raise anything, so
    everything is caught, also `sys.exit()`, which would end the run without a message. An `InputError` stays as it is.
    """
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        if found is None:
            raise InputError(name, rule, reported(error), remedy) from error
        raise InputError(name, f"{rule} ({reported(error)})", found, remedy) from error


def reported(error: BaseException) -> str:
    """The kind of an exception and what it says, on one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


# ---- Files that survive a crash: written beside their place, synced and renamed, or only appended to.


def write_bytes(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Replace a file at once; a crash leaves the old one or the new one. A secret one is for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o666), "wb") as file:
            if secret:
                os.fchmod(file.fileno(), 0o600)  # where an earlier half was left behind
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


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], *, secret: bool = False) -> None:
    """As `write_bytes`, for named arrays."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, buffer.getvalue(), secret=secret)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What `write_arrays` wrote."""
    import numpy as np

    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


class GrowingFile:
    """A file that is only appended to, for content that would otherwise be rewritten as a whole again and again.

    After an append the caller stores `size` and `digest` elsewhere. The next append removes what a crash left behind
    that size.
    """

    def __init__(self, path: Path) -> None:
        """Begin with size 0; no file is touched."""
        self.path, self.size = path, 0
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The digest of the first `size` bytes."""
        return self._hash.hexdigest()

    def append(self, content: bytes) -> None:
        """Append; the content is on the disk when this returns."""
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
        """The first `size` bytes, from which the file continues; a ValueError if they do not have this digest."""
        content = b""
        if size:
            with self.path.open("rb") as file:
                content = file.read(size)
        found = hashlib.blake2b(content, digest_size=16)
        if len(content) < size or found.hexdigest() != digest:
            raise ValueError(f"its first {size:,} bytes are not those that were written")
        self.size, self._hash = size, found
        return content
