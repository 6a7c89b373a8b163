"""Messages of the codec, taken apart and put together again by somebody who means no good."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from privfair.codec import TREE


def taken_apart(message: bytes) -> tuple[Any, dict[str, Any]]:
    """The tree of a message, and the arrays beside it."""
    arrays = load(message)
    return json.loads(arrays.pop(TREE).tobytes()), arrays


def put_together(tree: Any, arrays: Mapping[str, Any]) -> bytes:
    """The message of these, whatever they are."""
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return save({**{n: np.ascontiguousarray(a) for n, a in arrays.items()}, TREE: np.frombuffer(text, dtype=np.uint8)})


def with_values(message: bytes) -> dict[str, Any]:
    """The fields of a message of one kind, with arrays in the place of their names."""
    tree, arrays = taken_apart(message)
    ((kind, fields),) = tree.items()
    return {"kind": kind, **_named(fields, arrays)}


def of_values(found: dict[str, Any]) -> bytes:
    """The message of such fields."""
    arrays: dict[str, Any] = {}
    fields = _beside({name: value for name, value in found.items() if name != "kind"}, arrays)
    return put_together({found["kind"]: fields}, arrays)


def _named(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _named(part, arrays) for name, part in value.items()}
    if isinstance(value, list):
        return [_named(part, arrays) for part in value]
    return arrays.get(value, value) if isinstance(value, str) else value


def _beside(value: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _beside(part, arrays) for name, part in value.items()}
    if isinstance(value, list):
        return [_beside(part, arrays) for part in value]
    if not isinstance(value, np.ndarray):
        return value
    name = f"{len(arrays) + 1:06d}"
    arrays[name] = value
    return name
