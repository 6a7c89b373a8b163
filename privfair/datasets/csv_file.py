"""Anybody's CSV file with a column that says which client holds each record.

The notes of a loaded file say what its owner should know before training: silence would look like success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.datasets.assembly import assemble, held_out
from privfair.datasets.columns import (
    Categorical,
    Column,
    Encoder,
    Numeric,
    encode_all,
    infer_column,
    infer_groups,
    is_missing,
)
from privfair.datasets.declared import (
    TRUE,
    Declaration,
    Roles,
    binary_labels,
    choose_features,
    compared_columns,
    conditioned,
    membership,
    plain_columns,
    read_declaration,
    read_roles,
    read_task,
    regression_labels,
)
from privfair.datasets.downloads import Dataset
from privfair.datasets.number_format import NumberFormat, mixed_note, require_format
from privfair.datasets.records import Federation, Records, Schema, SensitiveAttribute
from privfair.datasets.table import Table, choice, nearest, read_table, words

INFERRED = (
    "Schema inferred from the records (ranges, categories, groups): for simulations only. "
    "Declare a schema before any privacy claim."
)

MARKS = (*sorted(TRUE), "test")
UNKNOWN = ("other", "drop", "error")


def load(
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    path: str | Path,
    label: str,
    sensitive: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
    test: str | None = None,
    id: str | None = None,
    conditions: Mapping[str, str] | None = None,
    schema: str | Path | Mapping[str, Any] | None = None,
    task: str = "binary",
    positive: Any = None,
    label_range: Sequence[float] | None = None,
    delimiter: str = ",",
    quote: str = '"',
    encoding: str = "utf-8",
    decimal: str | None = None,
    thousands: str | None = None,
    unknown: str | None = None,
) -> Federation:
    """The records of a CSV file at the clients that one of its columns names.

    File: `path`, the first line naming the columns, every name once; every record has as many values, separated by
    `delimiter`, in quotes where one is in them (`quote`; "" for none). It is text in UTF-8, or in another `encoding`.
    A record that cannot be read exactly is an error with its line number.
    Numbers: `decimal` and `thousands` are the marks in them, for example "," and "." in 1.234,5. Numbers in another
    format are an error, unless `decimal` = "." says that they are categories.
    Columns: `label`; `sensitive`, one or a list; `client` (without it there is one client, "all"); `features`, by
    default all the rest (with a schema: all declared ones) except those used otherwise; `test`, 1 for test records
    (without it the split is decided by a hash of each record's text, or of its `id` column, so that a person's records
    stay together); `conditions`, a table name = "column" (of 0 and 1) or name = "column op value".
    Schema: `schema` is a TOML file or a table with numeric ranges, categories, task, positive label and label_range.
    Without it they are taken from the records, which is for simulations only; `task`, `positive` and `label_range` can
    then be given as options.
    Encoding: numbers are clipped to their range and mapped to [−1, 1]; missing and non-finite ones become the middle,
    0. Categories are 0/1 columns; missing and undeclared ones are "other" (a declared column may drop such records
    instead: unknown = "drop"). Records without a label or a client are dropped. The notes count all of that.
    Groups: without a schema, records without a value of a sensitive column are a group of their own, "other"; with
    `unknown` = "drop" they are left out, with "error" there must be none.
    """
    return from_table(
        _read(path, delimiter, quote, encoding),
        seed=seed,
        test_fraction=test_fraction,
        label=label,
        sensitive=sensitive,
        client=client,
        features=features,
        test=test,
        id=id,
        conditions=conditions,
        schema=schema,
        task=task,
        positive=positive,
        label_range=label_range,
        decimal=decimal,
        thousands=thousands,
        unknown=unknown,
    )


def from_table(
    table: Table,
    *,
    seed: int,
    test_fraction: float,
    label: str,
    sensitive: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
    test: str | None = None,
    id: str | None = None,
    conditions: Mapping[str, str] | None = None,
    schema: str | Path | Mapping[str, Any] | None = None,
    task: str = "binary",
    positive: Any = None,
    label_range: Sequence[float] | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    unknown: str | None = None,
) -> Federation:
    """The federation of a table that has been read, with the options of `load`."""
    form = NumberFormat.read(decimal, thousands)
    roles = read_roles(table, label, sensitive, client, test, id, {} if conditions is None else conditions)
    declaration = _declaration(schema, task, positive, label_range, unknown)
    known = choose_features(table, roles, features, declaration)
    notes = [*([INFERRED] if declaration.inferred else []), *table.notes]
    if features is None:
        notes.append(feature_note(known, roles, table, declared=not declaration.inferred))
    table = _with_points(table, known, roles, declaration, form, categories=decimal == ".")
    table, dropped = _usable(table, roles, declaration, [*known, *roles.sensitive], unknown)
    columns = [_column(name, table, declaration) for name in known]
    groups = [_groups(name, table, declaration) for name in roles.sensitive]
    labels, ends, label_notes = _labels(table, roles, declaration)
    notes += [*dropped, *label_notes]
    kept = ~np.isnan(labels)
    if not kept.all():
        notes.append(f"{int((~kept).sum())} records dropped: no usable label.")
        table, labels = table.where(kept), labels[kept]
    schema_of_all = _schema(roles, declaration, columns, groups, ends)
    encoded, _, encoding_notes = encode_all(columns, table.column, len(table))
    tested, split_notes = _tested(table, roles, seed, test_fraction)
    codes = np.column_stack([group.codes(table.column(group.name)) for group in groups])
    members = membership(table, roles.conditions)
    if declaration.inferred:
        texts = (column.name for column in columns if isinstance(column, Categorical))
        notes += [note for name in texts for note in mixed_note(name, table.column(name), form)]
    notes += encoding_notes
    notes += [
        note
        for group in groups
        for note in other_group_note(group, table.column(group.name), declared=not declaration.inferred)
    ]
    notes += [*group_notes(schema_of_all.sensitive, codes), *condition_notes(tuple(roles.conditions), members)]
    notes += split_notes
    return assemble(
        "csv",
        schema_of_all,
        Records(encoded, labels.astype(np.float32), codes, members),
        client_of=table.column(client) if client is not None else ["all"] * len(table),
        tested=tested,
        encoder=Encoder(tuple(columns)),
        notes=notes,
    )


def _schema(
    roles: Roles,
    declaration: Declaration,
    columns: Sequence[Column],
    groups: Sequence[Categorical],
    ends: tuple[float, float],
) -> Schema:
    """The schema of a table with these columns."""
    return Schema(
        tuple(name for column in columns for name in column.feature_names()),
        declaration.task,
        roles.label,
        ends,
        tuple(SensitiveAttribute(group.name, group.all_values) for group in groups),
        tuple(roles.conditions),
        declaration.inferred,
        "" if declaration.positive is None else str(declaration.positive),
    )


def declared_facts(options: Mapping[str, Any]) -> tuple[Schema, tuple[str, ...]] | None:
    """The schema, and the clients' names where they are declared, without the table; None without a declared schema.

    `options`: those of `load`. There is one client, "all", if no column names them.
    """
    if options.get("schema") is None:
        return None
    declaration = _declaration(options["schema"], "binary", None, None, None)
    label, sensitive, *others = (options.get(name) for name in ("label", "sensitive", "client", "test", "id"))
    conditions = options.get("conditions") or {}
    named = [*words("sensitive", sensitive), *(options.get("features") or ()), *conditioned(conditions)]
    named += [name for name in (label, *others) if isinstance(name, str)]
    header = Table(tuple(dict.fromkeys([*(declaration.columns or {}), *named])), [])
    client, test, identity = others
    roles = read_roles(header, label, sensitive, client, test, identity, conditions)
    features = choose_features(header, roles, options.get("features"), declaration)
    columns = [_column(name, header, declaration) for name in features]
    groups = [_groups(name, header, declaration) for name in roles.sensitive]
    found = _schema(roles, declaration, columns, groups, declaration.label_range or (0.0, 1.0))
    holders = (declaration.columns or {}).get(roles.client or "")
    names = ("all",) if roles.client is None else holders.values if isinstance(holders, Categorical) else ()
    return found, names


def _read(path: Any, delimiter: Any, quote: Any, encoding: Any) -> Table:
    """The table in the file."""
    if not isinstance(path, str | Path):
        raise InputError("path", "must be the path of a CSV file, as text", path)
    if not Path(path).is_file():
        raise InputError("path", "must be a CSV file that exists", str(path))
    return read_table(Path(path), delimiter=delimiter, quote=quote, encoding=encoding)


def _declaration(schema: Any, task: Any, positive: Any, label_range: Any, unknown: Any) -> Declaration:
    """The declared schema, or one without columns, which are then inferred."""
    if unknown is not None:
        choice("unknown", unknown, UNKNOWN)
    if schema is None:
        return Declaration(*read_task(task, positive, label_range))
    if task != "binary" or any(option is not None for option in (positive, label_range, unknown)):
        rule = "must stand in the schema, not beside it"
        raise InputError("task, positive, label_range, unknown", rule, "a schema and such an option")
    declaration = read_declaration(schema)
    if declaration.task == "regression" and declaration.label_range is None:
        raise InputError("label_range", "must be declared for a regression task", None, "For example [0, 100].")
    return declaration


def _with_points(
    table: Table, features: list[str], roles: Roles, declaration: Declaration, form: NumberFormat, *, categories: bool
) -> Table:
    """The table with a decimal point in the numbers of every column that is used as numbers.

    A column that is written in another format is an error, unless what looks like numbers are `categories`.
    """
    declared = declaration.columns or {}
    must = {name for name, column in declared.items() if isinstance(column, Numeric)}
    label = {roles.label} if declaration.task == "regression" else set()
    compared = compared_columns(roles.conditions, table)
    # of a declared schema cell by cell: whether they are numbers must not depend on other records
    must |= label | (set() if declaration.inferred else set(compared))
    rewritten = {}
    for name in dict.fromkeys([*features, *compared, *label]):
        if name not in table or isinstance(declared.get(name), Categorical):
            continue
        values = table.column(name)
        if name in must or not categories:
            require_format(name, values, form, declared=name in must)
        if not form.usual and (name in must or form.reads(values)):
            rewritten[name] = list(map(form.plain, values))
    return table.rewritten(rewritten)


def _usable(
    table: Table, roles: Roles, declaration: Declaration, used: list[str], unknown: str | None
) -> tuple[Table, list[str]]:
    """The records with a client and no value for which they are to be dropped, and notes on the others."""
    notes = []
    if roles.client is not None:
        kept = [not is_missing(value) for value in table.column(roles.client)]
        if not all(kept):
            notes.append(f"{len(kept) - sum(kept)} records dropped: no client.")
            table = table.where(kept)
    for name in dict.fromkeys(name for name in used if name in declaration.dropping):
        column = _column(name, table, declaration)
        kept = [code >= 0 for code in column.codes(table.column(name))] if isinstance(column, Categorical) else []
        if not all(kept):
            notes.append(f"{len(kept) - sum(kept)} records dropped: undeclared value of {name}.")
            table = table.where(kept)
    for name in roles.sensitive if unknown in ("drop", "error") else ():
        kept = [not is_missing(value) for value in table.column(name)]
        if not all(kept):
            without = len(kept) - sum(kept)
            if unknown == "error":
                remedy = 'Fill them in, or choose data.unknown = "drop" or "other".'
                raise InputError(f"sensitive column {name}", "must have a value in every record", without, remedy)
            notes.append(f"{without} records dropped: no value of {name}.")
            table = table.where(kept)
    return table, notes


def _column(name: str, table: Table, declaration: Declaration) -> Column:
    """The column as declared, or as its values suggest."""
    if declaration.columns is None:
        return infer_column(name, table.column(name))
    if name not in declaration.columns:
        remedy = f"Add it under [numeric] or [categories]. {nearest(name, declaration.columns)}"
        raise InputError(f"column {name}", "must be declared in the schema", name, remedy)
    return declaration.columns[name]


def _groups(name: str, table: Table, declaration: Declaration) -> Categorical:
    """The groups of a sensitive column."""
    if declaration.columns is None:
        return infer_groups(name, table.column(name))
    column = _column(name, table, declaration)
    if not isinstance(column, Categorical):
        raise InputError(f"sensitive column {name}", "must have declared categories", "a numeric range")
    return column


def _labels(
    table: Table, roles: Roles, declaration: Declaration
) -> tuple[NDArray[np.float64], tuple[float, float], list[str]]:
    """The labels, NaN where there is none, their range, and notes."""
    values = table.column(roles.label)
    if declaration.task == "regression":
        return regression_labels(roles.label, values, declaration.label_range)
    labels, notes = binary_labels(roles.label, values, declaration.positive, declared=not declaration.inferred)
    return labels, (0.0, 1.0), notes


def _tested(table: Table, roles: Roles, seed: int, test_fraction: float) -> tuple[NDArray[np.bool_], list[str]]:
    """Which records are for testing: by the file's own column, by person, or record by record."""
    if roles.test is not None:
        tested = np.array([value.casefold() in MARKS for value in table.column(roles.test)], dtype=np.bool_)
        if tested.any():
            return tested, [f"Split by the column {roles.test}: {int(tested.sum())} test records."]
        return tested, [f"Split by the column {roles.test}: no record is marked as a test record ({', '.join(MARKS)})."]
    if roles.id is None:
        return held_out(table.contents(), seed=seed, test_fraction=test_fraction), []
    pairs = zip(table.column(roles.id), table.contents(), strict=True)
    persons = [b"record " + content if is_missing(person) else b"id " + person.encode() for person, content in pairs]
    return held_out(persons, seed=seed, test_fraction=test_fraction, together=True), []


# ---- Notes for the owner of the file.


def feature_note(features: Sequence[str], roles: Roles, table: Table, *, declared: bool) -> str:
    """Which columns became features by default, and for which roles the others were not used."""
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


DATASET = Dataset(
    name="csv",
    description="your own CSV file; a column says which client holds each record",
    source="the path you give",
    licence="yours",
    load=load,
)
