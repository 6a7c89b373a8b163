"""How published tables are encoded: by declared categories, ranges and bins, and by nothing that the records say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets import Encoder, load
from privfair.datasets.columns import Numeric
from privfair.datasets.sources import adult, credit
from privfair.runs.folder import RunDirectory

PERSON = {
    "age": "37", "workclass": "Private", "education": "HS-grad", "education-num": "9",
    "marital-status": "Divorced", "occupation": "Sales", "relationship": "Unmarried", "race": "Black",
    "capital-gain": "7298", "capital-loss": "0", "hours-per-week": "40", "native-country": "Cuba",
}  # fmt: skip
STRANGE = dict.fromkeys(PERSON, "?") | {"race": "White", "occupation": "Astronaut"}
HOLDER = dict.fromkeys((*credit.STATUS, "EDUCATION", "MARRIAGE"), "2") | {
    "LIMIT_BAL": "100000", "AGE": "40", **{f"BILL_AMT{n}": "0" for n in range(1, 7)},
    **{f"PAY_AMT{n}": "0" for n in range(1, 7)},
}  # fmt: skip


def on(encoder: Encoder, row: dict[str, str]) -> dict[str, float]:
    """The features of a row that are not 0, by name."""
    values = encoder.encode([row])[0]
    return {name: float(v) for name, v in zip(encoder.features, values, strict=True) if v}


def test_adult_has_all_its_categories_and_bins() -> None:
    widths = {name: len(Encoder(columns).features) for name, columns in adult.ENCODINGS.items()}
    assert widths == {"binned": 154, "full": 108, "compact": 46}
    found = on(Encoder(adult.ENCODINGS["binned"]), PERSON)
    assert set(found) == {
        "age", "age: 35 to 40", "education-num", "hours-per-week", "hours-per-week: 40 to 41", "capital-gain",
        "capital-gain: 7000 to 8000", "capital-loss", "capital-loss: below 1", "workclass=Private",
        "education=HS-grad", "marital-status=Divorced", "occupation=Sales", "relationship=Unmarried", "race=Black",
        "native-country=Cuba",
    }  # fmt: skip
    assert found["age"] == pytest.approx((37 - 17) / (90 - 17) * 2 - 1, rel=1e-6)
    assert found["capital-gain"] == pytest.approx(2 * np.log(7299) / np.log(100_000) - 1, rel=1e-6)
    full = on(Encoder(adult.ENCODINGS["full"]), PERSON)
    assert full["capital-gain"] == pytest.approx(2 * 7298 / 99999 - 1, rel=1e-6)
    assert not any(": " in name for name in full)
    assert "native-country=other" in on(Encoder(adult.ENCODINGS["compact"]), PERSON)


def test_what_is_missing_or_undeclared_is_other_and_in_no_bin() -> None:
    assert set(on(Encoder(adult.ENCODINGS["binned"]), STRANGE)) == {
        "workclass=other", "education=other", "marital-status=other", "occupation=other", "relationship=other",
        "race=White", "native-country=other",
    }  # fmt: skip
    assert {name for name in on(Encoder(credit.ENCODINGS["full"]), HOLDER | {"PAY_0": "17"}) if "PAY_0" in name} == {
        "PAY_0=other"
    }


def test_credit_has_the_status_of_a_repayment_as_categories() -> None:
    widths = {name: len(Encoder(columns).features) for name, columns in credit.ENCODINGS.items()}
    assert widths == {"full": 99, "compact": 27}
    assert on(Encoder(credit.ENCODINGS["full"]), HOLDER)["PAY_6=2"] == 1.0
    assert on(Encoder(credit.ENCODINGS["compact"]), HOLDER)["PAY_6"] == pytest.approx(2 * 4 / 11 - 1)


def test_bins_start_at_their_edge_and_values_beyond_the_range_are_in_the_outer_ones() -> None:
    column = Numeric("age", 0, 100, edges=(18, 65))
    assert column.feature_names() == ("age", "age: below 18", "age: 18 to 65", "age: from 65")
    values = ["-5", "17.999", "18", "64", "65", "1e9", "", "inf"]
    found = column.encode(values)[0]
    bins = [int(row[1:].argmax()) if row[1:].any() else None for row in found]
    assert bins == [0, 0, 1, 1, 2, 2, None, None]
    np.testing.assert_array_equal(found[:, :1], Numeric("age", 0, 100).encode(values)[0])
    assert Encoder.from_json(Encoder((column,)).to_json()) == Encoder((column,))


@pytest.mark.parametrize("edges", [(0,), (100,), (50, 50), (60, 40), (-3, 50), (float("nan"),), tuple(range(1, 102))])
def test_edges_grow_inside_the_range(edges) -> None:
    with pytest.raises(InputError, match="bins of age must be at most 100 growing numbers between 0 and"):
        Numeric("age", 0, 200 if len(edges) > 100 else 100, edges=edges)


@pytest.mark.parametrize("edges", ["18", [18, "x"], [18, None]])
def test_edges_that_are_no_numbers_are_explained(edges) -> None:
    entry = {"kind": "binned", "name": "a", "low": 0.0, "high": 99.0, "transform": "linear", "edges": edges}
    with pytest.raises(InputError, match="edges of a must be"):
        Encoder.from_json({"version": 1, "columns": [entry]})


# ---- The same record gives the same vector, whatever table it is in.

ROWS = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K",
    "50, ?, 83311, 5th-6th, 3, Separated, ?, Wife, Other, Female, 0, 1977, 13, Hong, >50K",
    "17, Private, 1, 11th, 7, Never-married, Sales, Own-child, Black, Female, 0, 0, 8, Atlantis, <=50K",
    "90, Private, 9, Doctorate, 16, Divorced, Sales, Unmarried, White, Male, 99999, 4356, 99, Japan, >50K",
]
PAYERS = [
    "1,20000,2,2,1,24,2,2,-1,-1,-2,-2,3913,3102,689,0,0,0,0,689,0,0,0,0,1",
    "2,1000000,1,1,2,79,-1,0,0,8,0,2,2682,1725,2682,-3272,3455,3261,0,1000,1000,1000,0,2000,0",
    "3,90000,2,0,3,34,9,0,0,0,0,0,29239,14027,13559,14331,14948,15549,1518,1500,1000,1000,1000,5000,0",
]
PAYER_NAMES = ",".join([
    "ID,LIMIT_BAL,SEX,EDUCATION,MARRIAGE,AGE", *credit.STATUS, *(f"BILL_AMT{n}" for n in range(1, 7)),
    *(f"PAY_AMT{n}" for n in range(1, 7)), credit.LABEL,
])  # fmt: skip


def vectors(name: str, folder: Path, rows: list[str], **options) -> set[bytes]:
    """The features of these rows in a table of their own, as a set of bytes."""
    folder.mkdir(exist_ok=True)
    if name == "adult":
        (folder / "adult.data").write_text("\n".join(rows) + "\n")
        (folder / "adult.test").write_text("|1x3 Cross validator\n")
    else:
        (folder / "UCI_Credit_Card.csv").write_text("\n".join([PAYER_NAMES, *rows]) + "\n")
    found = load(name, test_fraction=0.0, **options).pooled_train()
    assert len(found) == len(rows)
    return {row.tobytes() for row in found.features}


@pytest.mark.parametrize(
    ("name", "encoding"), [("adult", e) for e in adult.ENCODINGS] + [("credit", e) for e in credit.ENCODINGS]
)
def test_a_record_gives_the_same_vector_in_any_table_in_any_order(tmp_path, monkeypatch, name, encoding) -> None:
    rows = ROWS if name == "adult" else PAYERS
    monkeypatch.setenv("PRIVFAIR_DATA", str(tmp_path))
    together = vectors(name, tmp_path, rows, encoding=encoding)
    assert len(together) == len(rows)
    assert vectors(name, tmp_path, rows[::-1], encoding=encoding) == together
    assert set.union(*(vectors(name, tmp_path, [row], encoding=encoding) for row in rows)) == together


def test_what_is_sensitive_is_no_feature_unless_asked_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PRIVFAIR_DATA", str(tmp_path))
    vectors("adult", tmp_path, ROWS)

    def groups(**options) -> set[str]:
        names = load("adult", test_fraction=0.0, **options).schema.features
        return {"sex", "race"} & {name.split("=")[0] for name in names}

    for encoding, race in (("binned", {"race"}), ("full", {"race"}), ("compact", set())):
        assert groups(encoding=encoding) == race
        assert groups(encoding=encoding, sensitive=["sex", "race"]) == set()
        assert groups(encoding=encoding, sensitive="race", attribute_as_feature=True) == {"sex", "race"}
    assert groups() == {"race"}  # binned is the default
    with pytest.raises(InputError, match="encoding must be one of binned, full, compact; found 'fulll'"):
        load("adult", encoding="fulll")
    with pytest.raises(InputError, match="encoding must be one of full, compact"):
        load("credit", encoding="binned")


def test_a_run_keeps_the_encoding_that_it_was_begun_with(tmp_path) -> None:
    """Runs of earlier versions do not name it."""
    config = Config.build({"data": {"name": "credit", "by": "marriage"}})
    directory = RunDirectory.create(tmp_path / "run", config)
    assert directory.read_config().data.options == {"by": "marriage", "encoding": "full"}
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace('encoding = "full"\n', ""))
    assert directory.read_config().data.options == {"by": "marriage", "encoding": "compact"}


# ---- Bins that the owner of a table declares.

PEOPLE = "age,income,sex,repaid,branch\n" + "".join(f"{20 + n},{1000 * n},{'fm'[n % 2]},{n % 2},a\n" for n in range(20))
GROUPS = {"sex": ["f", "m"]}


def declared(write, numeric, text: str = PEOPLE):
    schema = {"numeric": numeric, "categories": GROUPS}
    return load(
        "csv", path=write(text), label="repaid", sensitive="sex", client="branch", test_fraction=0.0, schema=schema
    )


def test_declared_bins_of_a_csv_file(write) -> None:
    bins = {"age": {"range": [18, 68], "bins": [25, 35.5]}, "income": {"range": [0, 1000], "bins": 4}}
    federation = declared(write, bins)
    assert federation.schema.features == (
        "age", "age: below 25", "age: 25 to 35.5", "age: from 35.5",
        "income", "income: below 250", "income: 250 to 500", "income: 500 to 750", "income: from 750",
    )  # fmt: skip
    alone = declared(write, bins, "".join(PEOPLE.splitlines(keepends=True)[:2]))
    np.testing.assert_array_equal(federation.pooled_train().features[0], alone.pooled_train().features[0])
    assert federation.encoder is not None
    np.testing.assert_array_equal(
        federation.encoder.encode([{"age": 20, "income": 0}])[0], alone.pooled_train().features[0]
    )


@pytest.mark.parametrize("bins", [True, 1, 101, 2.5, "10", {"a": 1}])
def test_bins_that_are_neither_edges_nor_a_number_are_explained(write, bins) -> None:
    with pytest.raises(InputError, match="bins of age must be a list of edges, or a whole number of bins from 2 to"):
        declared(write, {"age": {"range": [18, 68], "bins": bins}})
