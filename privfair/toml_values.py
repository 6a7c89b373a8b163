"""Values on the command line: TOML where it is TOML, a bare word otherwise. No heavy import behind it."""

from __future__ import annotations

import tomllib
from typing import Any


def toml_value(text: str) -> Any:
    """The value a text stands for: `0.5`, `true`, `[16]`, `"a b"`; anything else is itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
