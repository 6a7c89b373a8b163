"""Replies as bytes and back: what a client stores before it sends it."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from accountant.errors import InputError
from privfair.fairness.tracking import NoisyScores, SealedFeatures, SharedScores
from privfair.federated.messages import (
    Asked,
    Bundle,
    Counts,
    CountsRequest,
    Embeddings,
    EmbeddingsRequest,
    EvaluateRequest,
    Evaluation,
    LocalWork,
    MeasureRequest,
    Measures,
    OwnPenalty,
    Parameters,
    PrivateWork,
    Reply,
    Reweighted,
    ScoreRelease,
    Scores,
    ScoresRequest,
    Sealed,
    Task,
    Tracked,
    TrainRequest,
    Update,
)
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import UpdateRelease, VectorNoise


def encode(reply: Reply) -> bytes:
    """The reply as named arrays in the safetensors format; the names begin with its kind."""
    match reply:
        case Counts():
            arrays = {"counts/records": np.array([reply.records]), "counts/cells": reply.cells}
        case Scores():
            arrays = {f"scores/{i:06d}": cell for i, cell in enumerate(reply.cells)}
        case Embeddings():
            arrays = {"embeddings/contribution": np.frombuffer(reply.contribution, dtype=np.uint8)}
        case Update():
            arrays = {"update/contribution": np.frombuffer(reply.contribution, dtype=np.uint8)}
        case Measures():
            arrays = {f"measures/{name}": values for name, values in reply.values.items()}
        case Evaluation():
            arrays = {f"evaluation/{i:06d}": table for i, table in enumerate(reply.confusion)}
        case _:
            raise InputError("reply", "must be of a known kind", type(reply).__name__)
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def decode(message: bytes) -> Reply:
    """The reply of a message; bytes that are none give an `InputError`. What is in its arrays, `ReplyCheck` checks."""
    try:
        arrays = dict(sorted(load(message).items()))
        kinds = {name.partition("/")[0] for name in arrays}
        values = {name.partition("/")[2]: array for name, array in arrays.items()}
        kind = kinds.pop() if len(kinds) == 1 else ""
        if kind == "counts":
            records = values["records"]
            if values.keys() != {"records", "cells"} or records.shape != (1,) or records.dtype.kind not in "iu":
                raise InputError("message", "must have one whole number of records", f"shape {records.shape}")
            return Counts(int(records[0]), values["cells"])
        if kind == "scores":
            return Scores(tuple(values.values()))
        if kind == "embeddings":
            return Embeddings(values["contribution"].tobytes())
        if kind == "update":
            return Update(values["contribution"].tobytes())
        if kind == "measures":
            return Measures(values)
        if kind == "evaluation":
            return Evaluation(tuple(values.values()))
    except InputError:
        raise
    except (SafetensorError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise InputError("message", f"must be a whole reply ({error})", f"{len(message)} bytes") from None
    raise InputError("message", "must be a reply of a known kind", sorted(values))


# ---- Requests as bytes and back. What is read comes from a server that is not trusted: every field is checked.


REQUESTS = (Bundle, CountsRequest, EmbeddingsRequest, EvaluateRequest, MeasureRequest, ScoresRequest, TrainRequest)
PARTS = (
    CountNoise, LocalWork, NoisyScores, OwnPenalty, Parameters, PrivateWork, Reweighted, ScoreNoise, ScoreRelease,
    Sealed, SealedFeatures, SharedScores, Task, Tracked, UpdateRelease, VectorNoise,
)  # fmt: skip
KINDS: dict[str, type] = {kind.__name__: kind for kind in (*REQUESTS, *PARTS)}
TREE = "request"
DEEPEST = 12  # nested parts; a message that nests deeper is no request

Arrays = dict[str, NDArray[Any]]


def encode_request(request: Asked) -> bytes:
    """The request as named arrays in the safetensors format, one of which holds everything else as JSON."""
    arrays: Arrays = {}
    tree = json.dumps(_plain(request, arrays), separators=(",", ":"), sort_keys=True)
    return save({TREE: np.frombuffer(tree.encode(), dtype=np.uint8), **arrays})


def decode_request(message: bytes) -> Asked:
    """The request of a message; bytes that are none give an `InputError`."""
    try:
        arrays = load(message)
        tree = json.loads(arrays.pop(TREE).tobytes())
        request = _made(tree, arrays, 0)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        rule = f"must be a whole request ({type(error).__name__})"
        raise InputError("message", rule, f"{len(message)} bytes") from None
    if not isinstance(request, REQUESTS):
        raise InputError("message", "must be a request of a known kind", type(request).__name__)
    return request


def _plain(value: Any, arrays: Arrays) -> Any:
    if is_dataclass(value):
        own = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return {"kind": type(value).__name__, "fields": own}
    if isinstance(value, tuple):
        return {"tuple": [_plain(part, arrays) for part in value]}
    if isinstance(value, np.ndarray | bytes):
        whole = isinstance(value, bytes)
        array = np.frombuffer(value, dtype=np.uint8) if whole else np.ascontiguousarray(value)
        known = (n for n, a in arrays.items() if a.dtype == array.dtype and np.array_equal(a, array))
        name = next(known, f"{len(arrays):06d}")  # what the requests of a bundle share is sent once
        arrays[name] = array
        return {"bytes" if whole else "array": name}
    return value.item() if isinstance(value, np.generic) else value


def _made(tree: Any, arrays: Mapping[str, NDArray[Any]], depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError("nested too deep")
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return arrays[tree["array"]]
    if "bytes" in tree:
        return arrays[tree["bytes"]].tobytes()
    if "tuple" in tree:
        return tuple(_made(part, arrays, depth + 1) for part in tree["tuple"])
    kind = KINDS[tree["kind"]]
    values = {name: _made(part, arrays, depth + 1) for name, part in tree["fields"].items()}
    hints = _hints(kind)
    if values.keys() != hints.keys():
        raise ValueError(f"{kind.__name__} with other fields")
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ValueError(f"{kind.__name__}.{name} of another type")
    return kind(**values)


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; arrays by the kind of their numbers."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        wanted = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(wanted) == len(value) and all(_fits(v, w) for v, w in zip(value, wanted, strict=True))
    if origin is np.ndarray:
        number = get_args(arguments[1])[0]
        kind = np.integer if number is np.int64 else np.floating
        return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, kind)
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
