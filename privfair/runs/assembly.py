"""Algorithms by name."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np

from accountant.errors import InputError
from privfair.channels.base import PlannedRequests, ReplyCheck
from privfair.channels.features import EMBEDDINGS
from privfair.channels.updates import UPDATES
from privfair.channels.workload import Workload
from privfair.clients.client import Client
from privfair.clients.dp_sgd import require_private_model
from privfair.clients.embedder import Embedder
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Schema
from privfair.datasets.registry import load as load_dataset
from privfair.engines.evaluation import Evaluator
from privfair.engines.local import InProcess
from privfair.fairness.notions import Cells, Notion, notion_by_name, require_own_name
from privfair.fairness.tracking import EmbeddingPlan
from privfair.federated.algorithms.baselines import (
    CONDITIONS,
    Agnostic,
    Centralized,
    FairFed,
    FedAvgOnly,
    FedFB,
    LocalFairness,
)
from privfair.federated.algorithms.mmd_fedavg import EmbeddingTracking, MmdFedAvg, with_adder
from privfair.federated.exchange import Metered
from privfair.federated.interfaces import Algorithm, Backend, FederatedOptimizer
from privfair.federated.model_state import Replica
from privfair.federated.optimizers import optimizer_by_name
from privfair.federated.round import ExactCounts, HeldByClients, HeldByServer, ModelHolder, Negotiator, Schedule, Server
from privfair.kernels.families import parse_kernel
from privfair.mechanisms.vector_release import DEFAULT_STEPS, UpdatePlan
from privfair.models import FlatModel, TaskKind, build_module, torch_type
from privfair.privacy.ledger_gateway import LedgerGateway
from privfair.privacy.negotiation import PrivateCounts
from privfair.privacy.planner import Planner
from privfair.privacy.requirements import require_decided, require_private, require_separate
from privfair.privacy.run_ledger import PrivateSide, RunLedger, entropy_of, named_run, require_no_budget
from privfair.run_names import beginning_of
from privfair.secure_aggregation import (
    MODULI,
    ClientAggregator,
    FixedPoint,
    KeyPair,
    WholeNumbers,
    aggregators,
    load_client,
    load_server,
    new_keys,
)
from privfair.util import FloatArray


def build_algorithm(
    config: Config, schema: Schema, cells: Cells, plan: Schedule, embedding: EmbeddingPlan | None = None
) -> Algorithm:
    """The algorithm of a configuration; `embedding`: the features that it tracks, instead of scores."""
    fairness, federation = config.fairness, config.federation
    method, kernel, strength = federation.method, fairness.kernel, fairness.strength
    if method in ("fairfed", "fedfb"):
        _check_decisions(method, config, schema)
    _check_combination(config)
    if method == "mmd_fedavg" and embedding is not None:
        return EmbeddingTracking(strength, embedding, federation.drift_correction, PlannedRequests(plan))
    match method:
        case "mmd_fedavg":
            return MmdFedAvg(
                strength=strength,
                kernel=kernel,
                drift=federation.drift_correction,
                domain=TaskKind.of(schema).score_range(cells.notion.score),
                seed=config.run.seed,
                rounds=federation.rounds,
                requests=PlannedRequests(plan),
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


# What follows from configuration and schema alone: the same at the server and at every client, wherever they are.


ROOM = 50_000  # records of one client whose features a sum has room for, where integers are bounded by encryption


@dataclass(frozen=True)
class RunSpec:
    """The method of a run, without data and without keys."""

    config: Config
    schema: Schema
    clients: int
    cells: Cells
    algorithm: Algorithm
    optimizer: FederatedOptimizer
    plan: Schedule
    fixed_point: FixedPoint | WholeNumbers | None  # how updates become integers; None: as they are
    planner: Planner | None  # None: no privacy
    embedding: EmbeddingPlan | None = None  # None: scores are tracked, or nothing
    feature_code: WholeNumbers | None = None  # how sums of features become integers; None: as they are

    @staticmethod
    def of(config: Config, schema: Schema, clients: int, notion: Notion | None = None) -> RunSpec:
        """Of a run with so many clients; what a private run must not have is refused."""
        f = config.federation
        if notion is not None:
            require_own_name(notion)
        cells = Cells.of(notion or notion_by_name(config.fairness.notion, schema), schema)
        embedding = _embedding(config, cells, schema, clients)
        optimizer = optimizer_by_name(f.optimizer, f.server_learning_rate, f.proximal)
        plan = Schedule(
            seed=config.run.seed,
            epochs=f.local_epochs,
            batch_size=None if f.method == "centralized" else f.batch_size,
            learning_rate=f.learning_rate,
            learning_rate_decay=f.learning_rate_decay,
            clients_per_round=f.clients_per_round,
            local_optimizer=f.local_optimizer,
            proximal=optimizer.proximal,
            correct=optimizer.uses_control,
            exact=_exact_sharing(config),
            samples=config.fairness.samples,
            quotas=config.fairness.quotas,
        )
        algorithm = build_algorithm(config, schema, cells, plan, embedding)
        if not config.privacy.enabled:
            plan = replace(plan, measures=algorithm.measures)
        planner = None
        if config.privacy.enabled:
            require_private(config, algorithm, schema.task)
            updates = _updates(config, plan, schema, clients) if config.privacy.client_level else None
            planner = _planner(config, plan, cells, schema, clients, embedding, updates)
        return RunSpec(
            config=config,
            schema=schema,
            clients=clients,
            cells=cells,
            algorithm=algorithm,
            optimizer=optimizer,
            plan=plan,
            fixed_point=_fixed_point(config, plan, clients),
            planner=planner,
            embedding=embedding,
            feature_code=None if embedding is None else _feature_code(config, clients),
        )

    def model(self) -> FlatModel:
        """A new model with its initial parameters."""
        model, privacy = _model(self.config, self.schema), self.config.privacy
        if privacy.enabled and privacy.updates == "dp_sgd":
            require_private_model(model.module, len(self.schema.features))
        return model

    def contribution_size(self, parameters: int) -> int:
        """How many numbers a contribution has, for a model of so many parameters."""
        return parameters * (1 + self.optimizer.uses_control + self.algorithm.snapshots)

    def replica(self, parameters: FloatArray, aggregator: ClientAggregator) -> Replica:
        """The shared model before the first round, with its initial parameters, for those who may open sums."""
        f = self.config.federation
        return Replica(
            parameters,
            self.optimizer,
            aggregator,
            snapshots=self.algorithm.snapshots,
            average_after=math.floor(f.rounds * (1 - f.average_last)) if f.average_last else None,
            least=_cohort(self.config, self.clients) if self.config.privacy.client_level else 1,
        )


def _exact_sharing(config: Config) -> Literal["nothing", "scores", "features"]:
    """What is shared for fairness without noise."""
    noisy = config.privacy.enabled and config.privacy.predictions != "none"
    if config.federation.method != "mmd_fedavg" or noisy:
        return "nothing"
    return "features" if config.fairness.tracker == "embedding" else "scores"


def _model(config: Config, schema: Schema) -> FlatModel:
    """A new model with its initial parameters."""
    dtype = torch_type(config.run.dtype)
    model = config.model
    return FlatModel(build_module(model.name, len(schema.features), model.hidden, config.run.seed, dtype))


def _fixed_point(config: Config, plan: Schedule, clients: int) -> FixedPoint | WholeNumbers | None:
    """How updates become integers: for all schemes but plain floats. Weights sum to at most clients/cohort.

    Whole updates of clients that are protected as a whole are integers before, with their noise.
    """
    if not config.whole_sums:
        return None
    cohort, modulus = min(plan.clients_per_round or clients, clients), MODULI[config.scheme]
    if config.privacy.client_level:
        return WholeNumbers(cohort, modulus)
    return FixedPoint(config.aggregation.range, clients / cohort, cohort, modulus)


def _updates(config: Config, plan: Schedule, schema: Schema, clients: int) -> UpdatePlan:
    """How whole updates are summed, where clients are protected as a whole."""
    code = _fixed_point(config, plan, clients)
    if not isinstance(code, WholeNumbers):
        raise InputError("updates", "must be summed as whole numbers", type(code).__name__)
    return UpdatePlan(
        max_norm=config.privacy.max_update_norm,
        count=_model(config, schema).parameters().size,
        most=code.most,
        cohort=_cohort(config, clients),
        participation=code.contributors / clients,
    )


def _embedding(config: Config, cells: Cells, schema: Schema, clients: int) -> EmbeddingPlan | None:
    """The features that are tracked, if any are."""
    fairness = config.fairness
    if fairness.tracker != "embedding" or config.federation.method != "mmd_fedavg":
        return None
    if config.scheme == "ckks":
        raise InputError("aggregation.scheme", "must be bfv or plain for the embedding tracker", "ckks")
    span = TaskKind.of(schema).score_range(cells.notion.score) or config.privacy.score_range
    if span is None:
        remedy = "Give privacy.score_range = [low, high]: scores beyond it are clipped."
        raise InputError("fairness.notion", "must compare scores that have a range", "a loss", remedy)
    code = _feature_code(config, clients)
    most = DEFAULT_STEPS if code is None else code.most // ROOM
    steps = 2 ** int(math.log2(min(max(most, 64), DEFAULT_STEPS)))
    room = None if code is None else code.most // steps
    return EmbeddingPlan(fairness.kernel, *span, fairness.features, steps, room, _cohort(config, clients))


def _cohort(config: Config, clients: int) -> int:
    """How many clients' vectors a sum must have to be opened: any, unless each has only a share of the noise."""
    privacy = config.privacy
    if not privacy.distributed_noise:
        return 1
    if config.scheme != "bfv":
        rule = "must be false without encryption (bfv): the server would see vectors with a share of noise each"
        raise InputError("privacy.distributed_noise", rule, True)
    most, who = clients, "clients"
    trained = config.federation.clients_per_round
    if privacy.client_level and trained is not None and trained < clients:
        most, who = trained, "clients that train in a round"
    cohort = most if privacy.smallest_cohort is None else privacy.smallest_cohort
    if not 3 <= cohort <= most:
        rule = f"must be between 3 and the number of {who}, {most}"
        remedy = "Who opens a sum of two knows the other's vector but for one share of noise."
        raise InputError("privacy.smallest_cohort", rule, cohort, remedy)
    return cohort


def _feature_code(config: Config, clients: int) -> WholeNumbers | None:
    """Whole numbers wherever noise or encryption needs a grid; every client contributes once."""
    exact = config.scheme == "plain" and not config.privacy.enabled and not config.aggregation.quantise
    return None if exact else WholeNumbers(clients, MODULI[config.scheme])


def _planner(
    config: Config,
    plan: Schedule,
    cells: Cells,
    schema: Schema,
    clients: int,
    embedding: EmbeddingPlan | None,
    updates: UpdatePlan | None,
) -> Planner:
    """The planner of a private run."""
    f = config.federation
    trainings = np.zeros(clients, dtype=np.int64)
    for number in range(f.rounds):
        trainings[plan.cohort(number, clients)] += 1
    kind = cells.notion.score
    work = Workload(
        rounds=f.rounds,
        epochs=f.local_epochs,
        batch_size=f.batch_size,
        samples=config.fairness.samples,
        shares_scores=f.method == "mmd_fedavg",
        most_trainings=int(trainings.max()),
        score_range=TaskKind.of(schema).score_range(kind) or config.privacy.score_range,
        kernel=config.fairness.kernel,
        embedding=embedding,
        updates=updates,
    )
    return Planner(config.privacy, work, cells)


# ---- From a configuration to everything that a run needs.


@dataclass(frozen=True)
class Credentials:
    """What a run is known by: its name in the ledger, and its keys where it has its own."""

    run: str
    keys: KeyPair | None
    ledger_id: str | None = None  # of the ledger in which it was begun

    @staticmethod
    def new(config: Config, schema: Schema, notion: Notion | None) -> Credentials:
        """For a new run, of a notion of one's own or of a known one."""
        begun = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        run = named_run(begun, config, schema, notion)
        own = config.scheme != "plain" and config.aggregation.keys is None
        return Credentials(run, new_keys(config.scheme) if own else None)


@dataclass(frozen=True)
class Simulation:
    """Everything a run needs, built from its configuration."""

    config: Config
    federation: Federation
    model: FlatModel
    replica: Replica  # the model as those hold it who may see it; a simulation may, for its figures
    backend: Metered
    server: Server
    evaluator: Evaluator | None  # None where exact figures are not allowed
    cells: Cells
    identity: str  # of data and cells: a checkpoint continues only with the same
    credentials: Credentials
    private: PrivateSide | None = None

    @property
    def notion(self) -> str:
        """The name of the fairness notion."""
        return self.cells.notion.name


def build(
    config: Config,
    federation: Federation | None = None,
    notion: Notion | None = None,
    credentials: Credentials | None = None,
) -> Simulation:
    """Load the data, make model, clients and algorithm. `federation` and `notion` override the configured ones."""
    require_decided(config)
    if federation is None:
        data = config.data
        federation = load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
    credentials = credentials or Credentials.new(config, federation.schema, notion)
    schema, seed = federation.schema, config.run.seed
    pooled = config.federation.method == "centralized"
    holders = _pooled(federation) if pooled else federation.clients
    parts = RunSpec.of(config, schema, len(holders), notion)
    if pooled:
        steps = most_steps(federation, config.federation.batch_size)
        parts = replace(parts, plan=replace(parts.plan, epochs=parts.plan.epochs * steps))
    cells, planner, model = parts.cells, parts.planner, parts.model()
    keys = _keys(config, credentials)
    run = beginning_of(credentials.run)
    client_side, adder = aggregators(config.scheme, keys, fixed_point=parts.fixed_point, run=run, channel=UPDATES)
    embedder, features = None, None
    if parts.embedding is not None:
        feature_side, feature_adder = aggregators(
            config.scheme, keys, fixed_point=parts.feature_code, run=run, channel=EMBEDDINGS
        )
        embedder = Embedder(parts.embedding, feature_side)
        features = (feature_adder, parts.embedding.unit.count)
    replica = parts.replica(model.parameters(), client_side)
    clients = [
        Client(k, holder, schema, cells, model, replica, seed=seed, entropy=entropy_of(config, k), embedder=embedder)
        for k, holder in enumerate(holders)
    ]
    model_holder: ModelHolder = HeldByServer(replica) if config.scheme == "plain" else HeldByClients()
    private: PrivateSide | None = None
    negotiator: Negotiator = ExactCounts()
    if planner is None:
        require_no_budget(config, federation)
    else:
        require_separate(cells.notion, federation)
        planner.require_plannable()
        run_ledger = RunLedger.open(
            config,
            federation,
            credentials.run,
            ledger_id=credentials.ledger_id,
            without_noise=planner.without_noise,
        )
        credentials = replace(credentials, ledger_id=run_ledger.ledger.ledger_id)
        private = PrivateSide(
            planner, run_ledger, run_ledger.gateway(clients, cells, schema, planner.neighbouring, config)
        )
        negotiator = PrivateCounts(planner, private.gateway.releases_of_counts)
    check = ReplyCheck(adder, cells=len(cells), contribution_size=replica.contribution_size, features=features)
    backend = Metered(_backend(config, clients, check, private.gateway if private else None))
    exact = private is None or not private.run_ledger.budgeted
    kernel, strength = parse_kernel(config.fairness.kernel), config.fairness.strength
    return Simulation(
        config=config,
        federation=federation,
        model=model,
        replica=replica,
        backend=backend,
        server=Server(
            backend,
            with_adder(parts.algorithm, features and features[0]),
            parts.optimizer,
            parts.plan,
            adder,
            model_holder,
            negotiator,
            PlannedRequests(parts.plan),
        ),
        evaluator=Evaluator(federation, cells, kernel, strength, model) if exact else None,
        cells=cells,
        # A digest of the records would let anyone who knows all but one of them test the last. Data with a budget
        # are known to the ledger, by name and keyed fingerprint.
        identity=f"{federation.fingerprint() if exact else 'budgeted'} {'; '.join(cells.names)}",
        credentials=credentials,
        private=private,
    )


def _backend(config: Config, clients: Sequence[Client], check: ReplyCheck, gateway: LedgerGateway | None) -> Backend:
    """Where the clients live."""
    if config.run.engine == "stacked":
        from privfair.engines.batched.backend import Stacked

        return Stacked(clients, check, gateway)
    return InProcess(clients, check, gateway)


def most_steps(federation: Federation, batch_size: int) -> int:
    """The steps in one epoch of the client that takes the most; at least 1.

    The centralized reference takes as many, each on all records. With one step an epoch it would take a fraction of
    the steps of the methods it is compared with, and the comparison would be about the number of steps.
    """
    return max(1, *(math.ceil(len(client.train) / batch_size) for client in federation.clients))


def _pooled(federation: Federation) -> tuple[ClientData, ...]:
    """One client with the records of all."""
    return (ClientData("all", federation.pooled_train(), federation.pooled_test()),)


def _keys(config: Config, credentials: Credentials) -> KeyPair | None:
    """The run's own keys, or those of the folder that the configuration names."""
    folder = config.aggregation.keys
    if config.scheme == "plain" or folder is None:
        return credentials.keys
    return KeyPair(load_client(Path(folder)), load_server(Path(folder)))
