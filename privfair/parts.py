"""What follows from configuration and schema alone: the same at the server and at every client, wherever they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from accountant.errors import InputError
from privfair.aggregation import MODULI, ClientAggregator, FixedPoint, WholeNumbers
from privfair.algorithms.registry import build_algorithm
from privfair.arrays import FloatArray
from privfair.clients.private_model import require_private_model
from privfair.clients.task import TaskKind
from privfair.config import Config
from privfair.datasets.records import Schema
from privfair.fairness.cells import Cells
from privfair.fairness.embedding import EmbeddingPlan
from privfair.fairness.notions import Notion, notion_by_name, require_own_name
from privfair.interfaces import Algorithm, FederatedOptimizer
from privfair.mechanisms.update_release import UpdatePlan
from privfair.mechanisms.vector_noise import DEFAULT_STEPS
from privfair.models import FlatModel, build_module, torch_type
from privfair.optimizers import optimizer_by_name
from privfair.privacy.planning import Planner
from privfair.privacy.refusals import require_private
from privfair.privacy.workload import Workload
from privfair.replica import Replica
from privfair.round import Plan

ROOM = 50_000  # records of one client whose features a sum has room for, where integers are bounded by encryption


@dataclass(frozen=True)
class Parts:
    """The method of a run, without data and without keys."""

    config: Config
    schema: Schema
    clients: int
    cells: Cells
    algorithm: Algorithm
    optimizer: FederatedOptimizer
    plan: Plan
    fixed_point: FixedPoint | WholeNumbers | None  # how updates become integers; None: as they are
    planner: Planner | None  # None: no privacy
    embedding: EmbeddingPlan | None = None  # None: scores are tracked, or nothing
    feature_code: WholeNumbers | None = None  # how sums of features become integers; None: as they are

    @staticmethod
    def of(config: Config, schema: Schema, clients: int, notion: Notion | None = None) -> Parts:
        """Of a run with so many clients; what a private run must not have is refused."""
        f = config.federation
        if notion is not None:
            require_own_name(notion)
        cells = Cells.of(notion or notion_by_name(config.fairness.notion, schema), schema)
        embedding = _embedding(config, cells, schema, clients)
        algorithm = build_algorithm(config, schema, cells, embedding)
        plan = Plan(
            seed=config.run.seed,
            epochs=f.local_epochs,
            batch_size=None if f.method == "centralized" else f.batch_size,
            learning_rate=f.learning_rate,
            learning_rate_decay=f.learning_rate_decay,
            clients_per_round=f.clients_per_round,
            local_optimizer=f.local_optimizer,
        )
        planner = None
        if config.privacy.enabled:
            require_private(config, algorithm, schema.task)
            updates = _updates(config, plan, schema, clients) if config.privacy.client_level else None
            planner = _planner(config, plan, cells, schema, clients, embedding, updates)
        return Parts(
            config=config,
            schema=schema,
            clients=clients,
            cells=cells,
            algorithm=algorithm,
            optimizer=optimizer_by_name(f.optimizer, f.server_learning_rate, f.proximal),
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


def _model(config: Config, schema: Schema) -> FlatModel:
    """A new model with its initial parameters."""
    dtype = torch_type(config.run.dtype)
    model = config.model
    return FlatModel(build_module(model.name, len(schema.features), model.hidden, config.run.seed, dtype))


def _fixed_point(config: Config, plan: Plan, clients: int) -> FixedPoint | WholeNumbers | None:
    """How updates become integers: for all schemes but plain floats. Weights sum to at most clients/cohort.

    Whole updates of clients that are protected as a whole are integers before, with their noise.
    """
    if not config.whole_sums:
        return None
    cohort, modulus = min(plan.clients_per_round or clients, clients), MODULI[config.scheme]
    if config.privacy.client_level:
        return WholeNumbers(cohort, modulus)
    return FixedPoint(config.aggregation.range, clients / cohort, cohort, modulus)


def _updates(config: Config, plan: Plan, schema: Schema, clients: int) -> UpdatePlan:
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
    plan: Plan,
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
