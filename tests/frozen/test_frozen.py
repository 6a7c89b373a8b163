"""Runs whose results must stay what they were, whatever the code around them looks like.

Each configuration in `configs/` names every key that has a value (a key without one cannot be written in TOML, and is
left out), so that a later default does not touch it. `recorded/` has what its run gave: model, history, numbers and
keys of the privacy statement, figures, bytes, and the rows and events of the ledger. Numbers are compared to 1e-6,
everything else exactly. Bit for bit, on one machine: `python -m tools.frozen compare COMMIT`. A result that is meant to
change is written anew with `python -m tools.frozen record RUN`, and the changelog says so.
"""

from __future__ import annotations

import copy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

import privfair
from tools import frozen_run
from tools.frozen import CLOSE, RECORDED, compare_records, differences, main, read_record
from tools.frozen_run import CONFIGS, RESUMED, ROOT, SLOW

NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in frozen_run.names()]


@pytest.mark.parametrize("name", NAMES)
def test_the_run_gives_what_was_recorded(tmp_path: Path, name: str) -> None:
    found = frozen_run.run(name, tmp_path)
    assert compare_records(name, read_record(name), found, tolerance=CLOSE) == []


@pytest.mark.parametrize("name", RESUMED)
def test_an_interrupted_run_ends_as_a_whole_one(tmp_path: Path, name: str) -> None:
    """Bit for bit, but for bytes: a client that goes on from a checkpoint is not sent again what it has."""
    found = []
    for each in (name, RESUMED[name][0]):
        (tmp_path / each).mkdir()
        found.append(frozen_run.run(each, tmp_path / each))
        del found[-1]["bytes"]
    assert differences(*found, tolerance=0.0) == []


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_key_that_has_a_value_is_named(path: Path) -> None:
    named = tomllib.loads(path.read_text())
    values = privfair.Config.read(path).model_dump(mode="json", by_alias=True)
    missing = [
        f"{section}.{key} = {value!r}"
        for section, table in values.items()
        for key, value in table.items()
        if value is not None and key not in named[section]
    ]
    assert missing == [], "a new key must have no value by default, or be named in every frozen configuration"


def test_every_run_has_a_record_and_every_record_a_run() -> None:
    assert sorted(path.stem for path in RECORDED.glob("*.json")) == frozen_run.names()


def altered(record: dict[str, Any], how: str) -> dict[str, Any]:
    """A record with one small difference."""
    other = copy.deepcopy(record)
    if how == "a parameter":
        next(iter(other["model"].values()))["values"][0] += 1e-5
    elif how == "a round of the history":
        other["history"].pop()
    elif how == "an epsilon":
        other["privacy"]["epsilon"]["pld"] *= 1 + 1e-5
    elif how == "a key of the statement":
        other["privacy"]["by_clients"] = other["privacy"].pop("by_client")
    elif how == "the order of rows":
        rows = other["ledger"]["rows"]
        rows[3], rows[4] = rows[4], rows[3]
    elif how == "a kind of event":
        other["ledger"]["events"][0]["kind"] = "gaussian"
    elif how == "a repetition":
        other["ledger"]["rows"][-1][2] += 1
    return other


@pytest.mark.parametrize(
    "how",
    [
        "a parameter",
        "a round of the history",
        "an epsilon",
        "a key of the statement",
        "the order of rows",
        "a kind of event",
        "a repetition",
    ],
)
def test_a_difference_is_found(how: str) -> None:
    record = read_record("bfv")
    assert compare_records("bfv", record, record, tolerance=0.0) == []
    assert compare_records("bfv", record, altered(record, how), tolerance=CLOSE)


def test_bit_for_bit_means_every_bit() -> None:
    assert differences([1.0, 0.0], [1.0 + 2**-52, -0.0], tolerance=0.0) == [
        "[0]: 1.0 and 1.0000000000000002",
        "[1]: 0.0 and -0.0",
    ]
    assert differences([1.0], [1], tolerance=CLOSE) == ["[0]: 1.0 and 1"]


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="a commit can be compared in a git repository"
)
def test_a_commit_is_compared_with_the_present_code(capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself; whether both agree is for whoever changes something to see."""
    main(["compare", "HEAD", "plain", "scaffold_resumed"])
    told = capsys.readouterr().out
    assert "Error" not in told
    assert "of 2 runs are equal" in told


def test_a_run_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["compare", "HEAD", "nothing"])
