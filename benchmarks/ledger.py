"""The ledger: auditing a million rows, and reserving one round for 50 clients beside a bare SQLite insert."""

from __future__ import annotations

import sqlite3
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from accountant.audit import audit
from accountant.budget import Budget
from accountant.events import Event, Gaussian, Laplace, PoissonSampled
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend
from benchmarks.measure import Result, in_process, seconds

CLIENTS = 50
DATASET = "patients"
ROUNDS_PER_RUN = 1_000


def run() -> list[Result]:
    with TemporaryDirectory() as folder:
        # The round first: a disk still busy with a million rows would make the bare insert as slow as ours.
        return [reserving_a_round(Path(folder)), *audit_of_a_million_rows(Path(folder))]


def audit_of_a_million_rows(folder: Path) -> list[Result]:
    """The whole audit, PLD included, in a process of its own; start-up and imports count.

    The time per row is that of reading, verifying and composing by RDP, warm: what a longer ledger adds.
    """
    quarter, full = _fill(folder / "quarter.sqlite", 250_000), _fill(folder / "full.sqlite", 1_000_000)
    elapsed, memory = in_process(
        "from accountant.audit import audit\n"
        "from accountant.ledger.ledger import Ledger\n"
        f"with Ledger('sqlite:///{full}', create=False) as ledger:\n"
        "    report = audit(ledger)\n"
        "assert report.fine and report.datasets[0].epsilon.pld > 0, report.problems"
    )
    growth = (_warm(full) / 1_000_000) / (_warm(quarter) / 250_000)
    return [
        Result("audit of 1,000,000 rows, 50 clients, 3 channels: time with start-up", elapsed, 10, "s", at_least=False),
        Result("audit of 1,000,000 rows: peak memory", memory, 1, "GB", at_least=False),
        Result("audit: time per row at 1,000,000 rows over that at 250,000", growth, 1.2, "×", at_least=False),
    ]


def _warm(path: Path) -> float:
    with Ledger(f"sqlite:///{path}", create=False) as ledger:
        return seconds(lambda: audit(ledger, pld=False), repeats=3)


def _fill(path: Path, rows: int) -> Path:
    """A ledger of complete runs: every client sends updates, scores and an evaluation each round."""
    sent = [
        (f"client-{client}", channel, event)
        for client in range(CLIENTS)
        for channel, event in _channels(0.0005 + client / 50_000).items()
    ]
    with Ledger(f"sqlite:///{path}") as ledger:
        ledger.set_budget(DATASET, Budget(50.0, 1e-5))
        written, number = 0, 0
        while written < rows:
            chunk = []
            while len(chunk) < 15_000 and written + len(chunk) < rows:
                run_name = f"run-{number // ROUNDS_PER_RUN}"
                chunk += [
                    Spend(DATASET, event, client=client, channel=channel, run=run_name, round=number)
                    for client, channel, event in sent
                ]
                number += 1
            ledger.reserve(chunk[: rows - written])
            written += min(len(chunk), rows - written)
    return path


def _channels(rate: float) -> dict[str, Event]:
    """What one client sends each round; clients of different sizes sample at different rates."""
    updates, scores = PoissonSampled(rate, Gaussian(2.0)), PoissonSampled(rate, Laplace(4.0))
    return {"updates": updates, "predictions": scores, "evaluation": Gaussian(400.0)}


def reserving_a_round(folder: Path, repeats: int = 300) -> Result:
    """Median over rounds; both write the same rows with the same durability, turn by turn."""
    event = PoissonSampled(0.001, Gaussian(10.0))
    ours, bare = [], []
    with Ledger(f"sqlite:///{folder}/ours.sqlite") as ledger:
        ledger.set_budget(DATASET, Budget(10.0, 1e-5))
        insert = _bare_insert(folder, ledger, event)
        for number in range(repeats):
            spends = [
                [Spend(DATASET, event, client=f"client-{client}", channel="updates", run="r", round=number)]
                for client in range(CLIENTS)
            ]
            start = time.perf_counter()
            ledger.reserve_many(spends)
            ours.append(time.perf_counter() - start)
            bare.append(insert(number))
    ratio = statistics.median(ours) / statistics.median(bare)
    return Result("reserving a round for 50 clients over a bare insert of the rows", ratio, 3, "×", at_least=False)


def _bare_insert(folder, ledger, event):
    """A function that inserts the rows of one round into a table like the ledger's, and returns the seconds."""
    ledger.reserve([Spend(DATASET, event, client=f"client-{client}", channel="updates") for client in range(CLIENTS)])
    source = sqlite3.connect(folder / "ours.sqlite")
    create = source.execute("SELECT sql FROM sqlite_master WHERE name = 'entries'").fetchone()[0]
    rows = source.execute("SELECT * FROM entries ORDER BY sequence DESC LIMIT ?", (CLIENTS,)).fetchall()
    source.close()
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(create)
    statement = f"INSERT INTO entries VALUES ({', '.join('?' * len(rows[0]))})"

    def insert(number: int) -> float:
        numbered = [(CLIENTS * number + place, *row[1:]) for place, row in enumerate(rows, start=1)]
        start = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statement, numbered)
        connection.execute("COMMIT")
        return time.perf_counter() - start

    return insert


if __name__ == "__main__":
    for result in run():
        print(result)
