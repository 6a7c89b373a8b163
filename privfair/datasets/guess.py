"""Which column of an unknown table is the label, which the group, who holds the records: a guess for a person to check.

A guess goes by the columns' names, and by their values only where the name does not decide. Nothing here is private:
it looks at the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from accountant.errors import InputError
from privfair.datasets.columns import numbers
from privfair.datasets.inference import MOST_GROUPS, is_missing
from privfair.datasets.labels import BINARY
from privfair.datasets.options import nearest
from privfair.datasets.profile import Profile, profile
from privfair.datasets.tables import Table

LABELS = (
    "label", "target", "y", "outcome", "class", "hired", "hire", "approved", "approval", "default", "defaulted",
    "admitted", "accepted", "granted", "recid", "recidivism", "readmitted", "churn", "survived", "decision",
    "result", "loan", "income", "diagnosis", "fraud",
)  # fmt: skip
GROUPS = (
    "sex", "gender", "race", "ethnicity", "ethnic", "religion", "nationality", "disability", "minority",
    "origin", "caste", "marital", "age",
)  # fmt: skip
HOLDERS = (
    "client", "holder", "site", "branch", "hospital", "clinic", "bank", "school", "institution", "center",
    "centre", "store", "state", "region", "county", "district", "department", "office", "city", "country",
    "location", "facility", "ward",
)  # fmt: skip
MARKS = (
    "split", "test", "istest", "testset", "fold", "partition",
)  # fmt: skip
POSITIVE = (
    "yes", "y", "true", "1", "positive", "pos", "good", "hired", "approved", "accepted", "admitted", "granted",
    ">50k", "default", "high", "ja", "oui", "sí", "si", "sim", "tak",
)  # fmt: skip
MOST_CLIENTS = 200
NAMES_SHOWN = 10
NAMED = "named on the command line"


@dataclass(frozen=True)
class Guess:
    """The roles of the columns, each with the reason, and what became of the rest."""

    label: str
    task: Literal["binary", "regression"]
    positive: str | None  # None: the labels are 0 and 1 already, or numbers
    sensitive: str
    client: str | None
    features: tuple[str, ...]
    left_out: Mapping[str, str]
    reasons: Mapping[str, str]  # of label, sensitive, client
    columns: Mapping[str, Profile]
    records: int
    identity: str | None  # a column that may tell which records are one person's
    test: str | None  # a column that may mark test records


def guess(table: Table, *, label: str | None = None, sensitive: str | None = None, client: str | None = None) -> Guess:
    """The roles, those named as they are; an `InputError` where there is no candidate."""
    for role, name in (("--label", label), ("--sensitive", sensitive), ("--client", client)):
        if name is not None and name not in table.columns:
            raise InputError(role, "must be a column of the file", name, nearest(name, table.columns))
    if len(table) == 0:
        raise InputError(
            "the file", "must have records below its first line", "a header only", "Add records, one a line."
        )
    columns = {name: profile(name, table.column(name)) for name in table.columns}
    taken = [name for name in (label, sensitive, client) if name is not None]
    if len(set(taken)) < len(taken):
        raise InputError("--label, --sensitive and --client", "must be different columns", ", ".join(taken))
    reasons = dict.fromkeys(("label", "sensitive", "client"), NAMED)

    def free(hints: Sequence[str], fits: dict[str, Profile]) -> str | None:
        return _by_name(hints, {name: column for name, column in fits.items() if name not in taken})

    groups = {name: column for name, column in columns.items() if _is_group(column)}
    if sensitive is None:
        sensitive = free(GROUPS, groups)
        if sensitive is None:
            names = _shown([name for name in groups if name not in taken])
            remedy = f"Name the column: --sensitive COLUMN. Columns with 2 to {MOST_GROUPS} values: {names}."
            rule = f"must be named, as no name of a column with 2 to {MOST_GROUPS} values tells it"
            raise InputError("sensitive column", rule, _shown(table.columns), remedy)
        taken.append(sensitive)
        reasons["sensitive"] = "guessed by its name"
    if client is None:
        client = free(
            HOLDERS, {n: c for n, c in columns.items() if 2 <= c.distinct <= min(MOST_CLIENTS, len(table) / 4)}
        )
        reasons["client"] = "guessed by its name" if client else "no column's name tells who holds the records"
        taken += [client] if client else []
    if label is None:
        label, reasons["label"] = _label(columns, taken)
        taken.append(label)
    task, positive = _task(label, table.column(label), named=reasons["label"] == NAMED)
    _require_groups(columns[sensitive])
    marks = [name for name, c in columns.items() if name not in taken and c.words & set(MARKS) and c.distinct <= 2]
    left_out = {name: column.reason for name, column in columns.items() if name not in taken and column.reason}
    left_out |= dict.fromkeys(marks, "it looks like a mark for test records")
    features = tuple(name for name in table.columns if name not in taken and name not in left_out)
    if not features:
        found = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "no other columns"
        raise InputError("features", "must be at least one column of numbers or few categories", found, "Add a column.")
    identities = [name for name in left_out if columns[name].kind == "identity" and name]
    return Guess(
        label, task, positive, sensitive, client, features, left_out, reasons, columns, len(table),
        next(iter(identities), None), next(iter(marks), None),
    )  # fmt: skip


def _shown(names: Sequence[str]) -> str:
    """The first names, for an error."""
    return (", ".join(names[:NAMES_SHOWN]) or "none") + (", …" if len(names) > NAMES_SHOWN else "")


def _by_name(hints: Sequence[str], candidates: Mapping[str, Profile]) -> str | None:
    """The candidate whose name holds the earliest of these words."""
    for hint in hints:
        for name, column in candidates.items():
            if hint in column.words:
                return name
    return None


def _is_group(column: Profile) -> bool:
    return column.usable and 2 <= column.distinct <= MOST_GROUPS


def _label(columns: Mapping[str, Profile], taken: Sequence[str]) -> tuple[str, str]:
    """The label and why: a name that says so, else the last column of two values."""
    free = {name: c for name, c in columns.items() if name not in taken and c.usable}
    two = {name: column for name, column in free.items() if column.distinct == 2}
    named = _by_name(LABELS, two) or _by_name(LABELS[:4], {n: c for n, c in free.items() if c.kind == "numeric"})
    if named is not None:
        return named, "guessed by its name"
    if two:
        return list(two)[-1], "guessed: the last column with two values"
    remedy = "Name it: --label COLUMN, one with two values, or with numbers for a regression."
    raise InputError("label", "must be named, as no other column has two values", _shown(list(columns)), remedy)


def _task(name: str, values: Sequence[str], *, named: bool) -> tuple[Literal["binary", "regression"], str | None]:
    """What is to be predicted, and which label counts as 1 unless labels are 0 and 1."""
    present = sorted({value for value in values if not is_missing(value)})
    parsed = numbers(present)
    classes = {text if np.isnan(number) else float(number) for text, number in zip(present, parsed, strict=True)}
    if present and all(value.casefold() in BINARY for value in present):
        if len({BINARY[value.casefold()] for value in present}) == 2:
            return "binary", None
    elif len(classes) == 2:
        return "binary", next(
            (value for word in POSITIVE for value in present if value.casefold() == word), present[-1]
        )
    elif len(classes) > 2 and not np.isnan(parsed).any():
        return "regression", None
    remedy = "Make a column of 0 and 1, or name another: --label COLUMN." if named else "Name it: --label COLUMN."
    raise InputError(f"label {name}", "must have two values, or numbers", f"{len(present)} values", remedy)


def _require_groups(column: Profile) -> None:
    """Nothing, if the column can be compared by group."""
    if not 2 <= column.distinct <= MOST_GROUPS:
        remedy = "Make a column of groups (of ages, say), or name another: --sensitive COLUMN."
        rule = f"must have 2 to {MOST_GROUPS} different values"
        raise InputError(f"sensitive column {column.name}", rule, column.distinct, remedy)
