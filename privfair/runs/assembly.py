"""The composition root: from a configuration to the pieces of a run, for simulation, server and data holder alike.

`RunSpec` follows from configuration and schema alone. Each piece that a run needs (model, sides of the sums, clients,
ledger gateway, server) is made by one of its methods, whoever asks; only keys differ by who may have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from accountant.errors import InputError
from privfair.channels.base import MOST_RECORDS, PlannedRequests, PriceList, ReplyCheck
from privfair.channels.evaluation import EVALUATION
from privfair.channels.features import EMBEDDINGS
from privfair.channels.updates import UPDATES
from privfair.channels.workload import Workload
from privfair.clients.client import Client, Embedder
from privfair.clients.training import require_private_model
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Schema
from privfair.datasets.registry import load as load_dataset
from privfair.engines.evaluation import Evaluator
from privfair.engines.local import InProcess
from privfair.fairness.metrics import THRESHOLD
from privfair.fairness.notions import Cells, Notion, notion_by_name, require_own_name
from privfair.fairness.tracking import Controller, EmbeddingPlan, TargetPlan
from privfair.federated.algorithms.baselines import (
    Agnostic,
    Centralized,
    FairFed,
    FedAvgOnly,
    FedFB,
    LocalFairness,
)
from privfair.federated.algorithms.mmd_fedavg import EmbeddingTracking, Kept, MmdFedAvg, made_anew, with_sums
from privfair.federated.exchange import Algorithm, Backend, FederatedOptimizer, Metered
from privfair.federated.messages import SUMMED, in_a_sum, sum_number
from privfair.federated.model_state import Replica, optimizer_by_name
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import ExactCounts, HeldByClients, HeldByServer, ModelHolder, Negotiator, Schedule, Server
from privfair.federated.secure_sums import MaskingDesk, MaskMemory, SecureSums
from privfair.kernels.families import parse_kernel
from privfair.mechanisms.entropy import entropy_of
from privfair.mechanisms.moments import MomentsPlan
from privfair.mechanisms.vector_release import DEFAULT_STEPS, GradientPlan, UpdatePlan
from privfair.models import FlatModel, TaskKind, build_module, torch_type
from privfair.privacy.forecast import count_spends, planned_spends
from privfair.privacy.ledger_gateway import LedgerGateway
from privfair.privacy.planner import Planner, PrivateCounts
from privfair.privacy.requirements import (
    require_combination,
    require_decided,
    require_decisions,
    require_new,
    require_private,
    require_separate,
)
from privfair.privacy.run_ledger import RunLedger, cell_labels, require_no_budget, sides_of
from privfair.run_names import beginning_of
from privfair.runs.defaults import Choice, for_given, moments_plan, settle
from privfair.runs.keys import Credentials, key_pair
from privfair.secure_aggregation import (
    MODULI,
    ClientAggregator,
    ClientKeys,
    FixedPoint,
    KeyPair,
    ServerAggregator,
    ServerKeys,
    Sums,
    WholeNumbers,
    plain_keys,
)
from privfair.secure_aggregation.base import Joined, WordClient, WordServer
from privfair.secure_aggregation.masked import MaskedClientAggregator, MaskedServerAggregator, Masking, TotalsForServer
from privfair.secure_aggregation.masks import cohort_of
from privfair.util import FloatArray


def build_algorithm(
    config: Config, schema: Schema, cells: Cells, plan: Schedule, embedding: EmbeddingPlan | None = None
) -> Algorithm:
    """The algorithm of a configuration; `embedding`: the features that it tracks, instead of scores."""
    fairness, federation = config.fairness, config.federation
    method, kernel, strength = federation.method, fairness.kernel, fairness.strength
    if method in ("fairfed", "fedfb"):
        require_decisions(method, config, schema)
    require_combination(config)
    drift, held_out = federation.drift_correction or "none", config.data.test_fraction
    if method == "mmd_fedavg" and embedding is not None:
        about = (strength, embedding, drift, PlannedRequests(plan), federation.rounds)
        tests = None if fairness.target is None else held_out / (1 - held_out)
        return EmbeddingTracking(*about, lagged=config.lagged, within=config.joins_features, tests=tests)
    match method:
        case "mmd_fedavg":
            return MmdFedAvg(
                strength=strength,
                kernel=kernel,
                drift=drift,
                domain=TaskKind.of(schema).score_range(cells.notion.score),
                seed=config.run.seed,
                rounds=federation.rounds,
                requests=PlannedRequests(plan),
                lagged=config.lagged,
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


# What follows from configuration and schema alone: the same at the server and at every client, wherever they are.


ROOM = 50_000  # records of one client whose features a sum has room for, where integers are bounded by encryption


Code = FixedPoint | WholeNumbers | Joined
Adders = tuple[ServerAggregator, ServerAggregator | None]  # of updates; of features, where they are tracked
Prices = Sequence[PriceList] | Mapping[int, PriceList]  # by the number of the client


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
    moments: MomentsPlan | None = (
        None  # how sums of features are released, by which they are scaled; None: they are not
    )
    choices: tuple[Choice, ...] = ()  # what the configuration left open, and why it is as it is

    @staticmethod
    def of(config: Config, schema: Schema, clients: int, notion: Notion | None = None) -> RunSpec:
        """Of a run with so many clients, its configuration settled; what a private run must not have is refused."""
        settled = settle(config, schema, clients, notion)
        config, f = settled.config, settled.config.federation
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
            rounds_with_features=f.rounds - 1 if config.joins_features else 0,
            damped=0 if config.fairness.target is None else f.rounds,
        )
        algorithm = build_algorithm(config, schema, cells, plan, embedding)
        if not config.privacy.enabled:
            plan = replace(plan, measures=algorithm.measures)
        else:
            require_private(config, algorithm, schema.task)
        spec = RunSpec(
            config=config,
            schema=schema,
            clients=clients,
            cells=cells,
            algorithm=algorithm,
            optimizer=optimizer,
            plan=plan,
            fixed_point=_fixed_point(config, plan, clients),
            planner=None,
            embedding=embedding,
            feature_code=None if embedding is None else _feature_code(config, clients),
            moments=moments_plan(config, schema.features, clients),
            choices=settled.choices,
        )
        return replace(spec, planner=spec._planner()) if config.privacy.enabled else spec

    def _planner(self) -> Planner:
        """The planner of a private run."""
        config, f, score = self.config, self.config.federation, self.cells.notion.score
        trainings = np.zeros(self.clients, dtype=np.int64)
        for number in range(f.rounds):
            trainings[self.plan.cohort(number, self.clients)] += 1
        work = Workload(
            rounds=f.rounds,
            epochs=f.local_epochs,
            batch_size=f.batch_size,
            samples=config.fairness.samples,
            shares_scores=f.method == "mmd_fedavg",
            most_trainings=int(trainings.max()),
            score_range=TaskKind.of(self.schema).score_range(score) or config.privacy.score_range,
            kernel=config.fairness.kernel,
            embedding=self.embedding,
            updates=self._updates() if config.privacy.client_level else None,
            gradients=self._gradients() if config.sums_gradients else None,
            cohort=cohort_of(config, self.clients),
            counts_in_shares=config.sums_counts,
            participation=self.plan.cohort_size(self.clients) / self.clients,
            moments=self.moments,
            learning_rate=f.learning_rate,
            learning_rate_decay=f.learning_rate_decay,
            damped=self.plan.damped,
        )
        return Planner(config.privacy, work, self.cells)

    def _gradients(self) -> GradientPlan:
        """How gradients of all clients are summed, where a round is one step of DP-SGD on the sum."""
        shares = _sharing(self.config, self.clients)[1]
        return GradientPlan(self.model().parameters().size, self.clients, shares, MODULI[self.config.scheme])

    def _updates(self) -> UpdatePlan:
        """How whole updates are summed, where clients are protected as a whole."""
        code = self.fixed_point
        if not isinstance(code, WholeNumbers):
            raise InputError("updates", "must be summed as whole numbers", type(code).__name__)
        return UpdatePlan(
            max_norm=self.config.privacy.max_update_norm,
            count=self.model().parameters().size,
            most=code.most,
            shares=_sharing(self.config, self.clients)[1],
            participation=code.contributors / self.clients,
        )

    @property
    def _whole_updates(self) -> bool:
        """Whether updates are whole numbers with noise, of which a sum of few has too little."""
        return self.config.privacy.client_level or self.config.sums_gradients

    def model(self) -> FlatModel:
        """A new model with its initial parameters."""
        about, run, width = self.config.model, self.config.run, len(self.schema.features)
        module = build_module(about.name, width, about.hidden, run.seed, torch_type(run.dtype))
        if self.config.privacy.enabled and self.config.privacy.updates == "dp_sgd":
            require_private_model(module, width)
        return FlatModel(module)

    def replica(self, parameters: FloatArray, aggregator: ClientAggregator) -> Replica:
        """The shared model before the first round, with its initial parameters, for those who may open sums."""
        f, target = self.config.federation, self.config.fairness.target
        return Replica(
            parameters,
            self.optimizer,
            aggregator,
            snapshots=self.algorithm.snapshots,
            average_after=math.floor(f.rounds * (1 - f.average_last)) if f.average_last else None,
            least=_sharing(self.config, self.clients)[0] if self._whole_updates else 1,
            features=self._joined,
            controller=None
            if target is None
            else Controller(TargetPlan.of(target, self.cells, f.rounds, whitened=bool(f.precondition))),
        )

    @property
    def _joined(self) -> int:
        """How many numbers of features stand behind the change in an update."""
        unit = None if self.embedding is None else self.embedding.unit
        return 0 if unit is None or not self.config.joins_features else len(self.cells) * unit.count

    @property
    def _update_code(self) -> Code | None:
        """How contributions to the sums of updates become integers."""
        if not self._joined or self.fixed_point is None or self.feature_code is None:
            return self.fixed_point
        return Joined(self.fixed_point, self.feature_code, self._joined)

    def client_side(
        self, keys: ClientKeys | None, run: str = "", masking: Masking | None = None
    ) -> tuple[ClientAggregator, Embedder | None]:
        """What contributes to the sums of a run and opens them: of updates, and of features where they are tracked."""
        updates = self._opener(UPDATES, self._update_code, keys, run, masking)
        if self.embedding is None:
            return updates, None
        return updates, Embedder(self.embedding, self._opener(EMBEDDINGS, self.feature_code, keys, run, masking))

    def _opener(
        self, channel: str, code: Code | None, keys: ClientKeys | None, run: str, masking: Masking | None
    ) -> ClientAggregator:
        """What contributes to the sums of a channel and opens them."""
        if self.config.masks_in_the_open:
            return ClientAggregator(WordClient(), code, run=run, channel=channel)
        if not self.config.masks:
            return ClientAggregator(keys or self._plain(code).client, code, run=run, channel=channel)
        if masking is None or keys is None or code is None:
            raise InputError("aggregation.masks", "must be false where nobody has keys for masks", True)
        about, f = masking.federation, self.config.federation
        number = partial(sum_number, channel, rounds=f.rounds, **self._numbering)
        who: dict[str, Any] = {"run": about.run, "channel": channel, "least": about.cohort.smallest}
        return MaskedClientAggregator(keys, code, masking.holders, number, **who)

    def sum_number(self, channel: str, round_number: int | None) -> int:
        """The number of a masked sum of this run."""
        return sum_number(channel, round_number, self.config.federation.rounds, **self._numbering)

    @property
    def _numbering(self) -> dict[str, bool]:
        return {"joined": self.config.joins_features, "scaled": self.moments is not None}

    def server_side(self, keys: ServerKeys | None) -> Adders:
        """What adds contributions: to updates, and to features where they are tracked."""
        updates = self._adder(self._update_code, keys)
        return updates, None if self.embedding is None else self._adder(self.feature_code, keys)

    def _adder(self, code: Code | None, keys: ServerKeys | None) -> ServerAggregator:
        if self.config.masks_in_the_open:
            return ServerAggregator(WordServer(), code)
        kind = MaskedServerAggregator if self.config.masks else ServerAggregator
        return kind(keys or self._plain(code).server, code)

    def masking(self, run: str) -> Masking | None:
        """The masks of a simulation, under keys and a name that no other has; None where nothing is masked."""
        if not self.config.masks or self.config.masks_in_the_open:
            return None
        return Masking.simulated(cohort_of(self.config, self.clients), run, self.config)

    def _plain(self, code: Code | None) -> KeyPair:
        """What stands for keys in the plain scheme; sums are of integers where there is a code."""
        if self.config.scheme != "plain":
            raise InputError("keys", f"must be given for scheme {self.config.scheme}", None)
        return plain_keys(quantise=code is not None)

    def client(
        self,
        index: int,
        data: ClientData,
        model: FlatModel,
        replica: Replica,
        embedder: Embedder | None,
        masking: Masking | None = None,
    ) -> Client:
        """The client that has these records."""
        seed = self.config.run.seed
        entropy = entropy_of(seed if self.config.run.reproducible_noise else None, index)
        about = (self.schema, self.cells, model, replica)
        client = Client(index, data, *about, seed=seed, entropy=entropy, embedder=embedder)
        if masking is not None and index in masking.holders:
            client.masking = MaskingDesk(masking.holders[index], self.sum_number(EVALUATION, None))
        if self.config.masks:
            holders = None if masking is None else masking.holders
            client.totals = TotalsForServer(holders, lambda channel: self.sum_number(channel, None))
        return client

    def reply_check(
        self, adders: Adders, parameters: int, *, remote: Sequence[str] | None = None, replica: Replica | None = None
    ) -> ReplyCheck:
        """What replies must look like, for a model of so many parameters.

        `remote`: the names of clients on other machines. A count with which there is no plan is then refused with its
        reply, and does not end the run; tables must be of the schema's groups, and contributions readable.
        """
        adder, feature_adder = adders
        features, most = None, MOST_RECORDS
        if self.embedding is not None and feature_adder is not None:
            features = (feature_adder, self.embedding.unit.count)
            if remote is not None and self.embedding.room is not None:
                most = min(most, self.embedding.room)
        return ReplyCheck(
            adder,
            cells=len(self.cells),
            contribution_size=parameters * (1 + self.optimizer.uses_control + self.algorithm.snapshots) + self._joined,
            features=features,
            groups=None if remote is None else self.groups,
            most_records=most,
            remote=remote,
            replica=replica,
            masked=self.config.masks and not self.config.masks_in_the_open,
        )

    def negotiator(self, releases_of_counts: Callable[[], int] | None = None) -> ExactCounts | PrivateCounts:
        """How a release plan follows from counts.

        `releases_of_counts`: how often a client has released them so far; None where nobody sees all ledgers, so that
        every repetition of lost counts is planned for.
        """
        if self.planner is None:
            return ExactCounts(self.moments)
        most = 1 if self.config.sums_counts else 1 + self.config.privacy.retries  # a masked part is made once
        return PrivateCounts(self.planner, releases_of_counts or (lambda: most))

    def server(
        self,
        backend: Backend,
        adders: Adders,
        model_holder: ModelHolder,
        negotiator: Negotiator,
        *,
        least_trained: int = 0,
        kept: Kept = made_anew,
        masking: Masking | None = None,
        memory: MaskMemory | None = None,
    ) -> Server:
        """The server of a run; `kept`, `memory`: where it writes down sums of features, and what it knows of masks."""
        by_channel = {c: a for c, a in zip((UPDATES, EMBEDDINGS), adders, strict=True) if a is not None}
        rounds, sums = self.config.federation.rounds, Sums(by_channel)
        if masking is not None:
            sums = SecureSums(by_channel, rounds, masking.federation, **self._numbering, memory=memory)
        algorithm = with_sums(self.algorithm, sums, kept)
        about = (self.plan, sums, model_holder, negotiator, PlannedRequests(self.plan), least_trained, self.groups)
        return Server(backend, algorithm, self.optimizer, *about)

    @property
    def groups(self) -> tuple[int, ...]:
        """How many groups each sensitive attribute has."""
        return tuple(len(attribute.values) for attribute in self.schema.sensitive)

    def open_ledger(self, federation: Federation, run: str, ledger_id: str | None) -> RunLedger | None:
        """The ledger of a private run, opened; None without privacy."""
        if self.planner is None:
            return None
        without_noise = self.planner.without_noise
        return RunLedger.open(self.config, federation, run, ledger_id=ledger_id, without_noise=without_noise)

    def gateway(
        self, run_ledger: RunLedger, holders: Sequence[ClientData], *, planner_sees_ledger: bool
    ) -> LedgerGateway:
        """What all answers of these clients pass.

        A planner that sees the ledger counts repeated releases of counts when it plans. Elsewhere the server plans with
        `privacy.retries` of every channel, and no channel is exempt from that limit.
        """
        if self.planner is None:
            raise ValueError("a run without privacy has no ledger")
        labels, how, unit = cell_labels(self.cells, self.schema), self.planner.adjacency, self.planner.unit
        cohort, division = self.planner.work.cohort, sides_of(self.config) if self.planner.sided else ""
        counts = [self.cells.membership(data.train).sum(axis=0, dtype=np.int64) for data in holders]
        prices = [
            PriceList(
                run_ledger.dataset, run_ledger.run, data.name, labels, self.cells, how, own, unit, cohort, division
            )
            for data, own in zip(holders, counts, strict=True)
        ]
        ledger, run, fingerprint = run_ledger.ledger, run_ledger.run, run_ledger.fingerprint
        retries = self.config.privacy.retries
        if not planner_sees_ledger:
            about: dict[str, Any] = {"run": run, "fingerprint": fingerprint, "retries": retries, "unplanned": ()}
            return LedgerGateway(ledger, prices, **about, once=in_a_sum if self.config.masks else None)
        limit = None if self.config.privacy.epsilon is None else retries
        # masks are of this process: what was masked before a crash adds up with nothing
        anew = SUMMED if self.config.masks and not self.config.masks_in_the_open else ()
        return LedgerGateway(ledger, prices, run=run, fingerprint=fingerprint, retries=limit, made_anew=anew)

    def require_room(
        self, run_ledger: RunLedger | None, prices: Prices, release_plan: ReleasePlan | None = None
    ) -> None:
        """Raise if the run does not fit into its data's budget: all of it, or, without a plan yet, what is known."""
        if self.planner is None or run_ledger is None or not run_ledger.budgeted:
            return
        known = release_plan or self.planner.terms_beforehand(self.clients)
        counts = [] if release_plan else count_spends(known, self.plan, prices)
        rest = planned_spends(known, self.plan, range(self.config.federation.rounds), prices)
        run_ledger.ledger.require_room([*counts, *rest])


def _exact_sharing(config: Config) -> Literal["nothing", "scores", "features"]:
    """What is shared for fairness without noise."""
    noisy = config.privacy.enabled and config.privacy.predictions != "none"
    if config.federation.method != "mmd_fedavg" or noisy:
        return "nothing"
    return "features" if config.fairness.tracker == "embedding" else "scores"


def _fixed_point(config: Config, plan: Schedule, clients: int) -> FixedPoint | WholeNumbers | None:
    """How updates become integers: for all schemes but plain floats. Weights sum to at most clients/cohort.

    Whole updates of clients that are protected as a whole are integers before, with their noise.
    """
    if not config.whole_sums:
        return None
    cohort, modulus = min(plan.clients_per_round or clients, clients), MODULI[config.scheme]
    if config.privacy.client_level or config.sums_gradients:
        return WholeNumbers(cohort, modulus)
    return FixedPoint(config.aggregation.range, clients / cohort, cohort, modulus)


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
    threshold = None if fairness.target is None else THRESHOLD
    return EmbeddingPlan(fairness.kernel, *span, fairness.features, steps, room, *_sharing(config, clients), threshold)


def _sharing(config: Config, clients: int) -> tuple[int, int]:
    """How many clients' vectors a sum must have to be opened, and how many shares are the whole noise.

    With masks the honest holders' shares alone carry the claim. Without them a client that opens a sum knows its own
    share, so that all but one of the smallest cohort count.
    """
    privacy, cohort = config.privacy, cohort_of(config, clients)
    if cohort is not None:
        return cohort.smallest, cohort.honest if config.shares_noise else 1
    if not privacy.distributed_noise:
        return 1, 1
    if config.scheme != "bfv":
        rule = "must be false without encryption (bfv): the server would see vectors with a share of noise each"
        raise InputError("privacy.distributed_noise", rule, True)
    most, who = clients, "clients"
    trained = config.federation.clients_per_round
    if privacy.client_level and trained is not None and trained < clients:
        most, who = trained, "clients that train in a round"
    least = most if privacy.smallest_cohort is None else privacy.smallest_cohort
    if not 3 <= least <= most:
        rule = f"must be between 3 and the number of {who}, {most}"
        remedy = "Who opens a sum of two knows the other's vector but for one share of noise."
        raise InputError("privacy.smallest_cohort", rule, least, remedy)
    return least, least - 1


def _feature_code(config: Config, clients: int) -> WholeNumbers | None:
    """Whole numbers wherever noise or encryption needs a grid; every client contributes once."""
    exact = config.scheme == "plain" and not config.privacy.enabled and not config.aggregation.quantise
    return None if exact else WholeNumbers(clients, MODULI[config.scheme])


# ---- A simulation: server and clients in one process. Its ledger is open; whoever builds it closes it.


@dataclass(frozen=True)
class Simulation:
    """Server, clients and data of a run in this process."""

    spec: RunSpec
    federation: Federation
    model: FlatModel
    replica: Replica  # the model as those hold it who may see it; a simulation may, for its figures
    backend: Metered
    server: Server
    evaluator: Evaluator | None  # None where exact figures are not allowed
    identity: str  # of data and cells: a checkpoint continues only with the same
    credentials: Credentials
    run_ledger: RunLedger | None  # None, as the gateway: no privacy
    gateway: LedgerGateway | None

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self.spec.config

    @property
    def cells(self) -> Cells:
        """The groups that its notion compares, by conditioning set."""
        return self.spec.cells

    @property
    def notion(self) -> str:
        """The name of the fairness notion."""
        return self.cells.notion.name

    @property
    def clients(self) -> list[Client]:
        """The simulated clients."""
        engine: Any = self.backend.inner
        members: list[Client] = engine.members
        return members

    @property
    def budgeted(self) -> bool:
        """Whether its data have a budget."""
        return self.run_ledger is not None and self.run_ledger.budgeted

    def on(self, backend: Metered, evaluator: Evaluator | None) -> Simulation:
        """The same with another engine."""
        server = replace(self.server, backend=backend)
        return replace(self, backend=backend, server=server, evaluator=evaluator)

    def close(self) -> None:
        """Close the ledger, if there is one."""
        if self.run_ledger is not None:
            self.run_ledger.ledger.close()


def build(
    config: Config,
    federation: Federation | None = None,
    notion: Notion | None = None,
    credentials: Credentials | None = None,
    *,
    begins: bool = True,
) -> Simulation:
    """Load the data, make model, clients and algorithm. `federation` and `notion` override the configured ones.

    `begins`: without credentials it is a new run, and must be what new runs may be."""
    require_decided(config)
    if federation is None:
        data = config.data
        federation = load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
    holders, steps = federation.clients, 1
    if config.federation.method == "centralized":
        holders, steps = _pooled(federation), most_steps(federation, config.federation.batch_size)
    spec = RunSpec.of(for_given(config, federation), federation.schema, len(holders), notion)
    config = spec.config
    if credentials is None and begins:
        require_new(config)
    credentials = credentials or Credentials.new(config, federation.schema, notion)
    spec = replace(spec, plan=replace(spec.plan, epochs=spec.plan.epochs * steps))
    model, keys = spec.model(), credentials.keys
    if config.scheme != "plain" or keys is not None:
        keys = key_pair(config, keys)
    name = beginning_of(credentials.run)
    masking = spec.masking(name)
    opener, embedder = spec.client_side(None if keys is None else keys.client, name, masking)
    adders = spec.server_side(None if keys is None else keys.server)
    replica = spec.replica(model.parameters(), opener)
    clients = [spec.client(k, holder, model, replica, embedder, masking) for k, holder in enumerate(holders)]
    if spec.planner is None:
        require_no_budget(config, federation)
    else:
        require_separate(spec.cells.notion, federation)
        spec.planner.require_plannable()
    run_ledger = spec.open_ledger(federation, credentials.run, credentials.ledger_id)
    gateway, releases = None, None
    if run_ledger is not None:
        credentials = replace(credentials, ledger_id=run_ledger.ledger.ledger_id)
        gateway = spec.gateway(run_ledger, holders, planner_sees_ledger=True)
        releases = gateway.releases_of_counts
    check = spec.reply_check(adders, model.parameters().size)
    backend = Metered(_backend(config, clients, check, gateway))
    model_holder: ModelHolder = HeldByServer(replica) if config.scheme == "plain" else HeldByClients()
    exact = run_ledger is None or not run_ledger.budgeted
    kernel, strength = parse_kernel(config.fairness.kernel), config.fairness.strength
    return Simulation(
        spec=spec,
        federation=federation,
        model=model,
        replica=replica,
        backend=backend,
        server=spec.server(backend, adders, model_holder, spec.negotiator(releases), masking=masking),
        evaluator=Evaluator(federation, spec.cells, kernel, strength, model) if exact else None,
        # A digest of the records would let anyone who knows all but one of them test the last. Data with a budget
        # are known to the ledger, by name and keyed fingerprint.
        identity=f"{federation.fingerprint() if exact else 'budgeted'} {'; '.join(spec.cells.names)}",
        credentials=credentials,
        run_ledger=run_ledger,
        gateway=gateway,
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
