"""What a plan says to people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import privfair
from privfair.config import Config
from privfair.federated.release_plan import ReleasePlan
from privfair.privacy.plan_report import plan_report, unseen
from tests.privacy.plans import GIVEN, RATES, planner, settle

PRIVATE = {"epsilon": 3.0}


def notes(cells: tuple[tuple[int, int], ...], privacy: dict[str, float], **work: int) -> str:
    plan = planner(privacy, **work)
    release_plan = settle(plan, cells)
    return " ".join(
        plan_report(Config.model_validate({"privacy": privacy}), release_plan, plan, budgeted=False)["notes"]
    )


def test_groups_that_no_client_shares_are_named() -> None:
    reported = notes(((900, 3), (500, -2)), PRIVATE)
    assert "at every client: s0=1. Nothing is shared of them" in reported
    assert "fairness term does not see them" not in notes(((900, 3), (500, 400)), PRIVATE)


def test_without_shared_scores_nobody_is_passed_over() -> None:
    counts = np.array([[900, 3]])
    assert unseen(ReleasePlan(counts.sum(axis=1), counts), planner(GIVEN).cells) == []


def test_noise_that_hides_every_gap_is_told() -> None:
    reported = "Scores have a range of 1 only: in a single round noise hides any gap."
    cells = ((900, 800), (500, 400))
    assert reported in notes(cells, GIVEN | RATES | {"prediction_noise": 30.0})
    assert reported not in notes(cells, GIVEN | RATES | {"prediction_noise": 0.5})


def test_where_nobody_is_heard_the_plan_says_that_there_is_no_fairness_term(tmp_path: Path) -> None:
    for tracker in ("samples", "embedding"):
        privacy = {"epsilon": 50.0, "min_count": 60}
        lines: list[Any] = []
        result = privfair.train(
            data={"clients": 2, "records": 100}, fairness={"tracker": tracker}, federation={"rounds": 1},
            privacy=privacy, aggregation={"scheme": "plain"}, run={"ledger": f"sqlite:///{tmp_path}/{tracker}.sqlite"},
            planned=lines.append,
        )  # fmt: skip
        (plan,) = lines
        assert any("training follows the task alone" in line for line in plan["notes"])
        assert result.metrics["unseen_groups"] == ["A=0", "A=1"]


def test_channels_without_noise_are_in_the_plan() -> None:
    plan = planner(GIVEN | RATES | {"predictions": "none"})
    release_plan = settle(plan, ((900, 800), (500, 400)))
    config = Config.model_validate({"privacy": {**GIVEN, "predictions": "none"}})
    reported = plan_report(config, release_plan, plan, budgeted=True)
    assert {row["channel"]: row["epsilon"] for row in reported["channels"]}["predictions"] is None
    assert "Together ε = ∞: predictions leave the clients without noise." in reported["notes"]
    assert any('set privacy.evaluation = "gaussian"' in line for line in reported["notes"])


def verdict_notes(target: float | None, cells: tuple[tuple[int, int], ...], **privacy: Any) -> list[str]:
    plan = planner(GIVEN | RATES | privacy)
    config = Config.model_validate({"privacy": GIVEN | privacy, "fairness": {"target": target}})
    found = plan_report(config, settle(plan, cells), plan, budgeted=False)["notes"]
    return [line for line in found if "verdict" in line.lower() or "can be met" in line]


def test_the_plan_says_beforehand_whether_a_target_can_be_met() -> None:
    noise = {"evaluation": "gaussian", "evaluation_noise": 5.0, "count_noise": 2.0, "counts": "gaussian"}
    large, small = ((30_000, 20_000), (30_000, 20_000)), ((400, 300), (400, 300))
    (line,) = verdict_notes(0.05, large, **noise)
    assert "The target of 0.05 can be met" in line
    (line,) = verdict_notes(0.05, small, **noise)
    assert "The verdict cannot be that the target of 0.05 is met: with about 200 test records" in line
    assert "test records of each of two groups would" in line
    (line,) = verdict_notes(0.05, large, evaluation="none")
    assert "The verdict will be: cannot tell." in line
    assert verdict_notes(None, small, **noise) == []
