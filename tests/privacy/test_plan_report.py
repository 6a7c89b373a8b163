"""What a plan says to people."""

from __future__ import annotations

import numpy as np

from privfair.config import Config
from privfair.privacy.plan_report import plan_report, unseen
from privfair.terms import Terms
from tests.privacy.plans import GIVEN, RATES, planner, settle

PRIVATE = {"epsilon": 3.0}


def notes(cells: tuple[tuple[int, int], ...], privacy: dict[str, float], **work: int) -> str:
    plan = planner(privacy, **work)
    terms = settle(plan, cells)
    return " ".join(plan_report(Config.model_validate({"privacy": privacy}), terms, plan, budgeted=False)["notes"])


def test_groups_that_no_client_shares_are_named() -> None:
    told = notes(((900, 3), (500, -2)), PRIVATE)
    assert "at every client: s0=1. Nothing is shared of them" in told
    assert "fairness term does not see them" not in notes(((900, 3), (500, 400)), PRIVATE)


def test_without_shared_scores_nobody_is_passed_over() -> None:
    counts = np.array([[900, 3]])
    assert unseen(Terms(counts.sum(axis=1), counts), planner(GIVEN).cells) == []


def test_noise_that_hides_every_gap_is_told() -> None:
    told = "Scores have a range of 1 only: in a single round noise hides any gap."
    cells = ((900, 800), (500, 400))
    assert told in notes(cells, GIVEN | RATES | {"prediction_noise": 30.0})
    assert told not in notes(cells, GIVEN | RATES | {"prediction_noise": 0.5})
