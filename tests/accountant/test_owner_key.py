from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest

from accountant.errors import InputError
from accountant.ledger.signing import OwnerKey, canonical_cell, fingerprint_columns, fingerprint_csv

KEY = OwnerKey(bytes(range(32)))
TABLE = {"age": [31, 45, 60], "income": [1.5, np.nan, 2e6], "sex": ["F", "M", "F"]}


def test_a_key_file_is_for_its_owner_only(tmp_path):
    path = tmp_path / "owner.key"
    key = OwnerKey.create(path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert OwnerKey.load(path) == key
    os.chmod(path, 0o640)
    with pytest.raises(InputError, match="chmod 600"):
        OwnerKey.load(path)


def test_a_key_is_never_overwritten_or_shown(tmp_path):
    path = tmp_path / "owner.key"
    key = OwnerKey.create(path)
    with pytest.raises(InputError, match="must not exist yet"):
        OwnerKey.create(path)
    assert OwnerKey.load(path) == key
    assert key.secret.hex() not in repr(key)
    assert key.key_id not in key.secret.hex()


@pytest.mark.parametrize("content", ["", "almost-a-secret", "ab" * 31, "\xff"], ids=str.__len__)
def test_files_that_hold_no_key(tmp_path, content):
    path = tmp_path / "owner.key"
    path.write_text(content, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(InputError) as error:
        OwnerKey.load(path)
    assert not content or content not in str(error.value)


def test_signatures_are_checked(tmp_path):
    signature = KEY.sign("row")
    assert KEY.signed("row", signature)
    assert not KEY.signed("row!", signature)
    assert not OwnerKey(bytes(32)).signed("row", signature)
    assert not KEY.signed("row", "")


def test_a_fingerprint_follows_the_data_not_its_arrangement(tmp_path):
    expected = fingerprint_columns(TABLE, KEY)
    frame = pd.DataFrame(TABLE)
    assert fingerprint_columns(frame.iloc[[2, 0, 1]][["sex", "age", "income"]], KEY) == expected
    frame.to_csv(tmp_path / "data.csv", index=False)
    assert fingerprint_csv(tmp_path / "data.csv", KEY) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {**TABLE, "age": [31, 45, 61]},
        {**TABLE, "sex": ["M", "F", "F"]},  # the same columns, other records
        {**TABLE, "gender": TABLE["sex"]},
        {name: values[:2] for name, values in TABLE.items()},
        {name: [*values, values[0]] for name, values in TABLE.items()},  # a record twice
    ],
)
def test_other_data_has_another_fingerprint(changed):
    assert fingerprint_columns(changed, KEY) != fingerprint_columns(TABLE, KEY)


def test_a_fingerprint_needs_the_key_and_is_no_signature():
    assert fingerprint_columns(TABLE, KEY) != fingerprint_columns(TABLE, OwnerKey(bytes(32)))


def test_records_cannot_be_confused_by_moving_letters():
    assert fingerprint_columns({"a": ["xy"], "b": ["z"]}, KEY) != fingerprint_columns({"a": ["x"], "b": ["yz"]}, KEY)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1.0"), ("1", "1.0"), (" 1.0 ", "1.0"), (None, ""), (float("nan"), ""), ("abc", "abc"), (0.1, "0.1"),
     (2**60 + 1, str(2**60 + 1)), (np.float32(0.5), "0.5"), (True, "True")],
)  # fmt: skip
def test_cells_are_written_one_way(value, text):
    assert canonical_cell(value) == text


@pytest.mark.parametrize("content", ["", "a,b\n1\n", "a,a\n1,2\n"])
def test_files_that_are_no_table(tmp_path, content):
    (tmp_path / "data.csv").write_text(content)
    with pytest.raises(InputError, match=r"file data\.csv"):
        fingerprint_csv(tmp_path / "data.csv", KEY)
    with pytest.raises(InputError, match="same number of records"):
        fingerprint_columns({"a": [1], "b": [1, 2]}, KEY)
