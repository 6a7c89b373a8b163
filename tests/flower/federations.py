"""Small federations over an in-memory grid: files as a deployment has them, then the real ServerApp code."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from accountant.ledger.ledger import Ledger
from accountant.spending import Spend
from privfair.config import Config
from privfair.deployment.flower.server_app import serve
from privfair.runs.folder import Checkpoint, RunDirectory
from privfair.secure_aggregation import new_keys
from privfair.secure_aggregation.keys import new_identity
from tests.flower.memory_grid import Meddle, MemoryGrid, honest

DATA = {"name": "synthetic", "clients": 3, "records": 60}
NAMES = ["client-1", "client-2", "client-3"]
PLAN: dict[str, Any] = {
    "federation": {"rounds": 3, "batch_size": 20, "learning_rate": 0.3},
    "fairness": {"samples": 12, "lambda": 0.5},
    "model": {"name": "mlp", "hidden": [3]},
    "run": {"seed": 4, "clients": NAMES},
}
NOISE = {"count_noise": 0.5, "prediction_noise": 1.0, "noise_multiplier": 1.0}
PRIVATE = {**NOISE, "sampling_rate": 0.5, "prediction_rate": 0.5, "min_count": 1}


@dataclass
class Deployment:
    """Three data holders and a server, each with its own files."""

    folder: Path
    grid: MemoryGrid
    tree: dict[str, Any]

    @property
    def out(self) -> Path:
        return self.folder / "server"

    def serve(self) -> Checkpoint:
        serve(self.grid, self.folder / "server.toml", self.out)
        return self.checkpoint()

    def checkpoint(self) -> Checkpoint:
        found = RunDirectory(self.out).read_checkpoint()
        assert found is not None
        return found

    def holder(self, k: int) -> Path:
        """The folder of a holder's only run."""
        (found,) = [p.parent for p in (self.folder / f"node-{k}").glob("*/state.npz")]
        return found

    def ledger(self, k: int) -> Ledger:
        return Ledger(f"sqlite:///{self.folder}/ledger-{k}.sqlite", create=False)

    def spends(self, k: int) -> list[Spend]:
        with self.ledger(k) as ledger:
            (run,) = ledger.runs("synthetic")
            return [spend for _, spend in ledger.spends(run=run)]


def merged(*trees: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for one in trees:
        for section, table in one.items():
            both = {**tree.get(section, {}), **table}
            tree[section] = {key: value for key, value in both.items() if value is not None}
    return tree


def deployment(folder: Path, *sections: dict[str, Any], meddle: Meddle = honest, **own: dict[str, Any]) -> Deployment:
    """The files of a deployment. `own`: what a holder has in its own configuration, as holder_0={…}."""
    tree = merged(PLAN, *sections)
    config = Config.build(tree)
    keys: dict[str, dict[str, Any]] = {"server": {}, "client": {}}
    if config.scheme != "plain":
        new_keys(config.scheme).save(folder / "keys")
        keys = {side: {"aggregation": {"keys": str(folder / "keys" / f"{side}.key")}} for side in keys}
    nodes: dict[int, dict[str, Any]] = {}
    names = tree["run"]["clients"]
    if config.masks:
        public = {name: new_identity(folder / "keys" / name) for name in names}
        for name in names:
            shutil.copy(folder / "keys" / "client.key", folder / "keys" / name)
        tree = merged(tree, {"aggregation": {"identities": public}})
    for k, name in enumerate(names):
        ledger = {"run": {"ledger": f"sqlite:///{folder}/ledger-{k}.sqlite"}}
        if config.masks:
            keys["client"] = {"aggregation": {"keys": str(folder / "keys" / name)}}
        data = {"data": {**DATA, "clients": len(names)}}
        mine = merged(tree, data, keys["client"], ledger, own.get(f"holder_{k}", {}))
        write(folder / f"holder-{k}.toml", mine)
        nodes[100 + k] = node(folder, k, name)
    server = merged(tree, keys["server"], {"run": {"deadline": 0.5, "wait": 1.0}})
    write(folder / "server.toml", server)
    return Deployment(folder, MemoryGrid(nodes, meddle), tree)


def node(folder: Path, k: int, name: str = "") -> dict[str, Any]:
    """A holder's node configuration."""
    return {"client": name or NAMES[k], "config": str(folder / f"holder-{k}.toml"), "folder": str(folder / f"node-{k}")}


def write(path: Path, tree: dict[str, Any]) -> None:
    Config.build(tree)
    path.write_text(tomli_w.dumps(tree))
