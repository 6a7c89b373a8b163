from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from accountant.errors import InputError
from privfair.config import Config
from privfair.runs.assembly import build
from privfair.sweeps.jobs import METHODS, Grid, default_epsilon

BASE = Config.build({}, ["federation.rounds=3"])


def grid(**changes: Any) -> Grid:
    known: dict[str, Any] = {"strengths": (0.0, 1.0), "seeds": 2, "methods": ("mmd_fedavg",), "epsilons": (math.inf,)}
    return Grid(**{**known, **changes})


def test_every_combination_once_seeds_outermost() -> None:
    jobs = grid(methods=("mmd_fedavg", "fedavg"), epsilons=(3.0, math.inf)).jobs(BASE)
    assert len({job.key for job in jobs}) == len(jobs) == 2 * 2 * (2 + 1)  # fedavg does not look at λ
    assert [job.config.run.seed for job in jobs] == sorted(job.config.run.seed for job in jobs)
    for job in jobs:
        assert job.config.privacy.epsilon == (None if math.isinf(job.epsilon) else job.epsilon)
        assert job.config.federation.method == job.series
        if job.value is not None:
            assert job.config.fairness.strength == job.value


def test_only_the_last_round_is_evaluated_unless_asked_for() -> None:
    assert {job.config.run.evaluate_every for job in grid().jobs(BASE)} == {3}
    asked = Config.build({}, ["federation.rounds=3", "run.evaluate_every=1"])
    assert {job.config.run.evaluate_every for job in grid().jobs(asked)} == {1}


def test_options_of_one_method_do_not_reach_the_others() -> None:
    base = Config.build({}, ["federation.drift_correction=shared"])
    drift = {j.series: j.config.federation.drift_correction for j in grid(methods=("mmd_fedavg", "fairfed")).jobs(base)}
    assert drift == {"mmd_fedavg": "shared", "fairfed": None}


@pytest.mark.parametrize(
    "options",
    [
        ["federation.drift_correction=own", "federation.lagged_scores=true"],
        ["fairness.tracker=embedding", "fairness.features=8"],
        ["fairness.tracker=embedding", "privacy.distributed_noise=true", "privacy.smallest_cohort=3",
         "privacy.sampling_rate=0.5", "privacy.local_steps=1", "privacy.counts=public"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("epsilon", [math.inf, 3.0])
def test_with_options_of_one_method_the_others_can_be_built(options: list[str], epsilon: float, tmp_path: Path) -> None:
    """But for those that are refused with privacy whatever their options."""
    ledger = f"run.ledger=sqlite:///{tmp_path / 'ledger.sqlite'}"
    base = Config.build({}, ["data.records=60", "data.clients=3", "federation.rounds=2", ledger, *options])
    methods = METHODS if math.isinf(epsilon) else ("fedavg",)
    for job in grid(methods=methods, epsilons=(epsilon,), strengths=(1.0,), seeds=1).jobs(base):
        assert (job.config.fairness.tracker == base.fairness.tracker) == (
            job.series == "mmd_fedavg" or base.fairness.tracker is None
        )
        simulation = build(job.config)
        simulation.close()


def test_noise_in_shares_stays_where_whole_updates_have_it() -> None:
    base = Config.build({}, ["privacy.updates=client_level", "privacy.distributed_noise=true"])
    for updates, stays in (("client_level", True), ("dp_sgd", False)):
        tables = base.as_tables()
        tables["privacy"] |= {"updates": updates}
        (job, *_) = grid(methods=("fedavg",), epsilons=(3.0,)).jobs(Config.build(tables))
        assert bool(job.config.privacy.distributed_noise) is stays


def test_without_privacy_nothing_of_it_is_left_but_the_name_in_the_ledger() -> None:
    base = Config.build({}, ["privacy.epsilon=3", "privacy.dataset=people", "run.reproducible_noise=true"])
    (job, *_) = grid().jobs(base)
    assert not job.config.privacy.enabled
    assert job.config.privacy.dataset == "people"
    assert not job.config.run.reproducible_noise


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strengths": (-1.0,)}, "--lambdas must be finite numbers, 0 or more; found -1.0."),
        ({"strengths": (1.0, 1.0)}, "--lambdas must have each value once; found '1.0,1.0'."),
        ({"strengths": ()}, "--lambdas must have one value or more; found 'none'."),
        ({"epsilons": (0.0,)}, "--epsilons must be above 0, or inf for no privacy; found 0.0."),
        ({"epsilons": (math.nan,)}, "--epsilons must be above 0, or inf for no privacy; found nan."),
        ({"seeds": 0}, "--seeds must be 1 or more; found 0."),
        ({"methods": ("magic",)}, "--methods must be among mmd_fedavg, fedavg, local_fairness, centralized, agnostic, "
         "fairfed, fedfb; found 'magic'."),
    ],
)  # fmt: skip
def test_a_wrong_grid_is_told(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        grid(**changes)
    assert str(error.value) == text


def test_noise_scales_alone_cannot_be_swept() -> None:
    with pytest.raises(InputError, match="a sweep compares budgets, not noise scales"):
        default_epsilon(Config.build({}, ["privacy.noise_multiplier=1.0"]))
    assert default_epsilon(BASE) == math.inf
