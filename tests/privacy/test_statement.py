"""The privacy statement: its fields, where its figures come from, and what it does not claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.accountant import Accountant
from accountant.ledger.ledger import Ledger
from privfair.datasets.records import ClientData, Federation, Records
from privfair.fairness.notions import Cells, notion_by_name
from tests.end_to_end.federations import toy
from tests.privacy.plans import GIVEN, RATES, planner, settle

QUICK = {"rounds": 1, "batch_size": 30}
PLAIN = {"scheme": "plain"}


def train(tmp_path: Path, dataset: Federation, **sections: Any) -> dict[str, Any]:
    given = {"privacy": {**GIVEN, **RATES}, "federation": QUICK, "aggregation": PLAIN, **sections}
    run = {"ledger": f"sqlite:///{tmp_path}/l.sqlite", **given.pop("run", {})}
    return privfair.train(given, dataset=dataset, run=run).privacy


def test_the_fields_of_the_contract_and_figures_from_the_ledger(tmp_path: Path) -> None:
    reported = train(tmp_path, toy(records=400))
    assert reported.keys() >= {
        "private", "claim", "epsilon", "delta", "adjacency", "neighbours", "unit", "by_client", "by_group",
        "by_channel", "assumptions", "not_covered", "noise", "objective", "ledger",
    }  # fmt: skip
    assert (reported["delta"], reported["adjacency"], reported["unit"]) == (1e-5, "add-or-remove", "record")
    with Ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        rows = [spend for _, spend in ledger.spends(run=reported["ledger"]["run"])]
        head = ledger.head()
        assert reported["ledger"]["id"] == ledger.ledger_id
    assert (reported["ledger"]["head"], reported["ledger"]["head_row"]) == (head.hash, head.sequence)
    assert reported["ledger"]["rows"] == len(rows)
    run_ledger = Accountant()
    for s in rows:
        run_ledger.compose(s.event, s.count, client=s.client, group=s.group, channel=s.channel, round=s.round)
    for table, found in (
        ("by_client", run_ledger.by_client()),
        ("by_group", run_ledger.by_group()),
        ("by_channel", run_ledger.by_channel()),
    ):  # fmt: skip
        assert reported[table].keys() == found.keys()
        for name, epsilon in found.items():
            assert reported[table][name]["rdp"] == pytest.approx(epsilon, rel=1e-9)
            assert 0 < reported[table][name]["pld"] <= reported[table][name]["rdp"] * 1.01
    assert set(reported["by_client"]) == {"client0", "client1", "client2"}
    assert set(reported["by_group"]) == {"s0=0", "s0=1"}
    assert set(reported["by_channel"]) == {"counts", "predictions", "updates"}
    assert reported["epsilon"]["rdp"] == pytest.approx(run_ledger.epsilon(), rel=1e-9)
    assert list(reported["by_round"].values()) == sorted(reported["by_round"].values())
    assert reported["change_of_group"]["s0"] > reported["epsilon"]["rdp"]  # a removal and an addition


def test_what_is_not_covered(tmp_path: Path) -> None:
    def lines(**sections: Any) -> str:
        return "\n".join(train(tmp_path, toy(records=80), **sections)["not_covered"])

    simulation = lines()
    assert "Exact figures of a simulation" in simulation
    assert "Updates are not encrypted" in simulation
    assert "Seeded noise" not in simulation
    assert "declared public" not in simulation
    assert "Time:" in simulation
    assert "hyper-parameters chosen" in simulation
    encrypted = lines(aggregation={"scheme": "bfv", "masks": False})
    assert "All clients share one key" in encrypted
    seeded = {**GIVEN, **RATES, "dataset": "seeded"}
    assert "Seeded noise: whoever knows run.seed" in lines(run={"reproducible_noise": True}, privacy=seeded)
    public = {**GIVEN, **RATES, "counts": "public", "dataset": "public"}
    public.pop("count_noise")
    assert "Counts of groups at every client: declared public." in lines(privacy=public)


def test_updates_without_noise_are_named(tmp_path: Path) -> None:
    privacy = {"count_noise": 2.0, "prediction_noise": 1.0, "prediction_rate": 0.5, "updates": "none"}
    reported = train(tmp_path, toy(records=80), privacy=privacy)
    assert reported["unbounded"] == ["updates"]
    assert reported["epsilon"] == {"rdp": None, "pld": None}
    assert reported["by_channel"]["updates"] == {"rdp": None, "pld": None}
    assert reported["by_channel"]["predictions"]["rdp"] > 0
    assert reported["claim"] == "No ε: updates left the clients without noise."


def lopsided() -> Federation:
    """All 60 training records of a client are of one group of the first attribute, and half of each of the second."""
    base = toy(clients=2, records=80, attributes=2)

    def moved(records: Records) -> Records:
        groups = np.column_stack([np.zeros(len(records), dtype=np.int64), np.arange(len(records)) % 2])
        return Records(records.features, records.labels, groups, records.conditions)

    clients = tuple(ClientData(c.name, moved(c.train), moved(c.test)) for c in base.clients)
    return Federation("lopsided", base.schema, clients)


def test_cells_that_stayed_silent_do_not_make_the_claim_smaller(tmp_path: Path) -> None:
    """Whether a cell speaks depends on released counts, so on the data: only the plan's ε holds whatever they say.

    Here the cells of the second attribute have 30 of 60 records, fewer than min_count, and send nothing.
    """
    data = lopsided()
    privacy = {**GIVEN, **RATES, "min_count": 45, "retries": 0, "count_noise": 0.5}
    reported = train(tmp_path, data, privacy=privacy)
    # the situation is the one that is meant: the others paid for counts and updates, and for no scores of their own
    shared = max(reported["by_group"], key=lambda name: reported["by_group"][name]["rdp"])
    assert shared == "s0=0"
    others = {name: row["rdp"] for name, row in reported["by_group"].items() if name != shared}
    assert others.keys() == {"s0=1", "s1=0", "s1=1"}
    assert 0 < others["s0=1"] < reported["by_group"][shared]["rdp"]
    cells = Cells.of(notion_by_name("statistical_parity", data.schema), data.schema)
    plan = planner(privacy, cells, rounds=1, batch_size=30)
    claim = settle(plan, [[60, 0, 30, 30]] * 2).claim
    assert claim is not None
    assert reported["epsilon"]["rdp"] >= claim.rdp * (1 - 1e-9)
    assert reported["epsilon"]["pld"] >= claim.pld * (1 - 1e-6)


def test_two_phases_state_what_was_planned(tmp_path: Path) -> None:
    reported = train(tmp_path, toy(records=200), privacy={"epsilon": 3.0, "target_method": "rdp"})
    assert reported["plan"] == "two phases"
    assert reported["epsilon"]["rdp"] == pytest.approx(3.0)
    assert any("adaptive composition" in line for line in reported["assumptions"])
    assert max(row["rdp"] for row in reported["by_client"].values()) <= 3.0
