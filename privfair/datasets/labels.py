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


def binary_labels(name: str, values: Sequence[str], positive: str | None, *, declared: bool) -> NDArray[np.float64]:
    """0 or 1 for every record, NaN where the label is missing or useless.

    With a `positive` label every other one counts as 0. Without, labels are 0 and 1 (or false and true); where the
    schema is declared a few other values are let pass as useless, so that one bad record is no error.
    """
    missing = np.array([is_missing(value) for value in values], dtype=np.bool_)
    if positive is not None:
        wanted = numbers([positive])[0]
        same = np.array([value == positive for value in values], dtype=np.bool_)
        same |= numbers(values) == wanted  # 1 and 1.0; NaN equals nothing
        return np.where(missing & ~same, np.nan, same.astype(np.float64))
    labels = np.array([BINARY.get(value.casefold(), np.nan) for value in values], dtype=np.float64)
    bad = np.isnan(labels) & ~missing
    allowed = MOST_BAD * len(values) if declared else 0
    if bad.any() and (bad.sum() > max(1, allowed) or not declared or bad.all()):
        found = sorted({value for value, wrong in zip(values, bad, strict=True) if wrong})
        remedy = 'Name the label that counts as 1 (positive = "…"), or choose task = "regression".'
        raise InputError(f"label {name}", "must be 0 or 1", ", ".join(found[:5]), remedy)
    return labels


def regression_labels(
    name: str, values: Sequence[str], label_range: tuple[float, float] | None
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """A number in the range for every record, NaN where it is missing; and the range, taken from them if None."""
    labels = numbers(values)
    labels[~np.isfinite(labels)] = np.nan
    known = labels[~np.isnan(labels)]
    if known.size == 0:
        raise InputError(f"label {name}", "must be a number", ", ".join(list(values)[:5]))
    if label_range is None:
        low, high = float(known.min()), float(known.max())
        label_range = (low, high) if low < high else (low - 1.0, high + 1.0)
    return np.clip(labels, *label_range), label_range
