"""Data that have a budget in one ledger are not used from another, or from none, without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

import privfair
from accountant import Budget, Gaussian, Ledger, OwnerKey, Spend
from accountant.errors import Refused
from accountant.ledger.signing import fingerprint_csv
from privfair.config import Config
from privfair.datasets import load
from privfair.privacy.run_ledger import RunLedger, named_run
from privfair.sweeps.sweep import require_no_budget as require_no_budget_to_sweep

PRIVATE = {"privacy": {"epsilon": 1.0, "dataset": "patients"}}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> str:
    """The address of a ledger with a budget; the current folder is another one."""
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    url = f"sqlite:///{home}/privfair-ledger.sqlite"
    with Ledger(url) as ledger:
        ledger.set_budget("patients", Budget(3.0, 1e-5))
    monkeypatch.chdir(other)
    return url


def opened(tables: dict) -> RunLedger:
    config, data = Config.build(tables), load("synthetic", records=20)
    run_ledger = RunLedger.open(config, data, named_run("20260102-120000-abcd", config, data.schema, None))
    run_ledger.ledger.close()
    return run_ledger


@pytest.mark.parametrize("name", ["patients", "Patients", "ｐatients"])
def test_another_folder_does_not_leave_the_budget_behind(elsewhere, name):
    with pytest.raises(Refused) as reported:
        opened({"privacy": {"epsilon": 1.0, "dataset": name}})
    assert elsewhere in str(reported.value)
    assert "run.ledger" in str(reported.value)
    assert "privacy.require_budget = false" in str(reported.value)
    assert list(Path.cwd().iterdir()) == []  # no ledger was made


def test_nor_does_a_ledger_that_is_there_already(elsewhere):
    with Ledger("sqlite:///privfair-ledger.sqlite") as ledger:
        ledger.reserve([Spend("others", Gaussian(1.0))])
    with pytest.raises(Refused, match="have one, as 'patients' in"):
        opened(PRIVATE)


def test_with_its_ledger_named_it_is_spent_from(elsewhere):
    run_ledger = opened({**PRIVATE, "run": {"ledger": elsewhere}})
    assert (run_ledger.budgeted, run_ledger.dataset) == (True, "patients")
    run_ledger = opened({"privacy": {"epsilon": 1.0, "dataset": "PATIENTS"}, "run": {"ledger": elsewhere}})
    assert (run_ledger.budgeted, run_ledger.dataset) == (True, "patients")


def test_other_data_of_the_name_are_said_to_be(elsewhere):
    run_ledger = opened({"privacy": {**PRIVATE["privacy"], "require_budget": False}})
    assert not run_ledger.budgeted


def test_training_and_sweeping_without_privacy_are_refused_too(elsewhere, tmp_path):
    tables = {"privacy": {"dataset": "patients"}, "data": {"records": 40}, "federation": {"rounds": 1}}
    with pytest.raises(Refused, match="have one, as 'patients' in"):
        privfair.train(Config.build(tables), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(Refused, match="have one, as 'patients' in"):
        require_no_budget_to_sweep(Config.build(tables), 3)
    allowed = {**tables, "privacy": {**tables["privacy"], "require_budget": False}}
    privfair.train(Config.build(allowed), out=tmp_path / "run")


def test_a_budget_can_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=r"privacy.require_budget is true. Set one: privfair budget set patients"):
        opened({"privacy": {**PRIVATE["privacy"], "require_budget": True}})
    assert list(tmp_path.iterdir()) == []


def test_data_bound_by_a_fingerprint_are_known_under_any_name(tmp_path, monkeypatch):
    key = OwnerKey.create(tmp_path / "owner.key")
    table = tmp_path / "renamed.csv"
    table.write_text("hired,sex,age\n" + "".join(f"{i % 2},{'FM'[i % 2]},{20 + i}\n" for i in range(40)))
    with Ledger(f"sqlite:///{tmp_path}/first.sqlite") as ledger:
        ledger.register("people", fingerprint=fingerprint_csv(table, key))
        ledger.set_budget("people", Budget(3.0, 1e-5))
    config = Config.build(
        {
            "data": {"name": "csv", "path": str(table), "label": "hired", "sensitive": ["sex"]},
            "privacy": {"epsilon": 1.0},
            "run": {"ledger": f"sqlite:///{tmp_path}/second.sqlite", "key": str(tmp_path / "owner.key")},
        }
    )
    data = load("csv", path=str(table), label="hired", sensitive=["sex"])
    with pytest.raises(Refused, match="these very data have one, as 'people' in"):
        RunLedger.open(config, data, named_run("20260102-120000-abcd", config, data.schema, None))
