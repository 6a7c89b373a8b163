"""Plans without a federation: a planner, the counts clients told, and the terms that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from privfair.channels.workload import Workload
from privfair.config import PrivacyConfig
from privfair.fairness.notions import Cells, notion_by_name
from privfair.federated.messages import Counts
from privfair.federated.release_plan import ReleasePlan
from privfair.privacy.planner import Planner, PrivateCounts
from tests.end_to_end.federations import toy

GIVEN = {"count_noise": 2.0, "prediction_noise": 1.0, "noise_multiplier": 2.0}
RATES = {"sampling_rate": 0.25, "prediction_rate": 0.5}


def cells_of(notion: str = "statistical_parity", **shape: Any) -> Cells:
    schema = toy(clients=1, records=8, **shape).schema
    return Cells.of(notion_by_name(notion, schema), schema)


def planner(
    privacy: dict[str, Any], cells: Cells | None = None, *, rounds: int = 3, trainings: int | None = None, **work: Any
) -> Planner:
    workload = Workload(
        **{
            "rounds": rounds, "epochs": 1, "batch_size": 50, "samples": 40, "shares_scores": True,
            "most_trainings": rounds if trainings is None else trainings, "score_range": (0.0, 1.0),
        } | work
    )  # fmt: skip
    return Planner(PrivacyConfig(**privacy), workload, cells or cells_of())


def reported(cells: Sequence[Sequence[int]]) -> list[Counts]:
    """What clients tell whose cells partition their records."""
    return [Counts(int(np.sum(own)), np.array(own, dtype=np.int64)) for own in cells]


def settle(plan: Planner, cells: Sequence[Sequence[int]] = ((120, 80), (60, 140)), releases: int = 1) -> ReleasePlan:
    plan.require_plannable()
    return PrivateCounts(plan, lambda: releases).settle(reported(cells))
