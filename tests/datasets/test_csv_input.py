"""Files that are not quite what they should be: an error that names the place and the remedy, never other data."""

from __future__ import annotations

import csv
import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.datasets import Federation, load
from privfair.datasets.declared import Declaration, choose_features, read_roles
from privfair.datasets.number_format import NumberFormat, unread_format
from privfair.datasets.table import Table

SECRET = "Zaphod"
ROLES = {"label": "hired", "sensitive": "sex"}


def people(write, numbers=("1.5", "2", "3.25"), *, groups=("F", "M"), delimiter=",", count=200, header=None) -> object:
    draw = random.Random(3)
    rows = [header or ["age", "sex", "hired"]]
    rows += [[draw.choice(numbers), draw.choice(groups), draw.choice("01")] for _ in range(count)]
    path = write("")
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def size(federation: Federation) -> int:
    return len(federation.pooled_train()) + len(federation.pooled_test())


def test_one_stray_quote_in_200_rows_is_an_error_with_its_line(write) -> None:
    path = people(write)
    assert size(load("csv", path=path, **ROLES)) == 200
    lines = path.read_text().split("\r\n" if "\r\n" in path.read_text() else "\n")
    lines[49] = '"' + lines[49]
    with pytest.raises(InputError, match=r"file data\.csv, lines 50 to \d+ must have quotes around whole values"):
        load("csv", path=write("\n".join(lines)), **ROLES)


def test_a_column_that_comes_twice_is_an_error(write) -> None:
    with pytest.raises(InputError, match="must name every column once; found 'twice or more: a'"):
        load("csv", path=write("a,a,y,s\n1,2,0,f\n3,4,1,m\n"), label="y", sensitive="s")


def test_a_column_without_a_name_is_no_feature(write) -> None:
    """Tables are written with their rows' numbers in such a column."""
    federation = load("csv", path=write(",a,y,s\n0,1,0,f\n1,3,1,m\n"), label="y", sensitive="s")
    assert federation.schema.features == ("a",)
    assert "features: a (all columns but label, sensitive, one without a name)." in federation.notes


def test_a_first_line_that_is_a_record_is_not_taken_for_names(write) -> None:
    rows = [f"{i},{'FM'[i % 2]},{SECRET if i % 3 else 'Ford'},{['yes', 'no'][i % 2]}" for i in range(1, 40)]
    with pytest.raises(
        InputError, match="must have a first line that names the columns; found 'a first line like"
    ) as error:
        load("csv", path=write("\n".join(rows)), **ROLES)
    assert SECRET not in str(error.value)
    named = load("csv", path=write("0,1,yes,s\n0,1,1,f\n1,0,0,m\n"), label="yes", sensitive="s")
    assert named.schema.features == ("0", "1")


def test_line_breaks_in_values_are_read_and_told(write) -> None:
    federation = load("csv", path=write('a,y,s\n"x\ny",0,f\n"x\ny",1,m\n'), label="y", sensitive="s")
    assert federation.schema.features == ("a=x\ny",)
    assert any(
        "2 records have a line break in a quoted value, the first on lines 2 to 3" in n for n in federation.notes
    )


# ── numbers ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("numbers", "remedy", "options"),
    [
        (("3,5", "12", "0,25"), 'data.decimal = ",".', {"decimal": ","}),
        (("1,234", "12,000.5", "7"), 'data.thousands = "," (or data.decimal = ","', {"thousands": ","}),
        (
            ("1.234,5", "12.000,0", "7,25"),
            'data.decimal = ",", data.thousands = "."',
            {"decimal": ",", "thousands": "."},
        ),
        (("1'234.5", "12'000", "7"), 'data.thousands = "\'"', {"thousands": "'"}),
        (("1\u00a0234", "12\u202f000", "7"), 'data.thousands = " "', {"thousands": " "}),
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_numbers_in_another_format_are_an_error_that_names_the_column(
    write, numbers, remedy, options, delimiter
) -> None:
    path = people(write, numbers, delimiter=delimiter)
    with pytest.raises(InputError, match="column age must have numbers with a decimal point") as error:
        load("csv", path=path, delimiter=delimiter, **ROLES)
    assert remedy in str(error.value)
    assert not any(number in str(error.value) for number in numbers if len(number) > 2)
    assert load("csv", path=path, delimiter=delimiter, **options, **ROLES).schema.features == ("age",)
    as_categories = load("csv", path=path, delimiter=delimiter, decimal=".", **ROLES)
    assert set(as_categories.schema.features) == {f"age={number}" for number in numbers}


def test_the_numbers_are_the_same_in_every_format(write) -> None:
    plain = load("csv", path=people(write, ("1234.5", "-0.25", "7")), test_fraction=0.0, **ROLES)
    path = people(write, ("1.234,5", "-0,25", "7"))
    comma = load("csv", path=path, test_fraction=0.0, decimal=",", thousands=".", **ROLES)
    np.testing.assert_array_equal(plain.pooled_train().features, comma.pooled_train().features)


def test_a_declared_column_of_which_most_values_are_no_numbers_is_an_error(write) -> None:
    schema = {"numeric": {"age": [0, 20]}, "categories": {"sex": ["F", "M"]}}
    path = people(write, ("3,5", "0,25"))
    rule = "column age must have numbers, as it is declared; found '200 of 200 values that are none'"
    with pytest.raises(InputError, match=rf"{rule}.*data\.decimal") as error:
        load("csv", path=path, schema=schema, **ROLES)
    assert "3,5" not in str(error.value)
    federation = load("csv", path=path, schema=schema, decimal=",", test_fraction=0.0, **ROLES)
    assert set(federation.pooled_train().features[:, 0].tolist()) == {np.float32(-0.65), np.float32(-0.975)}


def test_regression_labels_and_conditions_with_a_decimal_comma(write) -> None:
    text = "pay;age;sex\n1,5;2,5;F\n2,5;3,5;M\n4;4,5;F\n"
    roles = {"label": "pay", "sensitive": "sex", "task": "regression", "conditions": {"old": "age > 3"}}
    with pytest.raises(InputError, match="column age must have numbers"):
        load("csv", path=write(text), delimiter=";", **roles)
    federation = load("csv", path=write(text), delimiter=";", decimal=",", test_fraction=0.0, **roles)
    assert federation.pooled_train().labels.tolist() == [1.5, 2.5, 4.0]
    assert federation.pooled_train().conditions[:, 0].tolist() == [False, True, True]


def test_a_few_words_among_numbers_are_told(write) -> None:
    notes = load("csv", path=people(write, ("1", "2", "3", "4", "5", "6", "7", "8", "9", "many")), **ROLES).notes
    assert any(
        note.startswith("age: ") and "are no numbers, so that it is encoded as categories" in note for note in notes
    )


@pytest.mark.parametrize(
    "values", [("1", "2.5"), ("a", "b"), ("", "?"), ("1,2,3", "4"), ("1-2", "3"), ("18,", "x"), ()]
)
def test_other_values_have_no_other_format(values) -> None:
    assert unread_format(values, NumberFormat()) is None


@settings(max_examples=200)
@given(
    st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), st.sampled_from([(".", ","), (",", "."), (",", " "), (",", "")])
)
def test_a_number_written_in_a_format_is_read_back(number, marks) -> None:
    decimal, thousands = marks
    text = f"{number:,.3f}".replace(",", "\1").replace(".", decimal).replace("\1", thousands)
    form = NumberFormat.read(decimal, thousands or None)
    assert form.fits(text)
    assert float(form.plain(text)) == number


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decimal": ";"}, r'decimal must be "\." or ","'),
        ({"decimal": 5}, "decimal must be"),
        ({"thousands": "."}, "thousands must be"),
        ({"decimal": ",", "thousands": ","}, "thousands must be"),
        ({"thousands": ["."]}, "thousands must be"),
        ({"unknown": "keep"}, "unknown must be one of other, drop, error"),
        ({"quote": "ab"}, "quote must be one character"),
        ({"encoding": "klingon"}, "encoding must be the name of a text encoding"),
    ],
)
def test_bad_options_are_explained(write, options, message) -> None:
    with pytest.raises(InputError, match=message):
        load("csv", path=people(write), **options, **ROLES)


# ── records without a group ────────────────────────────────────────────────────────────────────────────────────────


def test_records_without_a_group_are_counted_dropped_or_refused(write) -> None:
    path = people(write, groups=("F", "M", "F", "M", ""))
    without = sum(line.split(",")[1] == "" for line in path.read_text().splitlines()[1:])
    kept = load("csv", path=path, **ROLES)
    assert kept.schema.sensitive[0].values == ("F", "M", "other")
    assert any(
        f'sex: {without} missing or undeclared values are "other".' in note and 'data.unknown = "drop"' in note
        for note in kept.notes
    )
    dropped = load("csv", path=path, unknown="drop", **ROLES)
    assert dropped.schema.sensitive[0].values == ("F", "M")
    assert size(dropped) == size(kept) - without
    assert f"{without} records dropped: no value of sex." in dropped.notes
    with pytest.raises(InputError, match=rf"sensitive column sex must have a value in every record; found {without}\."):
        load("csv", path=path, unknown="error", **ROLES)
    assert size(load("csv", path=people(write), unknown="error", **ROLES)) == 200


def test_with_a_schema_it_stands_in_the_schema(write) -> None:
    schema = {"numeric": {"age": [0, 20]}, "categories": {"sex": ["F", "M"]}}
    with pytest.raises(InputError, match="unknown must stand in the schema"):
        load("csv", path=people(write), schema=schema, unknown="drop", **ROLES)


# ── many columns ───────────────────────────────────────────────────────────────────────────────────────────────────


class Counted(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def comparisons(width: int) -> int:
    names = tuple(map(Counted, [*(f"c{i}" for i in range(width)), "sex", "hired"]))
    table = Table(names, [["1"] * width + ["F", "1"], ["2"] * width + ["M", "0"]])
    Counted.compared = 0
    roles = read_roles(table, Counted("hired"), Counted("sex"), None, None, None, {})
    for name in choose_features(table, roles, None, Declaration()):
        table.column(Counted(name))
    assert choose_features(table, roles, [Counted(name) for name in names[:-2]], Declaration())
    return Counted.compared


def test_finding_columns_is_linear_in_their_number() -> None:
    """A search through all names for every column would compare 16 times as often for 4 times the columns."""
    assert comparisons(800) <= 5 * comparisons(200)


# ── the class: no error tells what is in a record ──────────────────────────────────────────────────────────────────

OPTIONS = [
    {}, {"label": "name"}, {"label": "name", "task": "regression"}, {"label": "sex", "sensitive": "name"},
    {"positive": "no"}, {"positive": "name", "label": "name"}, {"features": ["name"]}, {"client": "name"},
    {"test": "name"}, {"id": "name"}, {"conditions": {"c": "name > 5"}}, {"conditions": {"c": "name"}},
    {"schema": {"numeric": {"name": [0, 1]}, "categories": {"sex": ["F"]}}}, {"delimiter": ";"}, {"quote": ""},
    {"schema": {"numeric": {"age": [0, 1]}, "categories": {"sex": ["F"]}}, "label": "name"}, {"decimal": ","},
    {"label_range": [0, 1], "task": "regression", "label": "name"}, {"sensitive": ["sex", "name"]},
]  # fmt: skip
DAMAGE = st.sampled_from(['"', ",", "\n", ";", "\0", "\x1b", "é", '""', "[/x]", ",,", '"\n'])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(OPTIONS), DAMAGE, st.integers(0, 2000), st.sampled_from(["utf-8", "cp1252"]))
def test_no_error_tells_what_is_in_a_record(write, options, mark, at, encoding) -> None:
    rows = [f"{SECRET}{i},{i % 40},{'FM'[i % 2]},{i % 2}" for i in range(130)]
    text = "name,age,sex,hired\n" + "\n".join(rows) + "\n"
    at = 19 + at % (len(text) - 19)
    path = write("")
    path.write_bytes((text[:at] + mark + text[at:]).encode(encoding))
    reported = ""
    try:
        load("csv", path=path, **{**ROLES, **options})
    except InputError as error:
        reported = str(error)
    assert SECRET not in reported
    assert SECRET not in json.dumps(reported)


def test_a_run_says_when_records_without_a_group_set_its_figure(write) -> None:
    """Thirty records without a group, all of one label and one feature: their rate is far from that of the others."""
    import privfair

    rows = [f"{i % 10},{'FM'[i % 2]},{int(i % 10 > 4)}" for i in range(400)] + ["9,,1"] * 30
    path = str(write("\n".join(["age,sex,hired", *rows]) + "\n"))
    tree = {"federation": {"rounds": 20, "learning_rate": 0.5}, "fairness": {"lambda": 0.0}}
    data = {"name": "csv", "path": path, **ROLES}
    metrics = privfair.train({**tree, "data": data}).metrics
    reported = [note for note in metrics["data"]["notes"] if note.startswith('sex: the group "other" of ')]
    assert len(reported) == 1
    dropped = privfair.train({**tree, "data": {**data, "unknown": "drop"}}).metrics
    assert not any("largest gap" in note for note in dropped["data"]["notes"])
    assert dropped["unfairness"]["statistical_parity"] < metrics["unfairness"]["statistical_parity"]
