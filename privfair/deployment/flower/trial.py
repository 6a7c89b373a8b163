"""A federation on this machine: a SuperLink, a SuperNode for every data holder, and one run of the app on them.

Real processes with TLS and node authentication on the loopback address, with certificates and keys made on the spot.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from accountant.errors import InputError, Refused
from accountant.ledger.storage import absolute_url, ledger_url
from privfair.deployment.flower.federation import Federation, Node
from privfair.deployment.flower.processes import Processes, environment
from privfair.deployment.server import run_name, server_checkpoint
from privfair.deployment.sums import FeatureSums, Sums
from privfair.federated.exchange import Unfinished
from privfair.run_names import beginning_of
from privfair.runs.assembly import Simulation
from privfair.runs.folder import RunDirectory
from privfair.runs.loop import Planned, Report, RunOutcome, SimulatedRun, state_of
from privfair.secure_aggregation.keys import FILE_NAMES, IDENTITY, load_identity, new_identity
from privfair.util import write_bytes, write_json

__all__ = ["Federation", "Node", "run_federation"]

POLL = 0.5  # seconds


def run_federation(
    server_config: Path, out: Path, nodes: Sequence[Node], *, logs: Path, watch: Callable[[], None] = lambda: None
) -> None:
    """Return when the run has ended well; `InputError` or `Refused` in plain words otherwise.

    `watch` is called about twice a second while it runs. All processes are ended whatever happens.
    """
    with Federation(logs) as federation:
        for node in nodes:
            federation.admit(node)
        run = federation.submit(server_config, out)
        wait(federation, run, out, watch)


def wait(federation: Federation, run: str, out: Path, watch: Callable[[], None] = lambda: None) -> None:
    """Return when the run has ended well; otherwise raise what the server said, or what Flower says."""
    follower = federation.follow(run)
    while True:
        time.sleep(POLL)
        watch()
        federation.check()
        if follower.poll() is None:
            continue
        status, details = federation.status(run)
        if status == "finished:completed":
            return
        if status.startswith("finished"):
            raise failure(out, f"{status}: {details}", federation.logs)
        follower = federation.follow(run)  # the SuperLink was away for a moment


def failure(out: Path, status: str, logs: Path) -> Exception:
    """The error the server wrote into its folder, else one with Flower's words."""
    try:
        reported = json.loads((out / "error.json").read_text())
    except FileNotFoundError:
        return Refused(f"The run ended early ({status}). What the processes said is in {logs}.")
    if reported["kind"] == "input":
        return InputError(reported["name"], reported["rule"], reported["found"], reported["remedy"])
    return Unfinished(reported["message"]) if reported["kind"] == "unfinished" else Refused(reported["message"])


# The same app on Flower's simulation engine (Ray): many data holders as actors of one program, in a child process.


LOOK = 0.5  # seconds between two looks at the child
SIMULATION_POLL = 0.01  # seconds between two looks for replies: everything is in one program


def simulate(
    config: Path, out: Path, nodes: Sequence[Node], *, logs: Path, watch: Callable[[], None] = lambda: None
) -> None:
    """Return when the run has ended well; otherwise raise what the server said. `watch`: as for real processes."""
    about = [{"client": n.client, "config": str(n.config), "folder": str(n.folder)} for n in nodes]
    write_json(out / "nodes.json", {"nodes": about})
    command = [sys.executable, "-P", "-m", __name__, str(config), str(out)]
    with Processes(logs) as processes:
        child = processes.start("simulation", command, environment(logs))
        while child.poll() is None:
            time.sleep(LOOK)
            watch()
    if child.returncode or not (out / "metrics.json").is_file():
        raise failure(out, f"code {child.returncode}", logs)


def main(config: Path, out: Path) -> None:
    """The child: one run of the app, all of it in this program and Ray's."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from privfair.deployment.flower.client_app import ACTION, answer
    from privfair.deployment.flower.server_app import serve

    nodes: list[Mapping[str, str]] = json.loads((out / "nodes.json").read_text())["nodes"]
    server, client = ServerApp(), ClientApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        serve(grid, config, out, poll=SIMULATION_POLL)

    @client.query(ACTION)
    def by_number(message: Message, context: Context) -> Message:
        """Flower numbers its simulated nodes, and the number is the holder's."""
        context.node_config.update(nodes[int(context.node_config["partition-id"])])
        return answer(message, context)

    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, len(nodes), backend_config=resources)


# A run on Flower on this machine: every data holder a node of its own, and the same run folder as any other engine.
#
# The processes of the run know only what they would know elsewhere: the server neither records nor secret key. This one
# has both, as whoever starts a simulation does, and computes the history from the sums that the server wrote down.


def run_trial(
    simulation: Simulation,
    directory: RunDirectory | None = None,
    report: Report | None = None,
    planned: Planned | None = None,
) -> RunOutcome:
    """As `privfair.runs.loop.run`, on Flower: real processes, or its simulation engine (`run.engine`)."""
    if simulation.config.federation.method == "centralized":
        raise InputError("federation.method", "must have data holders to run on Flower", "centralized")
    with _folder(directory) as folder:
        files = _write_files(simulation, folder)
        follower = _Follower(SimulatedRun(simulation, None, report, planned), RunDirectory(files.server))
        if follower.server.read_checkpoint() is None:
            follower.run.require_room(None)
        if not (files.server / "metrics.json").is_file():
            (files.server / "error.json").unlink(missing_ok=True)
            carry_out = simulate if simulation.config.run.engine == "flower-simulation" else run_federation
            carry_out(files.config, files.server, files.nodes, logs=folder / "logs", watch=follower.look)
        follower.look()
        return follower.outcome()


@dataclass(frozen=True)
class _Files:
    config: Path
    server: Path
    nodes: list[Node]


@dataclass
class _Follower:
    """Reads what the server writes down, and makes the history of it as a run in this process does."""

    run: SimulatedRun
    server: RunDirectory
    seen: int = -1  # the last round that was looked at
    _looked_at: tuple[int, int] = (0, 0)  # which checkpoint was read last

    def look(self) -> None:
        """Take note of the rounds that have ended since the last look."""
        path = self.server.path / "checkpoint.npz"
        if not path.is_file():
            return
        status = path.stat()
        changed = (status.st_ino, status.st_mtime_ns) != self._looked_at
        checkpoint = server_checkpoint(self.server) if changed else None
        if checkpoint is None:
            return
        self._looked_at = (status.st_ino, status.st_mtime_ns)
        for row in checkpoint.history[self.seen + 1 :]:
            self.seen = int(row["round"] or 0)
            self._catch_up(int(row["sums"] or 0))
            state = replace(state_of(checkpoint, self.run.model()), round=self.seen)
            self.run.on_terms(state)
            if self.seen == 0:
                self.run.on_plan(state)
            self.run.on_round(state)

    def _catch_up(self, count: int) -> None:
        """Open the sums up to this one, with the key that the server does not have."""
        replica, sums = self.run.simulation.replica, Sums(self.server.path / "sums")
        features, embedder = FeatureSums(self.server.path / "features"), self.run.simulation.clients[0].embedder
        features.follow(replica, embedder)
        while replica.round < count:
            total = sums.get(replica.round + 1)
            if total is None:
                raise InputError("sum", "must be in the server's folder", replica.round + 1)
            replica.at(total)
            features.follow(replica, embedder)

    def outcome(self) -> RunOutcome:
        """Where the run ended."""
        run, found = self.run, self.server.read_checkpoint()
        if found is None or found.round < run.config.federation.rounds:
            raise InputError("run", "must have ended", "an unfinished one", "Continue it with --resume.")
        run.backend.bytes_up, run.backend.bytes_down = found.bytes_up, found.bytes_down
        state = run.on_end(state_of(found, run.model()))
        return RunOutcome(run.simulation, state, run.history, found.seconds, found.released)


@contextmanager
def _folder(directory: RunDirectory | None) -> Iterator[Path]:
    """The run's folder for Flower; one that is forgotten where the run is not kept."""
    if directory is not None:
        yield directory.path / "flower"
        return
    with tempfile.TemporaryDirectory(prefix="privfair-") as path:
        yield Path(path)


def _write_files(simulation: Simulation, folder: Path) -> _Files:
    """Every party's configuration, as it would have it on a machine of its own."""
    config, names = simulation.config, [client.name for client in simulation.federation.clients]
    tables = config.as_tables()
    tables["run"] |= {"clients": names, "ledger": absolute_url(ledger_url(config.run.ledger))}
    if isinstance(tables["data"].get("path"), str):
        tables["data"]["path"] = str(Path(tables["data"]["path"]).resolve())
    keys = folder
    if config.scheme != "plain":
        keys = _keys(simulation, folder)
        (folder / "server.key").unlink(missing_ok=True)
        write_bytes(folder / "server.key", (keys / "server.key").read_bytes())
        tables["aggregation"]["keys"] = str(keys / "client.key")
    nodes = []
    own = [folder / "identities" / f"{k:03d}" for k in range(len(names))]
    if config.masks:
        tables["aggregation"]["identities"] = {n: _identity(path, keys) for n, path in zip(names, own, strict=True)}
    for k, name in enumerate(names):
        path = folder / "holders" / f"{k:03d}.toml"
        if config.masks:
            tables["aggregation"]["keys"] = str(own[k].resolve())
        write_bytes(path, tomli_w.dumps(tables).encode())
        nodes.append(Node(name, path, folder / "holders" / f"{k:03d}"))
    server: dict[str, Any] = {**tables, "data": {"name": "synthetic", "test_fraction": config.data.test_fraction}}
    if config.scheme != "plain":
        server["aggregation"] = {**tables["aggregation"], "keys": str(folder / "server.key")}
    write_bytes(folder / "server.toml", tomli_w.dumps(server).encode())
    # the name that the run has in the ledger, without its division
    run_name(folder / "server", config.scheme, beginning_of(simulation.credentials.run))
    return _Files(folder / "server.toml", folder / "server", nodes)


def _identity(folder: Path, keys: Path) -> str:
    """The public key of a data holder, whose folder gets its own signing key beside the key that all have."""
    if not (folder / IDENTITY).is_file():
        write_bytes(folder / FILE_NAMES["client"], (keys / FILE_NAMES["client"]).read_bytes(), secret=True)
        new_identity(folder)
    return load_identity(folder).public_key().public_bytes_raw().hex()


def _keys(simulation: Simulation, folder: Path) -> Path:
    """The folder with the run's keys."""
    if simulation.config.aggregation.keys is not None:
        return Path(simulation.config.aggregation.keys).resolve()
    kept = folder.parent / "keys"
    if not kept.is_dir():
        kept = folder / "keys"
        if simulation.credentials.keys is not None and not kept.is_dir():
            simulation.credentials.keys.save(kept)
    return kept.resolve()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
