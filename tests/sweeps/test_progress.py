"""What is told while a sweep runs: rounds move the bar, and where there is no terminal lines are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from privfair.cli.sweep import time_left, watched


def test_the_time_left_is_that_of_the_mean_speed() -> None:
    assert time_left(60.0, 10.0, 20.0) == "about 0:02:00 left"
    assert time_left(5400.0, 1.5, 1.0) == "about 1:00:00 left"
    assert time_left(10.0, 0.0, 3.0) == ""  # nothing to tell from
    assert time_left(10.0, 3.0, 0.0) == ""  # nothing left


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr("privfair.cli.sweep.time.monotonic", lambda: now[0])
    with watched("sweep on people", quiet=False, out=Path("s")) as watch:
        started, progress = watch.callbacks["started"], watch.callbacks["progress"]
        started(2, 22)
        now[0] += 20  # planning
        progress(1.0)
        for _ in range(6):
            now[0] += 10
            progress(0.5)
    reported = capsys.readouterr().err
    assert "2 of 22 runs are there already" in reported
    lines = [line for line in reported.splitlines() if line.startswith("sweep on people:")]
    # 30 seconds apart; the time left is from the steps, half a run in 10 seconds, and not from the planning
    assert lines == [
        "sweep on people: 1.5 of 20 runs in 0:00:30, about 0:06:10 left",
        "sweep on people: 3.0 of 20 runs in 0:01:00, about 0:05:40 left",
    ]


def test_nothing_is_told_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with watched("sweep", quiet=True, out=Path("s")) as watch:
        watch.callbacks["started"](1, 2)
        watch.callbacks["progress"](1.0)
        watch.callbacks["finished"](None, {"status": "done"})
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (["sweep", "my file.toml"], "privfair sweep 'my file.toml' --out new/s"),
        (["sweep", "--out=here"], "privfair sweep --out=here"),
        (["reproduce", "compas", "--out", "here"], "privfair reproduce compas --out here"),
    ],
)
def test_who_interrupts_is_told_how_to_go_on(
    given: list[str], reported: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/privfair", *given])
    with pytest.raises(typer.Exit) as ended, watched("sweep", quiet=True, out=Path("new/s")):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("", f"Interrupted. No run was begun. Continue with: {reported}")
