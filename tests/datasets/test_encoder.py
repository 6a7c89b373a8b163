"""Raw rows, encoded again, give the features that the loaders gave."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from accountant.errors import InputError
from privfair.datasets import ClientData, Encoder, Federation, load
from privfair.datasets.columns import Categorical, Numeric, Plain
from privfair.datasets.sources import adult, communities, compas, credit, drug

PUBLISHED = {"compas": compas, "communities": communities, "adult": adult, "drug": drug, "credit": credit}
PEOPLE = """who,age,job,sex,repaid,branch,code
1,20,clerk,f,1,north,01
2, 60 ,nurse,m,0,north,2.50
3,?,clerk,f,1,south,
4,1e999,pilot,m,1,south,7
5,abc,,,0,south,01
6,95,nurse,m,0,south,2.5
"""
SCHEMA = {
    "numeric": {"age": {"range": [20, 60], "transform": "log"}},
    "categories": {"job": ["clerk", "nurse"], "code": ["01", "2.50"], "sex": ["f", "m"]},
}
TOY = Encoder((Numeric("age", 0, 10), Categorical("job", ("clerk", "nurse")), Plain("x")))


def read_text(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)


def read_typed(frame: pd.DataFrame) -> pd.DataFrame:
    """The values in the types that pandas gives them."""
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)))


def again(encoder: Encoder) -> Encoder:
    return Encoder.from_json(json.loads(json.dumps(encoder.to_json())))


def load_with_rows(name: str, monkeypatch: pytest.MonkeyPatch, **options) -> tuple[Federation, pd.DataFrame]:
    """A published dataset, all for training, with the raw rows of its records in the order of its clients."""
    seen = {}

    def watched(dataset, table, **arguments):
        seen.update(table=table, client_of=arguments["client_of"])
        return original(dataset, table, **arguments)

    original = PUBLISHED[name].assemble_table
    monkeypatch.setattr(PUBLISHED[name], "assemble_table", watched)
    federation = load(name, test_fraction=0.0, **options)
    frame = pd.DataFrame(seen["table"].rows, columns=list(seen["table"].columns))
    place = [client.name for client in federation.clients]
    order = np.argsort([place.index(client) for client in seen["client_of"]], kind="stable")
    return federation, frame.iloc[order].reset_index(drop=True)


@pytest.mark.parametrize("attribute_as_feature", [False, True])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_dataset_is_encoded_again(real, monkeypatch, name, attribute_as_feature) -> None:
    real(name)
    federation, frame = load_with_rows(name, monkeypatch, attribute_as_feature=attribute_as_feature)
    encoder, expected = federation.encoder, federation.pooled_train().features
    assert encoder.features == federation.schema.features
    assert again(encoder) == encoder
    for rows in (frame, read_typed(frame), {column: frame[column].tolist() for column in encoder.columns}):
        encoded = again(encoder).encode(rows)
        assert encoded.dtype == np.float32
        np.testing.assert_array_equal(encoded, expected)
    some = frame.iloc[:: len(frame) // 50]
    np.testing.assert_array_equal(encoder.encode(some.to_dict("records")), expected[some.index])
    for row in some.index[:5]:
        np.testing.assert_array_equal(encoder.encode([frame.iloc[row].to_dict()]), expected[[row]])


@pytest.mark.parametrize("options", [{}, {"attribute_as_feature": True, "dimensions": 3}])
def test_synthetic_features_are_themselves(options) -> None:
    federation = load("synthetic", **options)
    names = federation.schema.features
    for records in (federation.pooled_train(), federation.pooled_test()):
        columns = dict(zip(names, records.features.T, strict=True))
        as_text = {name: [repr(float(x)) for x in column] for name, column in columns.items()}
        for rows in (columns, as_text, pd.DataFrame(columns)):
            np.testing.assert_array_equal(again(federation.encoder).encode(rows), records.features)


@pytest.mark.parametrize(
    "options", [{"schema": SCHEMA}, {}, {"features": ["code", "sex"]}, {"features": ["age"], "schema": SCHEMA}]
)
def test_a_csv_file_is_encoded_again(write, options) -> None:
    federation = load(
        "csv", path=write(PEOPLE), label="repaid", sensitive="sex", client="branch", test_fraction=0.0, **options
    )
    frame = read_text(PEOPLE)
    expected = federation.pooled_train().features
    assert again(federation.encoder) == federation.encoder
    assert federation.encoder.features == federation.schema.features
    for rows in (frame, frame.to_dict("records"), frame.to_dict("list")):
        np.testing.assert_array_equal(again(federation.encoder).encode(rows), expected)


def test_typed_values_mean_what_their_text_means(write) -> None:
    text = "a,b,code,flag,y,s\n1,0.5,1,True,0,f\n2,,2,False,1,m\n3,x,3,True,0,f\n"
    schema = {"numeric": {"a": [1, 3], "b": [0, 1]}, "categories": {"code": ["1", "2"], "flag": ["True"], "s": ["f"]}}
    federation = load("csv", path=write(text), label="y", sensitive="s", schema=schema, test_fraction=0.0)
    rows = {
        "a": np.array([1, 2, 3], dtype=np.int8),
        "b": [0.5, None, pd.NA],
        "code": np.array([1.0, 2.0, 3.0], dtype=np.float32),
        "flag": [True, np.False_, True],
    }
    np.testing.assert_array_equal(federation.encoder.encode(rows), federation.pooled_train().features)
    frame = pd.DataFrame({**rows, "code": pd.array([1, 2, None], dtype="Int64"), "a": pd.Categorical(["1", "2", "3"])})
    np.testing.assert_array_equal(federation.encoder.encode(frame), federation.pooled_train().features)


def test_numbers_find_the_category_that_means_the_same() -> None:
    encoder = Encoder((Categorical("code", ("0.12600", "1", "true", "nurse")),))
    given = [0.126, np.float32(0.126), "0.126", 1.0, "1.0", True, False, None, np.nan, pd.NaT, 10**400, "nurse "]
    found = encoder.encode({"code": given}).argmax(axis=1).tolist()
    assert found == [0, 0, 4, 1, 4, 2, 4, 4, 4, 4, 4, 3]


def test_values_that_cannot_be_used_are_replaced() -> None:
    rows = [
        {"age": value, "job": job, "x": x}
        for value, job, x in [
            (None, None, None),
            (float("inf"), "pilot", float("-inf")),
            (99, " clerk ", 1e300),
            ("-7", 3, "2"),
            ([], [], []),
        ]
    ]
    largest = np.finfo(np.float32).max
    expected = [[0, 0, 0, 1, 0], [0, 0, 0, 1, 0], [1, 1, 0, 0, largest], [-1, 0, 0, 1, 2], [0, 0, 0, 1, 0]]
    np.testing.assert_array_equal(TOY.encode(rows), np.array(expected, dtype=np.float32))


@pytest.mark.parametrize("rows", [[], {"age": [], "job": [], "x": []}, pd.DataFrame(columns=["age", "job", "x"])])
def test_no_rows_give_no_features(rows) -> None:
    assert TOY.encode(rows).shape == (0, 5)


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame({"age": [1], "job": ["clerk"], "y": [1]}),
        {"age": [1], "job": ["clerk"], "y": [1]},
        [{"age": 1, "job": "clerk", "x": 1, "y": 1}, {"age": 1, "job": "clerk", "y": 1}],
    ],
)
def test_a_missing_column_is_named_with_those_that_are_needed(rows) -> None:
    with pytest.raises(InputError, match=r"column x must be in the rows; found 'age, job, y'\. Needed: age, job, x\."):
        TOY.encode(rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (3, "rows must be a data frame, a list of rows .* or a dictionary of columns .*; found 'int'"),
        ("age", "rows must be a data frame"),
        (np.zeros((2, 5)), "rows must be a data frame.*; found 'ndarray'"),
        ([[1, "clerk", 2]], "rows must be a data frame"),
        ({"age": 3, "job": "clerk", "x": 1}, r"column age must be one list of values; found 'int'\. For one row give"),
        ({"age": [3], "job": "clerk", "x": [1]}, "column job must be one list of values; found 'str'"),
        ({"age": np.zeros((1, 1)), "job": ["a"], "x": [1]}, "column age must be one list of values"),
        ({"age": [3], "job": ["clerk", "nurse"], "x": [1]}, "rows must have as many values in every column"),
        (pd.DataFrame([[1, 2, 3, 4]], columns=["age", "age", "job", "x"]), "column age must be one list of values"),
    ],
)
def test_rows_of_another_kind_are_explained(rows, message) -> None:
    with pytest.raises(InputError, match=message):
        TOY.encode(rows)


NUMERIC = {"kind": "numeric", "name": "a", "low": 0.0, "high": 1.0, "transform": "linear"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "encoder must be a table with a version"),
        ({"columns": []}, "encoder must be a table with a version"),
        (
            {"version": 2, "columns": [NUMERIC]},
            r"version of the encoder must be 1; found 2\. It was written by another",
        ),
        ({"version": True, "columns": [NUMERIC]}, "version of the encoder must be 1; found True"),
        ({"version": 1}, "must have a version and a list of columns"),
        ({"version": 1, "columns": [NUMERIC], "more": 1}, "must have a version and a list of columns"),
        ({"version": 1, "columns": []}, "columns of the encoder must be at least one"),
        ({"version": 1, "columns": [NUMERIC, NUMERIC]}, "columns of the encoder must be at least one, with different"),
        ({"version": 1, "columns": [5]}, "column of the encoder must be a table"),
        (
            {"version": 1, "columns": [{"kind": "date", "name": "a"}]},
            "must be one of numeric, binned, categorical, plain",
        ),
        ({"version": 1, "columns": [{"kind": "plain"}]}, "plain column of the encoder must have the field name"),
        ({"version": 1, "columns": [{"kind": "plain", "name": "a", "low": 1}]}, "field low of the encoder must be"),
        ({"version": 1, "columns": [{"kind": "plain", "name": 4}]}, "name of an encoder's column must be text"),
        ({"version": 1, "columns": [{**NUMERIC, "low": "x"}]}, "low of a must be a number"),
        ({"version": 1, "columns": [{**NUMERIC, "low": 2}]}, "range of a must be two finite numbers"),
        ({"version": 1, "columns": [{**NUMERIC, "transform": "exp"}]}, "transform of a must be one of"),
        ({"version": 1, "columns": [{"kind": "categorical", "name": "a", "values": [1], "other": True}]}, "texts"),
        ({"version": 1, "columns": [{"kind": "categorical", "name": "a", "values": ["b"], "other": 1}]}, "true or"),
    ],
)
def test_json_that_is_not_an_encoder_is_explained(data, message) -> None:
    with pytest.raises(InputError, match=message):
        Encoder.from_json(data)


def test_floats_survive_json_exactly() -> None:
    encoder = Encoder((Numeric("a", 0.1 + 0.2, 1e300), Numeric("b", -5e-324, 1 / 3), Plain("c"), *TOY.parts))
    assert again(encoder) == encoder


def test_an_encoder_of_other_features_does_not_fit_a_federation() -> None:
    federation = load("synthetic", clients=1, records=4)
    client = federation.clients[0]
    with pytest.raises(
        InputError, match="encoder must give the 10 features of the schema; found '5, of which 15 differ'"
    ):
        Federation("toy", federation.schema, (ClientData("one", client.train, client.test),), (), TOY)


def test_encoding_rows_needs_no_pandas() -> None:
    code = (
        "import sys, privfair.datasets as d; f = d.load('synthetic', dimensions=1);"
        "print(f.encoder.encode([{'x1': 2}]).tolist(), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[2.0]] False"
