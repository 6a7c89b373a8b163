"""A run from a bare table, without a configuration: what is guessed, what is named, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import privfair
from accountant.errors import InputError
from privfair.cli import app
from privfair.datasets.guess import look_at

QUICK = {"federation": {"rounds": 2}}
NOISY = {**QUICK, "aggregation": {"scheme": "plain"}}
GOAL = {"target": None, "epsilon": None, "delta": None}
ROLES = {"label": "hired", "sensitive": "sex", "client": "branch"}


def people(size: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    sex = rng.choice(["F", "M"], size)
    years = rng.normal(10, 3, size) + (sex == "M")
    return pd.DataFrame(
        {
            "age": rng.integers(20, 65, size), "years": np.where(rng.random(size) < 0.05, np.nan, years), "sex": sex,
            "branch": rng.choice(["north", "south"], size),
            "hired": np.where(years + rng.normal(0, 2, size) > 10, "yes", "no"),
        }
    )  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    people().to_csv("people.csv", index=False)
    return tmp_path


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["train", *arguments])


def test_a_table_trains_as_the_file_that_init_writes_for_it() -> None:
    named = command("people.csv", *(f"--{role}={column}" for role, column in ROLES.items()), "--json", "--out", "a",
                    "--set", "federation.rounds=2")  # fmt: skip
    assert named.exit_code == 0, named.exception
    metrics = json.loads(named.stdout)
    assert metrics["guessed"].startswith("guessed: label 'hired', 'yes' counts as 1; sensitive 'sex', 2 groups; client")
    assert CliRunner().invoke(app, ["init", "people.csv"]).exit_code == 0
    written = privfair.train("people.toml", **QUICK)
    assert metrics["accuracy"] == written.accuracy
    guessed = privfair.train("people.csv", out="b", **QUICK)
    assert guessed.accuracy == written.accuracy
    assert "label 'hired' (by its name)" in guessed.metrics["guessed"]
    # the run's own configuration is complete: it goes on, and it can be trained again
    assert privfair.train(Path("b") / "config.toml").accuracy == written.accuracy
    assert privfair.train(resume="b").accuracy == written.accuracy


def test_a_data_frame_trains_as_its_file_and_leaves_no_file(folder: Path) -> None:
    frame = people()
    before = sorted(folder.rglob("*"))
    run = privfair.train(frame, **ROLES, **QUICK)
    assert sorted(folder.rglob("*")) == before
    assert run.accuracy == privfair.train("people.csv", **ROLES, **QUICK).accuracy
    assert run.model.predict(frame).shape == (len(frame),)
    kept = privfair.train(frame.astype({"sex": "category"}), **ROLES, **QUICK, out="kept")
    assert privfair.train(frame, resume="kept").accuracy == kept.accuracy == run.accuracy
    (Path("kept") / "metrics.json").unlink()
    with pytest.raises(InputError, match="resume must be on the same data"):
        privfair.train(people(200), resume="kept")


def test_epsilon_without_a_declaration_is_computed_and_not_claimed() -> None:
    run = privfair.train(people(), **ROLES, epsilon=5.0, delta=1e-4, **NOISY)
    assert run.privacy["private"] is False
    assert run.privacy["epsilon"]["pld"] <= 5.0
    assert run.privacy["delta"] == 1e-4
    assert run.privacy["ledger"]["dataset"] == "hired-sex-branch"
    named = privfair.train(people(), **ROLES, epsilon=5.0, privacy={"dataset": "staff"}, **NOISY)
    assert named.privacy["ledger"]["dataset"] == "staff"
    shown = command("people.csv", "--epsilon", "5", "--set", "federation.rounds=1", "--set", "aggregation.scheme=plain")
    text = " ".join(shown.stdout.split())
    assert (
        "Nothing is declared about people.csv, so that ε is computed and not claimed: privfair init people.csv" in text
    )


def test_flags_become_keys_and_set_comes_last() -> None:
    from privfair.api import from_bare_table

    goal = {"target": 0.05, "epsilon": 3.0, "delta": 1e-6}
    config, table, _ = from_bare_table(
        Path("people.csv"),
        {},
        ["data.features=['years']", "privacy.counts=gaussian"],
        named=ROLES | {"positive": None},
        goal=goal,
    )
    assert table is None
    assert (config.fairness.target, config.privacy.epsilon, config.privacy.delta) == (0.05, 3.0, 1e-6)
    assert config.data.options["features"] == ["years"]
    assert config.privacy.counts == "gaussian"
    other, _, _ = from_bare_table(people(), {}, named=ROLES | {"positive": "no"}, goal=GOAL)
    assert other.data.options["positive"] == "no"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("people.csv", "--label", "hire"), "--label must be a column of the file; found 'hire'. Did you mean 'hired'"),
        (("people.csv", "--client", "sex", "--sensitive", "sex"), "must be different columns"),
        (
            ("people.csv", "--target", "0.05", "--set", "fairness.lambda=2"),
            "target must be left out beside fairness.lam",
        ),
        (
            ("people.csv", "--positive", "maybe"),
            "positive must be one of the labels in the column hired; found 'maybe'",
        ),
        (("people.csv", "--target", "5"), "fairness.target must be less than 1"),
        (("peple.csv",), "CSV must be a file that exists; found 'peple.csv'"),
        (("people.xlsx",), "CSV must be a table as text; found 'people.xlsx'. Save it as CSV, or read it with pandas"),
        (("run.toml", "--label", "hired"), "label goes with a bare table .CSV.; found 'hired'. Set data.label in the"),
        (("run.toml", "--epsilon", "3"), "Set privacy.epsilon in the configuration"),
        (("--target", "0.1"), "target goes with a bare table"),
        (("--resume", "x", "--label", "y"), "label goes with a bare table"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    (folder / "run.toml").write_text("[run]\nseed = 1\n")
    (folder / "people.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match=message):
        raise command(*arguments).exception
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("change", "roles", "message"),
    [
        ({"branch": "north"}, ROLES, "client column branch must have at least two values; found 1"),
        ({"branch": None}, {"label": "hired"}, "client column must be named, as no column's name tells who holds"),
        ({"hired": ["left", "right"] * 120}, ROLES, "label hired must have a value that is known to count as 1; found"),
        ({"hired": ["a", "b", "c"] * 80}, ROLES, "label hired must have two values, or numbers; found '3 values'"),
    ],
)  # fmt: skip
def test_what_cannot_be_guessed_is_asked_for(change: dict[str, Any], roles: dict[str, str], message: str) -> None:
    frame = people().assign(**{name: value for name, value in change.items() if value is not None})
    frame = frame.drop(columns=[name for name, value in change.items() if value is None])
    with pytest.raises(InputError, match=message) as error:
        privfair.train(frame, **roles, **QUICK)
    assert "left" not in str(error.value)
    if "known to count" in message:
        assert 0.0 < privfair.train(frame, **roles, positive="left", **QUICK).accuracy < 1.0


def test_a_column_that_comes_twice_and_a_dataset_beside_a_table_are_refused() -> None:
    frame = people()
    with pytest.raises(InputError, match="columns of the data frame must have different names"):
        privfair.train(frame.rename(columns={"age": "sex"}), **ROLES)
    with pytest.raises(InputError, match="dataset must be left out beside a table"):
        privfair.train(frame, dataset=privfair.datasets.load("synthetic"), **ROLES)
    with pytest.raises(InputError, match="epsilon goes with a bare table"):
        privfair.train(epsilon=3.0)


def test_many_records_are_worth_bins_and_few_are_not(folder: Path) -> None:
    from privfair.cli.init import configuration

    few = look_at(folder / "people.csv")
    assert "# years = [0, 20]  # FROM THE DATA: replace; GUESS, where an effect is" in configuration("p", {}, few.guess)
    people(10_000).to_csv("many.csv", index=False)
    text = configuration("many.csv", {}, look_at(folder / "many.csv").guess)
    assert "# age = { range = [0, 70], bins = 10 }  # FROM THE DATA: replace; bins of equal width are a GUESS" in text
