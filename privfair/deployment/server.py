"""The server of a federation on several machines: the same rounds, without data and without the secret key."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.channels.base import MOST_RECORDS, PlannedRequests, ReplyCheck
from privfair.channels.evaluation import EVALUATION
from privfair.config import Config
from privfair.deployment.agreement import negotiator_of
from privfair.deployment.holder_state import key_path, require_scheme
from privfair.deployment.protocol import holders, schema_from_json, shared_plan
from privfair.deployment.remote import POLL, Link, Remote
from privfair.deployment.sums import FeatureSum, Recorded, Sums
from privfair.engines.evaluation import Row
from privfair.fairness.released import released_figures
from privfair.federated.algorithms.mmd_fedavg import with_adder
from privfair.federated.exchange import ExchangeLog, Unfinished
from privfair.federated.interfaces import Absence, ServerState, answered
from privfair.federated.messages import Evaluation, Parameters, Sealed
from privfair.federated.model_state import Replica
from privfair.federated.round import HeldByClients, HeldByServer, ModelHolder, Server, TooFewTrained, begin, run_round
from privfair.runs.assembly import RunSpec
from privfair.runs.folder import Checkpoint, RunDirectory, weights_file
from privfair.secure_aggregation import (
    VERSION,
    ClientAggregator,
    ServerAggregator,
    ServerKeys,
    load_server,
    plain_keys,
    require_resumable,
)
from privfair.util import stream, write_bytes, write_json

RUN, ROUNDS = "run.json", "rounds.json"


def new_run() -> str:
    """A name for a run; every data holder adds its own division of records to it in its ledger."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


@dataclass
class Coordinator:
    """One run at the server."""

    config: Config
    folder: RunDirectory
    parts: RunSpec
    remote: Remote
    server: Server
    recorded: Recorded
    replica: Replica | None  # None: the model is the clients' secret
    sums_after: list[Row] = field(default_factory=list)  # for each round, how many sums there are after it

    def run(self) -> ServerState:
        """All rounds, or those that a checkpoint in the folder has not seen yet; the final state."""
        started, rounds = time.perf_counter(), self.config.federation.rounds
        checkpoint = self.folder.read_checkpoint()
        before = 0.0 if checkpoint is None else checkpoint.seconds
        state = begin(self.server) if checkpoint is None else self._restored(checkpoint)
        released = None if checkpoint is None else checkpoint.released
        if checkpoint is None:
            self._write(state, before, None)
        while state.round < rounds:
            state = self._round(state, lambda: before + time.perf_counter() - started)
            self._write(state, before + time.perf_counter() - started, None)
        if state.release_plan.evaluation is not None and released is None:
            state, released = self._evaluated(state)
        model = b"" if self.replica is None else np.ascontiguousarray(self.replica.result).tobytes()
        unheard = self.remote.end(self.recorded.count, model)
        late = tuple(Absence(None, missing.client, "end", missing.reason) for missing in unheard)
        state = replace(state, absent=(*state.absent, *late))
        self._write(state, before + time.perf_counter() - started, released)
        return state

    def _round(self, state: ServerState, seconds: Callable[[], float]) -> ServerState:
        """One round in which enough data holders train; those who are missing are waited for, `run.wait` seconds.

        A round that is tried again releases nothing twice: whoever answered before answers the same again. When time
        is up the run stops, and its checkpoint stands at the end of the round before.
        """
        least, why, end = self.server.least_trained, "", 0.0
        while True:
            there = self.remote.there()
            if len(there) >= least:
                try:
                    return run_round(state, self.server)
                except TooFewTrained as few:
                    state, why = few.state, str(few)
            end = end or time.monotonic() + self.config.run.wait
            if time.monotonic() > end:
                self._write(state, seconds(), None)  # with those who were admitted while it waited
                raise Unfinished(self._stopped(state, why or self.remote.absent(least)))
            time.sleep(min(POLL, self.config.run.wait))

    def _stopped(self, state: ServerState, why: str) -> str:
        return (
            f"The run stopped after round {state.round} of {self.config.federation.rounds}, for want of data holders "
            f"within {self.config.run.wait:g} s. {why} Nothing is lost: start it again with the same folder, and it "
            "goes on with the next round."
        )

    def _evaluated(self, state: ServerState) -> tuple[ServerState, tuple[Evaluation, ...]]:
        model = state.model if self.replica is None else Parameters(self.replica.result)
        planned = self.server.requests(EVALUATION, state.release_plan, None)
        requests, everyone = {k: replace(request, model=model) for k, request in planned.items()}, list(planned)
        exchange_log = ExchangeLog(self.remote.exchange, None)
        found = tuple(answered(Evaluation, everyone, exchange_log.ask(everyone, requests.__getitem__)).values())
        return replace(state, absent=(*state.absent, *exchange_log.absent)), found

    def _restored(self, checkpoint: Checkpoint) -> ServerState:
        self.recorded.count = int(checkpoint.replica["sums"][0])
        self.sums_after = list(sums_after_rounds(self.folder.path, checkpoint))
        if self.replica is None:
            last = self.recorded.sums.get(self.recorded.count)
            model: Sealed | Parameters = last or Sealed(0, b"")
        else:
            self.replica.restore({n: v for n, v in checkpoint.replica.items() if n != "sums"})
            model = self.replica.message()
        self.remote.bytes_up += checkpoint.bytes_up
        self.remote.bytes_down += checkpoint.bytes_down
        self.remote.agreed(checkpoint.release_plan)
        return ServerState(
            checkpoint.round,
            model,
            checkpoint.release_plan,
            checkpoint.algorithm,
            checkpoint.uncounted,
            checkpoint.absent,
        )

    def _write(self, state: ServerState, seconds: float, released: tuple[Evaluation, ...] | None) -> None:
        """Write down where the run is: what it needs to go on, and how many sums there are after each round."""
        if len(self.sums_after) <= state.round:
            self.sums_after.append({"round": state.round, "sums": self.recorded.count})
        kept = {} if self.replica is None else self.replica.state()
        self.folder.write_checkpoint(
            Checkpoint(
                identity="",
                round=state.round,
                release_plan=state.release_plan,
                algorithm=state.algorithm,
                replica={**kept, "sums": np.array([self.recorded.count])},
                client_state={},
                history=self.sums_after,
                bytes_up=self.remote.bytes_up,
                bytes_down=self.remote.bytes_down,
                seconds=seconds,
                released=released,
                uncounted=state.uncounted,
                absent=state.absent,
            )
        )


def sums_after_rounds(folder: Path, checkpoint: Checkpoint) -> Sequence[Row]:
    """For each round, from 0 on, how many sums the server has after it."""
    path = folder / ROUNDS
    if checkpoint.history or not path.is_file():
        return checkpoint.history
    known: dict[str, int] = json.loads(path.read_text())  # of an earlier version
    return [{"round": number, "sums": known[str(number)]} for number in range(checkpoint.round + 1)]


def coordinator(config: Config, folder: Path, link: Link) -> Coordinator:
    """Gather the data holders and make everything that the server needs; a folder with a checkpoint is continued."""
    names = holders(config)
    keys = _server_keys(config, quantise=config.whole_sums)  # before anybody is asked
    run = run_name(folder, config.scheme)
    sums = Sums(folder / "sums")
    plan = json.dumps(shared_plan(config), sort_keys=True)
    remote = Remote(link, names, run=run, plan=plan, sums=sums, deadline=config.run.deadline, wait=config.run.wait)
    schema = schema_from_json(remote.gather(config.run.min_clients or len(names)))
    parts = RunSpec.of(config, schema, len(names))
    if parts.planner is not None:
        parts.planner.require_plannable()  # before counts: a wrong key must not cost anything
    model = parts.model()
    adder = ServerAggregator(keys, parts.fixed_point)
    replica: Replica | None = None
    model_holder: ModelHolder = HeldByClients()
    if config.scheme == "plain":
        opener = ClientAggregator(plain_keys(quantise=config.whole_sums).client, parts.fixed_point)
        replica = parts.replica(model.parameters(), opener)
        model_holder = HeldByServer(replica)
    recorded = Recorded(model_holder, sums)
    size = parts.contribution_size(model.parameters().size)
    features = None
    if parts.embedding is not None:
        feature_keys = _server_keys(config, quantise=parts.feature_code is not None)
        features = (ServerAggregator(feature_keys, parts.feature_code), parts.embedding.unit.count)
    remote.check = ReplyCheck(
        adder,
        cells=len(parts.cells),
        contribution_size=size,
        features=features,
        groups=tuple(len(attribute.values) for attribute in schema.sensitive),
        most_records=_most_records(parts),
        remote=names,
        replica=replica,
    )
    server = Server(
        remote,
        with_adder(parts.algorithm, features and features[0], FeatureSum(folder / "features.npz").kept),
        parts.optimizer,
        parts.plan,
        adder,
        recorded,
        negotiator_of(parts),
        PlannedRequests(parts.plan),
        least_trained=config.run.min_clients or 1,
    )
    return Coordinator(config, RunDirectory(folder), parts, remote, server, recorded, replica)


def _most_records(parts: RunSpec) -> int:
    """The largest count of one data holder with which there is a plan: one that claims more does not end the run."""
    limits = [MOST_RECORDS]
    if parts.embedding is not None and parts.embedding.room is not None:
        limits.append(parts.embedding.room)
    return min(limits)


def run_name(folder: Path, scheme: str, new: str | None = None) -> str:
    """The name of the run in a server's folder, where a new one is written down; one that cannot go on is refused."""
    path = folder / RUN
    if not path.is_file():
        write_json(path, {"run": new or new_run(), "messages": VERSION})
    about = json.loads(path.read_text())
    if not (folder / "metrics.json").is_file():
        require_resumable(scheme, about.get("messages"))
    return str(about["run"])


def _server_keys(config: Config, *, quantise: bool | None = None) -> ServerKeys:
    """The server's key; a secret one is refused: the server is not to have it."""
    if config.scheme == "plain":
        return plain_keys(quantise=config.aggregation.quantise if quantise is None else quantise).server
    path = key_path(config, "the server its server.key")
    if path.is_dir() and (path / "client.key").exists():
        remedy = "The server opens nothing: give it server.key alone."
        raise InputError("aggregation.keys", "must be without the secret client.key at the server", str(path), remedy)
    keys = load_server(path)
    require_scheme(config, keys.scheme)
    return keys


def write_results(coordinator: Coordinator, state: ServerState) -> dict[str, Any]:
    """metrics.json, and the model where it is no secret: what a server without data can tell."""
    config, path = coordinator.config, coordinator.folder.path
    names = holders(config)
    claim = state.release_plan.claim
    if coordinator.replica is not None:
        model = coordinator.parts.model()
        model.load(coordinator.replica.result)
        write_bytes(path / "model.safetensors", weights_file(model.module.state_dict()))
    checkpoint = coordinator.folder.read_checkpoint()
    noise, figures = state.release_plan.evaluation, None
    if checkpoint is not None and checkpoint.released and noise is not None:
        tables = [evaluation.confusion for evaluation in checkpoint.released]
        figures = released_figures(tables, coordinator.parts.schema, noise, stream(config.run.seed, "released"))
    metrics = {
        "rounds": state.round,
        "released": figures,  # accuracy and unfairness, where the plan has them told (privacy.evaluation)
        "clients": {name: {"released": int(n)} for name, n in zip(names, state.release_plan.records, strict=True)},
        "absent": [{**vars(absence), "client": names[absence.client]} for absence in state.absent],
        "bytes": {"up": coordinator.remote.bytes_up, "down": coordinator.remote.bytes_down},
        "seconds": {"total": None if checkpoint is None else checkpoint.seconds},
        "aggregation": {"scheme": config.scheme},
        "privacy": {
            "planned": None if claim is None else {"rdp": claim.rdp, "pld": claim.pld, "delta": claim.delta},
            "spent": "Every data holder's own ledger tells what it spent: privfair audit.",
        },
    }
    write_json(path / "metrics.json", _finite(metrics))
    return metrics


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return {key: _finite(inner) for key, inner in value.items()} if isinstance(value, dict) else value
