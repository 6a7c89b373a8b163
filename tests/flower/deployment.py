"""Small federations of real processes for the deployment tests, and what their ledgers say afterwards."""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.numpy import load_file

from accountant import InputError, Ledger, LedgerBroken, epsilon
from accountant.audit import audit
from privfair.deployment.flower.trial import Federation, Node, wait
from privfair.privacy.run_ledger import ROSTERS, SURVIVORS
from privfair.secure_aggregation import new_keys
from privfair.secure_aggregation.keys import new_identity

EXAMPLE = Path(__file__).parents[2] / "examples" / "private.toml"
LIMIT = 240.0  # seconds for an exchange: far above what one takes on a busy machine
Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    """The files of a federation: a folder for the server and one for every data holder."""

    folder: Path
    names: tuple[str, ...]

    @property
    def server(self) -> Path:
        return self.folder / "server.toml"

    @property
    def out(self) -> Path:
        return self.folder / "server"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def node(self, name: str) -> Node:
        return Node(name, self.folder / name / "holder.toml", self.folder / name / "state")

    @property
    def nodes(self) -> list[Node]:
        return [self.node(name) for name in self.names]

    def log(self, name: str) -> str:
        path = self.logs / f"node-{self.names.index(name):03d}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "metrics.json").read_text())
        return found

    def model(self, name: str) -> dict[str, np.ndarray]:
        """The model in a data holder's folder at the end of the run."""
        (path,) = (self.folder / name / "state").glob("*/model.safetensors")
        return load_file(path)

    def ledger(self, name: str) -> str:
        return f"sqlite:///{self.folder / name / 'ledger.sqlite'}"


def trial(folder: Path, clients: int = 3, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Trial:
    """The example of a private run with so many clients and two rounds; every holder with a ledger of its own.

    Without masks unless `changes` says so: of three clients all would have to be in every sum.
    """
    names = tuple(f"client-{k}" for k in range(1, clients + 1))
    tables: Tables = tomllib.loads(EXAMPLE.read_text())
    tables["data"]["clients"] = clients
    tables["federation"]["rounds"] = 2
    tables["run"] = {"clients": list(names), "deadline": LIMIT, "wait": LIMIT}
    for section, values in (changes or {}).items():
        merged = {**tables.get(section, {}), **values}
        tables[section] = {key: value for key, value in merged.items() if value is not None}  # None: without this key
    encrypted = tables["aggregation"].get("scheme") != "plain"
    if encrypted:
        new_keys(tables["aggregation"].get("scheme", "bfv")).save(folder / "keys")
    tables["aggregation"].setdefault("masks", False)
    if encrypted:
        tables["aggregation"]["identities"] = {name: new_identity(folder / "keys" / name) for name in names}
        for name in names:
            shutil.copy(folder / "keys" / "client.key", folder / "keys" / name)
    made = Trial(folder, names)
    _write(made.server, tables, {"aggregation": {"keys": str(folder / "keys" / "server.key")} if encrypted else {}})
    for name in names:
        own = {"aggregation": {"keys": str(folder / "keys" / name)}} if encrypted else {}
        _write(made.node(name).config, tables, own | {"run": {"ledger": made.ledger(name)}})
    return made


def _write(path: Path, tables: Tables, own: Mapping[str, Mapping[str, Any]]) -> None:
    merged = {section: {**tables.get(section, {}), **own.get(section, {})} for section in {**tables, **own}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(merged))


def finish(federation: Federation, made: Trial, watch: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run the app to its end; what the server reports."""
    run = federation.submit(made.server, made.out)
    wait(federation, run, made.out, watch)
    return made.metrics()


def releases(made: Trial, name: str) -> Counter[tuple[str, int | None]]:
    """How often a data holder paid for a release, by channel and round: one reservation is one release."""
    with Ledger(made.ledger(name), create=False) as ledger:
        tokens = {
            token: (spend.channel, spend.round)
            for dataset in ledger.datasets()
            for run in ledger.runs(dataset.name)
            for token, spend in ledger.spends(run=run)
            if spend.channel not in (ROSTERS, SURVIVORS)  # which cost nothing
        }
    return Counter(tokens.values())


def once(*places: tuple[str, int | None]) -> Counter[tuple[str, int | None]]:
    """One release in each of these places."""
    return Counter(dict.fromkeys(places, 1))


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether two models are the same to the last bit."""
    return one.keys() == other.keys() and all(one[key].tobytes() == other[key].tobytes() for key in one)


def eventually(holds: Callable[[], object], limit: float = 600.0) -> None:
    """Return when it holds; so many seconds is far more than it takes on a busy machine."""
    end = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.5)


def paid(made: Trial, name: str) -> Counter[tuple[str, int | None]]:
    """As `releases`, while the run goes on; nothing as long as there is no ledger."""
    try:
        return releases(made, name)
    except (InputError, LedgerBroken):  # not there yet, or being made just now
        return Counter()


@dataclass
class Step:
    """Something to do once, when its time has come."""

    when: Callable[[], bool]
    what: Callable[[], None]
    done: bool = False


def in_order(*steps: Step) -> Callable[[], None]:
    """To be called again and again: does each step when its time has come and those before it are done."""

    def look() -> None:
        step = next((step for step in steps if not step.done), None)
        if step is not None and step.when():
            step.done = True
            step.what()

    return look


def spent(made: Trial, name: str, delta: float = 1e-5) -> float:
    """ε (by Rényi divergences) of everything in a data holder's ledger, for a record of its worst group."""
    with Ledger(made.ledger(name)) as ledger:
        (dataset,) = (state.name for state in ledger.datasets())
        spends = [spend for run in ledger.runs(dataset) for _, spend in ledger.spends(run=run)]
        report = audit(ledger, pld=False)
    assert report.verified
    groups = {spend.group for spend in spends if spend.group} or {""}
    return max(
        epsilon(
            [spend.event for spend in spends for _ in range(spend.count) if spend.group in ("", group)],
            delta=delta,
            method="rdp",
        )
        for group in groups
    )
