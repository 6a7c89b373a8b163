"""Columns taken from the records themselves: for simulations only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accountant.errors import InputError
from privfair.datasets.columns import Categorical, Column, Numeric, numbers

MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))
MOST_CATEGORIES = 100
MOST_GROUPS = 20
DECLARE = "Declare its values in the schema"


def is_missing(value: str) -> bool:
    """Whether a value stands for none."""
    return value.casefold() in MISSING


def infer_column(name: str, values: Sequence[str]) -> Column:
    """A number from smallest to largest if all values are numbers, otherwise the categories that occur."""
    present = [value for value in values if not is_missing(value)]
    as_numbers = numbers(present)
    if not np.isnan(as_numbers).any():
        finite = as_numbers[np.isfinite(as_numbers)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)
        if low == high:  # a constant is encoded as 0, the middle
            low, high = low - max(1.0, abs(low)), high + max(1.0, abs(high))
        return Numeric(name, low, high)
    categories = tuple(sorted(set(present)))
    if len(categories) > MOST_CATEGORIES:
        rule = f"must have at most {MOST_CATEGORIES} different values, or numbers only"
        raise InputError(f"column {name}", rule, len(categories), f"{DECLARE}, or leave it out of the features.")
    return Categorical(name, categories, other=len(present) < len(values))


def infer_groups(name: str, values: Sequence[str]) -> Categorical:
    """The groups that occur."""
    present = [value for value in values if not is_missing(value)]
    groups = tuple(sorted(set(present)))
    if not groups:
        raise InputError(f"sensitive column {name}", "must have values", "only missing ones")
    if len(groups) > MOST_GROUPS:
        rule = f"must have at most {MOST_GROUPS} groups"
        raise InputError(f"sensitive column {name}", rule, len(groups), f"{DECLARE}; the rest become one group.")
    return Categorical(name, groups, other=len(present) < len(values))
