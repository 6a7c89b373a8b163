"""Real processes that race for one budget, and real kills in the middle of spending."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from accountant.audit import audit
from accountant.budget import Budget
from accountant.events import Gaussian
from accountant.ledger.ledger import Ledger
from accountant.ledger.storage import fetch
from accountant.spending import Spend

SPENDER = str(Path(__file__).with_name("spender.py"))


def race_for_a_budget(url: str, processes: int, releases: int) -> None:
    """Let processes spend until refused; check that they took exactly what fits and that no row is lost.

    The budget's order and capacity are stated so that exactly `releases` fit: one costs order/(2·30²).
    """
    order = 10.0
    with Ledger(url) as ledger:
        capacity = (releases + 0.5) * order / (2 * 30.0**2)
        budget = Budget(epsilon=20.0, delta=1e-5, order=order, capacity=capacity)
        ledger.set_budget("patients", budget)
    children = [
        subprocess.Popen([sys.executable, SPENDER, url, "until-refused", f"p{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(processes)
    ]
    tokens = [child.communicate()[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * processes
    granted = [token for mine in tokens for token in mine]
    with Ledger(url, create=False) as ledger:
        with ledger.reading() as connection:
            written = fetch(connection, "SELECT token, run FROM ledger WHERE kind = 'spend'")
        report = audit(ledger, pld=False)
    assert sorted(token for token, _ in written) == sorted(granted)
    assert len(set(granted)) == len(granted) == releases
    assert report.fine
    assert 0 <= report.datasets[0].left < 1 / releases


def test_three_processes_cannot_both_take_the_last_slice(tmp_path):
    race_for_a_budget(f"sqlite:///{tmp_path}/l.sqlite", processes=3, releases=40)


@pytest.mark.slow
def test_eight_processes_never_exceed_one_budget(tmp_path):
    race_for_a_budget(f"sqlite:///{tmp_path}/l.sqlite", processes=8, releases=2000)


def test_processes_that_create_the_same_ledger_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/l.sqlite"
    code = f"from accountant.ledger.ledger import Ledger; print(Ledger({url!r}).ledger_id)"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    answers = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0] * 6, answers
    assert len({out for out, _ in answers}) == 1


def kill_while_releasing(url: str, markers: Path, rng: random.Random, window: float = 0.08) -> int:
    """Start a process that releases without end, kill it at a random moment, check the books. Releases so far."""
    child = subprocess.Popen(
        [sys.executable, SPENDER, url, "release-forever", str(markers)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    # Waiting is what makes the moment random: from the middle of the first reservation to some dozens later.
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=rng.uniform(0.0, window))
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    noted = markers.read_text() if markers.exists() else ""
    made = [line for line in noted.splitlines(keepends=True) if line.endswith("\n")]
    with Ledger(url, create=False) as ledger:
        head = None
        while head != ledger.head():  # a database server may still carry out what the killed process had sent
            head = ledger.head()
            report = audit(ledger, pld=False)
            with ledger.reading() as connection:
                written = {token for (token,) in fetch(connection, "SELECT token FROM ledger WHERE kind = 'spend'")}
                redeemed = {token for (token,) in fetch(connection, "SELECT token FROM redemptions")}
        assert report.fine, report.problems
        for line in made[-3:]:
            assert ledger.message(line.strip()) == f"message of {line.strip()}".encode()
    released = {line.strip() for line in made}
    assert released <= redeemed <= written
    assert report.datasets[0].releases == len(written) >= len(released)
    return len(released)


def prepare_for_kills(url: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(1e6, 1e-5))
        ledger.reserve([Spend("patients", Gaussian(30.0), client="north", channel="counts")])


def test_a_kill_loses_no_release(tmp_path):
    url = f"sqlite:///{tmp_path}/l.sqlite"
    prepare_for_kills(url)
    rng = random.Random(20260301)
    made = [kill_while_releasing(url, tmp_path / "markers", rng) for _ in range(3)]
    window = 0.08
    while not made[-1] and len(made) < 30:  # on a busy machine the first kills may come before the first release
        window = min(5.0, 1.5 * window)
        made.append(kill_while_releasing(url, tmp_path / "markers", rng, window))
    assert made[-1] > 0


@pytest.mark.slow
def test_a_hundred_kills_lose_no_release(tmp_path):
    url = f"sqlite:///{tmp_path}/l.sqlite"
    prepare_for_kills(url)
    rng = random.Random(20260302)
    made, window = 0, 0.08
    for kill in range(100):
        made = kill_while_releasing(url, tmp_path / "markers", rng, window)
        # a busy disk releases slowly: wait longer until there is about one release for every kill
        window = min(2.0, 1.3 * window) if made < kill else 0.08
    assert made >= 50
    connection = sqlite3.connect(tmp_path / "l.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
