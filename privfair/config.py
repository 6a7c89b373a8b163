"""Configuration: validated TOML. Every key has a default; an unknown one is an error that suggests the nearest name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from accountant.errors import InputError
from privfair.util import toml_value, why_unreadable

# Large enough for every use, and small enough that a slip of the keyboard is refused before it fills the memory or the
# numbers overflow: what is kept of a run grows with its rounds (rows of the history, of the forecast and of the
# ledger), and the batched engine lays out all minibatches and all noise of a client's steps of a round beforehand.
MOST_ROUNDS = 100_000
MOST_EPOCHS = 10_000
MOST_LOCAL_STEPS = 10_000
MOST_RECORDS = 10**12  # more than there are; products of it are still integers of 64 bits
MOST_STEP = 1e6  # step sizes: float32 ends at 3e38, and steps meet gradients and each other
MOST_SECONDS = 1e7  # four months: clocks overflow at some time

COMPLETE_UP_TO = 1_000  # holders that all mask with each other; of more, each masks with a few neighbours

Method = Literal["mmd_fedavg", "fedavg", "local_fairness", "centralized", "agnostic", "fairfed", "fedfb"]


# Other names of a notion in the literature; outputs, names of runs and digests have the one on the right.
NOTION_ALIASES = {
    "demographic_parity": "statistical_parity",
    "conditional_demographic_parity": "conditional_statistical_parity",
}


# what follows from scaled features, where it is not named
RATES = (
    ("federation", "rounds"),
    ("federation", "learning_rate"),
    ("federation", "average_last"),
    ("federation", "batch_size"),
    ("privacy", "max_grad_norm"),
    ("privacy", "sampling_rate"),
)


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class DataConfig(Section):
    """[data]: the dataset and its options (`privfair data list` shows them)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "synthetic"
    test_fraction: float = Field(0.25, ge=0, lt=1)

    @property
    def options(self) -> dict[str, Any]:
        """What goes to the dataset's own loader."""
        options = dict(self.model_extra or {})
        if "seed" in options:
            raise InputError("data.seed", "is not an option of a dataset", options["seed"], "Set run.seed.")
        return options


class ModelConfig(Section):
    """[model]"""

    name: str = "logistic"
    hidden: tuple[int, ...] = (16,)

    @field_validator("hidden")
    @classmethod
    def _positive(cls, hidden: tuple[int, ...]) -> tuple[int, ...]:
        if any(width < 1 for width in hidden):
            raise ValueError("widths of hidden layers must be 1 or more")
        return hidden


class FairnessConfig(Section):
    """[fairness]"""

    notion: str = "statistical_parity"
    strength: float = Field(1.0, ge=0, alias="lambda")
    target: float | None = Field(
        None, gt=0, lt=1
    )  # the largest gap of the notion between decisions in the population; in place of lambda
    kernel: str = "energy"
    # what is shared of a group each round: scores of some records, or the mean of features of all scores
    tracker: Literal["samples", "embedding"] | None = None  # settled when a run begins
    samples: int = Field(100, ge=1, le=MOST_RECORDS)
    features: int | None = Field(None, ge=1, le=64)  # embedding: default as many as the kernel needs
    quotas: Literal["random", "largest_remainder"] = "random"

    @field_validator("notion")
    @classmethod
    def _one_name(cls, notion: str) -> str:
        return NOTION_ALIASES.get(notion, notion)


class FederationConfig(Section):
    """[federation]"""

    method: Method = "mmd_fedavg"
    optimizer: Literal["fedavg", "fedprox", "scaffold", "fedadam", "fedavgm"] = "fedavg"
    rounds: int = Field(100, ge=1, le=MOST_ROUNDS)
    local_epochs: int = Field(1, ge=1, le=MOST_EPOCHS)
    batch_size: int = Field(100, ge=1, le=MOST_RECORDS)
    learning_rate: float = Field(0.05, gt=0, le=MOST_STEP)
    learning_rate_decay: float = Field(1.0, gt=0, le=1)
    local_optimizer: Literal["sgd", "adam"] = "sgd"
    average_last: float = Field(0.0, ge=0, le=1)  # the result is the mean of the models of this share of the rounds
    server_learning_rate: float | None = Field(None, gt=0, le=MOST_STEP)
    clients_per_round: int | None = Field(None, ge=1, le=MOST_RECORDS)
    # default: shared where a target is followed without DP-SGD, and none otherwise
    drift_correction: Literal["none", "own", "shared"] | None = None
    # scores, or sums of features, under the model of the round before: they leave with its updates, in one exchange;
    # default: with masks on Flower, where each exchange takes seconds and each sum two of them
    lagged_scores: bool | None = None
    # moments: features are standardised by sums of them that are released once; default: with fairness.target
    scaling: Literal["moments", "none"] | None = None
    # logistic regression: standardised features are whitened by released products of them; default: with
    # fairness.target, where the declared number of records is large enough
    precondition: bool | None = None
    proximal: float = Field(0.01, ge=0, le=MOST_STEP)  # FedProx: μ
    agnostic_step: float = Field(0.01, gt=0, le=MOST_STEP)  # agnostic: step γτ of the clients' weights
    fairfed_beta: float = Field(1.0, ge=0, le=MOST_STEP)
    fedfb_step: float = Field(0.1, gt=0, le=MOST_STEP)  # FedFB: α


class PrivacyConfig(Section):
    """[privacy]: off until `epsilon` or noise scales are given."""

    epsilon: float | None = Field(None, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    # how many records all data holders have together, if that is public: δ must be below 1/records, and stays as it is;
    # without it a run whose released counts add up to n ≥ 1/δ uses δ = 1/(10·n). data.records means the same,
    # but for synthetic data
    records: int | None = Field(None, ge=1, le=MOST_RECORDS)
    target_method: Literal["pld", "rdp"] = "pld"
    counts: Literal["laplace", "gaussian", "public"] = "laplace"
    predictions: Literal["gaussian", "laplace", "none"] = "gaussian"
    updates: Literal["dp_sgd", "client_level", "none"] = "dp_sgd"  # client_level: whole clients are protected
    # default: gaussian where records are protected and there are decisions to count (the verdict rests on it)
    evaluation: Literal["none", "laplace", "gaussian"] = "none"
    # noise: alone it makes the run private and its ε is reported; with epsilon it is fixed and the rest is calibrated
    count_noise: float | None = Field(None, gt=0)  # scale, in records
    prediction_noise: float | None = Field(None, gt=0)  # scale, in units of the score; embedding: of one record's part
    noise_multiplier: float | None = Field(
        None, gt=0
    )  # noise scale over max_grad_norm; client level: of the sum, over the largest part of one
    evaluation_noise: float | None = Field(None, gt=0)  # scale, in records
    moments_noise: float | None = Field(None, gt=0)  # federation.scaling: scale over the largest part of a record
    products_noise: float | None = Field(None, gt=0)  # federation.precondition: the same
    # how much of epsilon a channel may cost by itself; updates get what is left
    count_share: float = Field(0.05, gt=0, lt=1)
    prediction_share: float | None = Field(None, gt=0, lt=1)  # default: 0.5 for scores, 0.3 for sums of features
    # 1: all of it, from the account of the test records, of which nothing else is released; a record pays once
    evaluation_share: float = Field(0.05, gt=0, le=1)
    # public sampling; without them a second phase plans it from the released counts
    sampling_rate: float | None = Field(None, gt=0, le=1)  # DP-SGD: how likely a record is in a minibatch
    # DP-SGD: steps a round; default: epochs / sampling rate
    local_steps: int | None = Field(None, ge=1, le=MOST_LOCAL_STEPS)
    prediction_rate: float | None = Field(None, gt=0, le=1)  # how likely a record's score is shared in a round
    # one rate for the scores of all groups, so that a small group pays no more ε than a large one; rates from
    # prediction_rate and sums of features (the embedding tracker) are the same for all groups anyway
    equalise_groups: bool = False
    max_grad_norm: float = Field(1.0, gt=0)
    max_update_norm: float = Field(
        1.0, gt=0
    )  # client level: a client's change of all parameters in a round is cut to it
    score_range: tuple[float, float] | None = None  # to clip scores that have no range of their own
    kernel_correction: Literal["none", "deconvolve"] = "none"
    # clients add shares of the noise to sums, not all of it each; default: with masks, where nobody sees the parts
    distributed_noise: bool | None = None
    smallest_cohort: int | None = Field(None, ge=3)  # of noise in shares: no sum of fewer clients opens
    min_count: int = Field(10, ge=1, le=MOST_RECORDS)  # clients and cells with a smaller released count are dropped
    retries: int = Field(
        1, ge=0, le=MOST_ROUNDS
    )  # releases a client may repeat because a crash lost them; part of the plan
    dataset: str | None = None  # its name in the ledger; default: the name of the data
    # true: only with a budget in this ledger; false: also data that have a budget elsewhere on this machine, without it
    require_budget: bool | None = None  # default: true for data that ever had a budget on this machine

    @property
    def noise(self) -> dict[str, float | None]:
        """The noise scales by key."""
        first = ("count_noise", "prediction_noise", "noise_multiplier", "evaluation_noise")
        return {key: getattr(self, key) for key in (*first, "moments_noise", "products_noise")}

    @property
    def enabled(self) -> bool:
        """Whether the run is private."""
        return self.epsilon is not None or any(value is not None for value in self.noise.values())

    @property
    def client_level(self) -> bool:
        """Whether whole clients are protected, and not single records."""
        return self.enabled and self.updates == "client_level"


class AggregationConfig(Section):
    """[aggregation]: how updates are added up."""

    # default: bfv for a private run, plain for another; masked: masks without encryption, and a pad that hides the sum
    scheme: Literal["bfv", "ckks", "masked", "plain"] | None = None
    # masks hide every single contribution: the server with at most `colluders` of the clients learns the sum alone;
    # default: in a private run of three clients or more, unless another key rules it out
    masks: bool | None = None
    colluders: int | None = Field(None, ge=1)  # with masks; default: a third of the clients, at least 1
    smallest_cohort: int | None = Field(None, ge=3)  # with masks: no sum of fewer clients opens; default: nine tenths
    quantise: bool = False  # plain only: round as the encrypted schemes do, for equal results
    range: float = Field(8.0, gt=0)  # a client's change of one parameter in one round is clamped to ±range
    keys: str | None = None  # folder of `privfair keys new`; default: keys made for the run
    # masks on several machines: every data holder's public key, by its name (`privfair keys identity`); a simulation
    # makes its own
    identities: dict[str, str] | None = None


class RunConfig(Section):
    """[run]"""

    seed: int = Field(0, ge=0)
    reproducible_noise: bool = False  # seed private sampling and noise too: voids every ε claim
    ledger: str | None = None  # default: $PRIVFAIR_LEDGER, or privfair-ledger.sqlite in this folder
    key: str | None = None  # the owner's key file, for signed ledgers and for fingerprints
    out: str | None = None
    engine: Literal["local", "stacked", "flower", "flower-simulation"] = "local"
    clients: tuple[str, ...] | None = None  # Flower: the data holders' names, in their order; part of the plan
    # Flower: how many must be there to begin, and train in every round; default: all to begin, then at least one
    min_clients: int | None = Field(None, ge=1)
    wait: float = Field(120.0, gt=0, le=MOST_SECONDS)  # Flower: how many seconds to wait for them; then the run stops
    # Flower: how many seconds a client has for an answer; clients that respond later are dropped from the round
    deadline: float = Field(600.0, gt=0, le=MOST_SECONDS)
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: int = Field(1, ge=1)


class Config(Section):
    """A whole run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    fairness: FairnessConfig = FairnessConfig.model_construct()
    federation: FederationConfig = FederationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    aggregation: AggregationConfig = AggregationConfig()
    run: RunConfig = RunConfig()

    @property
    def scheme(self) -> Literal["bfv", "ckks", "masked", "plain"]:
        """How updates are added up."""
        return self.aggregation.scheme or ("bfv" if self.privacy.enabled else "plain")

    @property
    def masks(self) -> bool:
        """Whether contributions to sums are masked, so that nobody can open a single one."""
        return bool(self.aggregation.masks) or self.scheme == "masked"

    @property
    def masks_in_the_open(self) -> bool:
        """Whether masked sums are of integers as they are: the stacked engine has the law of such a run alone."""
        return self.masks and self.run.engine == "stacked"

    @property
    def asks_for_scaling(self) -> bool:
        """Whether features are to be scaled by released moments, or not, by a rule: asked for, or for a target."""
        federation = self.federation
        if federation.scaling is None and federation.precondition is None:
            return self.fairness.target is not None
        return True

    @property
    def lagged(self) -> bool:
        """Whether what is shared for fairness is that under the model of the round before."""
        asked = self.federation.lagged_scores
        far = self.masks and self.run.engine.startswith("flower") and self.federation.method == "mmd_fedavg"
        return far if asked is None else asked

    @property
    def joins_features(self) -> bool:
        """Whether lagged features are in one vector with the updates: under masks, so that there is one sum."""
        return self.lagged and self.masks and self.fairness.tracker == "embedding"

    @property
    def shares_noise(self) -> bool:
        """Whether clients add only a share of the noise of sums each: where asked for, and with masks unless not."""
        asked = self.privacy.distributed_noise
        return self.privacy.enabled and (self.masks if asked is None else asked)

    @property
    def shares_scores(self) -> bool:
        """Whether clients share single scores: then rates, quotas and weights follow from the counts of each."""
        return self.federation.method == "mmd_fedavg" and self.fairness.tracker != "embedding"

    @property
    def sums_counts(self) -> bool:
        """Whether counts and evaluation are released as totals over all clients, with noise in shares."""
        return self.masks and self.shares_noise and not self.privacy.client_level and not self.shares_scores

    @property
    def sums_gradients(self) -> bool:
        """Whether a round is one step of DP-SGD on the sum of all clients' gradients, with noise in shares."""
        one_step = self.privacy.local_steps in (None, 1) and self.federation.local_optimizer == "sgd"
        return self.masks and self.shares_noise and self.privacy.updates == "dp_sgd" and one_step

    @property
    def whole_sums(self) -> bool:
        """Whether updates are added up as integers: encryption needs that, and integer noise does."""
        return self.scheme != "plain" or self.aggregation.quantise or self.privacy.client_level or self.sums_gradients

    @staticmethod
    def read(path: Path, overrides: Sequence[str] = ()) -> Config:
        """From a TOML file, with `section.key=value` overrides."""
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise InputError("config", "must be a TOML file that exists", str(path)) from None
        except (tomllib.TOMLDecodeError, ValueError, OSError, RecursionError) as error:
            raise InputError("config", f"must be a readable TOML file ({why_unreadable(error)})", str(path)) from None
        return Config.build(tree, overrides)

    @staticmethod
    def build(tree: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
        """From nested tables, with overrides; whatever is wrong becomes an `InputError`."""
        if not isinstance(tree, Mapping):
            raise InputError("config", "must be tables of keys", tree)
        for section, table in tree.items():
            if not isinstance(section, str):
                raise InputError("section of the config", "must be text", section)
            if not isinstance(table, Mapping):
                raise InputError(str(section), "must be a table of keys", table, 'For example {"name": "compas"}.')
        merged = with_overrides(tree, overrides)
        _declare_records(merged)
        try:
            config = Config.model_validate(merged)
        except ValidationError as error:
            raise _explained(error) from None
        fairness = config.fairness
        if fairness.target is not None and "strength" in fairness.model_fields_set:
            rule, remedy = "must be left out beside fairness.target", "λ follows the target: name one of the two."
            raise InputError("fairness.lambda", rule, fairness.strength, remedy)
        return config

    @property
    def undecided(self) -> tuple[tuple[str, str], ...]:
        """(section, key) of unnamed keys whose being named would decide more than their value, in an open question.

        To name the number of scores asks for scores to be shared; to name the noise of counts may exclude masks. Rates
        and rounds follow from scaled features, unless they are named.
        """
        tracker = (("fairness", "samples"), ("fairness", "quotas")) if self.fairness.tracker is None else ()
        masks = (("privacy", "counts"),) if self.aggregation.masks is not False else ()
        step = (("federation", "learning_rate"),) if self.open_learning_rate else ()
        evaluation = (("privacy", "evaluation"),)
        # λ is never named beside a target
        followed = (("fairness", "lambda"), ("federation", "average_last"), ("privacy", "evaluation_share"))
        target = followed if self.fairness.target is not None else ()
        rates = RATES if self.asks_for_scaling else ()
        found = dict.fromkeys((*tracker, *masks, *step, *evaluation, *target, *rates))
        return tuple(one for one in found if one[1] not in getattr(self, one[0]).model_fields_set)

    @property
    def open_learning_rate(self) -> bool:
        """Whether the step size is settled with the masks: where nobody named it, a step on sums has another one."""
        named = "learning_rate" in self.federation.model_fields_set
        return self.privacy.enabled and self.aggregation.masks is not False and not named

    def as_tables(self) -> dict[str, Any]:
        """Nested plain values, without the keys that have no value; what `config.toml` of a run holds."""
        tables = self.model_dump(mode="json", by_alias=True)
        if not self.privacy.enabled:  # keys without effect are not written
            tables["privacy"] = self.privacy.model_dump(mode="json", exclude_unset=True)
        for section, key in self.undecided:
            tables[section].pop(key, None)
        return {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}


def _declare_records(tree: dict[str, Any]) -> None:
    """Move data.records to privacy.records: it is of all data holders together, and so a part of the plan they share.

    Of synthetic data it is the number of records to make for a client, and stays.
    """
    data = tree.get("data", {})
    if "records" not in data or data.get("name", "synthetic") == "synthetic":
        return
    declared = tree["data"].pop("records")
    if tree.setdefault("privacy", {}).setdefault("records", declared) != declared:
        raise InputError("data.records", f"must be privacy.records, {tree['privacy']['records']}", declared)


def with_overrides(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The tables with `section.key=value` overrides, as new ones."""
    merged = {section: dict(table) for section, table in tree.items()}
    for override in overrides:
        _override(merged, override)
    return merged


def _override(tree: dict[str, Any], text: str) -> None:
    """Apply one `section.key=value`; the value in TOML, or a bare word."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not dot:
        raise InputError("--set", "must look like section.key=value", text, "For example fairness.lambda=0.5.")
    tree.setdefault(section, {})[key] = toml_value(value)


def _explained(error: ValidationError) -> InputError:
    """The first problem, with the nearest name for an unknown key."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        found = problem["input"]
        if len(problem["loc"]) > 2:  # in a list: a part of what may be a record
            found = f"a value of type {type(found).__name__}"
        return InputError(where or "config", _rule(problem["msg"]), found)
    known = _known_keys(problem["loc"])
    close = get_close_matches(str(problem["loc"][-1]), known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return InputError(where, "is not a key that is known here", problem["input"], f"{hint}Known: {', '.join(known)}.")


def _rule(message: str) -> str:
    """Pydantic's words as a rule."""
    message = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return f"must be {message}" if message.startswith(("a ", "greater", "less", "'")) else f"is wrong: {message}"


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    """The keys of the table in which a key was unknown."""
    fields = Config.model_fields
    if len(location) == 1:
        return list(fields)
    section: Any = fields[location[0]].annotation
    return [field.alias or name for name, field in section.model_fields.items()]
