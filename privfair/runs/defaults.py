"""The configuration that a run has: every key that follows from others, filled in, with the reason for each choice.

A user names few keys. What the others are depends on those, on the schema and on the number of clients, by the rules of
this module, and of no other. A run settles its configuration once, before anything else is made; its plan prints what
was chosen and why, and `config.toml`, report and statement have the settled values. A settled configuration settles to
itself, so that a run which is resumed follows its own file, whatever the rules are by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.records import Schema
from privfair.fairness.notions import Notion, notion_by_name
from privfair.fairness.tracking import LAST_SHARE
from privfair.privacy.requirements import require_masks
from privfair.secure_aggregation.masks import cohort_of

ON = "aggregation.masks"
ONE_STEP = (
    "of one step a round only the sum over all clients is needed, whose noise they share; with several steps each adds "
    "all of its noise (one step does not use federation.batch_size and local_epochs)"
)
# Of a logistic model on standardised features a step of 1 is stable, and a clipped gradient is not longer than 1. With
# 0.05, which is for the many small steps of local training, a hundred such steps stop far from the minimum.
STEP_OF_SUMS = 1.0
ONE_STEP_IS_LARGER = "a round is one step on all records, where local training takes many small ones"


class Choice(NamedTuple):
    """A key that nobody named, its value, and why, in one plain sentence."""

    key: str
    value: Any
    reason: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.key} = {_toml(self.value)}, because {self.reason}"


@dataclass(frozen=True)
class Settled:
    """A configuration without open questions, and what was chosen for the user."""

    config: Config
    choices: tuple[Choice, ...] = ()


def settle(config: Config, schema: Schema, clients: int, notion: Notion | None = None) -> Settled:
    """The configuration of a run on such data with so many clients; `notion`: one of the user's own."""
    choices: list[Choice] = []

    def choose(key: str, value: Any, reason: str) -> None:
        nonlocal config
        config = with_keys(config, {key: value})
        choices.append(Choice(key, value, reason))

    private, privacy = config.privacy.enabled, config.privacy
    target = config.fairness.target
    if target is not None:
        _require_target(config, schema, notion)
    if config.fairness.tracker is None:
        choose("fairness.tracker", *_tracker(config, schema, notion))
    if config.federation.drift_correction is None:
        choose("federation.drift_correction", *_drift(config))
    if target is not None and "average_last" not in config.federation.model_fields_set:
        choose("federation.average_last", LAST_SHARE, "λ moves around the aim, and the mean of the last models rests")
    if config.aggregation.scheme is None:
        reason = "the run is private, and nobody but the clients may open sums" if private else "the run is not private"
        choose("aggregation.scheme", config.scheme, reason)
    if config.aggregation.masks is None:
        choose("aggregation.masks", *_masks(config, clients))
    require_masks(config, clients)
    cohort = cohort_of(config, clients)
    if cohort is not None:
        if privacy.smallest_cohort is not None:  # another name of the same
            alias = {"privacy.smallest_cohort": None, "aggregation.smallest_cohort": privacy.smallest_cohort}
            config = with_keys(config, alias)
        if config.aggregation.colluders is None:
            choose("aggregation.colluders", cohort.colluders, f"that is a third of {clients} clients, and at least 1")
        if config.aggregation.smallest_cohort is None:
            reason = f"of {clients} clients so many must send and answer for a sum to open"
            choose("aggregation.smallest_cohort", cohort.smallest, reason)
    if config.federation.method == "mmd_fedavg" and config.federation.lagged_scores is None:
        choose("federation.lagged_scores", *_lag(config, clients))
    if private and privacy.distributed_noise is None:
        choose("privacy.distributed_noise", config.masks, *_sharing(config))
    if config.sums_gradients and privacy.local_steps is None:
        choose("privacy.local_steps", 1, ONE_STEP)
    if config.open_learning_rate:
        if config.sums_gradients:
            choose("federation.learning_rate", STEP_OF_SUMS, ONE_STEP_IS_LARGER)
        else:  # the default is the same number, and is named
            config = with_keys(config, {"federation.learning_rate": config.federation.learning_rate})
    if config.sums_counts:
        for key in ("counts", "evaluation"):
            if key in privacy.model_fields_set and getattr(privacy, key) == "laplace":
                rule = "must be gaussian with masks: shares of Laplace noise do not add up to Laplace noise"
                remedy = f'Set privacy.{key} = "gaussian", or aggregation.masks = false.'
                raise InputError(f"privacy.{key}", rule, "laplace", remedy)
    if private and "counts" not in privacy.model_fields_set:
        shared = config.sums_counts
        reason = (
            "shares of Laplace noise do not add up to Laplace noise" if shared else "each client adds all of its noise"
        )
        choose("privacy.counts", "gaussian" if shared else "laplace", reason)
    if private and "evaluation" not in privacy.model_fields_set:
        choose("privacy.evaluation", *_evaluation(config, schema))
    return Settled(config, tuple(choices))


def with_keys(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with some keys set, each given as section.key."""
    tables = {name: getattr(config, name) for name in Config.model_fields}
    for key, value in values.items():
        section, _, name = key.partition(".")
        tables[section] = tables[section].model_copy(update={name: value})
    return config.model_copy(update=tables)


def _require_target(config: Config, schema: Schema, notion: Notion | None) -> None:
    """Raise unless there are decisions whose gap can be followed, and something that follows it."""
    target, method, tracker = config.fairness.target, config.federation.method, config.fairness.tracker
    if method != "mmd_fedavg":
        rule, remedy = "must be left out for every method but mmd_fedavg", "Name fairness.lambda instead."
        raise InputError("fairness.target", rule, method, remedy)
    if schema.task != "binary":
        rule = "must be left out for regression, which has no decisions"
        raise InputError("fairness.target", rule, target, "Name fairness.lambda instead.")
    compared = notion or notion_by_name(config.fairness.notion, schema)
    if compared.score != "prediction":
        rule = "must be left out for notions that compare losses, not decisions"
        raise InputError("fairness.target", rule, compared.name, "Name fairness.lambda instead, or another notion.")
    named = [key for key in samples_only(config) if tracker is None]
    if named:
        rule = "must be left out beside fairness.target: it is of shared scores, and decisions are tracked otherwise"
        raise InputError(named[0], rule, _value(config, named[0]), 'Or set fairness.tracker = "embedding".')
    if tracker == "samples":
        rule = "must be embedding where a target is followed: decisions are tracked beside sums of features"
        remedy = 'Set fairness.tracker = "embedding", or name fairness.lambda instead of fairness.target.'
        raise InputError("fairness.tracker", rule, tracker, remedy)


def _tracker(config: Config, schema: Schema, notion: Notion | None) -> tuple[str, str]:
    """Sums of features of all scores, wherever they can be; single scores where nothing else does, or is asked for."""
    if config.fairness.target is not None:
        return "embedding", "decisions are tracked beside sums of features, for λ to follow the target"
    if config.federation.method != "mmd_fedavg":
        return "samples", "methods other than mmd_fedavg track nothing"
    if named := samples_only(config):
        return "samples", f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'} of shared scores"
    if config.scheme == "ckks":
        return "samples", "sums of features are of whole numbers, and ckks adds numbers that are not"
    compared = notion or notion_by_name(config.fairness.notion, schema)
    if compared.score == "loss" and config.privacy.score_range is None:
        return "samples", "losses have no range, and features need one (privacy.score_range)"
    return "embedding", "noise on sums of all records disturbs less than noise on scores of some"


def samples_only(config: Config) -> list[str]:
    """The named keys that mean something for shared scores alone."""
    fairness, privacy = config.fairness, config.privacy
    asked = {
        "privacy.prediction_rate": privacy.prediction_rate is not None,
        "privacy.predictions": privacy.predictions == "laplace",
        "privacy.kernel_correction": privacy.kernel_correction != "none",
        "fairness.samples": "samples" in fairness.model_fields_set,
        "fairness.quotas": "quotas" in fairness.model_fields_set,
    }
    return [key for key, named in asked.items() if named]


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _drift(config: Config) -> tuple[str, str]:
    if config.fairness.target is None:
        return "none", "it is the default with a given λ"
    if config.privacy.enabled and config.privacy.updates == "dp_sgd":
        return "none", "DP-SGD needs a loss for each record by itself"
    return "shared", "without it a large λ overshoots within a round"


def _masks(config: Config, clients: int) -> tuple[bool, str]:
    """On for a private run of three clients or more, unless a key rules it out."""
    privacy, sums = config.privacy, config.aggregation
    if config.scheme == "masked":
        return True, "the scheme masked has nothing but masks"
    if not privacy.enabled:
        return False, "the run is not private"
    if clients < 3:
        return False, "it takes 3 clients: of two each knows the other's vector from the sum"
    if config.scheme != "bfv":
        return False, f"aggregation.scheme = {_toml(config.scheme)} does not add up numbers modulo a prime"
    for key in ("counts", "evaluation"):
        if getattr(privacy, key) == "laplace" and key in privacy.model_fields_set:
            return False, f'privacy.{key} = "laplace" is asked for, and shares of Laplace noise are no Laplace noise'
    if config.run.clients is not None and sums.identities is None:
        return False, "on several machines it takes aggregation.identities, every data holder's public key"
    trained, cohort = config.federation.clients_per_round, cohort_of(with_keys(config, {ON: True}), clients)
    if trained is not None and cohort is not None and trained < cohort.smallest:
        return False, (
            f"{trained} clients train in a round, and no sum of fewer than {cohort.smallest} is safe: who picks so few "
            "could pick those who collude (federation.clients_per_round, aggregation.smallest_cohort)"
        )
    return True, f"nobody needs to see a single contribution, and {clients} clients can share the noise of their sums"


def _sharing(config: Config) -> tuple[str]:
    return ("with masks nobody sees a single part" if config.masks else "without masks single parts can be opened",)


def _lag(config: Config, clients: int) -> tuple[bool, str]:
    trained = config.federation.clients_per_round
    if config.fairness.tracker == "embedding" and trained is not None and trained < clients and config.lagged:
        return False, "features of all clients are shared in every round, and only some of them train"
    if config.lagged:
        return (
            True,
            "a masked sum takes two exchanges, of seconds each on Flower, and what lags needs no sum of its own",
        )
    return False, "exchanges in one process take no time" if config.masks else "it is the default without masks"


def _evaluation(config: Config, schema: Schema) -> tuple[str, str]:
    """Whether counts of test records are released: wherever that can be done and says something."""
    privacy = config.privacy
    if privacy.client_level:
        return "none", "noise on its counts hides one record, not all of a client"
    if schema.task != "binary":
        return "none", "it counts decisions, and the task is regression"
    if not config.data.test_fraction:
        return "none", "there are no test records (data.test_fraction)"
    if privacy.epsilon is None and privacy.evaluation_noise is None:
        return "none", "neither privacy.epsilon nor privacy.evaluation_noise says how much noise it would have"
    return "gaussian", "without it nobody could say whether the model is fair: the verdict rests on it"


def _toml(value: Any) -> str:
    """A value as it is written in a configuration."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else f"{value}"
