"""One ε for all groups: one rate of their scores, and what that costs in the fairness estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from privfair.datasets.records import ClientData, Federation
from privfair.federated.algorithms.mmd_fedavg import standard_error
from privfair.federated.release_plan import ReleasePlan
from tests.end_to_end.federations import toy
from tests.privacy.plans import planner, settle

UNEQUAL = ((900, 100), (500, 60))


def plan(*, equal: bool, counts: str = "laplace") -> ReleasePlan:
    return settle(planner({"epsilon": 3.0, "equalise_groups": equal, "counts": counts}), UNEQUAL)


def sharing_of(release_plan: ReleasePlan) -> Any:
    assert release_plan.sharing is not None
    return release_plan.sharing


def test_all_groups_are_sampled_at_one_rate_and_as_many_scores_are_shared() -> None:
    equal, unequal = sharing_of(plan(equal=True)), sharing_of(plan(equal=False))
    rates = set(equal.rates[equal.quotas > 0])
    assert rates == {2 * 40 / 1560}
    assert len(set(unequal.rates[unequal.quotas > 0])) > 1
    assert abs(equal.quotas.sum() - unequal.quotas.sum()) <= 4  # rounding


def test_the_small_group_costs_less_so_there_is_less_noise_for_the_same_budget() -> None:
    equal, unequal = plan(equal=True), plan(equal=False)
    assert sharing_of(equal).noise.scale < sharing_of(unequal).noise.scale


def test_what_it_costs_is_fewer_scores_of_the_small_group() -> None:
    """With the same noise the estimate of the small group's mean is worse, that of the large one better."""
    equal, unequal = plan(equal=True), plan(equal=False)
    assert sharing_of(equal).quotas[:, 1].sum() < sharing_of(unequal).quotas[:, 1].sum()
    errors = [[standard_error(t, sharing_of(unequal).__class__(
        sharing_of(unequal).noise, sharing_of(t).quotas, sharing_of(t).rates), cell) for cell in (0, 1)]
        for t in (equal, unequal)]  # fmt: skip
    assert errors[0][1] > errors[1][1]
    assert errors[0][0] < errors[1][0]


def test_with_public_counts_no_cell_has_a_higher_rate() -> None:
    found = sharing_of(plan(equal=True, counts="public"))
    assert found.rates is None
    assert (found.quotas / np.array(UNEQUAL)).max() <= 2 * 40 / 1560


@pytest.mark.parametrize("equal", [False, True])
def test_the_statement_has_one_epsilon_for_both_groups(tmp_path: Path, equal: bool) -> None:
    data = toy(records=600)
    small = []
    for client in data.clients:  # a small second group
        rows = np.flatnonzero((client.train.groups[:, 0] == 0) | (np.arange(len(client.train)) % 5 == 0))
        small.append(ClientData(client.name, client.train.take(rows), client.test))
    reported = privfair.train(
        dataset=Federation(data.name, data.schema, tuple(small)),
        privacy={"epsilon": 3.0, "equalise_groups": equal},
        federation={"rounds": 2},
        fairness={"samples": 30},
        run={"ledger": f"sqlite:///{tmp_path}/l.sqlite"},
    ).privacy
    by_group = {name: value["rdp"] for name, value in reported["by_group"].items()}
    assert len(by_group) == 2
    assert (max(by_group.values()) == min(by_group.values())) is equal
