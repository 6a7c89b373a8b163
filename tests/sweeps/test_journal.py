from __future__ import annotations

import math
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.sweeps.jobs import Job
from privfair.sweeps.journal import (
    BEFORE_BEYOND,
    COLUMNS,
    HISTORIES,
    HISTORY,
    RESULTS,
    Journal,
    Lines,
    as_text,
    failed_row,
    from_text,
    saved_runs,
)

ASKED = {"federation": {"rounds": 3}}


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
    with Journal(tmp_path / "s", ASKED) as journal:
        journal.add(job(1.0), done(0.1 + 0.2))
        journal.add(job(None), done(0.7))
        journal.add(job(2.0), failed_row(ValueError("a\nb")))
    with Journal(tmp_path / "s", ASKED) as journal:
        found = journal.newest()
    assert {key: row["accuracy"] for key, row in found.items() if row["status"] == "done"} == {
        job(1.0).key: 0.1 + 0.2, job(None).key: 0.7,
    }  # fmt: skip
    assert found[job(2.0).key]["status"] == "failed"
    last = (tmp_path / "s" / RESULTS).read_text().splitlines()[-1]
    assert "failed,ValueError: a b," in last


@pytest.mark.parametrize("kept", [1, 7, 40])
def test_a_half_written_last_line_is_dropped(tmp_path: Path, kept: int) -> None:
    with Journal(tmp_path, ASKED) as journal:
        journal.add(job(1.0), done(0.5))
        journal.add(job(2.0), done(0.6))
    path = tmp_path / RESULTS
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: start + kept])
    with Journal(tmp_path, ASKED) as journal:
        assert list(journal.newest()) == [job(1.0).key]
        journal.add(job(2.0), done(0.6))
    assert path.read_bytes() == whole


def test_a_header_that_was_cut_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("schema,ser")
    with closing(Lines(path, ("schema", "series"))) as lines:
        lines.repair()
    assert path.read_text() == "schema,series\n"


def test_history_of_a_run_that_was_killed_is_replaced(tmp_path: Path) -> None:
    lines = [{"round": 0, "accuracy": 0.5}, {"round": 1, "accuracy": 0.6}]
    with Journal(tmp_path, ASKED) as journal:
        journal.add(job(), done(0.6, history=lines))
        journal.add(job(), done(0.9, history=[{"round": 1, "accuracy": 0.9}]))
        (found,) = journal.histories().values()
    assert [(line["round"], line["accuracy"]) for line in found] == [(0, 0.5), (1, 0.9)]
    assert "history" not in (tmp_path / RESULTS).read_text().splitlines()[0]
    assert len((tmp_path / HISTORIES).read_text().splitlines()) == 4


def test_another_configuration_is_refused_and_named(tmp_path: Path) -> None:
    Journal(tmp_path, ASKED).__exit__(None, None, None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError) as error:
        Journal(tmp_path, {"federation": {"rounds": 4}})
    assert "same configuration; found 'federation.rounds was 3, is 4'" in str(error.value)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_two_sweeps_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with (
        Journal(tmp_path, ASKED),
        pytest.raises(Refused, match=r"Another sweep is writing to .*: wait for it, or take another --out\."),
    ):
        Journal(tmp_path, ASKED)


def test_who_is_refused_has_not_touched_the_line_that_is_being_written(tmp_path: Path) -> None:
    with Journal(tmp_path, ASKED) as journal:
        journal.add(job(1.0), done(0.5))
        with (tmp_path / RESULTS).open("ab") as file:  # half of a line, as the first sweep may have it on the disk
            file.write(b"1,mmd_fedavg,mmd_fed")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(Refused, match="Another sweep is writing"):
            Journal(tmp_path, ASKED, [job(9.0).key])
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("there", [b"", b"schema,ser", f"{','.join(COLUMNS)}\n".encode()])
def test_a_folder_in_which_nothing_but_the_start_happened_is_begun_anew(tmp_path: Path, there: bytes) -> None:
    (tmp_path / RESULTS).write_bytes(there)
    with Journal(tmp_path, ASKED) as journal:
        assert journal.newest() == {}
    assert (tmp_path / RESULTS).read_text() == ",".join(COLUMNS) + "\n"


def test_one_of_many_first_starts_writes_one_header(tmp_path: Path) -> None:
    barrier, opened, refused = threading.Barrier(8), [], []

    def start() -> None:
        barrier.wait()
        try:
            opened.append(Journal(tmp_path, ASKED))
        except Refused as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(opened), len(refused)) == (1, 7)
    opened[0].__exit__(None, None, None)
    for name, columns in ((RESULTS, COLUMNS), (HISTORIES, HISTORY)):
        assert (tmp_path / name).read_text() == ",".join(columns) + "\n"


def test_the_runs_of_a_folder_are_those_with_a_line_and_those_asked_for(tmp_path: Path) -> None:
    assert saved_runs(tmp_path / "s") == (0, 0)
    with Journal(tmp_path / "s", ASKED, [job(1.0).key, job(2.0).key]) as journal:
        journal.add(job(1.0), done(0.5))
        journal.add(job(2.0), failed_row("no"))
        assert saved_runs(tmp_path / "s") == (1, 2)  # read beside the sweep that writes
    Journal(tmp_path / "s", ASKED, [job(1.0).key, job(3.0).key]).__exit__(None, None, None)
    assert saved_runs(tmp_path / "s") == (1, 3)


def test_a_result_counts_more_than_a_failure(tmp_path: Path) -> None:
    with Journal(tmp_path, ASKED) as journal:
        journal.add(job(1.0), failed_row("first"))
        journal.add(job(1.0), done(0.5))
        journal.add(job(2.0), failed_row("first"))
        journal.add(job(2.0), failed_row("second"))
        found = journal.newest()
    assert found[job(1.0).key]["status"] == "done"
    assert found[job(2.0).key]["reason"] == "second"


def test_files_of_another_kind_are_told(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"must have a sweep\.json beside its results\.csv"):
        Journal(tmp_path, ASKED)
    with (
        closing(Lines(tmp_path / RESULTS, COLUMNS)) as lines,
        pytest.raises(InputError, match="must have the columns of this version; found 'a,b…'"),
    ):
        lines.repair()


def test_a_sweep_of_an_earlier_version_goes_on_in_its_columns(tmp_path: Path) -> None:
    with Journal(tmp_path, ASKED) as journal:
        journal.add(job(1.0), done(0.5))
    header, line = (tmp_path / RESULTS).read_text().splitlines()
    assert header.endswith(",epsilon_beyond")
    earlier = f"{','.join(BEFORE_BEYOND)}\n{line.rpartition(',')[0]}\n"
    (tmp_path / RESULTS).write_text(earlier)
    with Journal(tmp_path, ASKED) as journal:
        added = journal.add(job(2.0), {**done(0.6), "epsilon_beyond": 9.0})
        found = journal.newest()
    assert added["epsilon_beyond"] == 9.0
    assert [row["accuracy"] for row in found.values()] == [0.5, 0.6]
    assert all(row["epsilon_beyond"] is None for row in found.values())  # the file has no place for it
    text = (tmp_path / RESULTS).read_text()
    assert text.startswith(earlier)
    assert {len(line.split(",")) for line in text.splitlines()} == {len(BEFORE_BEYOND)}


def test_a_spoilt_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("schema,accuracy\n1,0.5\n1,many\n")
    lines = Lines(path, ("schema", "accuracy"))
    with pytest.raises(InputError, match=r"x\.csv, line 3 must be a line of a sweep"):
        lines.read()
    lines.close()
