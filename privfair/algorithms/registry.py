"""Algorithms by name."""

from __future__ import annotations

from accountant.errors import InputError
from privfair.algorithms.agnostic import Agnostic
from privfair.algorithms.embedding import EmbeddingTracking
from privfair.algorithms.fairfed import CONDITIONS, FairFed
from privfair.algorithms.fedavg import FedAvgOnly
from privfair.algorithms.fedfb import FedFB
from privfair.algorithms.local_fairness import Centralized, LocalFairness
from privfair.algorithms.mmd_fedavg import MmdFedAvg
from privfair.clients.task import TaskKind
from privfair.config import Config
from privfair.datasets.records import Schema
from privfair.fairness.cells import Cells
from privfair.fairness.embedding import EmbeddingPlan
from privfair.interfaces import Algorithm


def build_algorithm(config: Config, schema: Schema, cells: Cells, embedding: EmbeddingPlan | None = None) -> Algorithm:
    """The algorithm of a configuration; `embedding`: the features that it tracks, instead of scores."""
    fairness, federation = config.fairness, config.federation
    method, kernel, strength = federation.method, fairness.kernel, fairness.strength
    if method in ("fairfed", "fedfb"):
        _check_decisions(method, config, schema)
    _check_combination(config)
    if method == "mmd_fedavg" and embedding is not None:
        return EmbeddingTracking(strength, embedding, federation.drift_correction)
    match method:
        case "mmd_fedavg":
            return MmdFedAvg(
                strength=strength,
                kernel=kernel,
                samples=fairness.samples,
                drift=federation.drift_correction,
                quotas=fairness.quotas,
                domain=TaskKind.of(schema).score_range(cells.notion.score),
                seed=config.run.seed,
                rounds=federation.rounds,
                lagged=federation.lagged_scores,
            )
        case "fedavg":
            return FedAvgOnly()
        case "local_fairness":
            return LocalFairness(strength, kernel)
        case "centralized":
            return Centralized(strength, kernel)
        case "agnostic":
            return Agnostic(federation.agnostic_step, config.run.seed)
        case "fairfed":
            return FairFed(strength, kernel, federation.fairfed_beta, fairness.notion)
        case "fedfb":
            return FedFB(federation.fedfb_step, fairness.notion, len(schema.sensitive[0].values))


def _check_combination(config: Config) -> None:
    """Options that a method would ignore, or that would make it something else."""
    f = config.federation
    if f.optimizer == "scaffold" and f.local_optimizer != "sgd":
        rule = "must be sgd with scaffold, whose control variates are means of gradients as plain steps show them"
        raise InputError("federation.local_optimizer", rule, f.local_optimizer, "Use sgd, or another optimizer.")
    if f.method in ("agnostic", "fairfed") and f.optimizer == "scaffold":
        rule = f"must not be scaffold with {f.method}, whose weights move under the control variates"
        raise InputError("federation.optimizer", rule, f.optimizer)
    if f.method == "agnostic" and f.clients_per_round is not None:
        raise InputError("federation.clients_per_round", "must not be set for agnostic", f.clients_per_round)
    if f.method != "mmd_fedavg" and f.lagged_scores:
        raise InputError("federation.lagged_scores", "is for mmd_fedavg only", f.lagged_scores)
    if f.lagged_scores and config.fairness.tracker == "embedding":
        raise InputError("federation.lagged_scores", "is for the tracker of samples only", f.lagged_scores)
    if f.method != "mmd_fedavg" and config.fairness.tracker == "embedding":
        raise InputError("fairness.tracker", "must be samples for every method but mmd_fedavg", "embedding")
    if config.fairness.features is not None and config.fairness.tracker != "embedding":
        raise InputError("fairness.features", "is for the embedding tracker only", config.fairness.features)
    if f.method != "mmd_fedavg" and f.drift_correction != "none":
        raise InputError("federation.drift_correction", "is for mmd_fedavg only", f.drift_correction)


def _check_decisions(method: str, config: Config, schema: Schema) -> None:
    """FairFed and FedFB are defined on decisions and labels, for one attribute."""
    if schema.task != "binary":
        raise InputError("federation.method", f"{method} needs a binary label", schema.task)
    if config.fairness.notion not in CONDITIONS:
        known = ", ".join(CONDITIONS)
        raise InputError("fairness.notion", f"must be one of {known} for {method}", config.fairness.notion)
    if len(schema.sensitive) > 1:
        raise InputError("data.sensitive", f"must be one attribute for {method}", len(schema.sensitive))
