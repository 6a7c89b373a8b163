from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.sweeps.jobs import Job
from privfair.sweeps.journal import HISTORIES, RESULTS, Journal, Lines
from privfair.sweeps.rows import COLUMNS, as_text, failed_row, from_text

ABOUT = {"configuration": {"federation": {"rounds": 3}}}


def job(value: float | None = 1.0, seed: int = 0) -> Job:
    return Job("mmd_fedavg", "lambda", value, math.inf, Config.build({}, [f"run.seed={seed}"]))


def done(accuracy: float, **more: Any) -> dict[str, Any]:
    return {"status": "done", "reason": "", "accuracy": accuracy, "unfairness": 0.1, **more}


@settings(max_examples=40, deadline=None)
@given(st.floats(allow_nan=False), st.text(st.characters(codec="utf-8", exclude_categories=("Cs",))))
def test_a_line_is_read_back_as_it_was(number: float, text: str) -> None:
    row = {"accuracy": number, "reason": text, "seed": 3}
    back = from_text(dict(zip(COLUMNS, as_text(row, COLUMNS), strict=True)))
    assert back["accuracy"] == number
    assert back["reason"] == " ".join(text.split())
    assert (back["seed"], back["schema"], back["rmse"]) == (3, 1, None)


def test_runs_are_found_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "s", ABOUT) as journal:
        journal.add(job(1.0), done(0.1 + 0.2))
        journal.add(job(None), done(0.7))
        journal.add(job(2.0), failed_row(ValueError("a\nb")))
    with Journal(tmp_path / "s", ABOUT) as journal:
        found = journal.finished()
    assert {key: row["accuracy"] for key, row in found.items()} == {job(1.0).key: 0.1 + 0.2, job(None).key: 0.7}
    last = (tmp_path / "s" / RESULTS).read_text().splitlines()[-1]
    assert "failed,ValueError: a b," in last


@pytest.mark.parametrize("kept", [1, 7, 40])
def test_a_half_written_last_line_is_dropped(tmp_path: Path, kept: int) -> None:
    with Journal(tmp_path, ABOUT) as journal:
        journal.add(job(1.0), done(0.5))
        journal.add(job(2.0), done(0.6))
    path = tmp_path / RESULTS
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: start + kept])
    with Journal(tmp_path, ABOUT) as journal:
        assert list(journal.finished()) == [job(1.0).key]
        journal.add(job(2.0), done(0.6))
    assert path.read_bytes() == whole


def test_a_header_that_was_cut_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("schema,ser")
    Lines(path, ("schema", "series")).close()
    assert path.read_text() == "schema,series\n"


def test_history_of_a_run_that_was_killed_is_replaced(tmp_path: Path) -> None:
    lines = [{"round": 0, "accuracy": 0.5}, {"round": 1, "accuracy": 0.6}]
    with Journal(tmp_path, ABOUT) as journal:
        journal.add(job(), done(0.6, history=lines))
        journal.add(job(), done(0.9, history=[{"round": 1, "accuracy": 0.9}]))
        (found,) = journal.histories().values()
    assert [(line["round"], line["accuracy"]) for line in found] == [(0, 0.5), (1, 0.9)]
    assert "history" not in (tmp_path / RESULTS).read_text().splitlines()[0]
    assert len((tmp_path / HISTORIES).read_text().splitlines()) == 4


def test_another_configuration_is_refused_and_named(tmp_path: Path) -> None:
    Journal(tmp_path, ABOUT).__exit__(None, None, None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError) as error:
        Journal(tmp_path, {"configuration": {"federation": {"rounds": 4}}})
    assert "same configuration; found 'federation.rounds was 3, is 4'" in str(error.value)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_two_sweeps_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with (
        Journal(tmp_path, ABOUT),
        pytest.raises(Refused, match=r"Another sweep is writing to .*: wait for it, or take another --out\."),
    ):
        Journal(tmp_path, ABOUT)


def test_files_of_another_kind_are_told(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"must have a sweep\.json beside its results\.csv"):
        Journal(tmp_path, ABOUT)
    with pytest.raises(InputError, match="must have the columns of this version; found 'a,b…'"):
        Lines(tmp_path / RESULTS, COLUMNS)


def test_a_spoilt_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("schema,accuracy\n1,0.5\n1,many\n")
    lines = Lines(path, ("schema", "accuracy"))
    with pytest.raises(InputError, match=r"x\.csv, line 3 must be a line of a sweep"):
        lines.read()
    lines.close()
