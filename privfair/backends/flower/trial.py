"""A run on Flower on this machine: every data holder a node of its own, and the same run folder as any other engine.

The processes of the run know only what they would know elsewhere: the server neither records nor secret key. This one
has both, as whoever starts a simulation does, and computes the history from the sums that the server wrote down.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from accountant.errors import InputError
from accountant.storage import absolute_url, ledger_url
from privfair.backends.flower.federation import Node
from privfair.backends.flower.launch import run_federation
from privfair.backends.flower.simulation import simulate
from privfair.deployment.coordinator import run_name, sums_after_rounds
from privfair.deployment.sums import Sums
from privfair.evaluation import Row
from privfair.experiment import Planned, Report, RunOutcome, evaluated, require_room
from privfair.interfaces import ServerState
from privfair.messages import Sealed
from privfair.privacy.plan_report import plan_report
from privfair.run_directory import Checkpoint, RunDirectory
from privfair.run_names import beginning_of
from privfair.setting import Setting
from privfair.storage import write_bytes


def run_trial(
    setting: Setting,
    directory: RunDirectory | None = None,
    report: Report | None = None,
    planned: Planned | None = None,
) -> RunOutcome:
    """As `privfair.experiment.run`, on Flower: real processes, or its simulation engine (`run.engine`)."""
    if setting.config.federation.method == "centralized":
        raise InputError("federation.method", "must have data holders to run on Flower", "centralized")
    with _folder(directory) as folder:
        files = _write_files(setting, folder)
        follower = _Follower(setting, files.server, report, planned)
        if follower.checkpoint() is None:
            require_room(setting, None)
        if not (files.server / "metrics.json").is_file():
            (files.server / "error.json").unlink(missing_ok=True)
            carry_out = simulate if setting.config.run.engine == "flower-simulation" else run_federation
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
    """Reads what the server writes down, and makes the history of it."""

    setting: Setting
    server: Path
    report: Report | None
    planned: Planned | None
    history: list[Row] = field(default_factory=list)
    seen: int = -1  # the last round that was looked at
    _looked_at: tuple[int, int] = (0, 0)  # which checkpoint was read last

    def checkpoint(self) -> Checkpoint | None:
        """The server's last."""
        return RunDirectory(self.server).read_checkpoint()

    def look(self) -> None:
        """Take note of the rounds that have ended since the last look."""
        path = self.server / "checkpoint.npz"
        if not path.is_file():
            return
        status = path.stat()
        checkpoint = self.checkpoint() if (status.st_ino, status.st_mtime_ns) != self._looked_at else None
        if checkpoint is None:
            return
        self._looked_at = (status.st_ino, status.st_mtime_ns)
        setting, sums = self.setting, Sums(self.server / "sums")
        for row in sums_after_rounds(self.server, checkpoint)[self.seen + 1 :]:
            number = self.seen = int(row["round"] or 0)
            if number == 0 and self.planned and setting.private:
                private = setting.private
                budgeted = private.books.budgeted
                self.planned(plan_report(setting.config, checkpoint.terms, private.planner, budgeted=budgeted))
            while setting.replica.round < int(row["sums"] or 0):
                total = sums.get(setting.replica.round + 1)
                if total is None:
                    raise InputError("sum", "must be in the server's folder", setting.replica.round + 1)
                setting.replica.at(total)
            last = number == setting.config.federation.rounds
            if number % setting.config.run.evaluate_every == 0 or last:
                self.history.append(evaluated(setting, number))
                if self.report and number:
                    self.report(self.history[-1])

    def outcome(self) -> RunOutcome:
        """Where the run ended."""
        setting, found = self.setting, self.checkpoint()
        if found is None or found.round < setting.config.federation.rounds:
            raise InputError("run", "must have ended", "an unfinished one", "Continue it with --resume.")
        setting.backend.bytes_up, setting.backend.bytes_down = found.bytes_up, found.bytes_down
        replica = setting.replica
        model = replica.message() if setting.config.scheme == "plain" else Sealed(replica.round, b"")
        setting.model.load(replica.result)
        state = ServerState(found.round, model, found.terms, found.algorithm, found.uncounted, found.absent)
        return RunOutcome(setting, state, self.history, found.seconds, found.released)


@contextmanager
def _folder(directory: RunDirectory | None) -> Iterator[Path]:
    """The run's folder for Flower; one that is forgotten where the run is not kept."""
    if directory is not None:
        yield directory.path / "flower"
        return
    with tempfile.TemporaryDirectory(prefix="privfair-") as path:
        yield Path(path)


def _write_files(setting: Setting, folder: Path) -> _Files:
    """Every party's configuration, as it would have it on a machine of its own."""
    config, names = setting.config, [client.name for client in setting.federation.clients]
    tables = config.as_tables()
    tables["run"] |= {"clients": names, "ledger": absolute_url(ledger_url(config.run.ledger))}
    if isinstance(tables["data"].get("path"), str):
        tables["data"]["path"] = str(Path(tables["data"]["path"]).resolve())
    if config.scheme != "plain":
        keys = _keys(setting, folder)
        (folder / "server.key").unlink(missing_ok=True)
        write_bytes(folder / "server.key", (keys / "server.key").read_bytes())
        tables["aggregation"]["keys"] = str(keys / "client.key")
    nodes = []
    for k, name in enumerate(names):
        path = folder / "holders" / f"{k:03d}.toml"
        write_bytes(path, tomli_w.dumps(tables).encode())
        nodes.append(Node(name, path, folder / "holders" / f"{k:03d}"))
    server: dict[str, Any] = {**tables, "data": {"name": "synthetic"}}
    if config.scheme != "plain":
        server["aggregation"] = {**tables["aggregation"], "keys": str(folder / "server.key")}
    write_bytes(folder / "server.toml", tomli_w.dumps(server).encode())
    # the name that the run has in the ledger, without its division
    run_name(folder / "server", config.scheme, beginning_of(setting.credentials.run))
    return _Files(folder / "server.toml", folder / "server", nodes)


def _keys(setting: Setting, folder: Path) -> Path:
    """The folder with the run's keys."""
    if setting.config.aggregation.keys is not None:
        return Path(setting.config.aggregation.keys).resolve()
    kept = folder.parent / "keys"
    if not kept.is_dir():
        kept = folder / "keys"
        if setting.credentials.keys is not None and not kept.is_dir():
            setting.credentials.keys.save(kept)
    return kept.resolve()
