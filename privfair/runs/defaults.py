"""The configuration that a run has: every key that follows from others, filled in, with the reason for each choice.

A user names few keys. What the others are depends on those, on the schema and on the number of clients, by the rules of
this module, and of no other. A run settles its configuration once, before anything else is made; its plan prints what
was chosen and why, and `config.toml`, report and statement have the settled values. A settled configuration settles to
itself, so that a run which is resumed follows its own file, whatever the rules are by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from accountant.errors import InputError
from privfair.config import MOST_RECORDS, RATES, Config
from privfair.datasets.records import Federation, Schema
from privfair.fairness.notions import Notion, notion_by_name
from privfair.fairness.tracking import LAST_SHARE
from privfair.mechanisms.moments import PRODUCTS_SHARE, MomentsPlan, columns_of, gaussian_budget
from privfair.privacy.requirements import require_masks
from privfair.secure_aggregation.masks import MODULUS, cohort_of

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
    if target is not None and _test_records_pay(config):
        choose("privacy.evaluation_share", 1.0, "test records are in no other release, so that they can pay all of ε")
    if config.asks_for_scaling:
        if config.federation.scaling is None:
            choose("federation.scaling", *_scaling(config))
        if config.federation.precondition is None and config.federation.scaling == "moments":
            choose("federation.precondition", *_precondition(config, schema, clients))
        require_scaling(config, schema)
        rates = _rates(config, schema) if config.federation.scaling == "moments" else {}
        for section, name in RATES:
            key, table = f"{section}.{name}", getattr(config, section)
            if name in table.model_fields_set:
                continue
            if key in rates:
                choose(key, *rates[key])
            elif name == "learning_rate" and config.open_learning_rate:
                continue  # settled below
            elif section != "privacy" or private:  # what it is anyway, and stays
                config = with_keys(config, {key: getattr(table, name)})
    if config.open_learning_rate:
        if config.sums_gradients:
            choose("federation.learning_rate", STEP_OF_SUMS, ONE_STEP_IS_LARGER)
        else:  # the default is the same number, and is named
            config = with_keys(config, {"federation.learning_rate": config.federation.learning_rate})
    return Settled(config, tuple(choices))


# ---- Scaling, rates and rounds: one rule for every dataset, from public facts.
#
# Logistic regression on standardised features needs no tuning: gradients have known sizes, and so have noise and
# curvature. With the covariance of the features released as well, gradient descent with step 4 is a Newton method with
# a fixed Hessian, and 30 rounds are enough. The covariance has a price: it pays for itself where
# n ≥ √c·(d + 1)^1.5/(μ·√¼), for d features, n training records, the Gaussian budget μ of the run (see
# `mechanisms.moments.gaussian_budget`), and c the copies of noise in a sum, as many as there are clients if each adds
# its own. Otherwise rate 32/(d + 1), clipping norm √(d + 1)/2, 60 rounds.

ROUNDS, ROUNDS_WHITENED, AVERAGED = 60, 30, 0.4
ALL_RECORDS = MOST_RECORDS  # of a client, as its minibatch


def _scaling(config: Config) -> tuple[str, str]:
    """How features are scaled, and why."""
    if (obstacle := _no_moments(config)) is not None:
        return "none", obstacle
    if config.privacy.enabled:
        return "moments", "their sums are released once, at a tenth of the squared budget, and rates follow from them"
    return "moments", "rates and rounds follow from it"


def _no_moments(config: Config) -> str | None:
    """Why features cannot be scaled by released moments; None: they can."""
    privacy = config.privacy
    if privacy.client_level:
        return "noise of moments would have to hide all records of a client"
    if privacy.enabled and privacy.epsilon is None and privacy.moments_noise is None:
        return "the noise of moments is a share of privacy.epsilon, which is not given"
    if not privacy.enabled and not config.masks and config.scheme != "plain":
        return "moments without noise would leave the clients in the open, and sums are encrypted"
    return None


def require_scaling(config: Config, schema: Schema) -> None:
    """Raise if features are to be scaled in a way in which they cannot be."""
    federation = config.federation
    if federation.precondition and federation.scaling == "none":
        rule = 'must not be true with federation.scaling = "none": features are whitened once they are standardised'
        raise InputError("federation.precondition", rule, True)
    if federation.scaling == "moments" and (obstacle := _no_moments(config)) is not None:
        raise InputError("federation.scaling", f"must be none here: {obstacle}", "moments")
    if federation.precondition and not _logistic(config, schema):
        rule = "must be false unless the model is logistic, for two classes: only its curvature is known beforehand"
        raise InputError("federation.precondition", rule, True)


def _logistic(config: Config, schema: Schema) -> bool:
    return config.model.name == "logistic" and schema.task == "binary"


def _steps_on_all(config: Config) -> bool:
    """Whether rates and rounds follow from scaled features: plain steps on the mean gradient of all records."""
    f, privacy = config.federation, config.privacy
    plain = f.optimizer == "fedavg" and f.local_optimizer == "sgd" and f.local_epochs == 1
    return plain and f.method in ("mmd_fedavg", "fedavg") and (not privacy.enabled or privacy.updates == "dp_sgd")


def _least_records(config: Config, features: int, clients: int) -> int:
    """From how many training records on products pay for themselves."""
    if not config.privacy.enabled or config.privacy.epsilon is None:
        return 1
    cohort, copies = cohort_of(config, clients), float(clients)
    if config.sums_counts and cohort is not None:
        copies = cohort.holders / cohort.honest
    budget = gaussian_budget(config.privacy.epsilon, config.privacy.delta) * math.sqrt(PRODUCTS_SHARE)
    return math.ceil(math.sqrt(copies) * math.pow(features + 1, 1.5) / budget)


def _precondition(config: Config, schema: Schema, clients: int) -> tuple[bool, str]:
    """Whether features are whitened, and why."""
    features, declared = len(schema.features), config.privacy.records
    if not _logistic(config, schema):
        return False, "only the curvature of logistic regression is known beforehand"
    if not _steps_on_all(config):
        return False, "steps are not those on the mean gradient of all records"
    if not config.privacy.enabled:
        return True, "products of features cost nothing without privacy"
    least = _least_records(config, features, clients)
    rule = f"{features} features at this ε need {least:,} training records for products to pay for themselves"
    if declared is None:
        return False, f"{rule}, and no number of records is declared (data.records)"
    found = round(declared * (1 - config.data.test_fraction))
    return found >= least, f"{rule}, and {found:,} are declared"


def _rates(config: Config, schema: Schema) -> dict[str, tuple[Any, str]]:
    """Rounds, step, clipping norm and so on, by key, each with its reason; of the model of which they are known."""
    whitened, inputs = bool(config.federation.precondition), len(schema.features) + 1
    if not (_logistic(config, schema) and _steps_on_all(config)):
        return {}
    why = "features are whitened" if whitened else f"features are standardised, and there are {inputs - 1} of them"
    found: dict[str, tuple[Any, str]] = {
        "federation.rounds": (ROUNDS_WHITENED if whitened else ROUNDS, why),
        "federation.learning_rate": (4.0 if whitened else 32.0 / inputs, why),
        "federation.average_last": (AVERAGED, "the mean of the last models has less noise than any of them"),
    }
    if config.privacy.enabled:
        found["privacy.max_grad_norm"] = (math.sqrt(inputs) / 2, why)
        found["privacy.sampling_rate"] = (1.0, "a step on all records has the most signal for its noise")
    else:
        found["federation.batch_size"] = (
            ALL_RECORDS,
            "a round is one step on all records, so that clients do not drift",
        )
    return found


def moments_plan(config: Config, features: tuple[str, ...], clients: int) -> MomentsPlan | None:
    """How sums of features are released in a settled configuration; None: features are as the encoder gives them."""
    if config.federation.scaling != "moments":
        return None
    if config.federation.method == "centralized":
        clients = 1
    cohort, precondition = cohort_of(config, clients), bool(config.federation.precondition)
    shape = (len(features), columns_of(features), precondition, clients)
    if cohort is None or not (config.sums_counts or not config.privacy.enabled):
        return MomentsPlan(*shape)
    return MomentsPlan(*shape, cohort.honest if config.privacy.enabled else 1, MODULUS, masked=True)


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


def for_given(config: Config, federation: Federation) -> Config:
    """The configuration for records that no loader of ours divided: the evaluation is not paid by one side alone.

    Nobody knows whether a record that was given for training was given for testing as well, or what their division
    looked at. Whoever names `privacy.evaluation_share = 1` declares that each record is on one side by itself.
    """
    if federation.loaded or not config.privacy.enabled or "evaluation_share" in config.privacy.model_fields_set:
        return config
    return with_keys(config, {"privacy.evaluation_share": config.privacy.evaluation_share})


def _test_records_pay(config: Config) -> bool:
    """Whether the evaluation may cost all of ε for nothing (`PrivateRun.sided`), and nobody said what it is to cost."""
    privacy, named = config.privacy, config.privacy.model_fields_set
    asked = {"evaluation_share", "evaluation_noise"} & named
    records = privacy.updates == "dp_sgd" and privacy.counts != "public" and config.fairness.tracker == "embedding"
    return privacy.epsilon is not None and privacy.evaluation != "none" and records and not asked


def _toml(value: Any) -> str:
    """A value as it is written in a configuration."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else f"{value}"
