"""Which column of a CSV file is what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accountant.errors import InputError
from privfair.datasets.conditions import plain_columns
from privfair.datasets.declared import Declaration
from privfair.datasets.options import nearest, words
from privfair.datasets.tables import Table


@dataclass(frozen=True)
class Roles:
    """Which column is what."""

    label: str
    sensitive: tuple[str, ...]
    client: str | None
    test: str | None
    id: str | None
    conditions: Mapping[str, str]


def read_roles(
    table: Table, label: Any, sensitive: Any, client: Any, test: Any, identity: Any, conditions: Any
) -> Roles:
    """The roles, if all their columns exist and none has two that exclude each other."""
    attributes = words("sensitive", sensitive)
    if not isinstance(conditions, Mapping):
        raise InputError("conditions", "must be a table of names and rules", conditions)
    for name in conditions:
        if not isinstance(name, str):
            raise InputError("conditions", "must have names that are text", name)
    given = [("label", label), *(("sensitive", name) for name in attributes)]
    given += [(role, name) for role, name in (("client", client), ("test", test), ("id", identity)) if name is not None]
    for role, name in given:
        if name not in table:
            remedy = nearest(str(name), table.columns)
            if len(table.columns) == 1:
                remedy += ' If another character than a comma separates the values, name it: delimiter = ";".'
            raise InputError(role, "must be a column of the file", name, remedy)
        if role != "label" and name == label:
            raise InputError(role, "must be another column than the label", name)
    return Roles(label, tuple(attributes), client, test, identity, dict(conditions))


def choose_features(table: Table, roles: Roles, features: Any, declaration: Declaration) -> list[str]:
    """The names of the columns that are features."""
    if features is None:
        used = {roles.label, roles.client, roles.test, roles.id, *roles.sensitive}
        used |= plain_columns(roles.conditions, table)
        used |= {""}  # a column without a name holds the numbers of the rows
        candidates = table.columns if declaration.columns is None else tuple(declaration.columns)
        names = [name for name in candidates if name not in used]
    else:
        names = words("features", features)
    if not names:
        raise InputError("features", "must be at least one column", "none", "All columns are used otherwise.")
    if roles.label in names:
        raise InputError("features", "must not hold the label", roles.label)
    for name in names:
        if name not in table:
            raise InputError("features", "must be columns of the file", name, nearest(str(name), table.columns))
    return names
