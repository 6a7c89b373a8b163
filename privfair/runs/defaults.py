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
from privfair.datasets.records import Schema
from privfair.fairness.notions import Notion
from privfair.mechanisms.moments import PRODUCTS_SHARE, MomentsPlan, columns_of, gaussian_budget
from privfair.privacy.requirements import require_masks
from privfair.secure_aggregation.masks import MODULUS, cohort_of


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
    if config.fairness.tracker is None:
        choose("fairness.tracker", *_tracker())
    if config.aggregation.scheme is None:
        reason = "the run is private, and nobody but the clients may open sums" if private else "the run is not private"
        choose("aggregation.scheme", config.scheme, reason)
    if config.aggregation.masks is None:
        choose("aggregation.masks", *_masks(config))
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
        choose("federation.lagged_scores", config.lagged, *_lag(config))
    if private and privacy.distributed_noise is None:
        choose("privacy.distributed_noise", config.masks, *_sharing(config))
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
            elif section != "privacy" or private:  # what it is anyway, and stays
                config = with_keys(config, {key: getattr(table, name)})
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


def _tracker() -> tuple[str, str]:
    return "samples", "it is the default"


def _masks(config: Config) -> tuple[bool, str]:
    if config.scheme == "masked":
        return True, "the scheme masked has nothing but masks"
    return False, "it is the default"


def _sharing(config: Config) -> tuple[str]:
    return ("with masks nobody sees a single part" if config.masks else "without masks single parts can be opened",)


def _lag(config: Config) -> tuple[str]:
    if config.lagged:
        return ("a masked sum takes two exchanges, of seconds each on Flower, and what lags needs no sum of its own",)
    return ("exchanges in one process take no time" if config.masks else "it is the default without masks",)


def _toml(value: Any) -> str:
    """A value as it is written in a configuration."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else f"{value}"
