"""What is attacked, and what every attack has in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from accountant.bounds import pld_or_rdp
from accountant.errors import InputError, Refused
from accountant.events import Adjacency, Composed, Event, Repeated, unshared
from accountant.ledger.machine_state import not_remembered
from accountant.spending import Spend, is_side
from privfair.audit.findings import COLLUDERS, EVERYBODY
from privfair.clients.client import Client
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Records, Schema
from privfair.datasets.registry import load_configured
from privfair.engines.local import InProcess
from privfair.federated.exchange import Metered
from privfair.federated.messages import Request
from privfair.federated.release_plan import NOISE_KEYS, ReleasePlan, noise_of
from privfair.federated.round import begin
from privfair.mechanisms.entropy import stream
from privfair.privacy.planner import Planner
from privfair.privacy.run_ledger import budget_at_hand, cell_labels, require_its_budget
from privfair.privacy.statement import account, with_collusion
from privfair.runs.assembly import Simulation, build
from privfair.runs.folder import RunDirectory
from privfair.secure_aggregation.base import BFV_MODULUS, WordClient
from privfair.secure_aggregation.ciphertext import Ciphertext
from privfair.secure_aggregation.masks import Cohort
from privfair.util import FloatArray

# ---- What is audited: the plan of a run (noise, rates, rounds), applied to made-up records.
#
# The real records are never attacked. The audit uses their schema and release plan; the records themselves are replaced
# by neighbours that are as far apart as the schema allows.


FEATURES = 8
_KEPT = (
    *("delta", "target_method", "counts", "predictions", "updates", "evaluation", "max_grad_norm", "max_update_norm"),
    *("score_range", "kernel_correction", "min_count"),
)
MOST_CLIENTS = 40  # of a larger plan, only the first so many are attacked
MOST_ASKED = 60  # with noise in shares: so many replies in a trial, and fewer clients are attacked


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
    colluding: float | None = None  # ε of the plan where one share of noise is left; None if it does not come in shares
    clients: tuple[str, ...] = ("target",)  # the plan's; each is attacked
    masks: Cohort | None = None  # of masked sums with noise in shares; None: there are none

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

    def shares(self, channel: str) -> int:
        """How many clients' noise together hides a record in the sums of a channel; 1: each client's own does."""
        plan = self.release_plan
        noises = {
            "counts": plan.counting,
            "evaluation": plan.evaluation,
            "embeddings": None if plan.embedding is None else plan.embedding.noise,
            "updates": None if plan.gradient is None else plan.gradient.noise,
            "clients": None if plan.client_updates is None else plan.client_updates.noise,
        }
        noise = noises.get(channel)
        return 1 if noise is None else noise.shares

    def simulation(self, holders: Sequence[ClientData], name: str, *, masked: bool = False) -> Simulation:
        """Everything that a run of these holders needs, with a ledger of its own; engine and scheme are the plan's.

        masked: contributions are the whole numbers that are masked in a run, and are added up in the open.
        """
        url, given = f"sqlite:///{self.folder}/{name}.sqlite", self.config
        if masked and self.masks is not None:
            given = _with_masks(given, self.masks)
        config = given.model_copy(update={"run": given.run.model_copy(update={"ledger": url})})
        with not_remembered():
            made = build(config, self.federation(holders))
        if config.run.engine == self.config.run.engine:
            return made
        inner = _inner(made)  # clients answer one after the other, as configured: only the sums are in the open
        return made.on(Metered(InProcess(inner.members, inner.check, inner.gateway)), made.evaluator)

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
        totals=own.totals,
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
        simulation = build(config, federation, begins=False)
    config = simulation.config  # settled
    try:
        if simulation.spec.planner is None:
            raise InputError("privacy", "must be on", "off")
        planned = release_plan or begin(simulation.server).release_plan
        planner = replace(simulation.spec.planner, count_releases=planned.count_releases)
        trainings = planner.work.most_trainings
        cohort = 1 if planner.work.embedding is None else planner.work.embedding.cohort
        colluding = with_collusion(planned, planner)["pld"] if planned.noise_is_shared else None
        masks = planner.work.cohort if planned.noise_is_shared else None
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
    return Subject(fixed, schema, planned, kind, trainings, folder, target, cohort, colluding, names, masks)


def _fixed(config: Config, release_plan: ReleasePlan, rate: float | None) -> Config:
    """The configuration with every number of its plan given, so that made-up records cannot change any of them.

    It has no masks: where every client adds all of its noise, the attacker opens its message.
    """
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
    for key in ("keys", "colluders", "smallest_cohort"):
        tables["aggregation"].pop(key, None)
    tables["aggregation"]["masks"] = False
    if release_plan.noise_is_shared or config.scheme == "masked":  # with shares, encryption would take minutes
        tables["aggregation"] |= {"scheme": "plain", "quantise": True}
    return Config.build(tables)


def _with_masks(fixed: Config, cohort: Cohort) -> Config:
    """The same with masks. The engine that needs none adds up the whole numbers in the open, with the same result."""
    tables = fixed.as_tables()
    tables["aggregation"] |= {"scheme": "masked", "masks": True, "quantise": False}
    tables["aggregation"] |= {"colluders": cohort.colluders, "smallest_cohort": cohort.smallest}
    tables["federation"]["lagged_scores"] = False  # each channel is attacked in a vector of its own: the same noise
    tables["run"]["engine"] = "stacked"
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


# ---- What every attack has: two worlds of clients that it asks, and a claim that is read from the ledger.


Coins = NDArray[np.bool_]
MOST_OTHERS = 8  # cells beside the record's whose noise is compared with its own
R = TypeVar("R")


@dataclass(frozen=True)
class Claimed:
    """What the ledger says the attacked record pays: the events, and their ε as the accountant computes it."""

    event: Event
    epsilon: float
    others: Mapping[str, Claimed] = field(default_factory=dict)
    """What is claimed instead against the adversaries named here, who have less noise to see through."""

    def against(self, adversary: str) -> Claimed:
        """The claim that holds for this adversary."""
        return self.others.get(adversary, self)


class Attack(Protocol):
    """One channel, attacked on neighbouring datasets that are as different as one record can make them."""

    channel: ClassVar[str]
    about: ClassVar[str]
    """What is compared, in a sentence for people."""
    fewest: ClassVar[int] = 80
    """Trials of each dataset, however little time there is."""

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Why a run of this plan has nothing to attack here; None if it has."""
        ...

    def __init__(self, subject: Subject) -> None:
        """Make both datasets."""
        ...

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """The columns of a trial's numbers that each adversary sees, by the adversary's name."""
        ...

    @property
    def clients(self) -> Sequence[str]:
        """The attacked clients: each by itself, all in the same trial."""
        ...

    def claim(self) -> Claimed:
        """The cost of everything that a trial releases, from the ledger rows of the same requests.

        It is one claim for all adversaries except those that it names.
        """
        ...

    def trial(self, present: Coins) -> FloatArray:
        """Fresh releases of every client with or without its record, as (clients, numbers).

        Numbers are larger if the record seems present, or smaller: the test finds out which.
        """
        ...

    def close(self) -> None:
        """Close the ledger."""
        ...


class Worlds:
    """The plan's clients twice, with the attacked record and without it, behind the configured engine.

    With several clients, one more, the bystander, never has the record. Subtracting its message from an attacked
    client's helps only if two clients have the same noise.
    """

    def __init__(self, subject: Subject, name: str, present: ClientData, absent: ClientData) -> None:
        """The data of every attacked client in either world."""
        self.names = subject.clients
        count = len(self.names)
        holders = [ClientData(client, present.train, present.test) for client in self.names]
        if count > 1:
            holders.append(ClientData("bystander", absent.train, absent.test))
        self.simulation = subject.simulation(holders, name)
        having = all_clients(self.simulation)
        lacking = [twin(self.simulation, absent.train, k, absent.test) for k in range(count)]
        self.present, self.absent = having[0], lacking[0]
        self._bystander = [2 * count] if count > 1 else []
        self._backend = backend_of(self.simulation, [*having[:count], *lacking, *having[count:]])

    def ask(self, coins: Coins, request: Request, kind: type[R]) -> tuple[list[R], R | None]:
        """Every client's reply, with its record if its coin says so; and the bystander's, if there is one."""
        count = len(self.names)
        members = [k if there else count + k for k, there in enumerate(coins)]
        replies: list[Any] = self._backend.exchange([*members, *self._bystander], lambda _: request)
        for reply in replies:
            if not isinstance(reply, kind):
                raise TypeError(type(reply).__name__)
        return replies[:count], replies[count] if self._bystander else None

    def claim(self, requests: Sequence[Request], cells: Sequence[int]) -> Claimed:
        """The cost of these requests to the first client, for a record of these cells."""
        asked(self.simulation, requests)
        return claimed(self.simulation, cells)

    def close(self) -> None:
        """Close the ledger."""
        self.simulation.close()


@dataclass(frozen=True)
class Seen:
    """What a message shows in the open: to each adversary its numbers, and how long the message is."""

    vectors: tuple[FloatArray, ...]
    """Of each adversary. With noise in shares two: the sum of the shares that carry the claim, and the message."""
    beside: FloatArray | None
    """Those of a client without the record, whose noise the adversary may know; None: there is no other."""
    length: int


class SharedWorlds(Worlds):
    """The same where noise comes in shares: the record's client in a sum with others, who add noise alone.

    With masks the plan has n holders. The server and k of them know their own vectors and take them off the sum: what
    is left is, at worst, the sum of h honest ones, which has all of the noise. If all others collude, the vector of the
    record's own holder is left, with one share. Contributions are the whole numbers that are masked in a run, and are
    added modulo m. Who is honest beside the attacked holder changes from sum to sum, so that all are asked.

    Without masks (distributed noise) every client of the smallest cohort opens the sum, and takes its own vector off.
    """

    def __init__(self, subject: Subject, name: str, present: ClientData, absent: ClientData, shares: int) -> None:
        """The data of every attacked client in either world.

        `shares`: how many carry the claim without masks. With masks the cohort says so, whatever noise was sized for.
        """
        cohort = subject.masks
        self._chosen = stream(0, "audit", "companions")
        self.honest, everyone, most = shares, shares, 1
        self.adversaries = (COLLUDERS, EVERYBODY) if cohort else ("client", "server and client")
        if cohort is not None:
            self.honest, everyone, most = cohort.honest, cohort.holders, max(1, MOST_ASKED // cohort.honest)
        self.names = subject.clients[:most]
        count = len(self.names)
        none = present.train.take([])
        holders = [ClientData(client, present.train, present.test) for client in self.names]
        holders += [ClientData(f"holder{k}", none, none) for k in range(count, everyone)]
        self.simulation = subject.simulation(holders, name, masked=cohort is not None)
        having = all_clients(self.simulation)
        lacking = [twin(self.simulation, absent.train, k, absent.test) for k in range(count)]
        self.silent = [twin(self.simulation, none, k, none) for k in range(count)] + having[count:]
        self.present, self.absent = having[0], lacking[0]
        self._backend = backend_of(self.simulation, [*having[:count], *lacking, *self.silent])

    def seen(self, coins: Coins, request: Request, kind: type[R], opened: Callable[[R], FloatArray]) -> list[Seen]:
        """Of every attacked client: the sum of its vector and its companions'; the vector; that of one who colludes."""
        count, found = len(self.names), []
        for k, there in enumerate(coins):
            first, beside_it = k if there else count + k, self._companions(k)
            replies = self._asked([first, *(2 * count + j for j in beside_it)], request, kind)
            vectors = [opened(reply) for reply in replies]
            total = np.asarray(sum(vectors[: self.honest]))
            beside = vectors[self.honest] if len(vectors) > self.honest else None
            found.append(Seen((remainder(total), vectors[0]), beside, _length(replies[0])))
        return found

    def others(self, client: int) -> list[Client]:
        """Those whose shares are in a sum beside a client's: other ones in the next sum."""
        return [self.silent[j] for j in self._companions(client)[: self.honest - 1]]

    def _companions(self, client: int) -> list[int]:
        """Their places, and, if there are more holders, that of one whose share is not in the sum."""
        others = [j for j in range(len(self.silent)) if j != client]
        return [int(j) for j in self._chosen.permutation(others)[: self.honest]]

    def _asked(self, members: Sequence[int], request: Request, kind: type[R]) -> list[R]:
        replies: list[Any] = self._backend.exchange(members, lambda _: request)
        for reply in replies:
            if not isinstance(reply, kind):
                raise TypeError(type(reply).__name__)
        return replies


def remainder(total: FloatArray) -> FloatArray:
    """The numbers of least magnitude modulo m, as whoever opens a sum of whole numbers has them."""
    return np.asarray((total + BFV_MODULUS // 2) % BFV_MODULUS - BFV_MODULUS // 2)


def in_the_open(contribution: bytes | None) -> FloatArray:
    """The whole numbers of a contribution to a masked sum, as who has taken off all masks reads them."""
    if contribution is None:
        raise TypeError("not a part of a sum")
    return np.asarray(WordClient().decrypt(Ciphertext.from_bytes(contribution, "contribution")), dtype=np.float64)


def _length(reply: Any) -> int:
    """The length of a client's message in bytes; 0 for one of numbers alone."""
    return len(getattr(reply, "contribution", None) or b"")


class WorldsAttack(Attack):
    """An attack on all clients of the plan, each in two worlds; subclasses set `_worlds`."""

    _worlds: Worlds

    @property
    def clients(self) -> Sequence[str]:
        """All clients of the plan; with noise in shares fewer, because every trial asks for many shares."""
        return self._worlds.names

    def close(self) -> None:
        """Close the ledger."""
        self._worlds.close()

    def _views(self, sees: str, numbers: int) -> Mapping[str, tuple[int, ...]]:
        """The columns of who sees single messages; of both adversaries where noise comes in shares."""
        names = self._worlds.adversaries if isinstance(self._worlds, SharedWorlds) else (sees,)
        return {name: tuple(range(i * numbers, (i + 1) * numbers)) for i, name in enumerate(names)}

    def _seen(self, present: Coins, request: Request, kind: type[R], opened: Callable[[R], FloatArray]) -> list[Seen]:
        """What a request's replies show of every client; `opened`: the numbers in a reply."""
        if isinstance(self._worlds, SharedWorlds):
            return self._worlds.seen(present, request, kind, opened)
        replies, other = self._worlds.ask(present, request, kind)
        beside = None if other is None else opened(other)
        return [Seen((opened(reply),), beside, _length(reply)) for reply in replies]


def worlds(subject: Subject, channel: str, present: ClientData, absent: ClientData, *, name: str = "") -> Worlds:
    """Clients in two worlds, each with all of the noise of a channel or with its share; `name`: of the ledger."""
    shares = subject.shares(channel)
    if shares > 1:
        return SharedWorlds(subject, name or channel, present, absent, shares)
    return Worlds(subject, name or channel, present, absent)


def planned(subject: Subject, simulation: Simulation, channel: str, number: int | None = 0, client: int = -1) -> Any:
    """The plan's request to a client, or to the first that has one: attacks change what they may choose."""
    requests = simulation.server.requests(channel, subject.release_plan, number)
    return requests[client] if client >= 0 else next(iter(requests.values()))


def only_trained(records: Records) -> ClientData:
    """A client with these training records, and none to test on."""
    return ClientData("attacked", records, records.take([]))


def cells_of(client: Client, row: int = -1) -> list[int]:
    """The cells of one training record."""
    return [int(c) for c in np.flatnonzero(client.data.membership[row])]


def asked(simulation: Simulation, requests: Sequence[Request]) -> None:
    """Have the first client answer these requests through the ledger gateway, so that they are in the ledger."""
    for request in requests:
        simulation.backend.exchange([0], lambda _, one=request: one)  # type: ignore[misc]


def claimed(simulation: Simulation, cells: Sequence[int]) -> Claimed:
    """What everything in the ledger costs a record of these cells of the first client."""
    if simulation.run_ledger is None or simulation.spec.planner is None:
        raise ValueError("only private runs are attacked")
    rows = simulation.run_ledger.spends()
    labels = cell_labels(simulation.cells, simulation.federation.schema)
    paid = {"", *(labels[cell] for cell in cells)}
    rows = [row for row in rows if row.group in paid or is_side(row.group)]
    return priced(rows, simulation.spec.planner, simulation.config.privacy.delta)


def priced(spends: Sequence[Spend], planner: Planner, delta: float) -> Claimed:
    """What these rows of a ledger claim at δ; of noise in shares also what they claim where one share is left."""
    accountant = account(spends, planner.neighbouring)
    event = Composed(tuple(Repeated(spend.event, spend.count) for spend in spends))
    alone = [replace(spend, event=unshared(spend.event)) for spend in spends]
    others = {} if alone == list(spends) else {EVERYBODY: priced(alone, planner, delta)}
    return Claimed(event, pld_or_rdp(lambda method: accountant.epsilon(delta, method)), others)
