"""Whole runs with a target in place of λ: engines agree, λ survives a break, and what is shown is released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.budget import Budget
from accountant.ledger.ledger import Ledger
from privfair.config import Config
from privfair.fairness.tracking import Controller, EmbeddingPlan
from privfair.runs.assembly import build
from privfair.runs.folder import RunDirectory
from privfair.runs.loop import RunOutcome, run
from tests.end_to_end.federations import toy

ROUNDS = 5
PLAIN: dict[str, Any] = {"scheme": "plain", "quantise": True}
BFV: dict[str, Any] = {"scheme": "bfv"}
MASKED: dict[str, Any] = {"scheme": "masked"}
NOISE = {"count_noise": 1.0, "prediction_noise": 2.0, "noise_multiplier": 1.0, "sampling_rate": 0.5, "min_count": 1}
RECORDS = {**NOISE, "distributed_noise": False}
SHARES = {**NOISE, "distributed_noise": True}
CLIENTS = {
    "updates": "client_level", "counts": "public", "noise_multiplier": 1.0, "prediction_noise": 2.0, "min_count": 1,
    "distributed_noise": False,
}  # fmt: skip
LATE = {"lagged_scores": True}


def tree(folder: Path, aggregation: dict[str, Any], privacy: dict[str, Any] | None, **sections: Any) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {
        "federation": {"rounds": ROUNDS, "batch_size": 16, "learning_rate": 0.5, "scaling": "none"},
        "fairness": {"target": 0.1, "features": 6},
        "model": {"name": "logistic"},
        "aggregation": aggregation,
        "privacy": privacy or {},
        "run": {"ledger": f"sqlite:///{folder}/ledger.sqlite", "reproducible_noise": privacy is not None},
    }
    for name, table in sections.items():
        found[name] = {**found[name], **table}
    return found


def trained(folder: Path, aggregation: dict[str, Any], privacy: dict[str, Any] | None, **sections: Any) -> RunOutcome:
    data = toy(clients=5, records=40, attributes=sections.pop("attributes", 1), groups=sections.pop("groups", 2))
    made = build(Config.build(tree(folder, aggregation, privacy, **sections)), data)
    try:
        return run(made)
    finally:
        made.close()


def controller(outcome: RunOutcome) -> Controller:
    found = outcome.simulation.replica.controller
    assert found is not None
    return found


def require_same(one: RunOutcome, other: RunOutcome, atol: float = 0.0) -> None:
    mine, theirs = controller(one), controller(other)
    assert mine.round == theirs.round == ROUNDS
    assert len(np.unique(mine.strengths)) > 1  # λ moves
    for name, values in mine.state().items():
        np.testing.assert_allclose(theirs.state()[name], values, rtol=0, atol=atol, err_msg=name)
    ends = (outcome.simulation.replica.result for outcome in (one, other))
    np.testing.assert_allclose(next(ends), next(ends), rtol=0, atol=atol)


# ---- Every engine and scheme gives the same λ and the same model.

WAYS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], list[dict[str, Any]]]] = {
    "without privacy": (None, {}, [PLAIN, BFV, MASKED]),
    "without privacy, lagged": (None, LATE, [PLAIN, BFV, MASKED]),
    "DP-SGD at each client": (RECORDS, {"local_epochs": 2}, [PLAIN, BFV, MASKED]),
    "DP-SGD on the sum": (SHARES, {}, [MASKED, {"scheme": "bfv", "masks": True}]),
    "DP-SGD on the sum, lagged": (SHARES, LATE, [MASKED, {"scheme": "bfv", "masks": True}]),
    "clients": (CLIENTS, LATE, [BFV, MASKED]),
}


@pytest.mark.parametrize("way", WAYS)
def test_engines_and_schemes_have_the_same_strength_in_every_round(tmp_path: Path, way: str) -> None:
    privacy, federation, schemes = WAYS[way]
    first, *others = [trained(tmp_path, scheme, privacy, federation=federation) for scheme in schemes]
    for other in others:
        require_same(first, other)
    stacked = trained(tmp_path, schemes[0], privacy, federation=federation, run={"engine": "stacked"})
    require_same(first, stacked, atol=1e-6 if way.startswith("DP-SGD on") else 1e-5)


def test_updates_of_some_clients_and_features_of_all(tmp_path: Path) -> None:
    outcome = trained(tmp_path, PLAIN, None, federation={"clients_per_round": 1})
    assert controller(outcome).round == ROUNDS


@pytest.mark.parametrize("privacy", [None, SHARES], ids=["exact", "private"])
def test_several_attributes_and_sets_have_a_strength_each(tmp_path: Path, privacy: dict[str, Any] | None) -> None:
    about = {"fairness": {"notion": "equalized_odds"}, "attributes": 2, "groups": 3}
    outcome = trained(tmp_path, MASKED, privacy, run={"dtype": "float64"}, **about)
    strengths = controller(outcome).strengths
    assert strengths.shape == (ROUNDS, 4)
    assert len({tuple(column) for column in strengths.T}) > 1
    require_same(
        outcome, trained(tmp_path, MASKED, privacy, run={"engine": "stacked", "dtype": "float64"}, **about), atol=1e-6
    )


def test_without_noise_the_tracked_gap_is_the_gap_between_decisions(tmp_path: Path) -> None:
    """With one client and steps of next to no length, round after round, the exact gap on its training records."""
    data = toy(clients=1, records=200)
    table = tree(tmp_path, {"scheme": "plain"}, None, federation={"learning_rate": 1e-9})
    simulation = build(Config.build(table), data)
    outcome, records = run(simulation), data.clients[0].train
    decisions = simulation.clients[0].scores(simulation.replica.message(), private=False) >= 0.5
    rates = [decisions[records.groups[:, 0] == group].mean() for group in (0, 1)]
    np.testing.assert_allclose(controller(outcome).gaps, abs(rates[0] - rates[1]), atol=1e-9)


# ---- λ survives a break.


class Stop(Exception):
    """Ends a run."""


@pytest.mark.parametrize(
    ("privacy", "federation", "aggregation"),
    [(None, {}, PLAIN), (SHARES, LATE, MASKED), (RECORDS, {}, BFV)],
    ids=["exact", "lagged, masked", "encrypted"],
)
@pytest.mark.parametrize("cut", [1, 3])
def test_a_run_that_was_stopped_goes_on_with_the_same_strengths(
    tmp_path: Path, privacy: dict[str, Any] | None, federation: dict[str, Any], aggregation: dict[str, Any], cut: int
) -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == cut + 1:
            raise Stop  # before the round's checkpoint is written

    settings, data = tree(tmp_path, aggregation, privacy, federation=federation), toy(clients=5, records=40)
    whole = privfair.train(settings, dataset=data, out=tmp_path / "whole")
    with pytest.raises(Stop):
        privfair.train(settings, dataset=data, out=tmp_path / "cut", report=stop)
    resumed = privfair.train(resume=tmp_path / "cut", dataset=data)
    columns = ("round", "lambda", "tracked_gap")
    assert [[row[c] for c in columns] for row in resumed.rows] == [[row[c] for c in columns] for row in whole.rows]
    kept = RunDirectory.open(tmp_path / "cut").read_config().as_tables()["fairness"]
    assert kept["target"] == 0.1
    assert "lambda" not in kept


# ---- What is shown.


def test_history_and_metrics_have_what_was_released_and_no_more_where_data_have_a_budget(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    data = toy(clients=5, records=40)
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(1e6, 1e-5))
    settings = tree(tmp_path, MASKED, SHARES, run={"reproducible_noise": False})
    found = privfair.train(settings, dataset=data, out=tmp_path / "run")
    assert [set(row) for row in found.rows] == [{"round", "lambda", "tracked_gap"}] * (ROUNDS + 1)
    assert found.rows[0]["lambda"] is None
    assert all(row["lambda"] is not None for row in found.rows[1:])
    header = (tmp_path / "run" / "history.csv").read_text().splitlines()[0]
    assert header == "round,lambda,tracked_gap"
    about = found.metrics["target"]
    assert about["asked"] == 0.1
    assert set(about["by_set"]) == {"s0, everyone"}
    assert about["by_set"]["s0, everyone"]["lambda"] == found.rows[-1]["lambda"]


def test_the_plan_says_what_is_aimed_at_and_that_a_verdict_is_out_of_reach(tmp_path: Path) -> None:
    plans: list[dict[str, Any]] = []
    settings = tree(tmp_path, MASKED, SHARES | {"prediction_noise": 20.0}, fairness={"target": 0.02})
    privfair.train(settings, dataset=toy(clients=5, records=40), planned=plans.append)
    notes = " ".join(plans[0]["notes"])
    assert "λ follows a tracked gap of 0.02, for a target of 0.02" in notes
    assert 'the verdict "met" would take a gap below half of' in notes
    assert "more than the aim of 0.02" in notes
    assert "2λ/P" not in notes
    chosen = {choice["key"] for choice in plans[0]["choices"]}
    assert {"fairness.tracker", "federation.drift_correction", "federation.average_last"} <= chosen


def test_decisions_cost_what_their_longer_vectors_cost(tmp_path: Path) -> None:
    """The same noise in units of a record's part costs the same, and decisions are a part of that vector."""
    one = trained(tmp_path, MASKED, SHARES).state.release_plan.embedding
    table = tree(tmp_path, MASKED, SHARES)
    del table["fairness"]["target"]
    table["fairness"]["tracker"] = "embedding"
    other = run(build(Config.build(table), toy(clients=5, records=40))).state.release_plan.embedding
    assert one is not None
    assert other is not None
    assert one.noise.count == other.noise.count + 1
    assert one.noise.spread == EmbeddingPlan("energy", 0.0, 1.0, 6, threshold=0.5).unit.spread
    assert one.noise.event().sensitivity > other.noise.event().sensitivity  # one coordinate more to round
