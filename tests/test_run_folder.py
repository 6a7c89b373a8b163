"""The folder of a run: checkpoints that do not grow, files that are damaged, missing or changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import privfair
from accountant.errors import InputError
from privfair.cli.report import write_report
from privfair.config import Config
from privfair.federated.exchange import Absence
from privfair.federated.release_plan import RELEASE_PLANS, ReleasePlan
from privfair.runs.folder import Checkpoint, RunDirectory, weights_digest, weights_file
from privfair.util import write_arrays
from tests.end_to_end.federations import toy

WORK = {"rounds": 6, "local_epochs": 1, "batch_size": 30}


class Stop(Exception):
    """Raised in the middle of a run."""


def stop_after(rounds: int) -> Callable[[dict[str, Any]], None]:
    def report(row: dict[str, Any]) -> None:
        if row["round"] == rounds:
            raise Stop

    return report


def checkpoint(rounds: int) -> Checkpoint:
    """Of a run that wrote a line of history and missed a client in every round."""
    history = [{"round": number, "accuracy": number / 7, "test_loss": None} for number in range(rounds)]
    return Checkpoint(
        identity="data",
        round=rounds,
        release_plan=ReleasePlan(np.array([3, 4]), np.array([[1, 2], [2, 2]])),
        algorithm={},
        replica={"parameters": np.arange(4.0)},
        client_state={},
        history=history,  # type: ignore[arg-type]
        bytes_up=10**9,
        bytes_down=10**9,
        seconds=1.5,
        absent=tuple(Absence(number, 1, "training", "gone") for number in range(rounds)),
    )


def written() -> int:
    """Bytes that this process has handed to the system for writing so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes written are counted by /proc")
def test_a_late_checkpoint_writes_no_more_than_an_early_one(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    each = []
    for rounds in range(1, 301):
        before = written()
        directory.write_checkpoint(checkpoint(rounds))
        each.append(written() - before)
    slack = 64  # numbers of rounds and sizes have more digits
    assert max(each[200:]) <= max(each[10:20]) + slack
    found = RunDirectory(tmp_path).read_checkpoint()
    assert found is not None
    assert list(found.history) == checkpoint(300).history
    assert found.absent == checkpoint(300).absent


def test_history_and_absences_only_grow(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_checkpoint(checkpoint(5))
    with pytest.raises(ValueError, match="must only grow"):
        directory.write_checkpoint(checkpoint(4))
    again = RunDirectory(tmp_path)  # one that has read nothing yet goes on where the folder is
    again.write_checkpoint(checkpoint(7))
    found = again.read_checkpoint()
    assert found is not None
    assert (list(found.history), found.absent) == (checkpoint(7).history, checkpoint(7).absent)


@pytest.mark.parametrize(
    "left", [b"", b'{"row": {"round": 4, "accur', b'{"row": {"round": 4}}\n{"row": {"round": 5}}\n']
)
def test_what_a_crash_leaves_behind_the_checkpoint_does_not_count(tmp_path: Path, left: bytes) -> None:
    """The log is written before the checkpoint: a crash between the two leaves lines that nothing refers to."""
    whole = privfair.train(dataset=toy(), federation=WORK, out=tmp_path / "whole")
    with pytest.raises(Stop):
        privfair.train(dataset=toy(), federation=WORK, out=tmp_path / "cut", report=stop_after(4))
    with (tmp_path / "cut" / "history.jsonl").open("ab") as file:
        file.write(left)
    resumed = privfair.train(resume=tmp_path / "cut", dataset=toy())
    assert resumed.rows == whole.rows
    for name in ("model.safetensors", "history.csv", "history.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """Format 3 had history and absences in the checkpoint itself."""
    whole = privfair.train(dataset=toy(), federation=WORK)
    out = tmp_path / "cut"
    with pytest.raises(Stop):
        privfair.train(dataset=toy(), federation=WORK, out=out, report=stop_after(4))
    found = RunDirectory(out).read_checkpoint()
    assert found is not None
    about: dict[str, Any] = {name: getattr(found, name) for name in ("identity", "round", "history", "seconds")}
    about |= {"bytes_up": found.bytes_up, "bytes_down": found.bytes_down, "ledger_rows": 0, "uncounted": []}
    about |= {"format": 3, "absent": [], "released": None}
    about["terms"] = json.loads(RELEASE_PLANS.to_text(found.release_plan))
    arrays = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    parts = {"algorithm": found.algorithm, "replica": found.replica, "client": found.client_state}
    arrays |= {f"{part}/{name}": values for part, memory in parts.items() for name, values in memory.items()}
    write_arrays(out / "checkpoint.npz", arrays)
    (out / "history.jsonl").unlink()
    assert privfair.train(resume=out, dataset=toy()).rows == whole.rows


def test_a_changed_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        privfair.train(dataset=toy(), federation=WORK, out=tmp_path, report=stop_after(4))
    path = tmp_path / "history.jsonl"
    content = path.read_bytes()
    for changed in (content.replace(b'"round": 2', b'"round": 3'), content[:-20], None):
        path.unlink() if changed is None else path.write_bytes(changed)
        with pytest.raises(InputError, match=r"history\.jsonl must be whole and readable"):
            privfair.train(resume=tmp_path, dataset=toy())


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    privfair.train(dataset=toy(), federation=WORK, out=tmp_path / "run")
    return tmp_path / "run"


def test_missing_and_damaged_files_are_named(finished: Path) -> None:
    """Whatever reads a file that is missing, cut or something else names it; nothing but an `InputError` comes out."""
    readers: dict[str, tuple[Callable[[], object], ...]] = {
        "privacy.json": (lambda: write_report(finished, "run", finished / "r.html", include_private=False),),
        "metrics.json": (
            lambda: write_report(finished, "run", finished / "r.html", include_private=False),
            lambda: privfair.load(finished),
        ),
        "model.safetensors": (lambda: privfair.load(finished),),
        "history.csv": (lambda: write_report(finished, "run", finished / "r.html", include_private=True),),
        "checkpoint.npz": (lambda: privfair.train(resume=finished, dataset=toy()),),
        "run.json": (lambda: privfair.train(resume=finished, dataset=toy()),),
        "config.toml": (
            lambda: privfair.load(finished),
            lambda: privfair.train(resume=finished, dataset=toy()),
            lambda: write_report(finished, "run", finished / "r.html", include_private=False),
        ),
    }
    for name, reads in readers.items():
        path = finished / name
        content = path.read_bytes()
        for damage in (None, b"", content[: len(content) // 2], b"\xff\x00 no such thing", b"[]", b"{}"):
            path.unlink() if damage is None else path.write_bytes(damage)
            for read in reads:
                try:
                    read()
                except InputError as error:
                    reported = str(error)
                    assert any(word in reported for word in (name, "run must be", "config must be", "history")), (
                        reported
                    )
                else:  # a table that is cut, or a file that is made again, can still be fine
                    assert (name, damage) in {
                        ("checkpoint.npz", None), ("config.toml", b""),
                        ("config.toml", content[: len(content) // 2]), ("history.csv", b""),
                        ("history.csv", content[: len(content) // 2]), ("history.csv", b"[]"), ("history.csv", b"{}"),
                    }  # fmt: skip
        path.write_bytes(content)


def changed(path: Path, change: Callable[[torch.Tensor], torch.Tensor], *, digest: bool) -> None:
    """Change the first weight in the file, as somebody would who keeps its metadata, or makes its digest anew."""
    weights = load_file(path)
    first = sorted(weights)[0]
    weights[first] = change(weights[first].clone())
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
    if digest:
        metadata = dict.fromkeys(metadata, weights_digest(weights))
    save_file(weights, path, metadata=metadata)


def test_a_changed_model_is_refused(finished: Path) -> None:
    path = finished / "model.safetensors"
    content = path.read_bytes()
    changed(path, lambda weight: weight + 1e-3, digest=False)
    with pytest.raises(InputError, match=r"must have the weights that training wrote.*They were changed since"):
        privfair.load(finished)
    path.write_bytes(content)
    changed(path, lambda weight: weight + 1e-3, digest=True)
    with pytest.raises(InputError, match=r"must be the model of this run.*replaced or changed"):
        privfair.load(finished)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_neither_read_nor_written(finished: Path, wrong: float) -> None:
    path, known = finished / "model.safetensors", finished / "metrics.json"
    changed(path, lambda weight: torch.full_like(weight, wrong), digest=True)
    metrics = json.loads(known.read_text())
    metrics["model"].pop("digest")
    known.write_text(json.dumps(metrics))
    with pytest.raises(InputError, match=r"model\.safetensors must have finite weights; found .nan or inf in"):
        privfair.load(finished)
    with pytest.raises(InputError, match="model must have finite weights"):
        weights_file({"weight": torch.tensor([1.0, wrong])})


def test_a_folder_of_an_earlier_version_without_digests_is_loaded(finished: Path) -> None:
    path, known = finished / "model.safetensors", finished / "metrics.json"
    expected = privfair.load(finished).module.state_dict()
    save_file(load_file(path), path)
    metrics = json.loads(known.read_text())
    metrics["model"].pop("digest")
    known.write_text(json.dumps(metrics))
    found = privfair.load(finished).module.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_model_of_another_form_is_refused(finished: Path) -> None:
    tables = RunDirectory.open(finished).read_config().as_tables()
    tables["model"] = {"name": "mlp", "hidden": [3]}
    Config.build(tables)
    import tomli_w

    (finished / "config.toml").write_text(tomli_w.dumps(tables))
    with pytest.raises(InputError, match=r"model\.safetensors must be of the model that config\.toml describes"):
        privfair.load(finished)


@pytest.mark.parametrize("there", [False, True])
def test_a_refused_run_leaves_no_folder_and_takes_nothing_away(tmp_path: Path, there: bool) -> None:
    """Refused after its folder was made: no training records are left, which is known when counts are."""
    out = tmp_path / "runs" / "deep" / "a"
    if there:
        out.mkdir(parents=True)
        (out / ".mine").write_text("not to be lost")
    nobody = toy(records=40)
    empty = [replace(client, train=client.train.take(np.arange(0))) for client in nobody.clients]
    with pytest.raises(InputError, match="data must have training records"):
        privfair.train(dataset=replace(nobody, clients=tuple(empty)), federation=WORK, out=out)
    if there:
        assert [path.name for path in out.iterdir()] == [".mine"]
    else:
        assert list(tmp_path.iterdir()) == []


def test_what_was_begun_stays(tmp_path: Path) -> None:
    wild = {**WORK, "learning_rate": 1e6, "local_epochs": 20}
    with pytest.raises(InputError, match="must be finite"):
        privfair.train(dataset=toy(task="regression"), federation=wild, out=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.npz").is_file()


def test_a_refused_resume_leaves_everything(finished: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
    with pytest.raises(InputError, match="must be on the same data"):
        privfair.train(resume=finished, dataset=toy(records=44))
    assert {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()} == before
