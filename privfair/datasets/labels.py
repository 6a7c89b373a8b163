"""Labels of a CSV file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.datasets.columns import numbers
from privfair.datasets.inference import is_missing

BINARY = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}
MOST_BAD = 0.05  # a larger share of other values is a mistake about the column, not a few bad records


def binary_labels(
    name: str, values: Sequence[str], positive: str | None, *, declared: bool
) -> tuple[NDArray[np.float64], list[str]]:
    """0 or 1 for every record, NaN where the label is missing or useless; and notes.

    With a `positive` label every other one counts as 0; that no record has it is an error, and a note where the schema
    is declared: it may be so at one data holder. Without, labels are 0 and 1 (or false and true); where the
    schema is declared a few other values are let pass as useless, so that one bad record is no error.
    """
    missing = np.array([is_missing(value) for value in values], dtype=np.bool_)
    if positive is not None:
        wanted = numbers([positive])[0]
        same = np.array([value == positive for value in values], dtype=np.bool_)
        same |= numbers(values) == wanted  # 1 and 1.0; NaN equals nothing
        missing &= ~same
        notes = [] if same.any() else _without_positive(name, positive, values, missing, declared=declared)
        return np.where(missing, np.nan, same.astype(np.float64)), notes
    labels = np.array([BINARY.get(value.casefold(), np.nan) for value in values], dtype=np.float64)
    bad = np.isnan(labels) & ~missing
    allowed = MOST_BAD * len(values) if declared else 0
    if bad.any() and (bad.sum() > max(1, allowed) or not declared or bad.all()):
        found = {value for value, wrong in zip(values, bad, strict=True) if wrong}
        example = "data.positive, for example --set data.positive=yes"
        remedy = f'Name the label that counts as 1 ({example}), or choose task = "regression".'
        raise InputError(f"label {name}", "must be 0 or 1", _others(found), remedy)
    return labels, []


def _without_positive(
    name: str, positive: str, values: Sequence[str], missing: NDArray[np.bool_], *, declared: bool
) -> list[str]:
    """A note, or where the schema is inferred an error, that there are labels and none is the positive one."""
    found = {value for value, none in zip(values, missing, strict=True) if not none}
    if not found:
        return []
    if declared:
        return [f"{name}: no record has the positive label {positive!r}; all labels are 0."]
    near = [label for label in found if label.casefold() == positive.casefold()]
    remedy = f"The column has {_others(found)}."
    remedy += " Capital and small letters are different: one of them differs in that only." if near else ""
    raise InputError("positive", f"must be one of the labels in the column {name}", positive, remedy)


def _others(found: set[str]) -> str:
    """How many labels there are, for an error: what they are stays with the records."""
    return f"{len(found)} other " + ("value" if len(found) == 1 else "values")


def regression_labels(
    name: str, values: Sequence[str], label_range: tuple[float, float] | None
) -> tuple[NDArray[np.float64], tuple[float, float], list[str]]:
    """A number in the range for every record, NaN where it is missing; the range, from them if None; and notes."""
    labels = numbers(values)
    labels[~np.isfinite(labels)] = np.nan
    known = labels[~np.isnan(labels)]
    if known.size == 0:
        raise InputError(f"label {name}", "must be a number", f"none in {len(values)} records")
    if label_range is None:
        low, high = float(known.min()), float(known.max())
        label_range = (low, high) if low < high else (low - 1.0, high + 1.0)
    low, high = label_range
    clipped = int(((known < low) | (known > high)).sum())
    notes = [f"{name}: {clipped} labels clipped to the range {low:g} to {high:g}."] if clipped else []
    return np.clip(labels, low, high), label_range, notes
