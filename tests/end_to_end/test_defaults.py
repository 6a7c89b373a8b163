"""What follows from what a user names: a settled configuration has no open question, and settles to itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.registry import load_configured
from privfair.runs.defaults import settle

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
