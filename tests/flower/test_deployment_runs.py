"""Whole runs on a SuperLink and SuperNodes of their own, with TLS and node authentication."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flower.deployment import EXAMPLE, Federation, eventually, finish, once, releases, same, spent, trial

pytestmark = pytest.mark.slow
WHOLE = [("counts", None), ("predictions", 0), ("updates", 0), ("predictions", 1), ("updates", 1)]


def test_two_rounds_of_the_demo_federation(tmp_path: Path) -> None:
    made = trial(tmp_path, clients=4, changes={"aggregation": {"masks": True}})
    with Federation(made.logs) as federation:
        for node in made.nodes:
            federation.admit(node)
        metrics = finish(federation, made)
    assert metrics["absent"] == []
    assert metrics["rounds"] == 2
    for name in made.names:
        assert releases(made, name) == once(*WHOLE)
        assert 0 < spent(made, name) <= metrics["privacy"]["planned"]["rdp"]
        assert same(made.model(name), made.model("client-1"))
        assert not list((tmp_path / name).rglob("client.key"))
    reported = [metrics["clients"][name]["released"] for name in made.names]
    assert reported != [150] * 4  # the training records of each: counts are told with noise


def test_the_command_for_a_trial_ends_with_the_same_files_as_other_engines(tmp_path: Path) -> None:
    words = ["train", str(EXAMPLE), "--json", "--out", str(tmp_path / "out")]
    changes = [
        "run.engine=flower",
        "federation.rounds=1",
        "data.clients=2",
        f"run.ledger=sqlite:///{tmp_path}/l.sqlite",
    ]
    program = [str(Path(sys.executable).with_name("privfair")), *words, *(w for c in changes for w in ("--set", c))]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["privacy"]["epsilon"]["rdp"] > 0
    assert {"metrics.json", "privacy.json", "model.safetensors"} <= set(os.listdir(tmp_path / "out"))


def test_a_missing_client_leaves_encrypted_and_plain_sums_the_same(tmp_path: Path) -> None:
    models = {}
    for scheme in ("bfv", "plain"):
        changes = {
            "aggregation": {"scheme": scheme, "quantise": scheme == "plain"},
            "run": {"reproducible_noise": True, "min_clients": 2},
            "federation": {"rounds": 2, "lagged_scores": True},
        }
        made = trial(tmp_path / scheme, changes=changes)
        with Federation(made.logs) as federation:
            for node in made.nodes[:2]:
                federation.admit(node)
            metrics = finish(federation, made)
        assert {absence["client"] for absence in metrics["absent"]} == {"client-3"}
        assert same(made.model("client-1"), made.model("client-2"))
        models[scheme] = made.model("client-1")
    assert same(models["bfv"], models["plain"])


def test_ctrl_c_ends_a_trial_and_all_its_processes(tmp_path: Path) -> None:
    words = [str(EXAMPLE), "--set", "run.engine=flower", "--set", "data.clients=2", "--out", str(tmp_path / "out")]
    words += ["--set", f"run.ledger=sqlite:///{tmp_path}/l.sqlite"]
    program = [str(Path(sys.executable).with_name("privfair")), "train", *words]
    with subprocess.Popen(
        program, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, preexec_fn=listen_to_ctrl_c
    ) as trial_process:
        log = tmp_path / "out" / "flower" / "logs" / "node-000.log"
        eventually(lambda: log.exists() and "Sent successfully" in log.read_text())
        assert processes_about(tmp_path)
        trial_process.send_signal(signal.SIGINT)
        _, said = trial_process.communicate()
    assert trial_process.returncode != 0
    assert b"Traceback" not in said
    eventually(lambda: not processes_about(tmp_path))


def listen_to_ctrl_c() -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # tests in the background of a shell are deaf to it, and so are children


def processes_about(folder: Path) -> list[str]:
    """The command lines of running processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in words:
            found.append(words)
    return found
