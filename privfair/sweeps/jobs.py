"""What a sweep consists of: one job per run, and the grid λ × seeds × methods × ε that makes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from accountant.errors import InputError
from privfair.config import Config, Method

METHODS: tuple[str, ...] = get_args(Method)
WITHOUT_LAMBDA = frozenset({"fedavg", "agnostic", "fedfb"})  # they do not use λ: one point each
NOT_COVERED = "hyper-parameters chosen on this data: not covered by the ε of any single run"
ONLY_TRACKING = (
    ("federation", "drift_correction"),
    ("federation", "lagged_scores"),
    ("fairness", "tracker"),
    ("fairness", "features"),
)


class Key(NamedTuple):
    """What identifies a run in the journal."""

    series: str
    value: float | None
    seed: int
    epsilon: float


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    series: the line of the figure it belongs to. parameter, value: what is varied along that line.
    epsilon: the target ε, infinite without privacy.
    """

    series: str
    parameter: str
    value: float | None
    epsilon: float
    config: Config = field(repr=False)

    @property
    def key(self) -> Key:
        """What identifies the run."""
        return Key(self.series, self.value, self.config.run.seed, self.epsilon)

    def columns(self) -> dict[str, Any]:
        """The part of its row in the journal that is known before it runs."""
        method, strength = self.config.federation.method, self.config.fairness.strength
        return {
            "series": self.series,
            "method": method,
            "parameter": self.parameter,
            "value": self.value,
            "lambda": None if method in WITHOUT_LAMBDA else strength,
            "seed": self.config.run.seed,
            "epsilon_target": self.epsilon,
        }


@dataclass(frozen=True)
class Grid:
    """λ × seeds × methods × ε. Methods that do not use λ have one point for all λ."""

    strengths: tuple[float, ...]
    seeds: int
    methods: tuple[str, ...]
    epsilons: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check everything before anything runs."""
        for value in self.strengths:
            if not math.isfinite(value) or value < 0:
                raise InputError("--lambdas", "must be finite numbers, 0 or more", value)
        for value in self.epsilons:
            if not value > 0:
                raise InputError("--epsilons", "must be above 0, or inf for no privacy", value)
        if self.seeds < 1:
            raise InputError("--seeds", "must be 1 or more", self.seeds)
        for method in self.methods:
            if method not in METHODS:
                raise InputError("--methods", f"must be among {', '.join(METHODS)}", method)
        lists: tuple[tuple[str, Sequence[Any]], ...] = (
            ("--lambdas", self.strengths), ("--methods", self.methods), ("--epsilons", self.epsilons),
        )  # fmt: skip
        for name, values in lists:
            if not values:
                raise InputError(name, "must have one value or more", "none")
            if len(set(values)) < len(values):
                raise InputError(name, "must have each value once", ",".join(f"{v}" for v in values))

    def jobs(self, base: Config) -> list[Job]:
        """All runs, seeds outermost: a sweep that is stopped early has whole frontiers of fewer seeds."""
        return [
            self._job(base, seed, epsilon, method, strength)
            for seed in range(base.run.seed, base.run.seed + self.seeds)
            for epsilon in self.epsilons
            for method in self.methods
            for strength in (self.strengths[:1] if method in WITHOUT_LAMBDA else self.strengths)
        ]

    def _job(self, base: Config, seed: int, epsilon: float, method: str, strength: float) -> Job:
        tables = base.as_tables()
        tables["run"] |= {"seed": seed}
        if "engine" not in base.run.model_fields_set:  # made for sweeps
            tables["run"]["engine"] = "stacked"
        if "evaluate_every" not in base.run.model_fields_set:  # a sweep needs the last round only
            tables["run"]["evaluate_every"] = tables["federation"]["rounds"]
        tables["federation"] |= {"method": method}
        tables["fairness"] |= {"lambda": strength}
        if math.isinf(epsilon):
            # these keys say which ledger's budget may forbid the sweep
            asked = {"dataset": base.privacy.dataset, "require_budget": base.privacy.require_budget}
            drop_privacy(tables)
            tables["privacy"] = {name: value for name, value in asked.items() if value is not None}
        else:
            tables["privacy"] |= {"epsilon": epsilon}
        if method != "mmd_fedavg":
            _drop_tracking(tables)
        value = None if method in WITHOUT_LAMBDA else strength
        return Job(method, "lambda", value, epsilon, Config.build(tables))


def drop_privacy(tables: dict[str, Any]) -> None:
    """Remove what only a private run has: noise, its seed, and masks."""
    tables["privacy"], tables["run"]["reproducible_noise"] = {}, False
    for key in ("masks", "colluders", "smallest_cohort"):
        tables["aggregation"].pop(key, None)
    if tables["aggregation"].get("scheme") == "masked":
        del tables["aggregation"]["scheme"]


def _drop_tracking(tables: dict[str, Any]) -> None:
    """Remove the options that only fairness tracking has: other methods would refuse them."""
    for section, key in ONLY_TRACKING:
        tables[section].pop(key, None)
    if tables["privacy"].get("updates") != "client_level":  # whole updates can have distributed noise, too
        for key in ("distributed_noise", "smallest_cohort"):
            tables["privacy"].pop(key, None)


def default_epsilon(base: Config) -> float:
    """The ε of a configuration: infinite without privacy."""
    if base.privacy.enabled and base.privacy.epsilon is None:
        remedy = "Give --epsilons, or privacy.epsilon; a sweep compares budgets, not noise scales."
        raise InputError("privacy", "must have an epsilon to be swept", "noise scales alone", remedy)
    return base.privacy.epsilon or math.inf
