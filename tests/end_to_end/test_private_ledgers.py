"""A private run belongs to one ledger, wherever it is resumed from; and who trains less pays less."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import privfair
from accountant.errors import InputError, Refused
from accountant.ledger.ledger import Ledger
from tests.end_to_end.federations import toy
from tests.end_to_end.test_private_training import GIVEN, QUICK, Stop, spends, stop_after

ARGUMENTS: dict[str, Any] = {"privacy": GIVEN, "federation": {**QUICK, "rounds": 3}, "aggregation": {"scheme": "plain"}}


@pytest.mark.parametrize("how", ["variable", "working folder", "relative address"])
def test_a_resumed_run_keeps_to_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Resumed where another ledger would be taken: refused, or written to the first; never counted in part."""
    here, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "run"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("PRIVFAIR_LEDGER", raising=False)
    if how == "variable":
        monkeypatch.setenv("PRIVFAIR_LEDGER", f"sqlite:///{here}/l.sqlite")
    run = {"ledger": "sqlite:///l.sqlite"} if how == "relative address" else {}
    with pytest.raises(Stop):
        privfair.train(**ARGUMENTS, run=run, dataset=toy(records=80), out=out, report=stop_after(2))
    monkeypatch.chdir(there)
    if how == "variable":
        monkeypatch.setenv("PRIVFAIR_LEDGER", f"sqlite:///{there}/l.sqlite")
    try:
        resumed = privfair.train(resume=out, dataset=toy(records=80))
    except (InputError, Refused) as error:
        refusal = str(error)
    else:
        refusal = "ledger"
        assert resumed.privacy["ledger"]["rows"] == 3 * (1 + 3 * 3)
        assert resumed.privacy["epsilon"]["rdp"] == pytest.approx(
            privfair.train(
                **ARGUMENTS, run={"ledger": f"sqlite:///{tmp_path}/o.sqlite"}, dataset=toy(records=80)
            ).privacy["epsilon"]["rdp"]
        )
    assert "ledger" in refusal


def test_a_ledger_without_the_runs_rows_is_not_the_runs_ledger(tmp_path: Path) -> None:
    """The file was deleted or restored from before the run: going on would tell an ε that is too small."""
    path = tmp_path / "l.sqlite"
    run = {"ledger": f"sqlite:///{path}"}
    with pytest.raises(Stop):
        privfair.train(**ARGUMENTS, run=run, dataset=toy(records=80), out=tmp_path / "run", report=stop_after(2))
    for file in tmp_path.glob("l.sqlite*"):
        file.unlink()
    with pytest.raises((InputError, Refused), match="ledger"):
        privfair.train(resume=tmp_path / "run", dataset=toy(records=80))


def test_two_runs_in_one_ledger_are_kept_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.sqlite"
    one, two = (privfair.train(**ARGUMENTS, run={"ledger": url}, dataset=toy(records=400)).privacy for _ in range(2))
    assert one["ledger"]["run"] != two["ledger"]["run"]
    assert one["ledger"]["rows"] == two["ledger"]["rows"] == 3 * (1 + 3 * 3)
    assert one["epsilon"] == two["epsilon"]


def test_all_share_scores_and_only_the_chosen_pay_for_training(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.sqlite"
    federation = {**QUICK, "rounds": 5, "clients_per_round": 2}
    reported = privfair.train(
        privacy=GIVEN, federation=federation, run={"ledger": url}, dataset=toy(records=400)
    ).privacy
    rows = spends(url, reported["ledger"]["run"])
    scores = Counter(s.client for s in rows if s.channel == "predictions")
    assert scores == dict.fromkeys(("client0", "client1", "client2"), 5 * 2)
    trained = Counter(s.client for s in rows if s.channel == "updates")
    assert sum(trained.values()) == 5 * 2
    assert all(s.count == 2 for s in rows if s.channel == "updates")  # steps: one epoch at rate 0.5
    busiest = max(reported["by_client"], key=lambda name: reported["by_client"][name]["rdp"])
    assert trained[busiest] == max(trained.values())
    assert reported["epsilon"]["rdp"] == pytest.approx(reported["by_client"][busiest]["rdp"])


def test_the_run_folder_knows_no_more_than_its_files_say(tmp_path: Path) -> None:
    """Keys of the run are the clients' alone: their file is closed to others."""
    run = {"ledger": f"sqlite:///{tmp_path}/l.sqlite"}
    privfair.train(privacy=GIVEN, federation=QUICK, run=run, dataset=toy(records=80), out=tmp_path / "run")
    assert (tmp_path / "run" / "keys" / "client.key").stat().st_mode & 0o077 == 0
    name = json.loads((tmp_path / "run" / "run.json").read_text())["run"]
    with Ledger(run["ledger"]) as ledger:
        assert ledger.spends(run=name)
        assert all(ledger.message(token) is None for token, _ in ledger.spends(run=name))  # nothing left behind
