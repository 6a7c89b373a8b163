"""Values on the command line: TOML where it is TOML, a bare word otherwise. No heavy import behind it."""

from __future__ import annotations

import tomllib
from typing import Any


def toml_value(text: str) -> Any:
    """The value a text stands for: `0.5`, `true`, `[16]`, `"a b"`; anything else is itself."""
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
