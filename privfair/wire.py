"""Replies as bytes and back: what a client stores before it sends it."""

from __future__ import annotations

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from accountant.errors import InputError
from privfair.messages import Counts, Embeddings, Evaluation, Measures, Reply, Scores, Update


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
