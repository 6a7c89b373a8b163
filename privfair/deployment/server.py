"""The server of a federation on several machines: the same rounds, without data and without the secret key."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privfair.clients.client import Embedder
from privfair.config import Config
from privfair.deployment.protocol import deployed, holders, masks_of, schema_from_text, shared_plan
from privfair.deployment.remote import POLL, Link, Remote
from privfair.deployment.sums import FeatureSums, MasksOnDisk, Recorded, Sums
from privfair.engines.evaluation import Row
from privfair.fairness.metrics import parameter_warnings, released_warnings
from privfair.fairness.released import released_figures, released_verdict
from privfair.federated.exchange import Absence, ServerState, Unfinished
from privfair.federated.messages import Model, Sealed
from privfair.federated.model_state import Replica
from privfair.federated.round import HeldByClients, HeldByServer, Server, TooFewTrained
from privfair.models import exported
from privfair.numbers import finite
from privfair.privacy.plan_report import why_no_verdict
from privfair.runs.assembly import RunSpec
from privfair.runs.folder import Checkpoint, RunDirectory, weights_file
from privfair.runs.keys import new_name, server_key
from privfair.runs.loop import Run, absences
from privfair.secure_aggregation import VERSION, require_resumable
from privfair.secure_aggregation.masked import Masking
from privfair.util import write_bytes, write_json

RUN, ROUNDS = "run.json", "rounds.json"


class ServerRun(Run):
    """One run at the server. Its history says how many sums there are after each round."""

    def __init__(
        self,
        folder: Path,
        spec: RunSpec,
        remote: Remote,
        server: Server,
        replica: Replica | None,
        embedder: Embedder | None = None,
    ) -> None:
        """`replica`: the model, and `embedder` what opens sums of features; None where they are the clients' secret."""
        super().__init__(spec.config, server, remote, RunDirectory(folder))
        self.folder, self.spec, self.remote, self.replica = folder, spec, remote, replica
        self.recorded = Recorded(server.model_holder, remote.sums)
        self.embedder = embedder
        self.server = replace(server, model_holder=self.recorded)

    @property
    def shown_model(self) -> Replica | None:
        """The replica, without encryption."""
        return self.replica

    def next_round(self, state: ServerState) -> ServerState:
        """One round in which enough data holders train; those who are missing are waited for, `run.wait` seconds.

        A round that is tried again releases nothing twice: whoever answered before answers the same again. When time
        is up the run stops, and its checkpoint stands at the end of the round before.
        """
        least, why, end = max(self.server.least_trained, self.server.sums.smallest), "", 0.0
        while True:
            if len(self.remote.there()) >= least:
                try:
                    return super().next_round(state)
                except TooFewTrained as few:
                    state, why = few.state, str(few)
            end = end or time.monotonic() + self.config.run.wait
            if time.monotonic() > end:
                self.save(state)  # with the clients that were admitted while it waited
                raise Unfinished(self._stopped(state, why or self.remote.absent(least)))
            time.sleep(min(POLL, self.config.run.wait))

    def _stopped(self, state: ServerState, why: str) -> str:
        return (
            f"The run stopped after round {state.round} of {self.config.federation.rounds}, for want of data holders "
            f"within {self.config.run.wait:g} s. {why} Nothing is lost: start it again with the same folder, and it "
            "goes on with the next round."
        )

    def on_round(self, state: ServerState) -> None:
        """Note how many sums there are; and λ, where it follows a target and the model is no secret."""
        row: Row = {"round": state.round, "sums": self.recorded.count}
        if self.replica is not None and self.replica.controller is not None:
            FeatureSums(self.folder / "features").follow(self.replica, self.embedder)
            row |= self.replica.controller.figures(state.round - 1)
        self.history.append(row)

    def on_end(self, state: ServerState) -> ServerState:
        """Send everybody the last sums, or the open model; those who were not reached are noted."""
        model = b"" if self.replica is None else np.ascontiguousarray(self.replica.result).tobytes()
        silent = self.remote.end(self.recorded.count, model)
        late = tuple(Absence(None, missing.client, "end", missing.reason) for missing in silent)
        state = replace(state, absent=(*state.absent, *late))
        self.save(state)
        return state

    def read_checkpoint(self) -> Checkpoint | None:
        """With its history, also from a folder of an earlier version."""
        return None if self.directory is None else server_checkpoint(self.directory)

    def restored(self, checkpoint: Checkpoint) -> Model:
        """The open model, or the last sum."""
        self.recorded.count = int(checkpoint.replica["sums"][0])
        if self.replica is None:
            return self.remote.sums.get(self.recorded.count) or Sealed(0, b"")
        self.replica.restore({n: v for n, v in checkpoint.replica.items() if n != "sums"})
        return self.replica.message()

    def checkpoint(self, state: ServerState) -> Checkpoint:
        """With the open model, if there is one, and the number of sums."""
        kept = {} if self.replica is None else self.replica.state()
        return replace(super().checkpoint(state), replica={**kept, "sums": np.array([self.recorded.count])})


def server_checkpoint(folder: RunDirectory) -> Checkpoint | None:
    """The checkpoint in a server's folder; its history says for each round, from 0 on, how many sums there are."""
    found, path = folder.read_checkpoint(), folder.path / ROUNDS
    if found is None or found.history or not path.is_file():
        return found
    known: dict[str, int] = json.loads(path.read_text())  # of an earlier version
    return replace(found, history=[{"round": n, "sums": known[str(n)]} for n in range(found.round + 1)])


def server_run(config: Config, folder: Path, link: Link) -> ServerRun:
    """Gather the data holders and make everything that the server needs; a folder with a checkpoint is continued."""
    config, names = deployed(config), holders(config)
    keys = server_key(config)  # before anybody is asked
    run = run_name(folder, config.scheme)
    plan = json.dumps(shared_plan(config), sort_keys=True)
    deadline, wait = config.run.deadline, config.run.wait
    remote = Remote(link, names, run=run, plan=plan, sums=Sums(folder / "sums"), deadline=deadline, wait=wait)
    least = config.run.min_clients or len(names)
    schema = schema_from_text(remote.gather(least))
    spec = RunSpec.of(config, schema, len(names))
    config = spec.config
    masks = masks_of(config, run, schema)  # before anything is asked for: an identity may be missing
    if masks is not None:
        remote.least = masks.cohort.smallest
        remote.gather(max(least, remote.least))
    if spec.planner is not None:
        spec.planner.require_plannable()  # before counts: a wrong key must not cost anything
    parameters, adders = spec.model().parameters(), spec.server_side(keys)
    replica = embedder = None
    if config.scheme == "plain":
        opener, embedder = spec.client_side(None)
        replica = spec.replica(parameters, opener)
    remote.check = spec.reply_check(adders, parameters.size, remote=names, replica=replica)
    features = FeatureSums(folder / "features")
    remote.features = None if config.fairness.target is None else features
    server = spec.server(
        remote,
        adders,
        HeldByClients() if replica is None else HeldByServer(replica),
        spec.negotiator(),
        least_trained=config.run.min_clients or 1,
        kept=features.kept,
        masking=None if masks is None else Masking(masks, {}),
        memory=MasksOnDisk(folder / "masks"),
    )
    return ServerRun(folder, spec, remote, server, replica, embedder)


def run_name(folder: Path, scheme: str, new: str | None = None) -> str:
    """The name of the run in a server's folder, where a new one is written down; one that cannot go on is refused."""
    path = folder / RUN
    if not path.is_file():
        write_json(path, {"run": new or new_name(), "messages": VERSION})
    about = json.loads(path.read_text())
    if not (folder / "metrics.json").is_file():
        require_resumable(scheme, about.get("messages"))
    return str(about["run"])


def write_results(run: ServerRun, state: ServerState) -> dict[str, Any]:
    """metrics.json, and the model where it is no secret: what a server without data can say."""
    config, path, names = run.config, run.folder, holders(run.config)
    claim, noise = state.release_plan.claim, state.release_plan.noise_of_evaluation
    warnings: list[str] = []
    if run.replica is not None:
        model = run.spec.model()
        model.load(run.replica.result)
        warnings = parameter_warnings(model.module)
        write_bytes(path / "model.safetensors", weights_file(exported(model.module, state.release_plan.scaling)))
    figures, tables = None, [evaluation.confusion for evaluation in run.released or ()]
    if tables and noise is not None:
        figures = released_figures(tables, run.spec.schema, noise)
    target, reason = config.fairness.target, why_no_verdict(config, run.spec.schema.task)
    if not warnings and tables and noise is not None:
        warnings = released_warnings(tables, noise)
    metrics = {
        "verdict": released_verdict(tables, run.spec.schema, noise, run.spec.cells, target, warnings, reason),
        "warnings": warnings,
        "rounds": state.round,
        "released": figures,  # accuracy and unfairness, where the plan has them released (privacy.evaluation)
        "clients": {name: {"released": int(n)} for name, n in zip(names, state.release_plan.records, strict=True)}
        if not state.release_plan.totals
        else {"all": {"released": int(state.release_plan.records.sum())}},
        "absent": absences(state, names),
        "bytes": {"up": run.remote.bytes_up, "down": run.remote.bytes_down},
        "seconds": {"total": run.seconds},
        "aggregation": {"scheme": config.scheme},
        "privacy": {
            "planned": None if claim is None else {"rdp": claim.rdp, "pld": claim.pld, "delta": claim.delta},
            "spent": "Every data holder's own ledger tells what it spent: privfair audit.",
        },
    }
    write_json(path / "metrics.json", finite(metrics))
    return metrics
