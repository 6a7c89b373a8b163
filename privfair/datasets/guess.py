"""A guess at an unknown table, for a person to check: what each column holds, and which is label, group and client.

A guess goes by the columns' names, and by their values only where the name does not decide. It looks at the records,
so nothing here is private.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accountant.delimited import find_delimiter
from accountant.errors import InputError
from privfair.datasets.columns import MOST_GROUPS, is_missing, numbers
from privfair.datasets.declared import BINARY
from privfair.datasets.number_format import NumberFormat, find_format, unread_format
from privfair.datasets.table import Table, nearest, read_table

Kind = Literal["empty", "constant", "numeric", "categories", "identity", "place", "text", "mixed", "wide"]
MOST_CATEGORIES = 30  # fewer than the loader takes: with more values than that they are names rather than kinds
LONGEST_CATEGORY = 64
RARE = 5  # a value of fewer records is not written down: it may be what one person is known by
MOSTLY = 0.8
MOST_RARE = 10  # rare values that a column of kinds may have; with more, and more than common ones, they are names
LARGEST = 1e300
IDENTITY = frozenset((
    "id", "ids", "uuid", "guid", "ssn", "passport", "email", "mail", "phone", "telephone", "mobile", "fax",
    "address", "street", "name", "firstname", "lastname", "surname", "forename", "fullname", "username",
    "login", "account", "iban", "birthdate", "dob", "url", "ip", "index", "rowid", "vorname", "nachname", "nombre",
    "apellido",
))  # fmt: skip
PLACE = frozenset((
    "zip", "zipcode", "postcode", "postal", "postalcode", "plz", "pincode", "latitude", "longitude",
))  # fmt: skip
REASONS: dict[Kind, str] = {
    "empty": "it has no values",
    "constant": "it has one value only",
    "identity": "it looks like a name or a number of a person or record",
    "place": "it tells where a person lives",
    "text": "it has too many different values: free text, dates or codes",
    "mixed": "most values are numbers and some are not; it can be used once its range is declared",
    "wide": "its numbers are too large",
}


@dataclass(frozen=True)
class Profile:
    """A column: what kind of values it has, how many different ones, and those that many records share."""

    name: str
    kind: Kind
    distinct: int
    values: tuple[str, ...] = ()  # of a column of few values only, the common ones
    range: tuple[float, float] | None = None  # of numbers, rounded outwards: never a record's own value on purpose
    reason: str = ""  # why it should not be a feature
    missing: int = 0  # records without a value
    rare: int = 0  # records with a value of few records

    @property
    def words(self) -> frozenset[str]:
        """The words of its name, in small letters: `HomeAddress (2)` has home, address, 2."""
        return words_of(self.name)

    @property
    def usable(self) -> bool:
        """Whether something can be made of its values; a feature, unless there is a `reason` against it."""
        return self.kind in ("numeric", "categories")


def words_of(name: str) -> frozenset[str]:
    """The words of a name, in small letters, and all of them joined."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    found = re.findall(r"[^\W_]+", apart.casefold())
    return frozenset((*found, "".join(found)))


def profile(name: str, values: Sequence[str]) -> Profile:
    """What the column looks like."""
    present = [value for value in values if not is_missing(value)]
    counts, missing = Counter(present), len(values) - len(present)
    rare = sum(count for count in counts.values() if count < RARE)
    parsed = numbers(present)
    kind = _kind(name, counts, parsed)
    if kind == "numeric":
        few = tuple(sorted(counts)) if len(counts) <= MOST_CATEGORIES else ()
        finite = parsed[np.isfinite(parsed)]
        ends = rounded(float(finite.min()), float(finite.max()))
        return Profile(name, kind, len(counts), _common(few, counts), ends, missing=missing, rare=rare)
    listed = _common(sorted(counts), counts) if kind == "categories" else ()
    reason = REASONS.get(kind, "")
    if kind in ("text", "categories") and unread_format(values, NumberFormat()) is not None:
        reason = "its numbers are written in another way than those of other columns: write all of them alike"
    unusual = sum(count < RARE for count in counts.values())
    if kind == "categories" and unusual > max(MOST_RARE, len(counts) - unusual):
        reason = "most of its values are rare: names or codes"
    return Profile(name, kind, len(counts), listed, None, reason, missing, rare)


def _kind(name: str, counts: Counter[str], parsed: NDArray[np.float64]) -> Kind:
    """The kind of a column with these values, some of which are numbers."""
    total = len(parsed)
    if not counts:
        return "empty"
    if words_of(name) & IDENTITY or not name or name.casefold().startswith("unnamed:") or _counting(parsed):
        return "identity"
    if words_of(name) & PLACE:
        return "place"
    if len(counts) == 1:
        return "constant"
    missing = int(np.isnan(parsed).sum())
    if missing == 0:
        return "numeric" if _has_range(parsed) else "wide"
    if missing <= (1 - MOSTLY) * total:
        return "mixed"
    few = len(counts) <= MOST_CATEGORIES and (len(counts) == 2 or len(counts) * 2 <= total)
    return "categories" if few and max(map(len, counts)) <= LONGEST_CATEGORY else "text"


def _counting(parsed: NDArray[np.float64]) -> bool:
    """Whether the numbers are 0, 1, 2, … or 1, 2, 3, …, each once, or long whole numbers that are all different."""
    if len(parsed) < 3 or not np.isfinite(parsed).all() or (parsed != np.floor(parsed)).any():
        return False
    if len(np.unique(parsed)) < len(parsed):
        return False
    return bool(parsed.max() - parsed.min() == len(parsed) - 1 or parsed.min() >= 1e6)


def _has_range(parsed: NDArray[np.float64]) -> bool:
    """Whether some numbers are finite, and small enough that the distance of a range around them is."""
    finite = parsed[np.isfinite(parsed)]
    return bool(finite.size and np.abs(finite).max() <= LARGEST)


def _common(values: Sequence[str], counts: Counter[str]) -> tuple[str, ...]:
    return tuple(value for value in values if counts[value] >= RARE)


def rounded(low: float, high: float) -> tuple[float, float]:
    """A range around these numbers with ends of one or two digits, and 0 as an end where it is near."""
    width = high - low or max(1.0, abs(high))
    step = 10.0 ** np.floor(np.log10(width))
    bottom, top = float(np.floor(low / step) * step), float(np.ceil(high / step) * step)
    if 0 <= bottom <= width:
        bottom = 0.0
    if not (np.isfinite([step, bottom, top]).all() and step > 0 and bottom < top):
        return low, high if high > low else low + max(1.0, abs(low))
    return float(f"{bottom:.6g}"), float(f"{top:.6g}")


# ---- The roles of the columns.

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


def guess(
    table: Table,
    *,
    label: str | None = None,
    sensitive: str | None = None,
    client: str | None = None,
    positive: str | None = None,
) -> Guess:
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
    task: Literal["binary", "regression"] = "binary"
    if positive is None:
        task, positive = _task(label, table.column(label), named=reasons["label"] == NAMED)
    else:
        reasons["positive"] = NAMED
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
    """Raise if the column cannot be compared by group."""
    if not 2 <= column.distinct <= MOST_GROUPS:
        remedy = "Make a column of groups (of ages, say), or name another: --sensitive COLUMN."
        rule = f"must have 2 to {MOST_GROUPS} different values"
        raise InputError(f"sensitive column {column.name}", rule, column.distinct, remedy)


# ---- A table as it is: read, looked at, and what to train on.


@dataclass(frozen=True)
class Look:
    """A table, the options with which its loader reads it again, and the roles of its columns."""

    table: Table
    options: Mapping[str, str]
    guess: Guess
    notes: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """The options of the csv loader for these roles, but for the path."""
        found = self.guess
        given = {"label": found.label, "sensitive": found.sensitive, "client": found.client, "positive": found.positive}
        task = {} if found.task == "binary" else {"task": found.task}
        roles = {option: value for option, value in given.items() if value is not None}
        return {**self.options, **roles, **task, "features": list(found.features)}


def look_at(source: Path | Table, encoding: str = "utf-8", **named: str | None) -> Look:
    """What the table looks like: how its file is written, and which column is what; `named`: roles that are known."""
    options: dict[str, tuple[str, str]] = {}
    if isinstance(source, Path):
        if not source.is_file():
            raise InputError("CSV", "must be a file that exists", str(source), "Check the path; nothing was written.")
        if source.suffix.lower() in BINARY_FILES:
            remedy = "Save it as CSV, or read it with pandas and give the data frame: privfair.train(frame, label=…)."
            raise InputError("CSV", "must be a table as text", source.name, remedy)
        if source.stat().st_size == 0:
            remedy = "Its first line names the columns, and every further line is a record."
            raise InputError("CSV", "must have a first line that names the columns", "an empty file", remedy)
        delimiter = find_delimiter(source, encoding)
        table = read_table(source, delimiter=delimiter, encoding=encoding)
        _require_names(table.columns, source)
        options |= {"delimiter": (delimiter, ","), "encoding": (encoding, "utf-8")}
    else:
        table = source
    form, table = find_format(table)
    used = {option: given for option, (given, usual) in {**options, **form.options}.items() if given != usual}
    return Look(table, used, guess(table, **named), (*form.notes, *table.notes))


BINARY_FILES = (".parquet", ".pq", ".feather", ".arrow", ".xlsx", ".xls", ".ods", ".pkl", ".sqlite", ".zip", ".gz")


def _require_names(columns: tuple[str, ...], path: Path) -> None:
    """Raise if the first line holds no names: a record's values must not be taken for names and written down."""
    numeric = int((~np.isnan(numbers(columns))).sum())
    if numeric * 2 > len(columns):
        remedy = "Put a line with the columns' names before the records."
        rule = "must have a first line that names the columns"
        raise InputError(
            f"file {path.name}", rule, f"a first line of which {numeric} of {len(columns)} are numbers", remedy
        )


def require_complete(look: Look) -> None:
    """Raise if a run would need more than what was guessed: several clients, and the label that counts as 1."""
    found, columns = look.guess, look.guess.columns
    if found.client is None:
        several = [name for name, c in columns.items() if 2 <= c.distinct <= MOST_CLIENTS and name != found.label]
        remedy = f"Name the column: --client COLUMN. Columns with 2 to {MOST_CLIENTS} values: {_shown(several)}."
        rule = "must be named, as no column's name tells who holds the records"
        raise InputError("client column", rule, _shown(look.table.columns), remedy)
    holders = columns[found.client].distinct
    if holders < 2:
        remedy = "Name the column of the data holders: --client COLUMN. For one holder alone, privfair init and a file."
        raise InputError(f"client column {found.client}", "must have at least two values", holders, remedy)
    if found.positive is None or found.reasons.get("positive") == NAMED or found.positive.casefold() in POSITIVE:
        return
    remedy = "Name the one that counts as 1: --positive VALUE."
    values = f"{columns[found.label].distinct} values, none of them {', '.join(POSITIVE[:4])}, …"
    raise InputError(f"label {found.label}", "must have a value that is known to count as 1", values, remedy)


def table_tree(look: Look, tree: Mapping[str, Any], **goal: float | None) -> dict[str, Any]:
    """The tables of a configuration for this table: `tree` with its options, and the `goal`: target, epsilon, delta."""
    keys = {"target": "fairness", "epsilon": "privacy", "delta": "privacy"}
    merged: dict[str, Any] = {section: dict(table) for section, table in tree.items()}
    merged["data"] = {"name": "csv", **look.data(), **merged.get("data", {})}
    if goal.get("target") is not None and {"lambda", "strength"} & set(merged.get("fairness", {})):
        raise InputError(
            "target", "must be left out beside fairness.lambda, which it takes the place of", goal["target"]
        )
    for key, section in keys.items():
        if goal.get(key) is not None:
            merged.setdefault(section, {})[key] = goal[key]
    private, size = merged.get("privacy", {}), look.guess.records
    named = "records" in merged["data"] or "records" in private
    if goal.get("target") is not None and "epsilon" in private and not named:
        # read off the table, as ranges are, for rates to follow from: of such a run no ε is claimed anyway
        merged["privacy"] |= {"records": size} if private.get("delta", 1e-5) < 1 / size else {}
    return merged


def guessed(look: Look) -> str:
    """What was guessed, in a line for people."""
    found = look.guess

    def why(role: str) -> str:
        return (
            "" if found.reasons.get(role) == NAMED else f" ({found.reasons[role].removeprefix('guessed').strip(': ')})"
        )

    holders = found.columns[found.client].distinct if found.client else 1
    parts = [f"label {found.label!r}{why('label')}"]
    if found.positive is not None:
        parts[0] += f", {found.positive!r} counts as 1"
    elif found.task == "regression":
        parts[0] += ", a number to predict"
    groups = found.columns[found.sensitive]
    parts.append(f"sensitive {found.sensitive!r}{why('sensitive')}, {groups.distinct} groups")
    parts[1] += f", and {groups.missing} records in none" if groups.missing else ""
    parts.append(f"client {found.client!r}{why('client')}, {holders} of them" if found.client else "one client")
    parts.append(f"features {', '.join(found.features)} (CHECK: none may be known only after the outcome)")
    for reason in dict.fromkeys(found.left_out.values()):
        parts.append(f"left out, {reason}: {_shown([n for n, why in found.left_out.items() if why == reason])}")
    return "guessed: " + "; ".join(parts) + "."
