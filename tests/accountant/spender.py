"""A process of its own that spends from a ledger: run by the fault tests, not by pytest.

python spender.py URL until-refused NAME       reserve one release after the other until the budget refuses
python spender.py URL release-forever MARKERS  reserve, redeem, store, and note each release in a file
"""

from __future__ import annotations

import os
import sys

from accountant.budget import BudgetExceeded
from accountant.events import Gaussian
from accountant.ledger.ledger import Ledger
from accountant.spending import Spend

DATASET = "patients"
RELEASE = Gaussian(30.0)


def until_refused(url: str, name: str) -> None:
    """Print the tokens of all reservations that were granted."""
    with Ledger(url) as ledger:
        granted = []
        while True:
            try:
                granted.append(ledger.reserve([Spend(DATASET, RELEASE, run=name)]).token)
            except BudgetExceeded:
                break
    print("\n".join(granted))


def release_forever(url: str, markers: str) -> None:
    """Note every release in a file, on disk before the next one, as a receiver would."""
    with Ledger(url) as ledger, open(markers, "a") as file:
        print("ready", flush=True)
        while True:
            reservation = ledger.reserve([Spend(DATASET, RELEASE, client="north", channel="counts")])
            reservation.redeem()
            reservation.store(f"message of {reservation.token}".encode())
            file.write(reservation.token + "\n")
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    {"until-refused": until_refused, "release-forever": release_forever}[sys.argv[2]](sys.argv[1], sys.argv[3])
