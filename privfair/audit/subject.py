"""What is audited: the plan of a run (noise, rates, rounds), applied to made-up records.

The real records are never attacked. The audit uses their schema and release plan; the records themselves are replaced
by neighbours that are as far apart as the schema allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from accountant.errors import InputError, Refused
from accountant.events import Adjacency
from accountant.ledger.machine_state import not_remembered
from privfair.clients.client import Client
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Records, Schema
from privfair.datasets.registry import load_configured
from privfair.engines.local import InProcess
from privfair.federated.release_plan import NOISE_KEYS, ReleasePlan, noise_of
from privfair.federated.round import begin
from privfair.privacy.run_ledger import budget_at_hand, require_its_budget
from privfair.privacy.statement import with_collusion
from privfair.runs.assembly import Simulation, build
from privfair.runs.folder import RunDirectory
from privfair.util import FloatArray

FEATURES = 8
_KEPT = (
    *("delta", "target_method", "counts", "predictions", "updates", "evaluation", "max_grad_norm", "max_update_norm"),
    *("score_range", "kernel_correction", "min_count"),
)
MOST_CLIENTS = 40  # of a larger plan, only the first so many are attacked


@dataclass(frozen=True)
class Kind:
    """Label and groups of the attacked record: those with the highest cost."""

    label: float
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Subject:
    """A plan with every noise and rate in it, and the record that is attacked."""

    config: Config
    schema: Schema
    release_plan: ReleasePlan
    kind: Kind
    trainings: int  # rounds in which the busiest client trains
    folder: Path  # for ledgers of its own
    target: tuple[int, int] | None  # client and cell whose scores are shared at the highest rate, or whose sums are
    cohort: int = 1  # the fewest clients whose vectors are summed
    colluding: float | None = None  # ε of the plan against server and one client; None if noise is not distributed
    clients: tuple[str, ...] = ("target",)  # the plan's; each is attacked

    @property
    def rounds(self) -> int:
        """How many there are."""
        return self.config.federation.rounds

    @property
    def adjacency(self) -> Adjacency:
        """Whether neighbours differ by a record's presence, or by which of two records it is."""
        return Adjacency.REPLACE_ONE if self.config.privacy.counts == "public" else Adjacency.ADD_OR_REMOVE

    @property
    def replaces(self) -> bool:
        """Whether neighbours have one record replaced."""
        return self.adjacency is Adjacency.REPLACE_ONE

    def records(self, features: FloatArray, kinds: list[Kind] | None = None) -> Records:
        """Records with these features: all of the attacked kind, or of the kinds given; in every conditioning set."""
        rows = kinds or [self.kind] * len(features)
        return Records(
            np.asarray(features, dtype=np.float32),
            np.array([k.label for k in rows], dtype=np.float32),
            np.array([k.groups for k in rows], dtype=np.int64).reshape(len(rows), len(self.schema.sensitive)),
            np.ones((len(rows), len(self.schema.conditions)), dtype=bool),
        )

    def simulation(self, holders: Sequence[ClientData], name: str) -> Simulation:
        """Everything that a run of these holders needs, with a ledger of its own; engine and scheme are the plan's."""
        url = f"sqlite:///{self.folder}/{name}.sqlite"
        config = self.config.model_copy(update={"run": self.config.run.model_copy(update={"ledger": url})})
        with not_remembered():
            return build(config, self.federation(holders))

    def federation(self, holders: Sequence[ClientData]) -> Federation:
        """The data of these holders, with as many features as their records have."""
        width = holders[0].train.features.shape[1]
        return Federation("audit", replace(self.schema, features=tuple(f"x{i}" for i in range(width))), tuple(holders))


def twin(simulation: Simulation, train: Records, index: int = 0, test: Records | None = None) -> Client:
    """One of the simulation's clients with other records: the same model, the same source of noise."""
    own = all_clients(simulation)[index]
    data = ClientData(own.name, train, train.take([]) if test is None else test)
    schema = simulation.federation.schema
    return Client(
        index,
        data,
        schema,
        simulation.cells,
        own.model,
        own.replica,
        seed=own.seed,
        entropy=own.entropy,
        embedder=own.embedder,
    )


def first_client(simulation: Simulation) -> Client:
    """The attacked client of a simulation."""
    return all_clients(simulation)[0]


def all_clients(simulation: Simulation) -> list[Client]:
    """The clients of a simulation."""
    return list(_inner(simulation).members)


def backend_of(simulation: Simulation, clients: Sequence[Client]) -> InProcess:
    """These clients behind the simulation's engine, without a ledger gateway: their records are made up."""
    inner = _inner(simulation)
    return type(inner)(clients, inner.check)


def _inner(simulation: Simulation) -> InProcess:
    inner = simulation.backend.inner
    if not isinstance(inner, InProcess):
        raise TypeError(type(inner).__name__)
    return inner


def read(path: Path, overrides: tuple[str, ...] = ()) -> tuple[Config, ReleasePlan | None]:
    """The configuration and release plan in a run's folder, or the configuration in a TOML file."""
    if not path.is_dir():
        return Config.read(path, overrides), None
    if overrides:
        raise InputError("--set", "is for a configuration file", str(path), "A run keeps its configuration.")
    directory = RunDirectory.open(path)
    checkpoint = directory.read_checkpoint()
    return directory.read_config(), None if checkpoint is None else checkpoint.release_plan


def prepare(
    config: Config, folder: Path, release_plan: ReleasePlan | None = None, federation: Federation | None = None
) -> Subject:
    """The plan of this configuration, ready for attacks. Raise if it claims nothing or its data have a budget."""
    if not config.privacy.enabled:
        raise InputError("privacy", "must be on: without it nothing is claimed", "off", "Give privacy.epsilon.")
    _require_no_budget(config, "" if federation is None else federation.name)
    engine = "stacked" if config.run.engine == "stacked" else "local"  # Flower's clients answer as local ones do
    run = {"reproducible_noise": False, "ledger": f"sqlite:///{folder}/plan.sqlite", "key": None, "engine": engine}
    sums = config.aggregation.model_copy(update={"scheme": config.scheme, "keys": None})
    config = config.model_copy(update={"run": config.run.model_copy(update=run), "aggregation": sums})
    if federation is None:
        federation = load_configured(config)
    with not_remembered():
        simulation = build(config, federation)
    try:
        if simulation.spec.planner is None:
            raise InputError("privacy", "must be on", "off")
        planned = release_plan or begin(simulation.server).release_plan
        planner = replace(simulation.spec.planner, count_releases=planned.count_releases)
        trainings = planner.work.most_trainings
        cohort = 1 if planner.work.embedding is None else planner.work.embedding.cohort
        colluding = with_collusion(planned, planner)["pld"] if planned.noise_is_shared else None
    finally:
        simulation.close()
    schema = replace(federation.schema, inferred=False)
    target = _target(planned)
    rate = None if target is None or planned.sharing is None else _rate(planned, *target)
    kind = _kind(simulation, schema, target)
    fixed = _fixed(config, planned, rate)
    names = tuple(client.name for client in federation.clients[:MOST_CLIENTS])
    if config.federation.method == "centralized":
        names = names[:1]
    return Subject(fixed, schema, planned, kind, trainings, folder, target, cohort, colluding, names)


def _fixed(config: Config, release_plan: ReleasePlan, rate: float | None) -> Config:
    """The configuration with every number of its plan given, so that made-up records cannot change any of them."""
    privacy: dict[str, Any] = {key: getattr(config.privacy, key) for key in _KEPT}
    privacy |= {"retries": 0, "prediction_rate": rate}
    scales = {NOISE_KEYS[channel]: noise for channel, noise in noise_of(release_plan).items()}
    if not any(scales.values()):
        raise InputError("privacy", "must have a channel with noise", "none", "There is no claim to be audited.")
    privacy |= scales
    if release_plan.updates is not None:
        privacy |= {"sampling_rate": release_plan.updates.sampling_rate, "local_steps": release_plan.updates.steps}
    tables = config.as_tables()
    tables["privacy"] = {k: v for k, v in privacy.items() if v is not None}
    tables["aggregation"].pop("keys", None)
    if release_plan.noise_is_shared:  # every trial asks a whole cohort; encryption would take minutes
        tables["aggregation"] |= {"scheme": "plain", "quantise": True}
    return Config.build(tables)


def _target(release_plan: ReleasePlan) -> tuple[int, int] | None:
    """The client and cell whose records are sampled at the highest rate; the first one whose sums are shared."""
    if release_plan.embedding is not None:
        asked = np.argwhere(release_plan.embedding.cells)
        return (int(asked[0][0]), int(asked[0][1])) if len(asked) else None
    if release_plan.sharing is None or not release_plan.sharing.quotas.any():
        return None
    quotas = release_plan.sharing.quotas
    rates = np.array([[_rate(release_plan, k, c) for c in range(quotas.shape[1])] for k in range(quotas.shape[0])])
    client, cell = np.unravel_index(int(np.argmax(rates)), rates.shape)
    return int(client), int(cell)


def _rate(release_plan: ReleasePlan, client: int, cell: int) -> float:
    """How likely a record of this cell is to be in a message."""
    sharing = release_plan.sharing
    if sharing is None or not sharing.quotas[client, cell]:
        return 0.0
    if sharing.rates is not None:
        return float(sharing.rates[client, cell])
    return min(1.0, float(sharing.quotas[client, cell]) / max(1.0, float(release_plan.cells[client, cell])))


def _kind(simulation: Simulation, schema: Schema, target: tuple[int, int] | None) -> Kind:
    """A label and groups with which a record is in the target cell, and in as many others as it can be."""
    low, high = schema.label_range
    groups = [0] * len(schema.sensitive)
    cells = simulation.cells
    if target is not None:
        comparison = next(c for c in cells.comparisons if target[1] in c.cells)
        groups[comparison.attribute] = target[1] - comparison.cells.start
    best = (-math.inf, Kind(high, tuple(groups)))
    for label in (high, low):
        features = np.zeros((1, len(schema.features)), dtype=np.float32)
        conditions = np.ones((1, len(schema.conditions)), dtype=bool)
        record = Records(features, np.array([label], dtype=np.float32), np.array([groups]), conditions)
        member = cells.membership(record)[0]
        wanted = target is None or bool(member[target[1]])
        best = max(best, (float(member.sum()) if wanted else -1.0, Kind(label, tuple(groups))), key=lambda b: b[0])
    return best[1]


def _require_no_budget(config: Config, name: str) -> None:
    """Raise if the data have a budget in the ledger at hand, before anything of them is touched."""
    url, dataset, budget = budget_at_hand(config, name or config.data.name)
    if budget is not None:
        raise Refused(
            f"Dataset {dataset!r} has a budget (ε = {budget.epsilon:g}, δ = {budget.delta:g}) in {url}, and to plan an "
            "audit would release its counts. Attacks use records of their own making: audit the same [privacy] and "
            '[federation] with data.name = "synthetic".'
        )
    require_its_budget(config, dataset, url)
