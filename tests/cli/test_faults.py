"""How commands end on bad days: crashes, full disks, signals, readers that have gone."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import privfair
from accountant.budget import Budget
from accountant.errors import InputError, Refused
from accountant.events import Gaussian
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend
from privfair.cli.console import ended, reporting

COMMAND = Path(sys.executable).parent / "privfair"
SMALL = ["data.clients=2", "data.records=40", "federation.local_epochs=1"]


def with_set(settings: Sequence[str]) -> list[str]:
    return [part for simulation in settings for part in ("--set", simulation)]


def call(*arguments: object, limit: int | None = None, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own; `limit`: bytes that a file may have, as on a disk with so much room."""

    def full() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, preexec_fn=full, cwd=folder
    )


def plain(text: str) -> str:
    return " ".join(text.split())


# ---- crashes


def test_a_crash_exits_3_and_prints_no_records(capsys: pytest.CaptureFixture[str]) -> None:
    def crash() -> None:
        raise KeyError("Alice Miller, 42, positive")

    assert ended(crash) == 3
    out, err = capsys.readouterr()
    assert (out, "Alice" in err) == ("", False)
    found = re.search(
        r"privfair crashed: KeyError in cli/console\.py, line \d+\. Its traceback is in (\S+);", plain(err)
    )
    assert found is not None
    log = Path(found[1])
    assert "Alice Miller" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    log.unlink()


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (InputError("x", "must be 1", 2), 2), (Refused("no"), 1), (KeyboardInterrupt(), 130), (MemoryError(), 3),
        (OSError(28, "No space left on device", "f"), 3), (BrokenPipeError(32, "Broken pipe"), 3),
        (RecursionError("deep"), 3), (SystemExit(5), 5), (SystemExit(None), 0),
    ],
    ids=repr,
)  # fmt: skip
def test_exit_codes(raised: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise raised

    assert ended(command) == code
    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_exception_is_never_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Every exception that Python has, raised by a command: exit code 1 is for `Refused` alone."""
    kinds: list[type[Exception]] = [Exception]
    for kind in kinds:
        kinds += [sub for sub in kind.__subclasses__() if sub.__module__ == "builtins"]
    for kind in kinds:
        if kind in (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError) or issubclass(kind, ExceptionGroup):
            continue  # they cannot be made from nothing

        def command(kind: type[Exception] = kind) -> None:
            raise kind

        assert ended(command) == 3, kind
        printed = re.search(r"traceback is in (\S+);", plain(capsys.readouterr().err))
        if printed:
            Path(printed[1]).unlink()


def test_usage_errors_exit_2_and_help_exits_0() -> None:
    for arguments, code in ((["train", "--no-such-option"], 2), (["nonsense"], 2), (["--help"], 0), (["--version"], 0)):
        assert call(*arguments).returncode == code
    wrong = call("train", "--no-such-option")
    assert "No such option" in wrong.stderr
    assert wrong.stdout == ""


# ---- full disks


def test_a_full_disk_in_the_middle_of_a_run_loses_nothing(tmp_path: Path) -> None:
    settings = [*SMALL, "federation.rounds=60"]
    whole = privfair.train(privfair.Config.build({}, settings), out=tmp_path / "whole")
    size = (tmp_path / "whole" / "history.jsonl").stat().st_size
    out = tmp_path / "cut"
    for flags in (["--json"], []):  # the second call is a resume with a little more room
        arguments = ["train", "--resume", out] if out.exists() else ["train", *with_set(settings), "--out", out]
        full = call(*arguments, *flags, limit=size // 2 if not out.exists() else 3 * size // 4)
        assert full.returncode == 3, full.stderr
        assert full.stdout == ""
        assert "fault: The disk is full" in full.stderr
        assert f"Continue with: privfair train --resume {out}" in plain(full.stderr)
        assert "Traceback" not in full.stderr
    resumed = call("train", "--resume", out, "--json")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("model.safetensors", "history.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert json.loads(resumed.stdout)["accuracy"] == whole.accuracy


def test_a_disk_that_is_full_before_the_first_round_leaves_no_folder(tmp_path: Path) -> None:
    full = call("train", *with_set(SMALL), "--out", tmp_path / "runs" / "a", limit=500)
    assert full.returncode == 3, full.stderr
    assert "fault: The disk is full" in full.stderr
    assert "No run was begun." in full.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_in_a_private_run_can_be_resumed(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    private = ["privacy.epsilon=3", f"run.ledger=sqlite:///{ledger}", "federation.rounds=40", "run.evaluate_every=40"]
    full = call("train", *with_set([*SMALL, *private]), "--out", tmp_path / "run", limit=500_000)
    assert full.returncode == 3, full.stderr
    assert "fault: The disk is full" in full.stderr
    assert "Continue with: privfair train --resume" in plain(full.stderr)
    resumed = call("train", "--resume", tmp_path / "run", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert call("audit", "--ledger", f"sqlite:///{ledger}").returncode == 0


def test_a_full_disk_in_a_sweep_keeps_what_is_finished(tmp_path: Path) -> None:
    settings = with_set([*SMALL, "federation.rounds=2", "run.engine=local"])
    arguments = ["sweep", *settings, "--lambdas", "0,0.1,1", "--seeds", "4", "--workers", "1", "--out", tmp_path / "s"]
    full = call(*arguments, "--json", limit=2_500)
    assert full.returncode == 3, full.stderr
    assert "fault: The disk is full" in full.stderr
    reported = re.search(r"(\d+) of 12 runs are saved\. Continue with: privfair sweep", plain(full.stderr))
    assert reported is not None, full.stderr
    assert 0 < int(reported[1]) < 12
    done = call(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"]["continued"] == int(reported[1])


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.sqlite"
    with Ledger(url) as opened:
        opened.set_budget("patients", Budget(3.0, 1e-5))
        for number in range(40):
            spend = Spend(
                "patients", Gaussian(60.0), client=f"client-{number}", channel="updates", run="r", round=number
            )
            opened.reserve([spend])
    return url


def test_a_full_disk_where_pages_are_written(tmp_path: Path, ledger: str) -> None:
    run = tmp_path / "run"
    assert call("train", *with_set([*SMALL, "federation.rounds=2"]), "--out", run, "--json").returncode == 0
    before = (run / "report.html").read_bytes()
    for *arguments, room in (
        ("audit", "--ledger", ledger, "--html", tmp_path / "a.html", 100_000),
        ("audit", "--ledger", ledger, 20_000),  # less than SQLite needs beside a ledger: it is not broken for that
        ("report", run, 5_000),
    ):
        full = call(*arguments, limit=room)
        assert full.returncode == 3, full.stderr
        assert "fault: The disk is full" in full.stderr
    assert (run / "report.html").read_bytes() == before  # the old page stays whole
    assert not [path for folder in (run, tmp_path) for path in folder.glob(".*.new")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_cannot_be_written_is_a_fault(ledger: str) -> None:
    with open("/dev/full", "w") as full:
        for flags in ([], ["--json"]):
            done = subprocess.run(
                [COMMAND, "audit", "--ledger", ledger, *flags], stdout=full, stderr=subprocess.PIPE, check=False
            )
            assert done.returncode == 3, done.stderr


# ---- readers that have gone


def without_reader(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """A command whose output goes into a pipe that nobody reads, as after `| head`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run([COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_reader_that_has_gone_is_no_answer(ledger: str, flags: list[str]) -> None:
    done = without_reader("audit", "--ledger", ledger, *flags)
    assert (done.returncode, done.stderr) == (141, b"")


# ---- signals


def interrupted(number: signal.Signals, arguments: Sequence[str], begun: Callable[[], bool]) -> tuple[int, str]:
    """(exit code, stderr) of a command that got a signal once it had begun."""
    process = subprocess.Popen([COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not begun() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate()
    return process.returncode, plain(err)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_signal_says_how_to_resume_and_nothing_is_lost(
    tmp_path: Path, number: signal.Signals, code: int, flags: list[str]
) -> None:
    out, settings = tmp_path / "cut", [*SMALL, "federation.rounds=150"]
    arguments = ["train", *with_set(settings), "--out", str(out), *flags]
    found, err = interrupted(number, arguments, (out / "checkpoint.npz").is_file)
    assert found == code, err
    assert f"Continue with: privfair train --resume {out}" in err
    assert "Traceback" not in err
    privfair.train(resume=out)
    privfair.train(privfair.Config.build({}, settings), out=tmp_path / "whole")
    for name in ("model.safetensors", "history.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_sigterm_ends_a_sweep_with_what_is_saved(tmp_path: Path) -> None:
    settings = with_set([*SMALL, "federation.rounds=150", "run.engine=local"])
    out = tmp_path / "s"
    arguments = ["sweep", *settings, "--lambdas", "0,1", "--seeds", "20", "--workers", "2", "--out", str(out)]
    results = out / "results.csv"
    code, err = interrupted(
        signal.SIGTERM, arguments, lambda: results.is_file() and results.read_text().count("\n") > 1
    )
    assert code == 143, err
    assert re.search(r"Terminated \(SIGTERM\)\. \d+ of 40 runs are saved\. Continue with: privfair sweep", err), err


def test_what_is_kept_is_told_of_faults_and_not_of_answers(capsys: pytest.CaptureFixture[str]) -> None:
    def command(error: Exception) -> None:
        with reporting(lambda: "Half of it is kept."):
            raise error

    assert ended(lambda: command(OSError(28, "No space left on device", "f"))) == 3
    assert "Make room. Half of it is kept." in plain(capsys.readouterr().err)
    assert ended(lambda: command(Refused("over budget"))) == 1
    assert "kept" not in capsys.readouterr().err
