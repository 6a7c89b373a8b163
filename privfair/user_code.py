"""Code of the user's own that a configuration names: "package.module:name"."""

from __future__ import annotations

import importlib
from typing import Any

from accountant.errors import InputError


def named_object(key: str, name: str, what: str) -> Any:
    """The object that `name`, "package.module:name", stands for; `key` and `what` are for errors."""
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(key, f"must name {what} that can be imported ({error})", name) from None
