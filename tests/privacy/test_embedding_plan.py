"""Sums of features in the plan, the price list, the statement and the terms."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest

from accountant.errors import InputError
from accountant.events import Adjacency, Composed, Gaussian, NotPrivate
from privfair.channels.features import EMBEDDINGS
from privfair.config import Config
from privfair.fairness.tracking import EmbeddingPlan
from privfair.federated.messages import EmbeddingsRequest, Parameters
from privfair.federated.release_plan import RELEASE_PLANS
from privfair.privacy.plan_report import plan_report
from privfair.privacy.planner import Planner, PrivateCounts
from privfair.runs.assembly import RunSpec
from tests.end_to_end.federations import toy
from tests.privacy.plans import cells_of, planner, reported, settle
from tests.privacy.test_planning import by_pld, by_rdp
from tests.privacy.test_pricing import RACE, SEX, prices, schema_of

PLAN = EmbeddingPlan("energy", 0.0, 1.0, 8)
GIVEN = {"count_noise": 2.0, "prediction_noise": 12.0, "noise_multiplier": 2.0, "sampling_rate": 0.25}
ADD, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE


def plan(privacy: dict[str, Any], notion: str = "statistical_parity", **shape: Any) -> Planner:
    return planner(privacy, cells_of(notion, **shape), embedding=PLAN)


def parts(**sections: dict[str, Any]) -> RunSpec:
    fairness = {"tracker": "embedding", **sections.pop("fairness", {})}
    return RunSpec.of(Config.build({"fairness": fairness, **sections}), toy().schema, 3)


# ---- the plan


def test_the_claim_is_what_dp_accounting_says_of_the_same_gaussian_noise() -> None:
    """Rounding to the grid adds √8/2 of 1024 steps to the sensitivity: 0.14% of the multiplier."""
    release_plan = settle(plan({**GIVEN, "counts": "gaussian"}))
    assert release_plan.sharing is None
    assert release_plan.embedding is not None
    assert release_plan.claim is not None
    assert release_plan.embedding.noise.multiplier == 12.0
    sums = dp_accounting.GaussianDpEvent(12.0 / (1 + math.sqrt(2) / 1024))
    step = dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(2.0))
    assert release_plan.updates is not None
    events = [
        dp_accounting.GaussianDpEvent(2.0),
        dp_accounting.SelfComposedDpEvent(sums, 4),
        dp_accounting.SelfComposedDpEvent(step, 4 * release_plan.updates.steps),
    ]
    assert release_plan.claim.pld == pytest.approx(by_pld(events), abs=1e-3)
    assert 0.98 * by_rdp(events) <= release_plan.claim.rdp <= by_rdp(events) * (1 + 1e-4)


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_the_target_is_met_closely_in_one_phase_without_any_rate_of_scores(method: str) -> None:
    found = plan({"epsilon": 2.0, "target_method": method, "sampling_rate": 0.25})
    assert found.one_phase  # nothing of a sum is sampled
    claim = settle(found).claim
    assert claim is not None
    assert 0.98 * 2.0 <= getattr(claim, method) <= 2.0


def test_two_phases_where_the_rate_of_updates_follows_from_counts() -> None:
    found = plan({"epsilon": 2.0})
    assert not found.one_phase
    claim = settle(found).claim
    assert claim is not None
    assert claim.two_phases
    assert claim.pld == pytest.approx(2.0)


def test_noise_that_cannot_be_is_refused_before_anything_is_told() -> None:
    found = plan({"epsilon": 2.0, "prediction_noise": 1e-3})
    assert not found.one_phase
    with pytest.raises(InputError, match=r"noise multiplier must be between 0.015625 and .*; found 0.001"):
        found.require_plannable()


def test_the_share_of_the_sums_alone_is_what_was_asked_for() -> None:
    found = plan({"epsilon": 2.0, "sampling_rate": 0.25, "prediction_share": 0.3, "retries": 0})
    release_plan = settle(found)
    channel = found.fairness_channel(release_plan)
    assert channel is not None
    assert channel.name == EMBEDDINGS
    assert channel.count == 3
    assert by_pld([dp_accounting.GaussianDpEvent(_multiplier(channel.event))] * 3) == pytest.approx(0.6, abs=5e-3)


def _multiplier(event: Any) -> float:
    assert isinstance(event, Gaussian)
    return event.noise_multiplier


@pytest.mark.parametrize(
    ("notion", "shape", "times"),
    [
        ("statistical_parity", {}, 1),
        ("equalized_odds", {}, 1),
        ("statistical_parity", {"attributes": 2}, 2),
        ("equalized_odds", {"attributes": 2}, 2),
    ],
)
def test_a_record_pays_for_every_sum_it_is_in(notion: str, shape: dict[str, Any], times: int) -> None:
    found = plan(GIVEN, notion, **shape)
    groups = len(found.cells)
    release_plan = settle(found, [[60] * groups, [90] * groups])
    channel = found.fairness_channel(release_plan)
    assert channel is not None
    events = channel.event.events if isinstance(channel.event, Composed) else (channel.event,)
    assert events == (release_plan.embedding and release_plan.embedding.noise.event(),) * times


def test_public_counts_are_replace_one_with_the_true_spread() -> None:
    privacy = {k: v for k, v in GIVEN.items() if k != "count_noise"} | {"counts": "public"}
    found = plan(privacy)
    channel = found.fairness_channel(settle(found))
    assert channel is not None
    assert isinstance(channel.event, Gaussian)
    assert channel.event.adjacency is REPLACE
    # two ends of the range are 1.88 apart, not 2: bounded by 1024·spread and the rounding of two records
    spread = PLAN.unit.spread
    assert channel.event.sensitivity == pytest.approx(1024 * spread + math.sqrt(8), rel=1e-9)
    assert channel.event.sensitivity < 2 * PLAN.noise(1.0).sensitivity(ADD) * 0.96


def test_small_cells_are_left_out_by_public_rule_and_the_bound_is_then_the_plans() -> None:
    release_plan = settle(plan({**GIVEN, "min_count": 10}), ((120, 3), (60, 140), (2, -1)))
    assert release_plan.embedding is not None
    assert release_plan.embedding.cells.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert release_plan.silent
    assert not settle(plan(GIVEN)).silent


def test_terms_survive_json_and_older_ones_have_no_embedding() -> None:
    release_plan = settle(plan(GIVEN))
    again = RELEASE_PLANS.from_text(RELEASE_PLANS.to_text(release_plan))
    assert again.embedding is not None
    assert release_plan.embedding is not None
    assert again.embedding.noise == release_plan.embedding.noise
    np.testing.assert_array_equal(again.embedding.cells, release_plan.embedding.cells)
    older = {k: v for k, v in json.loads(RELEASE_PLANS.to_text(release_plan)).items() if k != "embedding"}
    assert RELEASE_PLANS.from_text(json.dumps(older)).embedding is None


def test_noise_that_somebody_else_found_is_held_against_the_plan() -> None:
    found = plan({"epsilon": 2.0, "sampling_rate": 0.25})
    release_plan = settle(found)
    assert release_plan.embedding is not None
    assert release_plan.updates is not None
    noise, multiplier = release_plan.embedding.noise, release_plan.updates.noise_multiplier
    counts = reported(((120, 80), (60, 140)))
    again = PrivateCounts(found).settle(counts, (noise, multiplier))
    assert again.claim == release_plan.claim
    weaker = replace(noise, multiplier=noise.multiplier / 2)
    with pytest.raises(InputError, match="must be at least what the given noise costs"):
        PrivateCounts(found).settle(counts, (weaker, multiplier))
    for other in (replace(noise, spread=1.0), replace(noise, count=4), replace(noise, steps=2048)):
        with pytest.raises(InputError, match="noise of features must be as planned"):
            PrivateCounts(found).settle(counts, (other, multiplier))


def test_the_plan_tells_what_to_expect() -> None:
    config = Config.build({"fairness": {"tracker": "embedding"}, "privacy": GIVEN, "federation": {"rounds": 3}})
    found = plan(GIVEN)
    reported = plan_report(config, settle(found), found, budgeted=False)
    row = next(r for r in reported["channels"] if r["channel"] == "embeddings")
    assert row["noise"] == "gaussian, 12 × the part of one record"
    assert row["sampling"] == "3 × 4 sums of 8 features, all records"
    (line,) = [line for line in reported["notes"] if line.startswith("Expected fairness error")]
    # √2 clients · 12 / records of each group, times the error of C′ for noise 1
    error = PLAN.unit.slope_noise * 12 * math.sqrt(2) * math.hypot(1 / 180, 1 / 220)
    assert f"by ±{error:.3g} (root mean square over scores)" in line
    assert "left out by 0.31 at most" in line


# ---- the price of a request


def test_a_request_costs_one_row_for_each_asked_cell() -> None:
    noise = PLAN.noise(10.0)
    found = prices("equalized_odds", schema_of(SEX))
    request = EmbeddingsRequest(3, Parameters(np.zeros(2)), np.array([1, 1, 0, 1]), noise)
    rows = found.spends(request)
    assert [row.group for row in rows] == [found.labels[c] for c in (0, 1, 3)]
    assert {(row.event, row.channel, row.round, row.count) for row in rows} == {(noise.event(ADD), "embeddings", 3, 1)}


def test_without_noise_it_is_a_row_of_infinite_epsilon() -> None:
    request = EmbeddingsRequest(0, Parameters(np.zeros(2)), np.array([1, 1, 1]))
    (row,) = prices("statistical_parity", schema_of(RACE)).spends(request)
    assert row.event == NotPrivate()


def test_replace_one_has_its_own_sensitivity() -> None:
    noise = PLAN.noise(10.0)
    request = EmbeddingsRequest(0, Parameters(np.zeros(2)), np.array([1, 1]), noise)
    for row in prices("statistical_parity", schema_of(SEX), REPLACE).spends(request):
        assert row.event == noise.event(REPLACE)


# ---- what is refused, and the grid


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"privacy": {"epsilon": 1.0, "predictions": "laplace"}}, "privacy.predictions must be gaussian for the embed"),
        ({"privacy": {"epsilon": 1.0, "prediction_rate": 0.5}}, "privacy.prediction_rate must not be set for the "),
        (
            {"privacy": {"epsilon": 1.0, "kernel_correction": "deconvolve"}},
            "privacy.kernel_correction must be none for the embedding tracker",
        ),
        (
            {"federation": {"lagged_scores": True, "method": "fedavg"}},
            "federation.lagged_scores is for mmd_fedavg only",
        ),
        ({"federation": {"method": "fedavg"}}, "fairness.tracker must be samples for every method but mmd_fedavg"),
        ({"aggregation": {"scheme": "ckks"}}, "aggregation.scheme must be bfv or plain for the embedding tracker"),
        ({"fairness": {"notion": "risk_parity"}}, "fairness.notion must compare scores that have a range"),
        ({"fairness": {"tracker": "samples", "features": 4}}, "fairness.features is for the embedding tracker only"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parts(**sections)


def test_a_loss_is_tracked_on_the_range_that_is_given() -> None:
    found = parts(fairness={"notion": "risk_parity"}, privacy={"score_range": [0.0, 3.0]})
    assert found.embedding == EmbeddingPlan("energy", 0.0, 3.0, None)
    assert found.feature_code is None  # neither noise nor encryption: floats


@pytest.mark.parametrize(("clients", "steps"), [(3, 1024), (41, 256), (100, 64), (1000, 64)])
def test_the_grid_leaves_room_for_the_sum(clients: int, steps: int) -> None:
    config = Config.build({"fairness": {"tracker": "embedding"}, "aggregation": {"scheme": "bfv"}})
    found = RunSpec.of(config, toy().schema, clients)
    assert found.embedding is not None
    assert found.feature_code is not None
    assert found.embedding.steps == steps
    assert found.embedding.room is not None
    assert found.embedding.room * steps <= found.feature_code.most
    assert found.embedding.room >= (8000 if clients == 1000 else 50_000)
