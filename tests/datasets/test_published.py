"""The published datasets, against independent readings of the same files with pandas."""

from __future__ import annotations

import os
from math import sqrt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accountant.errors import InputError
from privfair.datasets import Federation, Records, load
from privfair.datasets.registry import DATASETS

PUBLISHED = [name for name, dataset in DATASETS.items() if dataset.files]


def file(name: str) -> Path:
    return Path(os.environ["PRIVFAIR_DATA"]) / name


def sizes(federation: Federation) -> dict[str, int]:
    return {client.name: len(client.train) + len(client.test) for client in federation.clients}


def everything(federation: Federation) -> Records:
    return Records.concatenate([federation.pooled_train(), federation.pooled_test()])


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_loader_gives_sound_features_and_the_expected_split(real, name) -> None:
    real(name)
    federation = load(name)
    records = everything(federation)
    assert np.abs(records.features).max() <= 1
    assert len(set(federation.schema.features)) == len(federation.schema.features)
    assert not federation.schema.inferred
    assert not any("SHA-256" in note for note in federation.notes)
    share = len(federation.pooled_test()) / len(records)
    assert abs(share - 0.25) <= 5 * sqrt(0.25 * 0.75 / len(records))  # false alarm below 1e-6


@pytest.mark.parametrize("name", PUBLISHED)
def test_options_that_choose_features_leave_the_split_alone(real, name) -> None:
    real(name)
    one, two = (load(name, attribute_as_feature=flag) for flag in (False, True))
    assert len(one.schema.features) < len(two.schema.features)
    for a, b in zip(one.clients, two.clients, strict=True):
        np.testing.assert_array_equal(a.test.labels, b.test.labels)
        kept = [two.schema.features.index(feature) for feature in one.schema.features]
        np.testing.assert_array_equal(a.test.features, b.test.features[:, kept])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_file_is_explained(empty_cache, name) -> None:
    with pytest.raises(InputError, match=rf"needs the file .*privfair data fetch {name}`, or set PRIVFAIR_DATA"):
        load(name)


def test_compas(real) -> None:
    real("compas")
    federation = load("compas")
    assert sizes(federation) == {"Less than 25": 1156, "25 - 45": 3026, "Greater than 45": 1096}
    assert len(federation.schema.features) == 8
    table = pd.read_csv(file("compas-scores-two-years.csv"))
    table = table[
        table.days_b_screening_arrest.between(-30, 30)
        & (table.is_recid != -1)
        & (table.c_charge_degree != "O")
        & table.race.isin(["African-American", "Caucasian"])
    ]
    records = everything(federation)
    assert len(records) == len(table) == 5278
    assert records.labels.sum() == table.two_year_recid.sum()
    assert (records.groups == 0).sum() == (table.race == "African-American").sum()
    columns = dict(zip(federation.schema.features, records.features.T, strict=True))
    assert columns["race=Caucasian"].sum() == (table.race == "Caucasian").sum()
    assert columns["sex=Female"].sum() == (table.sex == "Female").sum()
    assert columns["c_charge_degree=M"].sum() == (table.c_charge_degree == "M").sum()
    ages = np.exp(np.log(18) + (columns["age"] + 1) / 2 * np.log(96 / 18))
    np.testing.assert_allclose(np.sort(ages), np.sort(table.age), rtol=1e-5)
    priors = np.expm1((columns["priors_count"] + 1) / 2 * np.log1p(38))
    np.testing.assert_allclose(np.sort(priors), np.sort(table.priors_count), atol=1e-4)


def test_compas_without_race_has_six_features(real) -> None:
    real("compas")
    assert load("compas", attribute_as_feature=False).schema.features == (
        "c_charge_degree=F",
        "c_charge_degree=M",
        "sex=Female",
        "sex=Male",
        "age",
        "priors_count",
    )


@pytest.mark.parametrize(("fewest", "states", "rows"), [(4, 42, 1988), (5, 41, 1984), (1, 46, 1994)])
def test_communities(real, fewest, states, rows) -> None:
    real("communities")
    federation = load("communities", min_communities=fewest)
    assert len(federation.clients) == states
    assert sum(sizes(federation).values()) == rows
    assert len(federation.schema.features) == 99
    names = [
        line.split()[1] for line in file("communities.names").read_text().splitlines() if line.startswith("@attribute")
    ]
    table = pd.read_csv(file("communities.data"), header=None, names=names, na_values="?")
    complete = table.columns[table.notna().all()].drop(["state", "communityname", "fold", "ViolentCrimesPerPop"])
    assert list(complete) == list(federation.schema.features)
    taking_part = table[table.groupby("state").state.transform("size") >= fewest]
    records = everything(federation)
    assert records.labels.sum() == (taking_part.ViolentCrimesPerPop >= table.ViolentCrimesPerPop.mean()).sum()
    assert records.groups.sum() == (taking_part.racepctblack > table.racepctblack.median()).sum()
    expected = 2 * taking_part[complete].to_numpy().mean(axis=0) - 1
    np.testing.assert_allclose(records.features.mean(axis=0, dtype=float), expected, atol=1e-6)


def test_adult(real) -> None:
    real("adult")
    federation = load("adult", by="workclass", sensitive=["sex", "race"])
    records = everything(federation)
    assert len(records) == 48_842
    assert records.labels.sum() == 7841 + 3846
    table = pd.concat(
        pd.read_csv(file(name), header=None, skiprows=skip, skipinitialspace=True)
        for name, skip in (("adult.data", 0), ("adult.test", 1))
    )
    assert sizes(federation) == {("other" if k == "?" else k): n for k, n in table[1].value_counts().items()}
    for column, attribute in enumerate(federation.schema.sensitive):
        counts = table[{"sex": 9, "race": 8}[attribute.name]].value_counts()
        found = np.bincount(records.groups[:, column], minlength=len(attribute.values))
        assert dict(zip(attribute.values, found.tolist(), strict=True)) == counts.to_dict()
    hours = (records.features[:, federation.schema.features.index("hours-per-week")] + 1) / 2 * 98 + 1
    np.testing.assert_allclose(np.sort(hours), np.sort(table[12]), rtol=1e-5)
    assert not {"sex", "race"} & {feature.split("=")[0] for feature in federation.schema.features}
    education = pd.get_dummies(table[3]).rename(columns=lambda name: f"education={name.strip()}").sum()
    found = dict(zip(federation.schema.features, records.features.sum(axis=0, dtype=float), strict=True))
    assert {name: found[name] for name in education.index} == education.to_dict()
    ages = pd.cut(table[0], [0, 20, 25, 30], right=False).value_counts().sort_index().tolist()
    assert [found[f"age: {ends}"] for ends in ("below 20", "20 to 25", "25 to 30")] == ages


def test_adult_by_occupation(real) -> None:
    real("adult")
    assert len(load("adult").clients) == 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "ocupation"}, "by must be one of occupation, workclass; found 'ocupation'. Did you mean 'occupation'"),
        ({"sensitive": "age"}, "sensitive must be one of sex, race"),
        ({"sensitive": ["sex", "sex"]}, "sensitive must be one word or a list of different ones"),
        ({"sensitive": []}, "sensitive must be one word or a list"),
        ({"sensitive": 3}, "sensitive must be one word or a list"),
    ],
)
def test_adult_options_are_checked_before_the_files(empty_cache, options, message) -> None:
    with pytest.raises(InputError, match=message):
        load("adult", **options)


def test_drug(real) -> None:
    real("drug")
    federation = load("drug")
    table = pd.read_csv(file("drug_consumption.data"), header=None)
    assert sorted(sizes(federation).values()) == sorted(table[4].value_counts())
    assert sizes(federation)["UK"] == 1044
    records = everything(federation)
    assert records.labels.sum() == (table[23] == "CL0").sum()
    assert records.groups.sum() == (table[5] == -0.31685).sum()
    assert load("drug", drug="cannabis").pooled_train().labels.mean() < 0.5


def test_credit(real) -> None:
    real("credit")
    federation = load("credit")
    table = pd.read_csv(file("UCI_Credit_Card.csv"))
    records = everything(federation)
    assert len(records) == 30_000
    assert records.labels.sum() == table["default.payment.next.month"].sum()
    assert records.groups.sum() == (table.SEX == 2).sum()
    assert sizes(federation)["high school"] == (table.EDUCATION == 3).sum()
    assert list(sizes(load("credit", by="marriage"))) == ["married", "single", "other"]


def test_a_file_that_is_not_the_published_one_is_noted_and_read(real, tmp_path, monkeypatch) -> None:
    real("compas")
    lines = file("compas-scores-two-years.csv").read_text().splitlines(keepends=True)
    (tmp_path / "compas-scores-two-years.csv").write_text("".join(lines[:500]))
    monkeypatch.setenv("PRIVFAIR_DATA", str(tmp_path))
    federation = load("compas")
    assert "compas-scores-two-years.csv is not the published file" in federation.notes[0]
    assert 0 < len(everything(federation)) < 500


def test_a_wrong_file_under_the_right_name_is_explained(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PRIVFAIR_DATA", str(tmp_path))
    (tmp_path / "compas-scores-two-years.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"column .* must be in the table"):
        load("compas")
    (tmp_path / "communities.data").write_text("1,2\n")
    (tmp_path / "communities.names").write_text("nothing\n")
    with pytest.raises(InputError, match=r"communities\.names must declare state"):
        load("communities")
