"""`privfair init`: what it writes runs, says what is to be checked, and holds nothing that tells who a person is."""

from __future__ import annotations

import csv
import json
import random
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import privfair
from accountant import Budget, Ledger
from accountant.delimited import read_delimited
from accountant.errors import InputError
from privfair.cli import app
from privfair.cli.init import key, quoted
from privfair.config import Config
from privfair.datasets import load
from privfair.datasets.guess import profile, rounded

AWKWARD = {
    "spaces and quotes": ('the "label"', " income, yearly ", "sex", "branch of bank", ","),
    "unicode": ("hired", "größe 身長", "Gender/性別", "Site №", ","),
    "line break and hash": ("label\nof two", "x = 1 # no", "race\ttab", "hospital", ","),
    "semicolons": ("approved", "a.b.c", "sex", "clinic", ";"),
    "tabs": ("y", "[table]", "sex", "state", "\t"),
}


def write(path: Path, header: list[str], rows: list[list[Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def people(path: Path, label: str, number: str, group: str, holder: str, delimiter: str = ",") -> Path:
    """Records with every kind of column: an id, a name, a constant, an empty one, free text, missing values."""
    draw = random.Random(1)
    header = ["", "Person-ID", "FullName", number, "job", label, group, holder, "remarks", "constant", "void", "mostly"]
    rows = [
        [
            i, f"P-{draw.getrandbits(40)}", f"Secret{i} Person{i}", draw.choice(["", draw.uniform(0, 9e4)]),
            draw.choice(["clerk", "nurse", "?"]), draw.choice(["yes", "no"]), draw.choice("FM"),
            draw.choice(["north", "south", "we'st \"w\""]), f"confidential {draw.random()}", "same", "",
            draw.choice([draw.random(), draw.random(), draw.random(), draw.random(), draw.random(), "unknown"]),
        ]
        for i in range(120)
    ]  # fmt: skip
    return write(path, header, rows, delimiter)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["init", *map(str, arguments)], catch_exceptions=False)


def with_schema(text: str) -> str:
    """The file as a person makes it who takes away the marks of the declaration and the lines it replaces."""
    lines = [line for line in text.split("\n") if "(*)" not in line]
    start = lines.index("# [data.schema]")
    end = lines.index("", start)
    return "\n".join([*lines[:start], *(line.removeprefix("# ") for line in lines[start:end]), *lines[end:]])


@pytest.mark.parametrize("case", AWKWARD)
def test_what_is_written_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    label, number, group, holder, delimiter = AWKWARD[case]
    people(Path("people.csv"), label, number, group, holder, delimiter)
    about = json.loads(run("people.csv", "--json").stdout)
    assert (about["out"], about["delimiter"], about["records"]) == ("people.toml", delimiter, 120)
    roles = [about[role] for role in ("label", "positive", "sensitive", "client")]
    assert roles == [label.strip(), "yes", group.strip(), holder.strip()]
    assert about["features"] == [number.strip(), "job"]
    assert set(about["left_out"]) == {"", "Person-ID", "FullName", "remarks", "constant", "void", "mostly"}
    text = Path("people.toml").read_text(encoding="utf-8")
    config = Config.build(tomllib.loads(text), ["federation.rounds=2"])
    result = privfair.train(config, out=tmp_path / "run")
    assert result.accuracy is not None
    assert len(result.metrics["data"]["clients"]) == 3
    assert any("Schema inferred from the records" in note for note in result.metrics["data"]["notes"])
    declared = load("csv", **Config.build(tomllib.loads(with_schema(text))).data.options)
    assert not declared.schema.inferred
    assert set(declared.schema.sensitive[0].values) >= {"F", "M"}


def test_no_value_of_a_record_is_written_where_it_tells_who_it_is(tmp_path: Path) -> None:
    source = people(tmp_path / "p.csv", "hired", "income", "sex", "branch")
    with source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    shown = run(source, "--out", tmp_path / "c.toml")
    for text in ((tmp_path / "c.toml").read_text(encoding="utf-8"), shown.output):
        for row in rows:
            for column in ("Person-ID", "FullName", "remarks"):
                assert row[column] not in text
            assert not row["income"] or row["income"] not in text
            assert row["branch"] not in text


def test_rare_values_are_not_written(tmp_path: Path) -> None:
    rows = [[i % 2, "FM"[i % 3 == 0], "plague" if i < 4 else "flu" if i % 5 else "cold", i % 7] for i in range(40)]
    source = write(tmp_path / "p.csv", ["y", "sex", "illness", "n"], rows)
    run(source, "--out", tmp_path / "c.toml")
    text = (tmp_path / "c.toml").read_text()
    assert '# illness = ["cold", "flu"]' in text
    assert "plague" not in text


def test_records_without_a_group_are_told(tmp_path: Path) -> None:
    draw = random.Random(2)
    rows = [[draw.choice(["F", "M", ""]), i % 50, i % 7, draw.choice(["yes", "no"])] for i in range(87)]
    rows += [["X", 40, 1, "no"]] * 3
    path = write(tmp_path / "people.csv", ["sex", "age", "dependants", "hired"], rows)
    reported = run(path, "--out", tmp_path / "people.toml")
    without = sum(row[0] == "" for row in rows)
    assert f"{without} of 90 records have no sex" in " ".join(reported.output.split())
    assert "3 of 90 records are in groups of fewer than 5" in " ".join(reported.output.split())
    text = (tmp_path / "people.toml").read_text(encoding="utf-8")
    assert 'sex = { values = ["F", "M"], unknown = "drop" }' in text
    notes = load("csv", path=str(path), label="hired", positive="yes", sensitive="sex").notes
    assert any(f"{without} missing or undeclared" in note and "a group of their own" in note for note in notes)


def test_names_that_come_twice_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "people.csv", ["sex", "age", "age ", "hired"], [["F", 1, 2, "yes"], ["M", 3, 4, "no"]])
    with pytest.raises(InputError, match="line 1 must name every column once; found 'twice or more: age'"):
        run(path, "--out", tmp_path / "people.toml")
    assert not (tmp_path / "people.toml").exists()


def test_a_column_that_comes_again_with_the_same_values_is_read_once(tmp_path: Path) -> None:
    ages = [20 + n % 17 for n in range(40)]
    rows = [[age, "FM"[n % 2], age, ["no", "yes"][n % 3 == 0]] for n, age in enumerate(ages)]
    path = write(tmp_path / "people.csv", ["age", "sex", "age ", "hired"], rows)
    about = json.loads(run(path, "--out", tmp_path / "people.toml", "--json").stdout)
    assert about["notes"] == ["Columns that came twice, with the same values, were read once: age."]
    assert len(load("csv", path=str(path), label="hired", positive="yes", sensitive="sex").schema.features) == 1
    assert read_delimited(path).header == ["age", "sex", "hired"]


@pytest.mark.parametrize(
    ("numbers", "delimiter", "expected", "ends"),
    [
        (["3,5", "12", "0,25", "-1,75"], ";", {"decimal": ","}, (-1.75, 12)),
        (["3,5", "12", "0,25", "-1,75"], ",", {"decimal": ","}, (-1.75, 12)),
        (["1,234", "12,000.5", "7", "999"], ",", {"thousands": ","}, (7, 12000.5)),
        (["1.234,5", "12.000,0", "7,25", "0,5"], ";", {"decimal": ",", "thousands": "."}, (0.5, 12000)),
        (["1\u202f234,5", "12 000", "7", "0,5"], ",", {"decimal": ",", "thousands": " "}, (0.5, 12000)),
    ],
)
def test_the_format_of_numbers_is_found_written_down_and_used(
    tmp_path: Path, numbers, delimiter, expected, ends
) -> None:
    rows = [[numbers[i % 4], "FM"[i % 2], ["yes", "no"][i % 3 == 0]] for i in range(60)]
    path = write(tmp_path / "people.csv", ["income", "sex", "hired"], rows, delimiter)
    target = tmp_path / "people.toml"
    found = json.loads(run(path, "--json", "--out", target).output)
    assert found["features"] == ["income"]
    tables = tomllib.loads(target.read_text(encoding="utf-8"))
    assert {name: tables["data"][name] for name in ("decimal", "thousands") if name in tables["data"]} == expected
    federation = load(tables["data"].pop("name"), **tables["data"])
    assert federation.schema.features == ("income",)
    assert federation.encoder is not None
    assert federation.encoder.parts[0].range == ends


def test_names_of_people_and_places_are_no_features(tmp_path: Path) -> None:
    families = [f"Family{i}" for i in range(14)]
    rows = [[families[i] if i < 14 else "Smith", 10000 + 37 * i % 9000, "FM"[i % 2], i % 40, i % 2] for i in range(80)]
    path = write(tmp_path / "people.csv", ["family", "postal_code", "sex", "age", "hired"], rows)
    found = json.loads(run(path, "--json", "--out", tmp_path / "people.toml").output)
    assert found["features"] == ["age"]
    assert set(found["left_out"]) == {"family", "postal_code"}
    text = (tmp_path / "people.toml").read_text(encoding="utf-8")
    assert "# id =" not in text  # a postcode is nobody's


def test_a_group_column_may_have_rare_values(tmp_path: Path) -> None:
    rows = [[f"n{i % 7}" if i < 109 else f"rare{i}", i % 40, i % 2] for i in range(120)]
    path = write(tmp_path / "people.csv", ["nationality", "age", "hired"], rows)
    found = json.loads(run(path, "--json", "--out", tmp_path / "people.toml").output)
    assert (found["sensitive"], found["in_small_groups"]) == ("nationality", 11)


def test_the_file_says_what_was_guessed_and_that_ranges_are_not_public(tmp_path: Path) -> None:
    source = people(tmp_path / "p.csv", "hired", "income", "sex", "branch")
    result = run(source, "--out", tmp_path / "c.toml", "--label", "hired")
    assert result.exit_code == 0
    for text in ("not public:", "before the data get a lifetime", f"privfair train {tmp_path / 'c.toml'}"):
        assert text in " ".join(result.output.split())
    text = (tmp_path / "c.toml").read_text()
    for part in (
        'label = "hired"  # named on the command line',
        'sensitive = "sex"  # GUESS by its name',
        'client = "branch"  # GUESS by its name',
        "# income = [0, 90000]  # FROM THE DATA: replace",
        "It is NOT\n# public knowledge. Before the data get a budget",
        '# id = "Person-ID"',
        '# left out: "constant": it has one value only',
        '# left out: "void": it has no values',
    ):
        assert part in text
    assert "schema" not in tomllib.loads(text)["data"]  # or privfair would take it for declared
    assert "privacy" not in tomllib.loads(text)


def test_data_with_a_budget_are_refused_until_the_columns_are_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    people(Path("p.csv"), "hired", "age", "sex", "branch")
    run("p.csv")
    text = Path("p.toml").read_text()
    assert '"age",  # numbers; CHECK: may the decision depend on it?' in text
    with Ledger("sqlite:///privfair-ledger.sqlite") as ledger:
        ledger.set_budget("people", Budget(epsilon=3.0, delta=1e-5))
    private = ["privacy.epsilon=1", "privacy.dataset=people", "run.ledger=sqlite:///privfair-ledger.sqlite"]
    with pytest.raises(InputError, match="data must have a declared schema for 'people', which has a budget"):
        privfair.train(Config.build(tomllib.loads(text), private), out=tmp_path / "run")


def test_options_override_guesses_and_numbers_make_a_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(2)
    rows = [
        [draw.gauss(50, 9), draw.choice("ab"), draw.choice("xyz"), draw.choice("01"), draw.random()] for _ in range(90)
    ]
    write(Path("p.csv"), ["points", "sex", "team", "label", "value"], rows)
    about = json.loads(run("p.csv", "--label", "points", "--sensitive", "team", "--client", "sex", "--json").stdout)
    assert [about[k] for k in ("label", "task", "positive", "sensitive", "client")] == [
        "points", "regression", None, "team", "sex",
    ]  # fmt: skip
    text = Path("p.toml").read_text()
    result = privfair.train(Config.build(tomllib.loads(text), ["federation.rounds=2"]), out=tmp_path / "run")
    assert result.metrics["rmse"] > 0
    declared = load("csv", **Config.build(tomllib.loads(with_schema(text))).data.options)
    assert declared.schema.label_range == (0.0, 80.0)
    without = json.loads(run("p.csv", "--out", "q.toml", "--json").stdout)
    assert [without[k] for k in ("label", "positive", "sensitive", "client")] == ["label", None, "sex", None]
    assert 'without it there is one client, "all"' in Path("q.toml").read_text()


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    source = people(tmp_path / "p.csv", "hired", "income", "sex", "branch")
    (tmp_path / "c.toml").write_text("mine")
    with pytest.raises(
        InputError, match=r"--out must not exist yet; found .*c.toml'. Choose another --out, or overwrite"
    ):
        run(source, "--out", tmp_path / "c.toml")
    assert (tmp_path / "c.toml").read_text() == "mine"
    assert run(source, "--out", tmp_path / "c.toml", "--force").exit_code == 0
    assert "[data]" in (tmp_path / "c.toml").read_text()
    before = source.read_bytes()
    with pytest.raises(InputError, match="must be a file other than the CSV"):
        run(source, "--out", source, "--force")
    assert source.read_bytes() == before


FEW = "y,sex,x\n0,F,1\n1,M,2\n1,M,2\n"
AGES = "y,age,x\n" + "".join(f"{i % 2},{i},{i % 3}\n" for i in range(40))


@pytest.mark.parametrize(
    ("content", "options", "text"),
    [
        (None, "", "CSV must be a file that exists; found .* Check the path; nothing was written"),
        ("", "", "CSV must have a first line that names the columns; found 'an empty file'. Its first line names"),
        ("y,sex,x\n", "", "the file must have records below its first line; found 'a header only'. Add records"),
        ("5,1,0.3\n4,0,0.9\n", "", "names the columns; found 'a first line of which 3 of 3 are numbers'. Put a line"),
        ("sex,x\nF,1.5\nM,2.5\nF,3.5\n", "", "label must be named, as no other column has .* --label COLUMN, one"),
        (
            "y,a,b\n0,u,1\n1,v,2\n1,u,2\n",
            "",
            "sensitive column must be named, .* COLUMN. Columns with 2 to 20 values: y",
        ),
        (FEW, "--label yy", "--label must be a column of the file; found 'yy'. Did you mean 'y'"),
        (FEW, "--label sex --client sex", "must be different columns; found 'sex, sex'"),
        (FEW.replace("1,M,2", "2,M,a", 1).replace("0,", "x,"), "--label y", "label y must have two values, or numbers"),
        (FEW, "--label x --sensitive y --client sex", "features must be at least one column .* Add a column"),
        (
            AGES,
            "--sensitive age",
            "sensitive column age must have 2 to 20 different values; found 40. Make a column of",
        ),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, content: str | None, options: str, text: str) -> None:
    source = tmp_path / "p.csv"
    if content is not None:
        source.write_text(content)
    with pytest.raises(InputError, match=text):
        run(source, "--out", tmp_path / "c.toml", *options.split())
    assert not (tmp_path / "c.toml").exists()


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
CELLS = st.one_of(
    st.sampled_from(["", "NA", "a", "b", "yes", "no", "0", "1", "1.0", "inf", "1e308", "-1e308", "other", "x\ny", '"']),
    st.integers(-5, 5).map(str),
    st.floats(allow_nan=False).map(str),
    NAMES,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), width=st.integers(2, 5), length=st.integers(2, 25), delimiter=st.sampled_from(",;\t|"))
def test_whatever_is_written_loads(data: st.DataObject, width: int, length: int, delimiter: str) -> None:
    few = st.one_of(st.sampled_from(["F", "M"]), CELLS)
    header = ["label", "sex", "points", *data.draw(st.lists(NAMES, min_size=width, max_size=width))]
    kinds = [st.sampled_from(data.draw(st.lists(few, min_size=2, max_size=4))) | few for _ in header[3:]]
    rows = [[str(i % 2), "FM"[i % 3 == 0], i * i % 7, *(data.draw(kind) for kind in kinds)] for i in range(length)]
    with TemporaryDirectory() as folder:
        source, target = write(Path(folder) / "p.csv", header, rows, delimiter), Path(folder) / "c.toml"
        try:
            run(source, "--out", target, "--label", "label", "--sensitive", "sex")
        except InputError:
            assert not target.exists()
            return
        text = target.read_text(encoding="utf-8")
        assert load("csv", **Config.build(tomllib.loads(text)).data.options).schema.inferred
        assert not load("csv", **Config.build(tomllib.loads(with_schema(text))).data.options).schema.inferred


@pytest.mark.parametrize(
    "text", ['a "b"', "line\nbreak", "tab\t", "back\\slash", "\x00\x1f\x7f", "é\u2028", "", "a.b", "#"]
)
def test_any_text_is_a_string_and_a_key_of_one_line(text: str) -> None:
    assert "\n" not in quoted(text)
    assert tomllib.loads(f"{key(text)} = {quoted(text)}  # {quoted(text)}") == {text: text}


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("customer_id", ["7", "7", "8"], "identity"),
        ("n", ["3", "1", "2", "4"], "identity"),  # each number once, without a gap
        ("weight", ["61.5", "70.25", "inf"], "numeric"),
        ("price", ["1,5", "2,5", "3,5", "7,5"], "text"),
        ("big", ["1e308", "-1e308"], "wide"),
        ("paid", ["?", "NA", ""], "empty"),
        ("rung", ["a", "b", "a", "b"], "categories"),
        ("many", [f"v{i // 2}" for i in range(400)], "text"),
    ],
)
def test_kinds_of_columns(name: str, values: list[str], kind: str) -> None:
    assert profile(name, values).kind == kind


@pytest.mark.parametrize(
    ("low", "high"), [(18.3, 79.0), (-0.2, 0.9), (1e-9, 2e-9), (5.0, 5.0), (-7.0, -7.0), (2001, 2019), (0, 1)]
)
def test_ranges_are_rounded_outwards(low: float, high: float) -> None:
    bottom, top = rounded(low, high)
    assert bottom <= low <= high <= top
    assert bottom < top
