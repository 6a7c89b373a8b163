"""From a configuration to everything that a run needs."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from privfair.aggregation import KeyPair, aggregators, load_client, load_server, new_keys
from privfair.algorithms.embedding import with_adder
from privfair.backends.in_process import InProcess
from privfair.clients.client import Client
from privfair.clients.embedder import Embedder
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Schema
from privfair.datasets.registry import load as load_dataset
from privfair.evaluation import Evaluator
from privfair.fairness.cells import Cells
from privfair.fairness.notions import Notion
from privfair.interfaces import Backend
from privfair.kernels.parse import parse_kernel
from privfair.metering import Metered
from privfair.models import FlatModel
from privfair.parts import Parts
from privfair.privacy.books import Books, entropy_of, named_run, require_no_budget
from privfair.privacy.desk import Desk
from privfair.privacy.negotiation import PrivateCounts
from privfair.privacy.pricing import EMBEDDINGS, UPDATES
from privfair.privacy.private_side import PrivateSide
from privfair.privacy.refusals import require_decided, require_separate
from privfair.replica import Replica
from privfair.replies import ReplyCheck
from privfair.round import ExactCounts, Keeper, KeptByClients, KeptByServer, Negotiator, Server
from privfair.run_names import beginning_of


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
class Setting:
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
) -> Setting:
    """Load the data, make model, clients and algorithm. `federation` and `notion` override the configured ones."""
    require_decided(config)
    if federation is None:
        data = config.data
        federation = load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
    credentials = credentials or Credentials.new(config, federation.schema, notion)
    schema, seed = federation.schema, config.run.seed
    pooled = config.federation.method == "centralized"
    holders = _pooled(federation) if pooled else federation.clients
    parts = Parts.of(config, schema, len(holders), notion)
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
    keeper: Keeper = KeptByServer(replica) if config.scheme == "plain" else KeptByClients()
    private: PrivateSide | None = None
    negotiator: Negotiator = ExactCounts()
    if planner is None:
        require_no_budget(config, federation)
    else:
        require_separate(cells.notion, federation)
        planner.require_plannable()
        books = Books.open(
            config,
            federation,
            credentials.run,
            ledger_id=credentials.ledger_id,
            without_noise=planner.without_noise,
        )
        credentials = replace(credentials, ledger_id=books.ledger.ledger_id)
        private = PrivateSide(planner, books, books.desk(clients, cells, schema, planner.neighbouring, config))
        negotiator = PrivateCounts(planner, private.desk.releases_of_counts)
    check = ReplyCheck(adder, cells=len(cells), contribution_size=replica.contribution_size, features=features)
    backend = Metered(_backend(config, clients, check, private.desk if private else None))
    exact = private is None or not private.books.budgeted
    kernel, strength = parse_kernel(config.fairness.kernel), config.fairness.strength
    return Setting(
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
            keeper,
            negotiator,
        ),
        evaluator=Evaluator(federation, cells, kernel, strength, model) if exact else None,
        cells=cells,
        # A digest of the records would let anyone who knows all but one of them test the last. Data with a budget
        # are known to the ledger, by name and keyed fingerprint.
        identity=f"{federation.fingerprint() if exact else 'budgeted'} {'; '.join(cells.names)}",
        credentials=credentials,
        private=private,
    )


def _backend(config: Config, clients: Sequence[Client], check: ReplyCheck, desk: Desk | None) -> Backend:
    """Where the clients live."""
    if config.run.engine == "stacked":
        from privfair.backends.stacked.backend import Stacked

        return Stacked(clients, check, desk)
    return InProcess(clients, check, desk)


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
