"""What cannot be combined, or made private, and why."""

from __future__ import annotations

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.records import Federation, Schema
from privfair.fairness.notions import Notion
from privfair.federated.algorithms.baselines import CONDITIONS
from privfair.federated.exchange import Algorithm

_SET_BY_EPSILON = ("counts", "predictions", "updates", "evaluation")


def require_decided(config: Config) -> None:
    """Raise if mechanisms were chosen without a target ε and without noise."""
    privacy = config.privacy
    if privacy.enabled:
        return
    chosen = [
        k for k in _SET_BY_EPSILON if k in privacy.model_fields_set and getattr(privacy, k) not in ("none", "public")
    ]
    if chosen:
        remedy = "Give privacy.epsilon, the budget of the whole run, or noise scales (privacy.noise_multiplier, …)."
        raise InputError(f"privacy.{chosen[0]}", "needs a budget or noise to be private", "neither", remedy)
    if config.run.reproducible_noise:
        raise InputError("run.reproducible_noise", "is for private runs", True, "Give privacy.epsilon.")


def require_combination(config: Config) -> None:
    """Raise if options are set that a method would ignore, or that would make it something else."""
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
    if f.method != "mmd_fedavg" and config.fairness.tracker == "embedding":
        raise InputError("fairness.tracker", "must be samples for every method but mmd_fedavg", "embedding")
    if config.fairness.features is not None and config.fairness.tracker != "embedding":
        raise InputError("fairness.features", "is for the embedding tracker only", config.fairness.features)
    if f.method != "mmd_fedavg" and f.drift_correction != "none":
        raise InputError("federation.drift_correction", "is for mmd_fedavg only", f.drift_correction)


def require_decisions(method: str, config: Config, schema: Schema) -> None:
    """Raise unless there is what FairFed and FedFB are defined on: decisions and labels, and one attribute."""
    if schema.task != "binary":
        raise InputError("federation.method", f"{method} needs a binary label", schema.task)
    if config.fairness.notion not in CONDITIONS:
        known = ", ".join(CONDITIONS)
        raise InputError("fairness.notion", f"must be one of {known} for {method}", config.fairness.notion)
    if len(schema.sensitive) > 1:
        raise InputError("data.sensitive", f"must be one attribute for {method}", len(schema.sensitive))


def require_separate(notion: Notion, federation: Federation) -> None:
    """Raise if the conditioning sets of a custom notion look at several records at once."""
    for client in federation.clients:
        if notion.couples_records(client.train):
            rule = "must put each record into its sets by itself, whatever other records there are"
            raise InputError("notion", rule, notion.name, "Compare with a constant, not with a mean over records.")


def require_private(config: Config, algorithm: Algorithm, task: str) -> None:
    """Raise, with the reason, unless every number in this method's messages has a price."""
    name, federation = algorithm.name, config.federation
    remedy = "Use mmd_fedavg or fedavg, or train without privacy."
    if name == "centralized":
        raise InputError("federation.method", "must have data holders to be private", name, remedy)
    if algorithm.measures:
        rule = f"must send nothing without noise, and {name} sends local figures ({', '.join(algorithm.measures)})"
        raise InputError("federation.method", rule, name, remedy)
    if config.privacy.client_level:
        _require_whole_clients(config)
    elif config.privacy.distributed_noise and config.fairness.tracker != "embedding" and not _sums_alone(config):
        rule = "is for the embedding tracker only, or for updates of whole clients"
        raise InputError("privacy.distributed_noise", rule, True)
    if config.privacy.smallest_cohort is not None and not (config.privacy.distributed_noise or config.masks):
        raise InputError("privacy.smallest_cohort", "is for distributed noise only", config.privacy.smallest_cohort)
    if config.fairness.tracker == "embedding":
        _require_gaussian_sums(config)
    if config.privacy.evaluation != "none" and task != "binary":
        rule = "must be none for regression: it counts decisions"
        raise InputError("privacy.evaluation", rule, config.privacy.evaluation)
    if not algorithm.per_example and not config.privacy.client_level:
        rule = "must have a loss for each record by itself, and its penalty couples the records of a minibatch"
        raise InputError("federation.method", rule, name, remedy)
    if federation.drift_correction != "none" and config.privacy.updates == "dp_sgd":
        rule = "must be none with DP-SGD: it makes one record's gradient depend on the client's other records"
        remedy = "Use few local steps and a smaller learning rate instead."
        raise InputError("federation.drift_correction", rule, federation.drift_correction, remedy)
    if federation.optimizer == "scaffold":
        rule = "must not be scaffold: control variates are a second message of every client, and have no price"
        raise InputError("federation.optimizer", rule, "scaffold", "Use fedavg, fedprox, fedadam or fedavgm.")


def require_masks(config: Config, clients: int) -> None:
    """Raise if masks are asked for where they cannot be, or their options where there are none."""
    sums = config.aggregation
    if sums.masks is False and config.scheme == "masked":
        rule = 'must not be false with aggregation.scheme = "masked", which has nothing but masks'
        raise InputError("aggregation.masks", rule, False, "Leave it out, or take scheme bfv.")
    if not config.masks:
        for key in ("colluders", "smallest_cohort"):
            if getattr(sums, key) is not None:
                rule, remedy = "is for masks only", "Set aggregation.masks = true, or leave it out."
                raise InputError(f"aggregation.{key}", rule, getattr(sums, key), remedy)
        return
    if config.scheme not in ("bfv", "masked"):
        rule = "must be bfv or masked with aggregation.masks: masks are numbers modulo a prime"
        raise InputError("aggregation.scheme", rule, config.scheme, "Set one of them, or aggregation.masks = false.")
    if clients < 3:
        rule = "must be at least 3 with aggregation.masks: of two each knows the other's vector from the sum"
        raise InputError("clients", rule, clients, "Bring more clients, or set aggregation.masks = false.")
    if sums.smallest_cohort is not None and config.privacy.smallest_cohort is not None:
        rule = "must not be set beside aggregation.smallest_cohort: with masks they are the same"
        raise InputError("privacy.smallest_cohort", rule, config.privacy.smallest_cohort, "Leave one of them out.")
    trained = config.federation.clients_per_round
    if trained is not None and trained < clients:
        rule = f"must be left out with aggregation.masks, or be all {clients} clients: a sum of fewer does not open"
        raise InputError("federation.clients_per_round", rule, trained, "Or set aggregation.masks = false.")


def _sums_alone(config: Config) -> bool:
    """Whether a run with masks releases nothing but sums: counts, gradients, and no scores."""
    return config.sums_gradients and config.federation.method == "fedavg"


def _require_whole_clients(config: Config) -> None:
    """Raise unless every number that leaves has a bound on how much a whole client can change it."""
    privacy = config.privacy
    if privacy.counts != "public":
        rule = 'must be public with updates = "client_level": noise on counts hides one record, not all of a client'
        remedy = 'A client may have any number of records. Declare them public (privacy.counts = "public").'
        raise InputError("privacy.counts", rule, privacy.counts, remedy)
    if privacy.evaluation != "none":
        rule = 'must be none with updates = "client_level": noise on its counts hides one record, not all of a client'
        raise InputError("privacy.evaluation", rule, privacy.evaluation)
    if config.scheme == "ckks":
        rule = 'must be bfv or plain with updates = "client_level": noise is on whole numbers'
        raise InputError("aggregation.scheme", rule, "ckks")
    for key in ("sampling_rate", "local_steps"):
        if getattr(privacy, key) is not None:
            rule = 'is for DP-SGD: with updates = "client_level" clients train as without privacy'
            raise InputError(f"privacy.{key}", rule, getattr(privacy, key), "Leave it out; see federation.batch_size.")
    samples = config.federation.method == "mmd_fedavg" and config.fairness.tracker == "samples"
    if privacy.distributed_noise and samples and privacy.predictions != "none":
        rule = "must not be samples with noise in shares: every client adds all noise of its scores itself"
        remedy = 'Set fairness.tracker = "embedding", whose sums are added under encryption.'
        raise InputError("fairness.tracker", rule, "samples", remedy)


def _require_gaussian_sums(config: Config) -> None:
    """Raise if options are set that sums of features do not use."""
    privacy = config.privacy
    if privacy.predictions == "laplace":
        rule = "must be gaussian for the embedding tracker: vectors are bounded in Euclidean length"
        raise InputError("privacy.predictions", rule, "laplace")
    if privacy.prediction_rate is not None:
        rule = "must not be set for the embedding tracker: the features of every record are in the sum"
        raise InputError("privacy.prediction_rate", rule, privacy.prediction_rate)
    if privacy.kernel_correction != "none":
        rule = "must be none for the embedding tracker: its noise does not change the kernel"
        raise InputError("privacy.kernel_correction", rule, privacy.kernel_correction)
