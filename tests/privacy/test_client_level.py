"""Whole clients as the unit: what each channel costs, what is planned and stated, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

from accountant.errors import InputError
from accountant.events import Adjacency, Composed, Gaussian, NeighbouringMismatch, Nothing, NotPrivate, Unit
from privfair.audit.attack import prepare
from privfair.audit.audit import KINDS
from privfair.channels.base import PriceList
from privfair.clients.client import Embedder
from privfair.config import Config
from privfair.fairness.tracking import EmbeddingPlan
from privfair.federated.messages import (
    CountsRequest,
    EmbeddingsRequest,
    LocalWork,
    Parameters,
    ScoreRelease,
    ScoresRequest,
    Task,
    TrainRequest,
)
from privfair.federated.release_plan import RELEASE_PLANS
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import UpdatePlan, VectorNoise
from privfair.privacy.plan_report import plan_report
from privfair.privacy.planner import Planner, PrivateCounts
from privfair.privacy.statement import account, collusion
from privfair.runs.assembly import RunSpec
from privfair.secure_aggregation import aggregators
from privfair.secure_aggregation.base import BFV_MODULUS, WholeNumbers
from tests.end_to_end.federations import toy
from tests.privacy.plans import cells_of, planner, reported, settle
from tests.privacy.test_planning import by_pld

REPLACE, CLIENT = Adjacency.REPLACE_ONE, Unit.CLIENT
LEVEL = {"updates": "client_level", "counts": "public", "retries": 0}
FEATURES = EmbeddingPlan("energy", 0.0, 1.0, 8)
MODEL = Parameters(np.zeros(5))
COUNTS = ((120, 80), (60, 140))


def plan(privacy: dict[str, Any], *, cohort: int = 1, **work: Any) -> Planner:
    updates = UpdatePlan(2.0, 5, 10**8, max(1, cohort - 1))
    return planner({**LEVEL, **privacy}, updates=updates, **{"shares_scores": False, **work})


def parts(privacy: dict[str, Any] | None = None, clients: int = 5, **sections: Any) -> RunSpec:
    """Of a run without masks."""
    sections["aggregation"] = {"masks": False, **sections.get("aggregation", {})}
    tree = {"privacy": {"epsilon": 3.0, **LEVEL, **(privacy or {})}, **sections}
    return RunSpec.of(Config.build(tree), toy().schema, clients)


def price(counts: tuple[int, ...] = (120, 80), unit: Unit = CLIENT) -> PriceList:
    return PriceList("toy", "run", "a", ("s=0", "s=1"), cells_of(), REPLACE, np.array(counts), unit)


# ---- the plan


def test_the_claim_is_what_dp_accounting_says_of_the_same_gaussian_noise() -> None:
    """One client replaced moves the sum by two of the units that the multiplier counts in."""
    release_plan = settle(plan({"noise_multiplier": 9.0}), COUNTS)
    assert release_plan.claim is not None
    assert release_plan.updates is None
    assert release_plan.client_updates is not None
    assert release_plan.client_updates.noise.steps == 2**19
    expected = by_pld([dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.5), 3)])
    assert release_plan.claim.pld == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("method", ["pld", "rdp"])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_a_target_is_met_from_below(method: str, epsilon: float) -> None:
    release_plan = settle(plan({"epsilon": epsilon, "target_method": method}), COUNTS)
    assert release_plan.claim is not None
    assert 0.98 * epsilon < getattr(release_plan.claim, method) <= epsilon


def test_weights_are_portions_of_the_largest_and_the_step_brings_them_back() -> None:
    release_plan = settle(replace(plan({"noise_multiplier": 9.0})), ((100, 100), (25, 25)))
    releases = [release_plan.release(0), release_plan.release(1)]
    assert [r.portion for r in releases if r] == [1.0, 0.25]
    assert release_plan.client_updates is not None
    steps = release_plan.client_updates.noise.steps
    assert release_plan.sum_step(0) == pytest.approx(2.0 * 0.8 / steps)
    half = planner({**LEVEL, "noise_multiplier": 9.0}, shares_scores=False, updates=UpdatePlan(2.0, 5, 10**8, 1, 0.5))
    assert settle(half, ((100, 100), (25, 25))).sum_step(0) == pytest.approx(2.0 * 0.8 / 0.5 / steps)


def test_terms_survive_as_text() -> None:
    release_plan = settle(plan({"epsilon": 3.0}, cohort=4), COUNTS)
    again = RELEASE_PLANS.from_text(RELEASE_PLANS.to_text(release_plan))
    assert RELEASE_PLANS.to_text(again) == RELEASE_PLANS.to_text(release_plan)
    assert again.release(1) == release_plan.release(1)
    assert again.least_updates == 4
    old = {k: v for k, v in json.loads(RELEASE_PLANS.to_text(release_plan)).items() if k != "client_updates"}
    assert RELEASE_PLANS.from_text(json.dumps(old)).client_updates is None


def test_fairness_and_updates_meet_the_target_together() -> None:
    for work in ({"embedding": FEATURES}, {}):
        release_plan = settle(plan({"epsilon": 6.0}, shares_scores=True, **work), COUNTS)
        assert release_plan.claim is not None
        assert release_plan.fairness_noise is not None
        assert 5.9 < release_plan.claim.pld <= 6.0


def test_the_noise_of_somebody_else_is_held_against_the_target() -> None:
    found = plan({"epsilon": 3.0})
    release_plan = settle(found, COUNTS)
    assert release_plan.client_updates is not None
    multiplier = release_plan.client_updates.noise.multiplier
    again = PrivateCounts(found).settle(reported(COUNTS), (None, multiplier))
    assert RELEASE_PLANS.to_text(again) == RELEASE_PLANS.to_text(release_plan)
    with pytest.raises(InputError, match="must be at least what the given noise costs"):
        PrivateCounts(found).settle(reported(COUNTS), (None, multiplier * 0.9))


def test_the_plan_is_told_in_units_of_a_client() -> None:
    found = plan({"epsilon": 6.0}, shares_scores=True, embedding=FEATURES)
    config = Config.build({"privacy": {"epsilon": 6.0, **LEVEL}, "federation": {"rounds": 3}})
    report = plan_report(config, settle(found, COUNTS), found, budgeted=False)
    rows = {row["channel"]: row for row in report["channels"]}
    assert "× the largest part of one client" in rows["updates"]["noise"]
    assert rows["updates"]["sampling"] == "3 × 5 parameters, cut to a length of 2"
    assert rows["embeddings"]["epsilon"] + rows["updates"]["epsilon"] > 6.0 > rows["updates"]["epsilon"]
    assert any(line.startswith("Expected noise of a round's mean update: ±") for line in report["notes"])
    assert not any("clipping norm" in line for line in report["notes"])


# ---- what each channel costs


def test_features_cost_a_client_what_all_of_its_records_can_move() -> None:
    """Worst neighbours through the real messages: all scores of one client at one end, or all at the other."""
    noise = FEATURES.noise(100.0)
    client, _ = aggregators("plain", None, fixed_point=WholeNumbers(1, BFV_MODULUS))
    embedder = Embedder(FEATURES, client)
    membership = np.array([[True, False]] * 7 + [[False, True]] * 5)
    asked = np.array([1, 1])

    def message(scores: np.ndarray) -> np.ndarray:
        entropy = SeededEntropy(np.random.default_rng(3))
        return client.open(embedder.message(scores, membership, asked, noise, entropy))

    event = price((7, 5)).spends(EmbeddingsRequest(0, MODEL, asked, noise))[0].event
    assert isinstance(event, Gaussian)
    assert event.sensitivity == pytest.approx(math.sqrt(7**2 + 5**2) * noise.sensitivity(REPLACE))
    rng = np.random.default_rng(0)
    grid = np.linspace(0, 1, 21)
    distances = [np.linalg.norm(message(np.full(12, a)) - message(np.full(12, b))) for a in grid for b in grid if a < b]
    distances += [np.linalg.norm(message(rng.random(12)) - message(rng.random(12))) for _ in range(30)]
    assert max(distances) <= event.sensitivity
    assert max(distances) > 0.9 * event.sensitivity  # and not more than needed


def test_scores_cost_a_client_one_release_for_each_of_them() -> None:
    noise = ScoreNoise("gaussian", 2.0)
    (row,) = price().spends(ScoresRequest(1, MODEL, np.array([7, 5]), ScoreRelease(noise, None)))
    assert (row.count, row.group, row.channel) == (12, "", "predictions")
    assert row.event == noise.event(REPLACE, CLIENT)
    assert row.event.neighbouring.unit is CLIENT  # type: ignore[union-attr]


def test_every_row_is_of_a_client_and_does_not_add_up_with_that_of_a_record() -> None:
    release_plan = settle(plan({"noise_multiplier": 9.0}), COUNTS)
    request = TrainRequest(0, MODEL, Task(), LocalWork(1, 10, 0.1), 0.4, release=release_plan.release(1))
    (row,) = price().spends(request)
    assert row.event.neighbouring.unit is CLIENT  # type: ignore[union-attr]
    assert (
        row.event == price().spends(replace(request, release=release_plan.release(0)))[0].event
    )  # whatever its weight
    assert price().spends(CountsRequest())[0].event == Nothing()
    assert price().spends(replace(request, release=None))[0].event == NotPrivate()
    (other,) = price(unit=Unit.RECORD).spends(EmbeddingsRequest(0, MODEL, np.array([1, 0]), FEATURES.noise(3.0)))
    with pytest.raises(NeighbouringMismatch):
        Composed((row.event, other.event))
    with pytest.raises(NeighbouringMismatch):
        account([other], plan({"noise_multiplier": 9.0}).neighbouring)


def test_cells_that_nobody_asks_for_cost_nothing() -> None:
    request = EmbeddingsRequest(0, MODEL, np.array([0, 0]), FEATURES.noise(3.0))
    assert [row.event for row in price().spends(request)] == [Nothing()]


# ---- noise in shares


def test_both_epsilons_are_those_of_the_whole_noise_and_of_one_share() -> None:
    found = plan({"noise_multiplier": 40.0}, cohort=5)
    release_plan = settle(found, COUNTS)
    both = collusion(release_plan, found)
    assert release_plan.claim is not None
    assert both is not None
    assert "at least 4 shares remain" in both["nobody"]
    for multiplier, epsilon in ((40.0, release_plan.claim.pld), (20.0, both["server_and_one_client"]["pld"])):
        event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier / 2), 3)
        assert epsilon == pytest.approx(by_pld([event]), abs=1e-3)


def test_shares_of_both_channels_are_pooled() -> None:
    found = plan({"epsilon": 4.0}, cohort=5, shares_scores=True, embedding=replace(FEATURES, cohort=5, shares=4))
    release_plan = settle(found, COUNTS)
    both = collusion(release_plan, found)
    assert both is not None
    assert release_plan.embedding is not None
    assert release_plan.client_updates is not None
    assert both["server_and_one_client"]["pld"] > 4.0
    alone = settle(
        plan(
            {
                "noise_multiplier": release_plan.client_updates.noise.multiplier / 2,
                "prediction_noise": release_plan.embedding.noise.multiplier / 2,
            },
            shares_scores=True,
            embedding=FEATURES,
        ),
        COUNTS,
    )
    assert alone.claim is not None
    assert both["server_and_one_client"]["pld"] == pytest.approx(alone.claim.pld, rel=1e-3)


def test_the_cohort_is_of_those_who_train() -> None:
    shared = {"distributed_noise": True}
    found = parts(shared, clients=20, federation={"method": "fedavg", "clients_per_round": 8}).planner
    assert found is not None
    assert found.work.updates is not None
    assert (found.work.updates.shares, found.work.updates.participation) == (7, 0.4)
    words = "privacy.smallest_cohort must be between 3 and the number of clients that train in a round, 8; found 9"
    with pytest.raises(InputError, match=words):
        parts({**shared, "smallest_cohort": 9}, clients=20, federation={"method": "fedavg", "clients_per_round": 8})


def test_a_client_has_room_for_noise_beside_its_features() -> None:
    room = EmbeddingPlan("energy", 0.0, 1.0, 8, 64, 1000)
    assert room.room_beside(None) == 1000
    noise = VectorNoise(10.0, 8, 2.0, 64)
    assert room.room_beside(noise) == 1000 - 60  # six standard deviations of its own noise
    assert room.room_beside(replace(noise, shares=4)) == 1000 - 61  # twelve of a share of half the size, rounded up
    assert FEATURES.room_beside(noise) is None


# ---- what is refused


@pytest.mark.parametrize(
    ("privacy", "sections", "words"),
    [
        ({"counts": "laplace"}, {}, "privacy.counts must be public with updates = .client_level.: noise on counts"),
        ({"evaluation": "laplace"}, {}, "privacy.evaluation must be none with updates = .client_level."),
        ({}, {"aggregation": {"scheme": "ckks"}}, "aggregation.scheme must be bfv or plain with updates"),
        ({"sampling_rate": 0.1}, {}, "privacy.sampling_rate is for DP-SGD"),
        ({"local_steps": 3}, {}, "privacy.local_steps is for DP-SGD"),
        ({}, {"federation": {"optimizer": "scaffold"}}, "federation.optimizer must not be scaffold"),
        ({}, {"federation": {"method": "fairfed"}}, "federation.method must send nothing without noise"),
        ({}, {"federation": {"method": "centralized"}}, "federation.method must have data holders to be private"),
        (
            {"distributed_noise": True},
            {"fairness": {"tracker": "samples"}},
            "fairness.tracker must not be samples with noise in shares",
        ),
        (
            {"distributed_noise": True},
            {"federation": {"method": "fedavg"}, "aggregation": {"scheme": "plain"}},
            "privacy.distributed_noise must be false without encryption",
        ),
    ],
)
def test_what_has_no_bound_is_refused(privacy: dict[str, Any], sections: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parts(privacy, **sections)


def test_attacks_on_records_are_not_run_on_clients(tmp_path: Path) -> None:
    subject = prepare(Config.build({"privacy": {"epsilon": 3.0, **LEVEL}}), tmp_path)
    reasons = {name: attack.why_not(subject) for name, attack in KINDS.items()}
    assert {name for name, reason in reasons.items() if reason is None} == {"clients"}


@pytest.mark.parametrize(
    "federation",
    [
        {"method": "local_fairness"},
        {"drift_correction": "own"},
        {"method": "fedavg", "local_optimizer": "adam", "optimizer": "fedadam"},
    ],
)
def test_local_training_may_be_of_any_kind(federation: dict[str, Any]) -> None:
    assert parts(federation=federation).planner is not None
