"""Code of the user's own that a configuration names: "package.module:name".

It may lie in the folder in which the command was started. No other code may: whoever can write a file into a folder of
data must not be able to run a program by naming it like a package, installed or not. So the folder is searched for the
module that a configuration names and for what modules found there import themselves, after everything installed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

from accountant.errors import InputError


class _OwnModules(MetaPathFinder):
    """Finds modules in the current folder: those allowed by name, and those that a module found here asks for."""

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
        """Whether the import statement that is being carried out stands in a module of the folder."""
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
    """Turn what code of the user's own raises into an `InputError` that tells the exception, its cause.

    It is what was found or, where `found` says that, the reason in the rule.

    Such code may raise anything, so anything is caught, also `sys.exit()`, which would end the run without a word.
    What it says as an `InputError` itself stays as it is.
    """
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        if found is None:
            raise InputError(name, rule, told(error), remedy) from error
        raise InputError(name, f"{rule} ({told(error)})", found, remedy) from error


def told(error: BaseException) -> str:
    """The kind of an exception and what it says, on one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
