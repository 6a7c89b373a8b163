"""A whole run: everything that leaves a client, from counts to the last update, with and without one record."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from accountant.errors import Refused
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import not_remembered
from accountant.spending import is_side
from privfair.audit.attack import (
    FEATURES,
    Attack,
    Claimed,
    Coins,
    Kind,
    Subject,
    backend_of,
    claimed,
    first_client,
    only_trained,
    priced,
    twin,
)
from privfair.audit.features import embedder_of
from privfair.audit.scores import TINY, log_density
from privfair.audit.updates import Steps, beside, change, clipped_gradients
from privfair.channels.base import channel_of, respond
from privfair.clients.client import all_scores
from privfair.config import Config
from privfair.datasets.records import ClientData
from privfair.deployment.holder import Holder
from privfair.deployment.protocol import Envelope, Value, byte_parts, read_sums, text
from privfair.deployment.server import run_name, server_run
from privfair.engines.local import InProcess
from privfair.federated.exchange import Memory, decode, decode_request, singles
from privfair.federated.messages import (
    Answered,
    Asked,
    BundleReply,
    Counts,
    Embeddings,
    Parameters,
    PrivateWork,
    Reply,
    Request,
    Scores,
    Sealed,
    Update,
)
from privfair.federated.model_state import Replica
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Server, begin, run_round
from privfair.mechanisms.score_release import fill_share
from privfair.privacy.run_ledger import cell_labels
from privfair.run_names import beginning_of
from privfair.secure_aggregation import new_keys
from privfair.util import FloatArray

FAR = 10.0  # large enough to be clipped, small enough that the model does not learn the record at once
FEWEST = 40  # other records in every cell


Seen = list[tuple[Request, Reply]]  # with models in the open


class Recording:
    """A backend that records requests and replies, with the models as a holder of the key sees them."""

    def __init__(self, inner: InProcess, replica: Replica) -> None:
        """Without a ledger gateway: a trial's releases are of made-up records and belong in no ledger."""
        self._inner, self._replica = inner, replica
        self.seen: Seen = []

    @property
    def clients(self) -> int:
        """How many there are."""
        return self._inner.clients

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        """What the inner backend answers."""
        asked = [request(k) for k in clients]
        replies = self._inner.exchange(clients, dict(zip(clients, asked, strict=True)).__getitem__)
        for one, reply in zip(asked, replies, strict=True):
            parts = reply.replies if isinstance(reply, BundleReply) else (reply,)
            self.seen += [
                (opened(a, self._replica), b) for a, b in zip(singles(one), parts, strict=True) if isinstance(b, Reply)
            ]
        return replies

    def agreed(self, release_plan: ReleasePlan) -> None:
        """As the inner backend."""
        self._inner.agreed(release_plan)

    def client_state(self) -> Memory:
        """As the inner backend."""
        return self._inner.client_state()

    def restore_clients(self, state: Memory) -> None:
        """As the inner backend."""
        self._inner.restore_clients(state)


def opened(request: Any, replica: Replica) -> Request:
    """The request with its model in the open."""
    model = getattr(request, "model", None)
    found: Request = replace(request, model=replica.at(model)) if isinstance(model, Sealed) else request
    return found


class WholeRunAttack(Attack):
    """The run as configured, with an honest server; the record's features are far from all others'.

    An adversary who sees everything adds up the evidence of counts, scores or sums of features, and updates; one who
    has only the model uses the record's loss.
    """

    channel: ClassVar[str] = "run"
    about: ClassVar[str] = "everything that leaves one client in a whole run, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """A channel without noise reveals everything; and the run that is attacked has one client."""
        if subject.config.privacy.client_level:
            return "not attacked where whole clients are protected"
        sharing, updates = subject.config.privacy.predictions, subject.config.privacy.updates
        if updates == "none" or (sharing == "none" and subject.config.federation.method == "mmd_fedavg"):
            return "a channel has no noise: no ε is claimed"
        if subject.release_plan.noise_is_shared:
            return "noise comes in shares of several clients, and one client is attacked: see embeddings and updates"
        return None

    def __init__(self, subject: Subject) -> None:
        """Both clients."""
        self._subject = subject
        end = np.zeros((1, FEATURES))
        end[0, 0] = FAR
        kinds = self._others()
        rows = np.zeros((len(kinds), FEATURES))
        record, others = subject.records(end), subject.records(rows, kinds)
        both = type(record).concatenate([others, record])
        self._simulation = subject.simulation([only_trained(both)], self.channel)
        self._initial = self._simulation.replica.state()
        absent = others if not subject.replaces else type(record).concatenate([others, subject.records(-end)])
        self._records = {True: both, False: absent}
        self._clients = {True: first_client(self._simulation), False: twin(self._simulation, absent)}
        self._probe = twin(self._simulation, record)
        distinct = sorted({(k.label, k.groups) for k in kinds})
        some = [Kind(*k) for k in distinct]
        self._bystanders = twin(self._simulation, subject.records(np.zeros((len(some), FEATURES)), some))
        self._share = np.array([sum((k.label, k.groups) == d for k in kinds) for d in distinct])
        self._cells = [int(c) for c in np.flatnonzero(self._probe.data.membership[0])]
        self._counts = {there: c.cell_counts for there, c in self._clients.items()}

    def _others(self) -> list[Kind]:
        """So many records of every group and label that no cell is left out."""
        schema, noise = self._subject.schema, self._subject.release_plan.counting
        each = max(FEWEST, 0 if noise is None else round(12 * noise.scale))
        low, high = schema.label_range
        sizes = [len(a.values) for a in schema.sensitive]
        kinds = [Kind(label, tuple(i % n for n in sizes)) for label in (low, high) for i in range(max(sizes))]
        most = max(1, round(0.5 / self._subject.config.privacy.delta) // len(kinds))  # δ must stay below 1/n
        return [kind for kind in kinds for _ in range(min(-(-each // 2), most))]

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """White-box: every message. Black-box: the model at the end."""
        return {"white-box": (0, 1, 2, 3, 4), "black-box": (5,)}

    @property
    def clients(self) -> Sequence[str]:
        """The one that there is."""
        return ("the only client",)

    def claim(self) -> Claimed:
        """The cost of one run, from its ledger."""
        self._run(self._simulation.server)
        return claimed(self._simulation, self._cells)

    def trial(self, present: Coins) -> FloatArray:
        """Log-likelihood ratios: of all, of counts, scores (or sums) and updates; all lengths; the record's fit."""
        parts = {Counts: 0.0, Scores: 0.0, Update: 0.0}
        length = 0
        for request, reply in self._played(bool(present[0])):
            if isinstance(reply, Counts):
                parts[Counts] += self._of_counts(reply)
            elif isinstance(reply, Scores):
                parts[Scores] += self._of_scores(request, reply)
                length += sum(cell.size for cell in reply.cells)
            elif isinstance(reply, Embeddings):
                parts[Scores] += self._of_sums(request, reply)
                length += len(reply.contribution)
            elif isinstance(reply, Update):
                parts[Update] += self._of_update(request, reply)
        model = self._probe.model
        model.load(self._simulation.replica.result)
        data = self._probe.data
        fit = -float(data.task.losses(model.evaluate(data.x), data.y)[0])
        return np.array([[float(sum(parts.values())), *parts.values(), float(length), fit]])

    def _played(self, present: bool) -> Seen:
        """What is seen of one run, at the end of which the replica has the result."""
        backend = Recording(backend_of(self._simulation, [self._clients[present]]), self._simulation.replica)
        self._run(replace(self._simulation.server, backend=backend))
        return backend.seen

    def _run(self, server: Server) -> None:
        """All rounds, from the initial model."""
        self._simulation.replica.restore(self._initial)
        state = begin(server)
        for _ in range(self._subject.rounds):
            state = run_round(state, server)
        self._simulation.replica.at(state.model)

    def _of_counts(self, reply: Counts) -> float:
        noise = self._subject.release_plan.counting
        if noise is None:
            return 0.0
        logs = {}
        for there, exact in self._counts.items():
            distance = np.abs(reply.cells - exact) / noise.scale
            logs[there] = -float(np.sum(distance if noise.kind == "laplace" else 0.5 * distance**2))
        return logs[True] - logs[False]

    def _of_scores(self, request: Any, reply: Scores) -> float:
        """log(1 − γ + γ·mean of p(y | the record)/p(y | somebody else)) of every message that the record may be in."""
        if not isinstance(request.model, Parameters) or request.release is None:
            return 0.0
        noise = request.release.noise
        self._probe.model.load(request.model.values)
        own = np.clip(all_scores(self._probe.model, self._probe.data), noise.low, noise.high)
        theirs = np.clip(all_scores(self._bystanders.model, self._bystanders.data), noise.low, noise.high)
        total = 0.0
        for cell in self._cells:
            reported = reply.cells[cell]
            if not reported.size:
                continue
            member = self._bystanders.data.membership[:, cell]
            weights = self._share[member] / self._share[member].sum()
            count = int(self._share[member].sum())
            rates = request.release.rates
            rate = min(1.0, reported.size / (count + 1)) if rates is None else float(rates[cell])
            filled = fill_share(count, rate, reported.size) if rates is not None else 1.0
            usual = np.exp(log_density(noise, reported[:, None] - theirs[member][None, :])) @ weights
            pad = np.exp(log_density(noise, reported - noise.middle))
            ratio = np.exp(log_density(noise, reported - own[0])) / (filled * usual + (1 - filled) * pad + TINY)
            total += float(np.log(max(TINY, 1 - rate + rate * float(np.mean(ratio)))))
        return total

    def _of_sums(self, request: Any, reply: Embeddings) -> float:
        """How much nearer the sums are to those of all records than to those without the attacked one."""
        if request.release is None:
            return 0.0
        reported, exact = self._sums(reply, request), replace(request, release=None)
        logs = {}
        for there, client in self._clients.items():
            distance = (reported - self._sums(respond(client, exact), request)) / request.release.share_scale
            logs[there] = -0.5 * float(distance @ distance)
        return logs[True] - logs[False]

    def _sums(self, reply: Reply, request: Any) -> FloatArray:
        if not isinstance(reply, Embeddings):
            raise TypeError(type(reply).__name__)
        return embedder_of(self._probe).total(reply.contribution, request.round)

    def _of_update(self, request: Any, reply: Update) -> float:
        """The update along what the record's gradient has that no other's has."""
        request = channel_of(request).opened(request, self._probe)
        work, model = request.work, request.model
        if not isinstance(work, PrivateWork) or not isinstance(model, Parameters):
            return 0.0
        bound = work.max_grad_norm
        own = clipped_gradients(self._probe, model.values, request.objective, bound)[0]
        others = clipped_gradients(self._bystanders, model.values, request.objective, bound)
        direction = beside(own, others)
        share = float(own @ direction) / bound
        if share < 1e-3:
            return 0.0
        unit = request.weight * work.learning_rate * bound * share / work.divisor
        seen = -float(change(self._simulation, reply, request.round + 1)[: own.size] @ direction) / unit
        return Steps.of(work, self._subject.replaces, share).log_ratio(seen)

    def close(self) -> None:
        """Close the ledger."""
        self._simulation.close()


# ---- A run on Flower: the same messages, as a data holder's own program answers them.


NAME = "target"


class OneHolder:
    """A link to one data holder in this process: its `handle` gets the server's messages, and every one is noted."""

    def __init__(self, holder: Holder, replica: Replica) -> None:
        """`replica` opens the sums, as who has the key does."""
        self._holder, self._replica = holder, replica
        self.seen: Seen = []

    def nodes(self) -> set[int]:
        """The one that there is."""
        return {0}

    def exchange(self, messages: Mapping[int, Envelope], deadline: float) -> dict[int, Mapping[str, Value] | str]:
        """The holder's answers."""
        return {node: self._answer(message) for node, message in messages.items()}

    def _answer(self, message: Envelope) -> Envelope:
        answer = self._holder.handle(message)
        if answer["kind"] == "refused":
            raise Refused(f"The attacked data holder refused: {text(answer, 'reason')}")
        for total in read_sums(message) if message["kind"] != "hello" else ():
            self._replica.at(total)
        if message["kind"] == "order":
            asked = decode_request(byte_parts(message, "request")[0])
            for request, reply in zip(singles(asked), byte_parts(answer, "replies"), strict=True):
                found = decode(reply)
                if not isinstance(found, Reply):
                    raise TypeError(type(found).__name__)
                self.seen.append((opened(request, self._replica), found))
        return answer


class HolderAttack(WholeRunAttack):
    """One round of the plan between a real server and a real data holder with a folder and a ledger of its own.

    It differs from a simulation in everything between request and reply: release plan, state, ledger, messages.
    """

    channel: ClassVar[str] = "holder"
    about: ClassVar[str] = "all messages of one data holder on Flower in one round, with and without one record"
    fewest: ClassVar[int] = 40

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """As for a whole run; and one client's run is none of several clients pooled."""
        if subject.config.federation.method == "centralized":
            return "pooled records have no data holders"
        return WholeRunAttack.why_not(subject)

    def __init__(self, subject: Subject) -> None:
        """Both data holders, and the keys that they and the server have."""
        config, folder = subject.config, subject.folder / f"holder-{secrets.token_hex(4)}"
        folder.mkdir()
        self._keys: dict[str, Path] = {}
        if config.scheme != "plain":
            new_keys(config.scheme).save(folder / "keys")
            shutil.copy(folder / "keys" / "server.key", folder / "server.key")  # a server is refused beside client.key
            self._keys = {"holder": folder / "keys", "server": folder / "server.key"}
        tables = config.as_tables()
        tables["federation"] = {k: v for k, v in tables["federation"].items() if k != "clients_per_round"}
        tables["federation"]["rounds"] = 1
        tables["run"] |= {"clients": [NAME], "engine": "local"}
        self._tables, self._folder, self._runs = tables, folder, 0
        super().__init__(replace(subject, config=self._configured("holder")))

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Who sees every message; the model is what it is in a simulation."""
        return {"white-box": (0, 1, 2, 3, 4)}

    def claim(self) -> Claimed:
        """Of a run in the holder's own ledger."""
        self._played(True)
        delta, planner = self._subject.config.privacy.delta, self._planner
        labels = cell_labels(self._simulation.cells, self._simulation.federation.schema)
        paid = {"", *(labels[cell] for cell in self._cells)}
        with not_remembered(), Ledger(self._ledger, create=False) as ledger:
            runs = [run for dataset in ledger.datasets() for run in ledger.runs(dataset.name)]
            rows = [spend for run in runs for _, spend in ledger.spends(run=run)]
        return priced([row for row in rows if row.group in paid or is_side(row.group)], planner, delta)

    @not_remembered()  # its ledger is thrown away
    def _played(self, present: bool) -> Seen:
        """One run in a new folder: a data holder answers every request once."""
        self._runs += 1
        config, folder = self._configured("holder"), self._folder / str(self._runs)
        folder.mkdir()
        records = self._records[present]
        federation = self._subject.federation([ClientData(NAME, records, records.take([]))])
        holder = Holder(config, NAME, folder / "node", federation)
        if holder.spec.planner is None:
            raise ValueError("only private runs are attacked")
        self._planner = holder.spec.planner
        self._simulation.replica.restore(self._initial)
        # sums are opened with the tags of one run only: that of the simulation
        run_name(folder / "server", config.scheme, beginning_of(self._simulation.credentials.run))
        link = OneHolder(holder, self._simulation.replica)
        server_run(self._configured("server"), folder / "server", link).go()
        return link.seen

    @property
    def _ledger(self) -> str:
        return f"sqlite:///{self._folder}/{self._runs}/ledger.sqlite"

    def _configured(self, whose: str) -> Config:
        """The configuration of the data holder, or of the server, in the present trial."""
        run = {**self._tables["run"], "ledger": self._ledger}
        keys = {"keys": str(self._keys[whose])} if self._keys else {}
        return Config.build({**self._tables, "run": run, "aggregation": {**self._tables["aggregation"], **keys}})
