from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from accountant.errors import InputError
from privfair.cli.data import app
from privfair.datasets import downloads as fetching
from privfair.datasets.downloads import locate
from privfair.datasets.registry import find

CSV = "age,sex,repaid,branch\n20,f,1,north\n60,m,0,north\n40,f,1,south\n"


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_list_shows_where_everything_comes_from(empty_cache) -> None:
    shown = run("list")
    assert shown.exit_code == 0
    for text in ("compas", "not here", "communities.names", "archive.ics.uci.edu", "min_communities = 4", "licence"):
        assert text in shown.output
    answer = json.loads(run("list", "--json").stdout)
    compas = next(entry for entry in answer["datasets"] if entry["name"] == "compas")
    assert not compas["available"]
    assert compas["files"][0]["found"] is None
    assert "Features" in compas["preprocessing"]


def test_check_shows_clients_groups_and_labels() -> None:
    shown = run("check", "synthetic", "--set", "clients=2", "--set", "records=30")
    assert shown.exit_code == 0
    assert "synthetic: 60 records, 2 clients, 10 features" in shown.output
    answer = json.loads(run("check", "synthetic", "--set", "sizes=[5, 6]", "--seed", "3", "--json").stdout)
    assert answer["records"] == 11
    assert [client["train"] + client["test"] for client in answer["clients"]] == [5, 6]
    assert sum(answer["clients"][0]["groups"]["A"].values()) == 5
    assert 0 <= answer["clients"][0]["mean_label"] <= 1


def test_check_of_a_csv_file(write) -> None:
    settings = [f"path={write(CSV)}", "label=repaid", "sensitive=sex", "client=branch"]
    answer = json.loads(run("check", "csv", *(x for s in settings for x in ("--set", s)), "--json").stdout)
    assert answer["records"] == 3
    assert answer["inferred"]
    assert answer["published"] == {}


def test_check_of_many_clients_is_cut() -> None:
    assert "… and 10 more clients" in run("check", "synthetic", "--set", "clients=60", "--set", "records=2").output


def test_check_of_a_real_file(real) -> None:
    real("compas")
    answer = json.loads(run("check", "compas", "--json").stdout)
    assert answer["records"] == 5278
    assert answer["published"] == {"compas-scores-two-years.csv": True}


def test_check_says_no_to_a_file_that_is_not_the_published_one(real, tmp_path, monkeypatch) -> None:
    real("drug")
    content = locate("drug_consumption.data").read_text()
    (tmp_path / "drug_consumption.data").write_text(content + content.splitlines()[0] + "\n")
    monkeypatch.setenv("PRIVFAIR_DATA", str(tmp_path))
    shown = run("check", "drug")
    assert shown.exit_code == 1
    assert "drug_consumption.data: NOT the published file" in shown.output


@pytest.mark.parametrize("setting", ["clients", "=3"])
def test_a_setting_is_key_and_value(setting) -> None:
    result = run("check", "synthetic", "--set", setting)
    assert isinstance(result.exception, InputError)
    assert "--set must be key=value" in str(result.exception)


@pytest.mark.parametrize(
    ("setting", "remedy"), [("seed=3", "Use --seed"), ("test_fraction=0.5", "Use --test-fraction")]
)
def test_a_setting_that_has_an_option_of_its_own_is_explained(setting, remedy) -> None:
    result = run("check", "synthetic", "--set", setting)
    assert isinstance(result.exception, InputError)
    assert remedy in str(result.exception)


def test_fetch_says_where_the_files_are(empty_cache, monkeypatch) -> None:
    empty_cache.mkdir()
    for file in find("communities").files:
        (empty_cache / file.name).write_bytes(b"")
    monkeypatch.setattr(
        fetching,
        "digest",
        lambda path: next(file.sha256 for file in find("communities").files if file.name == path.name),
    )
    assert "communities.data: here already" in run("fetch", "communities").output
    answer = json.loads(run("fetch", "communities", "--json").stdout)
    assert [file["downloaded"] for file in answer["files"]] == [False, False]


def test_fetch_of_an_unknown_dataset_suggests_one() -> None:
    assert "Did you mean 'adult'" in str(run("fetch", "adlut").exception)
