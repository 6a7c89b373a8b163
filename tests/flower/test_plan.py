"""What server and holders compare, and what a holder has of its own."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.sources.synthetic import load
from privfair.deployment.holder_state import own_records
from privfair.deployment.protocol import differences, holders, schema_from_text, schema_to_text, shared_plan
from privfair.runs.keys import client_key

BASE: dict[str, Any] = {"privacy": {"epsilon": 3.0}, "run": {"clients": ["north", "south"]}}


def plan(**sections: dict[str, Any]) -> dict[str, Any]:
    return shared_plan(Config.build({**BASE, **{k: {**BASE.get(k, {}), **v} for k, v in sections.items()}}))


@pytest.mark.parametrize(
    "own",
    [
        {"data": {"name": "csv", "path": "north.csv"}},
        {"run": {"ledger": "sqlite:///elsewhere.sqlite", "deadline": 5.0, "wait": 1.0, "min_clients": 1}},
        {"run": {"engine": "flower", "out": "here", "evaluate_every": 2}},
        {"privacy": {"dataset": "patients"}},
        {"aggregation": {"keys": "keys/client.key", "scheme": "bfv"}},  # bfv is what a private run has anyway
    ],
)
def test_what_is_everybodys_own(own: dict[str, Any]) -> None:
    assert differences(plan(), plan(**own)) == []


@pytest.mark.parametrize(
    ("theirs", "reported"),
    [
        ({"privacy": {"epsilon": 30.0}}, "privacy.epsilon is 30.0 there and 3.0 here"),
        ({"privacy": {"updates": "none"}}, "privacy.updates is 'none' there and 'dp_sgd' here"),
        ({"federation": {"rounds": 500}}, "federation.rounds is 500 there and 100 here"),
        ({"aggregation": {"scheme": "plain"}}, "aggregation.scheme is 'plain' there and 'bfv' here"),
        ({"run": {"reproducible_noise": True}}, "run.reproducible_noise is True there and False here"),
        ({"run": {"clients": ["north"]}}, "run.clients is ['north'] there and ['north', 'south'] here"),
        ({"fairness": {"lambda": 2.0}}, "fairness.lambda is 2.0 there and 1.0 here"),
    ],
)
def test_what_must_be_the_same(theirs: dict[str, Any], reported: str) -> None:
    assert differences(plan(), plan(**theirs)) == [reported]


def test_versions_must_be_the_same() -> None:
    theirs = {**plan(), "version of privfair": "0.0.9", "version of torch": "1.0"}
    assert differences(plan(), theirs) == [
        f"version of privfair is '0.0.9' there and {version('privfair')!r} here",
        f"version of torch is '1.0' there and {version('torch').partition('+')[0]!r} here",
    ]
    assert {name for name in plan() if name.startswith("version of ")} == {
        f"version of {package}" for package in ("privfair", "torch", "opacus", "numba", "numpy")
    }


def test_a_key_that_one_side_does_not_know_is_a_difference() -> None:
    assert differences(plan(), {**plan(), "privacy.new": None}) == ["privacy.new is None there and None here"]


@pytest.mark.parametrize("names", [None, [], ["a", "a"], ["a", ""]])
def test_holders_have_names(names: Any) -> None:
    with pytest.raises(InputError, match=r"run\.clients must name the data holders, each once"):
        holders(Config.build({"run": {} if names is None else {"clients": names}}))


def test_a_schema_there_and_back() -> None:
    schema = load(clients=2, records=20).schema
    assert schema_from_text(schema_to_text(schema)) == schema
    with pytest.raises(InputError, match="schema must be a whole schema"):
        schema_from_text("{}")


CSV = "age,sex,branch,hired\n" + "".join(f"{20 + i},{'FM'[i % 2]},{'ab'[i % 3 == 0]},{i % 2}\n" for i in range(40))
SCHEMA = {
    "task": "binary", "positive": "1", "numeric": {"age": [18, 100]},
    "categories": {
        "sex": {"values": ["F", "M"], "unknown": "drop"},
        "branch": {"values": ["a", "b"], "unknown": "drop"},
    },
}  # fmt: skip


def own(tmp_path: Path, **options: Any) -> Config:
    (tmp_path / "own.csv").write_text(CSV)
    data = {"name": "csv", "path": str(tmp_path / "own.csv"), "label": "hired", "sensitive": "sex", "schema": SCHEMA}
    return Config.build({"data": {**data, **options}, "run": {"clients": ["a", "b", "north"]}})


def test_a_file_without_a_client_column_is_its_holders(tmp_path: Path) -> None:
    found = own_records(own(tmp_path), "north")
    (client,) = found.clients
    assert client.name == "north"
    assert len(client.train) + len(client.test) == 40


def test_a_file_of_several_holders_is_cut(tmp_path: Path) -> None:
    found = own_records(own(tmp_path, client="branch"), "a")
    (client,) = found.clients
    assert client.name == "a"
    assert len(client.train) + len(client.test) == int(np.sum([i % 3 != 0 for i in range(40)]))
    with pytest.raises(InputError, match="client must have records in the data"):
        own_records(own(tmp_path, client="branch"), "north")


def test_encryption_needs_a_key() -> None:
    with pytest.raises(InputError, match=r"aggregation\.keys must be given for bfv"):
        client_key(Config.build(BASE))
