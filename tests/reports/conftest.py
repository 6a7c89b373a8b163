"""Folders of small finished runs, made once for all tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reports.folders import (
    HOSTILE_CLIENTS,
    HOSTILE_GROUPS,
    SCHEMA,
    make_people,
    make_run,
    make_sweep,
    make_two_attributes,
)

SMALL = {"name": "synthetic", "clients": 3, "records": 80}
# A large share for the evaluation: about 15 records in the smallest cell, with noise of 1.5, so that no cell is empty.
NOISE = {
    "epsilon": 8.0, "delta": 1e-5, "sampling_rate": 0.5, "local_steps": 1, "prediction_rate": 0.3,
    "evaluation_share": 0.2,
}  # fmt: skip


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def private_run(folders: Path) -> Path:
    """A private simulation with noisy figures released at its end."""
    return make_run(
        folders / "private", data=SMALL, privacy={**NOISE, "evaluation": "laplace"},
        run={"ledger": f"sqlite:///{folders}/simulation.sqlite"},
    )  # fmt: skip


@pytest.fixture(scope="session")
def open_run(folders: Path) -> Path:
    """A run without privacy, on a table whose names try to be HTML."""
    path = make_people(folders / "people.csv", groups=HOSTILE_GROUPS, clients=HOSTILE_CLIENTS)
    data = {"name": "csv", "path": str(path), "label": "hired", "positive": "yes", "sensitive": "sex"}
    return make_run(
        folders / "open", data={**data, "client": "branch"}, run={"ledger": f"sqlite:///{folders}/none.sqlite"}
    )


@pytest.fixture(scope="session")
def two_attributes_run(folders: Path) -> Path:
    """A run without privacy whose decisions differ more between the groups of its second attribute."""
    path = make_two_attributes(folders / "two.csv")
    data = {"name": "csv", "path": str(path), "label": "hired", "positive": "yes", "sensitive": ["sex", "race"]}
    return make_run(
        folders / "two", data={**data, "client": "branch"}, run={"ledger": f"sqlite:///{folders}/none.sqlite"},
        fairness={"lambda": 0.0}, federation={"learning_rate": 5.0},
    )  # fmt: skip


@pytest.fixture(scope="session")
def budgeted_run(folders: Path) -> Path:
    """A run on data with a lifetime budget."""
    from accountant import Budget, Ledger

    url = f"sqlite:///{folders}/books.sqlite"
    with Ledger(url) as ledger:
        ledger.set_budget("staff", Budget(20.0, 1e-5))
    path = make_people(folders / "staff.csv", groups=("F", "M"), clients=("north", "south"))
    data = {
        "name": "csv",
        "path": str(path),
        "label": "hired",
        "sensitive": "sex",
        "client": "branch",
        "schema": SCHEMA,
    }
    return make_run(folders / "budgeted", data=data, privacy={**NOISE, "evaluation": "laplace"}, run={"ledger": url})


@pytest.fixture(scope="session")
def sweep(folders: Path) -> Path:
    """Two methods at two λ, two seeds."""
    return make_sweep(folders / "sweep", data=SMALL)
