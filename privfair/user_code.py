"""Code of the user's own that a configuration names: "package.module:name"."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accountant.errors import InputError


def named_object(key: str, name: str, what: str) -> Any:
    """The object that `name`, "package.module:name", stands for; `key` and `what` are for errors."""
    module_name, _, attribute = name.partition(":")
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
