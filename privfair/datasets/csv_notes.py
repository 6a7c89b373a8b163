"""What the owner of a CSV file should know about it before training: silence would look like success."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privfair.datasets.columns import Categorical
from privfair.datasets.conditions import plain_columns
from privfair.datasets.records import SensitiveAttribute
from privfair.datasets.roles import Roles
from privfair.datasets.tables import Table


def feature_note(features: Sequence[str], roles: Roles, table: Table, *, declared: bool) -> str:
    """Which columns became features where nobody named any, and for which roles the others were left out."""
    given = [role for role in ("client", "test", "id") if getattr(roles, role) is not None]
    given += ["conditions"] if plain_columns(roles.conditions, table) else []
    given += ["one without a name"] if "" in table and not declared else []
    which = "all declared columns" if declared else "all columns"
    return f"features: {', '.join(features)} ({which} but {', '.join(['label', 'sensitive', *given])})."


def other_group_note(column: Categorical, values: Sequence[str], *, declared: bool) -> list[str]:
    """A note on records that are in none of the declared groups, or in none at all."""
    unknown = f'{column.name} = {{ values = […], unknown = "drop" }}' if declared else 'data.unknown = "drop"'
    remedy = f"They are a group of their own, which can set the largest gap; {unknown} leaves them out."
    return [f"{note} {remedy}" for note in column.unknown_note(values)]


def group_notes(attributes: Sequence[SensitiveAttribute], groups: NDArray[np.int64]) -> list[str]:
    """A note on every sensitive attribute of which only one value occurs."""
    notes = []
    for attribute, codes in zip(attributes, groups.T, strict=True):
        present = np.unique(codes)
        if len(present) == 1:
            value = attribute.values[present[0]]
            notes.append(f"{attribute.name}: all records are in one group, {value!r}: there is nothing to compare.")
    return notes


def condition_notes(names: Sequence[str], members: NDArray[np.bool_]) -> list[str]:
    """A note on every conditioning set without records."""
    return [
        f"condition {name}: no record is in it."
        for name, inside in zip(names, members.T, strict=True)
        if not inside.any()
    ]
