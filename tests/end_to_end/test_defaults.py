"""What follows from what a user names: a settled configuration has no open question, and settles to itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.registry import load_configured
from privfair.privacy.requirements import require_new, whole_noise
from privfair.runs.defaults import Settled, settle
from privfair.runs.folder import RunDirectory

SCHEMA = load_configured(Config.build({"data": {"clients": 2, "records": 20}})).schema

named: dict[str, list[Any]] = {
    "fairness.tracker": ["samples", "embedding"],
    "fairness.notion": ["statistical_parity", "risk_parity", "equalized_odds"],
    "fairness.samples": [50],
    "fairness.quotas": ["random", "largest_remainder"],
    "federation.method": ["mmd_fedavg", "fedavg", "local_fairness"],
    "federation.clients_per_round": [2, 3],
    "federation.lagged_scores": [False, True],
    "federation.local_optimizer": ["adam"],
    "federation.scaling": ["moments", "none"],
    "federation.precondition": [False, True],
    "federation.rounds": [7],
    "federation.learning_rate": [0.05, 0.25],
    "fairness.target": [0.05],
    "privacy.max_grad_norm": [2.0],
    "privacy.sampling_rate": [0.5],
    "privacy.records": [1_000_000],
    "model.name": ["logistic", "mlp"],
    "privacy.epsilon": [1.0],
    "privacy.counts": ["laplace", "gaussian", "public"],
    "privacy.predictions": ["laplace", "none"],
    "privacy.updates": ["dp_sgd", "client_level", "none"],
    "privacy.evaluation": ["laplace", "gaussian"],
    "privacy.local_steps": [1, 5],
    "privacy.prediction_rate": [0.5],
    "privacy.kernel_correction": ["deconvolve"],
    "privacy.distributed_noise": [False, True],
    "privacy.smallest_cohort": [3, 4],
    "aggregation.scheme": ["bfv", "ckks", "masked", "plain"],
    "aggregation.masks": [False, True],
    "aggregation.colluders": [1],
    "aggregation.smallest_cohort": [4],
    "run.engine": ["local", "stacked", "flower"],
}
configurations = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in named.items()})


def nested(flat: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Tables of keys."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    return tables


@settings(max_examples=150, deadline=None)
@given(configurations, st.integers(1, 12))
def test_a_settled_configuration_settles_to_itself_and_survives_its_file(flat: dict[str, Any], clients: int) -> None:
    try:
        found = settle(Config.build(nested(flat)), SCHEMA, clients)
    except InputError:
        return
    again = settle(found.config, SCHEMA, clients)
    assert (again.config, again.choices) == (found.config, ())
    written = Config.build(found.config.as_tables())
    assert settle(written, SCHEMA, clients) == (type(found))(written, ())
    assert written.as_tables() == found.config.as_tables()


@settings(max_examples=150, deadline=None)
@given(configurations, st.integers(1, 12))
def test_what_is_named_stays_and_every_other_key_that_changes_is_a_choice(flat: dict[str, Any], clients: int) -> None:
    before = Config.build(nested(flat))
    try:
        found = settle(before, SCHEMA, clients)
    except InputError:
        return
    chosen = {choice.key: choice.value for choice in found.choices}
    assert not set(chosen) & set(flat)
    for section, table in found.config.model_dump(by_alias=True).items():
        for key, value in table.items():
            name = f"{section}.{key}"
            if name in chosen:
                assert value == chosen[name]
            elif "smallest_cohort" not in name:  # privacy.smallest_cohort is another name of the same
                assert value == before.model_dump(by_alias=True)[section][key], name


def test_unsettled_tables_do_not_name_what_would_decide() -> None:
    tables = Config.build({"privacy": {"epsilon": 1}}).as_tables()
    assert not {"samples", "quotas", "tracker"} & set(tables["fairness"])
    assert "counts" not in tables["privacy"]
    assert Config.build({"fairness": {"samples": 100}}).as_tables()["fairness"]["samples"] == 100


# ---- masks, and what comes with them


def settled(flat: dict[str, Any], clients: int = 5) -> Settled:
    return settle(Config.build(nested({"privacy.epsilon": 1.0, **flat})), SCHEMA, clients)


def why(found: Settled, key: str) -> str:
    (reason,) = [choice.reason for choice in found.choices if choice.key == key]
    return reason


MASKED: list[tuple[dict[str, Any], int]] = [
    ({}, 3),
    ({}, 5),
    ({"aggregation.scheme": "bfv"}, 5),
    ({"aggregation.scheme": "masked"}, 5),
    ({"aggregation.colluders": 2}, 10),
    ({"fairness.tracker": "embedding"}, 5),
    ({"federation.method": "fedavg"}, 5),
    ({"privacy.counts": "gaussian", "privacy.evaluation": "gaussian"}, 5),
    ({"privacy.counts": "public"}, 5),
    ({"privacy.counts": "public", "privacy.updates": "client_level"}, 5),
    ({"privacy.local_steps": 5}, 5),
    ({"privacy.distributed_noise": False}, 5),
    ({"privacy.distributed_noise": True}, 5),
    ({"federation.clients_per_round": 4}, 5),
    ({"federation.clients_per_round": 7, "aggregation.smallest_cohort": 7, "aggregation.colluders": 2}, 10),
    ({"run.engine": "stacked"}, 5),
    ({"run.engine": "flower"}, 5),
    ({"run.clients": ["a", "b", "c"], "aggregation.identities": {"a": "00", "b": "01", "c": "02"}}, 3),
    ({"fairness.notion": "risk_parity"}, 5),
]
BARE: list[tuple[dict[str, Any], int, str]] = [
    ({"privacy.epsilon": None}, 5, "the run is not private"),
    ({}, 2, "it takes 3 clients"),
    ({"aggregation.scheme": "ckks"}, 5, 'aggregation.scheme = "ckks"'),
    ({"aggregation.scheme": "plain"}, 5, 'aggregation.scheme = "plain"'),
    ({"privacy.counts": "laplace"}, 5, 'privacy.counts = "laplace" is asked for'),
    ({"privacy.evaluation": "laplace"}, 5, 'privacy.evaluation = "laplace" is asked for'),
    ({"federation.clients_per_round": 3}, 5, "3 clients train in a round, and no sum of fewer than 4 is safe"),
    ({"federation.clients_per_round": 8}, 10, "8 clients train in a round, and no sum of fewer than 9 is safe"),
    ({"run.clients": ["a", "b", "c"]}, 3, "on several machines it takes aggregation.identities"),
]


@pytest.mark.parametrize(("flat", "clients"), MASKED)
def test_masks_are_on_unless_a_key_rules_them_out(flat: dict[str, Any], clients: int) -> None:
    found = settled(flat, clients)
    assert found.config.masks
    chosen = {choice.key: choice.value for choice in found.choices}
    assert chosen["aggregation.masks"] is True
    assert found.config.aggregation.colluders == flat.get("aggregation.colluders", max(1, clients // 3))


@pytest.mark.parametrize(("flat", "clients", "reason"), BARE)
def test_where_masks_are_off_the_plan_says_why(flat: dict[str, Any], clients: int, reason: str) -> None:
    found = settled(flat, clients)
    assert not found.config.masks
    assert reason in why(found, "aggregation.masks")
    assert not found.config.privacy.distributed_noise
    assert found.config.privacy.counts == "laplace"
    assert found.config.federation.learning_rate == 0.05
    assert found.config.privacy.local_steps is None


@pytest.mark.parametrize(
    ("flat", "named"),
    [
        ({"aggregation.scheme": "ckks"}, "aggregation.scheme"),
        ({"aggregation.scheme": "plain"}, "aggregation.scheme"),
        ({"fairness.tracker": "embedding", "privacy.counts": "laplace"}, "privacy.counts"),
        ({"fairness.tracker": "embedding", "privacy.evaluation": "laplace"}, "privacy.evaluation"),
        ({"federation.clients_per_round": 3}, "federation.clients_per_round"),
        ({"aggregation.smallest_cohort": 3}, "aggregation.smallest_cohort"),
    ],
)
def test_masks_that_are_asked_for_and_cannot_be_are_refused(flat: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as refused:
        settled({"aggregation.masks": True, **flat})
    assert refused.value.name == named


def test_a_cohort_that_would_not_be_safe_is_refused_and_not_left_without_masks() -> None:
    with pytest.raises(InputError, match=r"aggregation.smallest_cohort must be above \(clients \+ colluders\)/2 = 3"):
        settled({"aggregation.smallest_cohort": 3})


SUM: dict[str, Any] = {"fairness.tracker": "embedding"}
SCORES: dict[str, Any] = {"fairness.tracker": "samples"}


@pytest.mark.parametrize(
    ("flat", "counts", "steps", "rate"),
    [
        (SUM, "gaussian", 1, 1.0),
        (SCORES, "laplace", 1, 1.0),  # scores: rates and weights follow from the counts of each client
        ({"federation.method": "fedavg"}, "gaussian", 1, 1.0),
        ({**SUM, "privacy.local_steps": 1}, "gaussian", 1, 1.0),
        ({**SUM, "federation.learning_rate": 0.05}, "gaussian", 1, 0.05),
        ({**SUM, "privacy.local_steps": 5}, "gaussian", 5, 0.05),
        ({**SUM, "federation.local_optimizer": "adam"}, "gaussian", None, 0.05),
        ({**SUM, "privacy.distributed_noise": False}, "laplace", None, 0.05),
        ({**SUM, "privacy.updates": "client_level", "privacy.counts": "public"}, "public", None, 0.05),
        ({**SUM, "aggregation.masks": False}, "laplace", None, 0.05),
    ],
)
def test_counts_steps_and_step_size_follow_from_the_sums(
    flat: dict[str, Any], counts: str, steps: int | None, rate: float
) -> None:
    config = settled(flat).config
    assert (config.privacy.counts, config.privacy.local_steps, config.federation.learning_rate) == (counts, steps, rate)
    written = Config.build(config.as_tables())
    assert (written.privacy.counts, written.federation.learning_rate) == (counts, rate)


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        (SUM, []),
        (SCORES, ["Scores, and counts"]),
        ({**SUM, "privacy.local_steps": 5}, ["every client adds all of their noise itself (privacy.local_steps = 5)"]),
        ({**SUM, "federation.local_optimizer": "adam"}, ["(federation.local_optimizer = adam)"]),
        ({**SUM, "privacy.distributed_noise": False}, ["(privacy.distributed_noise = false)"]),
        ({**SCORES, "privacy.local_steps": 5}, ["(privacy.local_steps = 5)", "Scores, and counts"]),
        ({"aggregation.masks": False}, []),
    ],
)  # fmt: skip
def test_what_has_its_whole_noise_under_masks_is_said(flat: dict[str, Any], words: list[str]) -> None:
    said = whole_noise(settled(flat).config)
    assert len(said) == len(words)
    assert all(part in line for part, line in zip(words, said, strict=True))


@pytest.mark.parametrize(
    ("flat", "lagged"),
    [
        ({**SUM, "run.engine": "flower"}, True),
        ({**SUM, "run.engine": "flower", "federation.clients_per_round": 4}, False),
        ({**SCORES, "run.engine": "flower", "federation.clients_per_round": 4}, True),  # scores are no sum
        ({**SUM, "federation.clients_per_round": 4}, False),
    ],
)
def test_features_of_all_do_not_lag_behind_updates_of_some(flat: dict[str, Any], lagged: bool) -> None:
    assert settled(flat).config.federation.lagged_scores is lagged


@pytest.mark.parametrize("off", [{"aggregation.masks": False}, {"privacy.counts": "laplace"}])
def test_a_new_run_shares_noise_under_masks_only(off: dict[str, Any]) -> None:
    shared = {**SUM, "privacy.distributed_noise": True}
    require_new(settled(shared).config)
    require_new(settled(shared | off | {"run.reproducible_noise": True}).config)  # nothing is claimed
    require_new(settled(off).config)
    with pytest.raises(InputError, match=r"privacy.distributed_noise must come with masks.*aggregation.masks"):
        require_new(settled(shared | off).config)


@pytest.mark.parametrize("version", ["v0_1_0", "v0_2_0"])
def test_a_run_of_an_earlier_version_keeps_what_it_had(version: str) -> None:
    folder = Path(__file__).parents[1] / "formats" / version
    for run in ("unfinished", "unfinished-private", "private"):
        config = RunDirectory.open(folder / run).read_config()
        found = settle(config, SCHEMA, 5)
        assert not found.config.masks
        assert found.config.privacy == config.privacy
        assert found.config.federation.learning_rate == config.federation.learning_rate
        assert "aggregation.masks" not in {choice.key for choice in found.choices}


# ---- the evaluation


def chosen(**privacy: Any) -> dict[str, Any]:
    """What was chosen for a private run, by key."""
    return {choice.key: choice.value for choice in settle(Config.build({"privacy": privacy}), SCHEMA, 4).choices}


def test_private_runs_release_counts_of_test_records_wherever_they_can() -> None:
    assert chosen(epsilon=1.0)["privacy.evaluation"] == "gaussian"
    assert chosen(epsilon=1.0, counts="public")["privacy.evaluation"] == "gaussian"
    assert chosen(noise_multiplier=1.0, evaluation_noise=4.0)["privacy.evaluation"] == "gaussian"
    assert chosen(epsilon=1.0, updates="client_level", counts="public")["privacy.evaluation"] == "none"
    assert chosen(noise_multiplier=1.0)["privacy.evaluation"] == "none"
    assert "privacy.evaluation" not in chosen(epsilon=1.0, evaluation="none")
    assert "privacy.evaluation" not in chosen()


def test_without_test_records_or_decisions_there_is_nothing_to_count() -> None:
    untested = Config.build({"privacy": {"epsilon": 1.0}, "data": {"test_fraction": 0.0}})
    assert settle(untested, SCHEMA, 4).config.privacy.evaluation == "none"
    regression = replace(SCHEMA, task="regression")
    assert settle(Config.build({"privacy": {"epsilon": 1.0}}), regression, 4).config.privacy.evaluation == "none"
