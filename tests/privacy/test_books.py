"""What is said about a run's ledger."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accountant import Budget, Gaussian, Ledger, Spend
from accountant.errors import Refused
from privfair.config import Config
from privfair.datasets import load
from privfair.privacy import run_ledger as run_ledger
from privfair.run_names import beginning_of, division_of, has_inferred_schema, has_noise_in_shares, run_name
from privfair.runs.keys import Credentials


def test_the_ledgers_password_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration's address has it; people read the ledger's own name for itself."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    ledger.set_budget("synthetic", Budget(3.0, 1e-5))
    monkeypatch.setattr(run_ledger, "exists", lambda url: "secret" in url)
    monkeypatch.setattr(run_ledger, "Ledger", lambda url, create: ledger)
    config = Config.build({"run": {"ledger": "postgresql://me:secret@host/books"}})
    where, dataset, budget = run_ledger.budget_at_hand(config, "synthetic")
    assert (dataset, budget) == ("synthetic", Budget(3.0, 1e-5))
    assert where == f"sqlite:///{tmp_path}/ledger.sqlite"


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("inferred", [False, True])
def test_the_name_of_a_run_tells_what_an_audit_must_say(inferred: bool, shares: bool) -> None:
    schema = replace(load("synthetic", records=20).schema, inferred=inferred)
    config = Config.build({"privacy": {"distributed_noise": shares}})
    name = Credentials.new(config, schema, None).run
    assert has_inferred_schema(name) is inferred
    assert has_noise_in_shares(name) is shares
    assert division_of(name) == run_ledger.definition(config, schema, None)
    assert run_name(beginning_of(name), division_of(name), inferred=inferred, shares=shares) == name


def test_a_budget_does_not_count_noise_in_shares(tmp_path: Path) -> None:
    """Neither order passes: a run with shares on data with a budget, and a budget after such a run."""
    url, event = f"sqlite:///{tmp_path}/ledger.sqlite", Gaussian(9.0)
    data = load("synthetic", records=20)
    shared = run_name(
        "20260101-120000-abcd", run_ledger.definition(Config.build({}), data.schema, None), inferred=False, shares=True
    )
    with Ledger(url) as ledger:
        ledger.reserve([Spend("synthetic", event, run=shared)])
    command = ["budget", "set", "synthetic", "--epsilon", "4", "--delta", "1e-5", "--ledger", url]
    reported = subprocess.run([Path(sys.executable).with_name("privfair"), *command], capture_output=True, text=True)
    assert reported.returncode == 1, reported.stderr
    assert "had their noise in shares" in " ".join(reported.stderr.split())
    with Ledger(url) as ledger:
        assert ledger.budget("synthetic") is None
        ledger.set_budget("synthetic", Budget(4.0, 1e-5))  # from Python it can be set, and then nothing can be spent
    config = Config.build({"privacy": {"epsilon": 1.0}, "run": {"ledger": url}})
    with pytest.raises(Refused, match="Runs on 'synthetic' had their noise in shares"):
        run_ledger.RunLedger.open(config, data, run_ledger.named_run("20260102-120000-abcd", config, data.schema, None))
