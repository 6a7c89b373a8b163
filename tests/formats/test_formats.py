"""Files that earlier versions wrote: finished runs stay readable, unfinished ones go on or are refused, none is lost.

`v0_1_0` was written by the last commit of version 0.1.0 (checkpoints of format 3, encrypted messages of version 2,
ledgers of schema 3), `v0_2_0` by the state from which the house was rebuilt (format 4, version 3, schema 4). All data
are synthetic. In each folder:

    ledger.sqlite, owner.key    a ledger with signed rows, and the key that was made for it: a budget for "patients"
                                (privfair budget set), two runs that spent from it, one of seeded noise on "made-up"
    private, seeded, plain      finished runs: the first of the two on "patients", the seeded one, one without privacy
    unfinished (and .sqlite)    an encrypted private run that was stopped by its `report` hook in round 2, before that
                                round's checkpoint: its answers are in the ledger, not yet delivered. Of 0.1.0 it was
                                stopped by its `planned` hook, and its keys (0.4 MB) are left out
    unfinished-private, -plain  the same without encryption, and without privacy
    deployment, and -plain      two data holders (node-0, node-1), their ledgers, and the server of a federation on
                                several machines, stopped when one holder had answered for its scores of round 1: an
                                encrypted private run (of 0.1.0: not encrypted), and one of SCAFFOLD without privacy.
                                The encrypted one has the keys of `unfinished`
    *-end.safetensors           the model of the same run when nobody stops it, by the version that began it

Addresses in them are relative, and the digest of a changed configuration was written anew by the same version; nothing
else was touched afterwards. Tests work on a copy, and from inside it. They use commands and files; only the ends of
federations on several machines go through the messages of the tests of Flower.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import privfair
from accountant.errors import InputError, Refused

HERE = Path(__file__).parent
VERSIONS = ["v0_1_0", "v0_2_0"]
FINISHED = ["private", "seeded", "plain"]
LEDGER = ("--ledger", "sqlite:///ledger.sqlite")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the versions, whose files are copied into the current folder."""
    copied(request.param, tmp_path, monkeypatch)
    return str(request.param)


def copied(version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(HERE / version, folder, dirs_exist_ok=True)
    for key in folder.rglob("*.key"):
        key.chmod(0o600)  # git keeps no modes, and keys that others could read are refused
    monkeypatch.chdir(folder)


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of `privfair` with these words."""
    from privfair.cli import main

    monkeypatch.setattr("sys.argv", ["privfair", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def rows(ledger: str | Path) -> list[tuple[Any, ...]]:
    """The chain: number, kind, round, count, client, group, channel and hash of every row."""
    query = (
        "SELECT sequence, kind, round, count, client, group_name, channel, hash "
        "FROM entries JOIN sources USING (source) ORDER BY sequence"
    )
    connection = sqlite3.connect(ledger)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def require_released_once(found: list[tuple[Any, ...]], begun: list[tuple[Any, ...]]) -> None:
    """The rows there were are still the first, and no client's release of a round and group is in the ledger twice."""
    assert found[: len(begun)] == begun
    assert len(found) > len(begun)
    places = Counter((row[2], *row[4:7]) for row in found if row[1] == "spend")
    assert set(places.values()) == {1}


def require_model(path: Path, expected: str) -> None:
    """The weights are those of a file, up to the rounding of another machine."""
    found, known = load_file(path), load_file(expected)
    assert found.keys() == known.keys()
    for name, values in known.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6, err_msg=name)


# ---- finished runs


@pytest.mark.parametrize("run", FINISHED)
def test_a_finished_run_is_reported(version: str, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, "report", run) == 0
    page = Path(run, "report.html").read_text()
    stated = json.loads(Path(run, "privacy.json").read_text())
    assert json.loads(Path(run, "metrics.json").read_text())["versions"]["privfair"] in page
    if stated["private"]:
        assert f"{stated['epsilon']['pld']:.3g}" in page


@pytest.mark.parametrize("run", FINISHED)
def test_the_model_of_a_finished_run_is_loaded(version: str, run: str) -> None:
    x = np.random.default_rng(0).standard_normal((7, 3))
    weights = {name: torch.tensor(values).double() for name, values in load_file(f"{run}/model.safetensors").items()}
    layers = [name.removesuffix("weight") for name in sorted(weights) if name.endswith("weight")]
    values = torch.tensor(x)
    for layer in layers:
        values = values if layer == layers[0] else torch.relu(values)
        values = values @ weights[f"{layer}weight"].T + weights[f"{layer}bias"]
    model = privfair.load(run)
    np.testing.assert_allclose(model.scores(x), torch.sigmoid(values).reshape(-1).numpy(), atol=1e-6)
    np.testing.assert_array_equal(model.predict(x), model.scores(x) >= 0.5)


def test_a_finished_run_is_audited(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chain, its signatures, and the ε of a statement beside that of its rows."""
    before = rows("ledger.sqlite")
    heads = [word for run in ("private", "seeded") for word in ("--head", f"{run}/privacy.json")]
    assert command(monkeypatch, "audit", *LEDGER, "--key", "owner.key", *heads, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    stated = json.loads(Path("private", "privacy.json").read_text())
    assert told["fine"]
    assert told["rows"] == len(before)
    assert set(told["datasets"]) == {"patients", "made-up"}
    line = told["datasets"]["patients"]["by_run"][stated["ledger"]["run"]]
    assert stated["epsilon"]["pld"] == pytest.approx(line["epsilon"]["pld"], rel=1e-6)
    assert [statement["holds"] for statement in told["statements"]] == [True, True]
    assert rows("ledger.sqlite") == before


def test_a_ledger_with_a_changed_row_is_found_out(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect("ledger.sqlite")
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute("UPDATE entries SET count = count + 1 WHERE sequence = 9")
    connection.commit()
    connection.close()
    assert command(monkeypatch, "audit", *LEDGER, "--key", "owner.key") == 1


def test_a_budget_goes_on(version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A new run spends from the budget of an old ledger: what is left is less, and the chain is whole."""

    def left() -> float:
        capsys.readouterr()
        assert command(monkeypatch, "budget", "show", "patients", *LEDGER, "--json") == 0
        return float(json.loads(capsys.readouterr().out)["budget"]["left"])

    assert command(monkeypatch, "ledger", "trust", *LEDGER, "--key", "owner.key", "--reason", "a copy for a test") == 0
    before, begun = left(), rows("ledger.sqlite")
    privfair.train("private/config.toml", out="next")
    assert left() < before
    assert rows("ledger.sqlite")[: len(begun)] == begun
    assert command(monkeypatch, "audit", *LEDGER, "--key", "owner.key", "--head", "next/privacy.json") == 0


# ---- unfinished runs


@pytest.mark.parametrize(
    ("version", "run"),
    [
        ("v0_2_0", "unfinished"),
        ("v0_2_0", "unfinished-private"),
        ("v0_2_0", "unfinished-plain"),
        ("v0_1_0", "unfinished-private"),
        ("v0_1_0", "unfinished-plain"),
    ],
)
def test_an_unfinished_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, run: str) -> None:
    """With the ε and the defaults that it began with, and without releasing anything twice."""
    copied(version, tmp_path, monkeypatch)
    ledger = Path(f"{run}.sqlite")
    begun = rows(ledger) if ledger.exists() else []
    result = privfair.train(resume=run)
    require_model(Path(run, "model.safetensors"), f"{run}-end.safetensors")
    assert [row["round"] for row in result.rows] == [0, 1, 2, 3]
    if begun:
        require_released_once(rows(ledger), begun)
        head = ("--ledger", f"sqlite:///{ledger}", "--head", f"{run}/privacy.json")
        assert command(monkeypatch, "audit", *head) == 0


def test_an_encrypted_run_of_0_1_0_is_refused_before_any_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its sums say not whose they are. The message names the version that can finish it, and every file stays."""
    copied("v0_1_0", tmp_path, monkeypatch)
    begun, files = rows("unfinished.sqlite"), contents(Path("unfinished"))
    assert any(row[1] == "spend" for row in begun)
    with pytest.raises(InputError, match=r"Nothing more was released.*finish this one with privfair 0\.1\.0"):
        privfair.train(resume="unfinished")
    assert command(monkeypatch, "train", "--resume", "unfinished") == 2
    assert "privfair 0.1.0" in capsys.readouterr().err
    assert rows("unfinished.sqlite") == begun
    assert contents(Path("unfinished")) == files


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ---- federations on several machines


def served() -> None:
    """Start the server of the current folder again, with its two data holders."""
    from tests.flower.federations import MemoryGrid, serve

    nodes: dict[int, dict[str, Any]] = {
        700 + k: {"client": f"client-{k + 1}", "config": f"holder-{k}.toml", "folder": f"node-{k}"} for k in range(2)
    }
    serve(MemoryGrid(nodes), Path("server.toml"), Path("server"))


@pytest.mark.parametrize("federation", ["deployment", "deployment-plain"])
def test_holders_and_server_go_on_where_they_were(
    version: str, federation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is released twice, and everybody ends with the model of a run that nobody stopped.

    Of SCAFFOLD it is another model if a holder has forgotten its control variate.
    """
    monkeypatch.chdir(federation)
    ledgers = [Path(f"ledger-{k}.sqlite") for k in range(2)]
    begun = [rows(path) if path.exists() else [] for path in ledgers]
    (run,) = {path.parent.name for path in Path().glob("node-*/*/state.npz")}
    served()
    assert json.loads(Path("server", "metrics.json").read_text())["absent"] == []
    for k, before in enumerate(begun):
        assert [path.name for path in Path(f"node-{k}").iterdir() if path.is_dir()] == [run]
        require_model(Path(f"node-{k}", run, "model.safetensors"), f"../{federation}-end.safetensors")
        if before:
            require_released_once(rows(ledgers[k]), before)


def test_a_holder_remembers_from_which_ledger_it_spent(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another one it answers no more, and its own log says which it was."""
    monkeypatch.chdir("deployment")
    for old, new in (("ledger-0", "aside"), ("ledger-1", "ledger-0"), ("aside", "ledger-1")):
        Path(f"{old}.sqlite").rename(f"{new}.sqlite")
    begun = [rows(f"ledger-{k}.sqlite") for k in range(2)]
    server = Path("server.toml")
    server.write_text(server.read_text().replace("wait = 5.0", "wait = 0.1"))
    with pytest.raises(Refused, match="Its budget or its ledger does not allow it"):
        served()
    told = capsys.readouterr().err
    assert all(f"client-{k} refused: The ledger of this run is " in told for k in (1, 2))
    assert [rows(f"ledger-{k}.sqlite") for k in range(2)] == begun


def test_a_holder_without_its_memory_ends_elsewhere(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the model of SCAFFOLD is the same, above, is due to what holders remember."""
    monkeypatch.chdir("deployment-plain")
    (run,) = {path.parent.name for path in Path().glob("node-*/*/state.npz")}
    shutil.rmtree("node-0")
    served()
    with pytest.raises(AssertionError):
        require_model(Path("node-1", run, "model.safetensors"), "../deployment-plain-end.safetensors")
