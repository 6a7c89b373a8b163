"""Noise in shares: both ε, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import pytest

from accountant.errors import InputError
from privfair.config import Config
from privfair.fairness.tracking import EmbeddingPlan
from privfair.privacy.plan_report import sum_error
from privfair.privacy.statement import collusion, with_collusion
from privfair.runs.assembly import RunSpec
from tests.end_to_end.federations import toy
from tests.privacy.plans import planner, settle
from tests.privacy.test_planning import by_pld

PLAN = EmbeddingPlan("energy", 0.0, 1.0, 8, cohort=5, shares=4)
GIVEN = {
    "count_noise": 2.0, "counts": "gaussian", "prediction_noise": 12.0, "noise_multiplier": 2.0, "sampling_rate": 0.25,
}  # fmt: skip


def parts(clients: int = 5, **privacy: Any) -> RunSpec:
    """Of a run of an earlier version, which shared noise without masks."""
    tree = {
        "fairness": {"tracker": "embedding"},
        "privacy": {"epsilon": 2.0, "distributed_noise": True, **privacy},
        "aggregation": {"masks": False},
    }
    return RunSpec.of(Config.build(tree), toy().schema, clients)


def test_both_epsilons_are_those_of_the_whole_noise_and_of_one_share() -> None:
    """A cohort of 5: who opens the sum knows one share, so 4 are the whole noise, and one is half as large."""
    found = planner(GIVEN, embedding=PLAN)
    release_plan = settle(found)
    assert release_plan.noise_is_shared
    assert release_plan.claim is not None
    assert release_plan.updates is not None
    step = dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(2.0))
    rest = [
        dp_accounting.GaussianDpEvent(2.0),
        dp_accounting.SelfComposedDpEvent(step, 4 * release_plan.updates.steps),
    ]
    reported = with_collusion(release_plan, found)
    for multiplier, epsilon in ((12.0, release_plan.claim.pld), (6.0, reported["pld"])):
        sums = dp_accounting.GaussianDpEvent(multiplier / (1 + math.sqrt(2) / 1024))
        expected = by_pld([*rest, dp_accounting.SelfComposedDpEvent(sums, 4)])
        assert epsilon == pytest.approx(expected, abs=1e-3)
    assert reported["rdp"] > reported["pld"] > release_plan.claim.pld


def test_the_statement_says_whom_each_is_for() -> None:
    found = planner(GIVEN, embedding=PLAN)
    reported = collusion(settle(found), found)
    assert reported is not None
    assert "at least 4 shares remain" in reported["nobody"]
    assert "at least 5 vectors in a sum" in reported["assumes"]
    assert reported["server_and_one_client"]["pld"] > 0
    whole = planner(GIVEN, embedding=EmbeddingPlan("energy", 0.0, 1.0, 8))
    assert collusion(settle(whole), whole) is None


def test_two_phases_add_the_price_of_counts() -> None:
    found = planner({"epsilon": 2.0}, embedding=PLAN)
    release_plan = settle(found)
    reported = with_collusion(release_plan, found)
    assert release_plan.claim is not None
    assert release_plan.claim.two_phases
    assert reported["pld"] > release_plan.claim.pld


def test_more_clients_than_the_cohort_are_more_noise_than_needed_not_less() -> None:
    found = planner(GIVEN, embedding=PLAN)
    counts = [(100, 100)] * 8
    release_plan = settle(found, counts)
    assert release_plan.embedding is not None
    assert sum_error(release_plan, release_plan.embedding, 0) == pytest.approx(12.0 * math.sqrt(8 / 4) / 800)


def test_the_default_cohort_is_everybody() -> None:
    assert parts().embedding is not None
    assert parts().embedding.cohort == 5  # type: ignore[union-attr]
    assert parts(8, smallest_cohort=6).embedding.noise(9.0).shares == 5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("clients", "sections", "words"),
    [
        (2, {}, "privacy.smallest_cohort must be between 3 and the number of clients, 2; found 2"),
        (4, {"privacy": {"smallest_cohort": 5}}, "must be between 3 and the number of clients, 4; found 5"),
        (
            4,
            {"aggregation": {"scheme": "plain"}},
            "privacy.distributed_noise must be false without encryption",
        ),
        (4, {"fairness": {"tracker": "samples"}}, "privacy.distributed_noise is for the embedding tracker only"),
        (
            4,
            {"privacy": {"distributed_noise": False, "smallest_cohort": 3}},
            "privacy.smallest_cohort is for distributed noise only",
        ),
    ],
)
def test_what_does_not_fit_is_refused(clients: int, sections: dict[str, Any], words: str) -> None:
    tree: dict[str, Any] = {
        "fairness": {"tracker": "embedding"},
        **{name: section for name, section in sections.items() if name not in ("privacy", "aggregation")},
        "privacy": {"epsilon": 2.0, "distributed_noise": True, **sections.get("privacy", {})},
        "aggregation": {"masks": False, **sections.get("aggregation", {})},
    }
    with pytest.raises(InputError, match=words):
        RunSpec.of(Config.build(tree), toy().schema, clients)
