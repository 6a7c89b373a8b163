"""SIGKILL at random moments of private, encrypted training: nothing leaves unpaid, nothing is lost for good."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.audit import audit
from accountant.ledger.ledger import Ledger
from accountant.ledger.storage import fetch
from tests.end_to_end.federations import toy

ROUNDS, CLIENTS, CELLS = 12, 3, 2
SHAPE = {"clients": CLIENTS, "records": 80}
PRIVACY = {
    "count_noise": 2.0, "prediction_noise": 1.0, "noise_multiplier": 2.0, "sampling_rate": 0.5, "prediction_rate": 0.5,
    "evaluation": "laplace", "evaluation_noise": 3.0,
}  # fmt: skip


class Trainer:
    """The serving process: jobs in, children to kill."""

    def __init__(self, folder: Path) -> None:
        root = Path(privfair.__file__).parents[1]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
        self.errors = folder / "errors.txt"
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.end_to_end.private_trainer"], stdin=subprocess.PIPE, cwd=root,
                stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
            )  # fmt: skip
        assert self._hear() == "ready"

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, self.errors.read_text()
        return line

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def run(self, job: dict[str, Any], kill_after: float | None) -> int:
        """The child's exit code; −9 if it was killed. It stays unreaped until then, so its number is its own."""
        self._say(json.dumps(job))
        child = int(self._hear())
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)
        self._say("reap")
        return int(self._hear())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    serving = Trainer(tmp_path)
    yield serving
    serving.close()


Release = tuple[str, str, int | None, str]  # client, channel, round, digest of the message


def noted(path: Path) -> set[Release]:
    """What reached the server; a kill may have cut the last line."""
    text = path.read_text() if path.exists() else ""
    return {tuple(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")}


def check_books(url: str, notes: list[Path]) -> dict[str, int]:
    """The chain verifies, and every message the server saw has a reservation of its own; rows by run."""
    with Ledger(url, create=False) as ledger:
        report = audit(ledger, pld=False)
        assert report.fine, report.problems
        with ledger.reading() as connection:
            rows = fetch(connection, "SELECT token, client, channel, round, run FROM ledger WHERE kind = 'spend'")
            redeemed = [token for (token,) in fetch(connection, "SELECT token FROM redemptions")]
            digests = fetch(connection, "SELECT token, sha256 FROM digests")
    place = {token: (client, channel, number) for token, client, channel, number, _ in rows}
    assert len(set(redeemed)) == len(redeemed)
    assert set(redeemed) <= set(place)
    assert len({token for token, _ in digests}) == len(digests)  # one message for a token, never two
    assert {token for token, _ in digests} <= set(redeemed)
    paid = {(*place[token], digest) for token, digest in digests}
    released = set().union(*(noted(path) for path in notes))
    assert released <= paid, released - paid
    # different messages of one place have different tokens: there are at least as many rows as messages
    counts: dict[str, int] = {}
    for *_, run in rows:
        counts[run] = counts.get(run, 0) + 1
    return counts


def config(url: str, name: str, *, seeded: bool) -> dict[str, Any]:
    return {
        "privacy": {**PRIVACY, "dataset": name},
        "federation": {"rounds": ROUNDS, "batch_size": 30},
        "aggregation": {"masks": False},  # single releases: with masks nothing is made twice
        "run": {"ledger": url, "reproducible_noise": seeded},
    }


def finished(out: Path) -> bool:
    return (out / "metrics.json").is_file()


@pytest.mark.slow
def test_fifty_kills_lose_no_release(tmp_path: Path, trainer: Trainer) -> None:
    """Runs with noise from the operating system and runs with seeded noise by turns; those must come out the same."""
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    Ledger(url).close()
    whole = privfair.train(config(f"sqlite:///{tmp_path}/other.sqlite", "seeded", seeded=True), dataset=toy(**SHAPE))
    rng = random.Random(20260405)
    kills, attempts, window, progress = 0, 0, 0.6, 0
    runs: list[Path] = []
    notes: list[Path] = []
    while kills < 50 or not finished(runs[-1]):
        if not runs or finished(runs[-1]):
            runs.append(tmp_path / f"run{len(runs)}")
            notes.append(tmp_path / f"notes{len(notes)}")
        seeded = len(runs) % 2 == 0
        job = {
            "config": config(url, "seeded" if seeded else "toy", seeded=seeded), "toy": SHAPE, "out": str(runs[-1]),
            "notes": str(notes[-1]),
        }  # fmt: skip
        code = trainer.run(job, rng.uniform(0.0, window) if kills < 50 else None)
        assert code in (0, -signal.SIGKILL), trainer.errors.read_text()
        kills += code == -signal.SIGKILL
        counts = check_books(url, notes)
        # a busy machine gets little done before the kill: wait longer, until there is something to lose
        done = sum(len(noted(path)) for path in notes)
        window = min(10.0, 1.3 * window) if done < progress + 4 else max(0.6, window / 1.1)
        progress, attempts = done, attempts + 1
        assert attempts < 300
    assert kills == 50
    assert progress >= 100  # it was training that was interrupted, not start-up
    x = toy(**SHAPE).clients[0].test.features
    for number, out in enumerate(runs):
        statement = json.loads((out / "privacy.json").read_text())
        assert statement["ledger"]["rows"] == counts[statement["ledger"]["run"]]
        assert counts[statement["ledger"]["run"]] >= CLIENTS * (1 + ROUNDS * (CELLS + 1) + 1)
        channels = {(client, channel, at) for client, channel, at, _ in noted(notes[number])}
        assert len(channels) == CLIENTS * (1 + 2 * ROUNDS + 1)  # every place of the run was answered
        model = privfair.load(out)
        assert set(np.unique(model.predict(x))) <= {0, 1}
        assert np.isfinite(model.scores(x)).all()
        if number % 2:
            np.testing.assert_array_equal(model.scores(x), whole.model.scores(x))
    connection = sqlite3.connect(tmp_path / "ledger.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
