"""The books of a private run: which ledger, under which name, with which rules, and the desk that keeps them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accountant.errors import InputError, Refused
from accountant.fingerprint import fingerprint_csv
from accountant.ledger import Ledger
from accountant.neighbouring import Adjacency
from accountant.signing import OwnerKey
from accountant.storage import DEFAULT_LEDGER
from privfair.clients.client import Client, EntropyOf
from privfair.config import Config
from privfair.datasets.records import Federation, Schema
from privfair.fairness.cells import Cells
from privfair.mechanisms.entropy import SeededEntropy, SystemEntropy
from privfair.privacy.desk import Desk
from privfair.privacy.pricing import PriceList, label_of
from privfair.randomness import stream

LEDGER_VARIABLE = "PRIVFAIR_LEDGER"


@dataclass(frozen=True)
class Books:
    """A ledger, opened for one run on one dataset."""

    ledger: Ledger
    dataset: str
    run: str
    fingerprint: str
    seeded: bool
    budgeted: bool

    @staticmethod
    def open(config: Config, federation: Federation, run: str) -> Books:
        """Open the ledger and check that the run is allowed on this dataset; nothing is spent yet."""
        key = None if config.run.key is None else OwnerKey.load(Path(config.run.key))
        url = config.run.ledger or os.environ.get(LEDGER_VARIABLE) or DEFAULT_LEDGER
        ledger = Ledger(url, key=key)
        try:
            dataset = config.privacy.dataset or _name(config, federation)
            state = ledger.dataset(dataset)
            budgeted = state.budget is not None
            seeded = config.run.reproducible_noise
            if budgeted:
                _require_real(config, federation.schema, dataset)
            fingerprint = _fingerprint(config, state.fingerprint, key, dataset)
            if seeded and not state.simulation:
                ledger.register(dataset, simulation=True)
        except BaseException:
            ledger.close()
            raise
        return Books(ledger, dataset, run, fingerprint, seeded, budgeted)

    def desk(
        self, clients: Sequence[Client], cells: Cells, schema: Schema, adjacency: Adjacency, config: Config
    ) -> Desk:
        """The desk that all answers of these clients pass."""
        labels = cell_labels(cells, schema)
        prices = [
            PriceList(self.dataset, self.run, client.name, labels, cells, adjacency, client.cell_counts)
            for client in clients
        ]
        retries = None if config.privacy.epsilon is None else config.privacy.retries
        return Desk(self.ledger, prices, run=self.run, fingerprint=self.fingerprint, retries=retries)


def entropy_of(config: Config, client: int) -> EntropyOf:
    """Where a client's private randomness comes from: the operating system, or, where asked for, the seed."""
    if not config.run.reproducible_noise:
        return lambda channel, number: SystemEntropy()
    return lambda channel, number: SeededEntropy(stream(config.run.seed, "private", channel, number, client))


def cell_labels(cells: Cells, schema: Schema) -> tuple[str, ...]:
    """The ledger's names of all cells."""
    attributes = tuple(a.name for a in schema.sensitive)
    groups = [""] * len(cells)
    for comparison in cells.comparisons:
        for group, cell in enumerate(comparison.cells):
            groups[cell] = schema.sensitive[comparison.attribute].values[group]
    return tuple(label_of(cells, attributes, tuple(groups), cell) for cell in range(len(cells)))


def _name(config: Config, federation: Federation) -> str:
    path: Any = config.data.options.get("path")
    return Path(path).stem if isinstance(path, str) else federation.name


def _require_real(config: Config, schema: Schema, dataset: str) -> None:
    """What data with a budget does not allow."""
    if config.run.reproducible_noise:
        remedy = "Whoever knows the seed can take seeded noise off again."
        raise InputError("run.reproducible_noise", f"must be false for {dataset!r}, which has a budget", True, remedy)
    if schema.inferred:
        remedy = "Declare groups, categories and ranges (data.schema); looking at the data for them is a release, too."
        raise InputError("data", f"must have a declared schema for {dataset!r}, which has a budget", "inferred", remedy)


def _fingerprint(config: Config, registered: str, key: OwnerKey | None, dataset: str) -> str:
    """The fingerprint to show with every release, where the dataset's name is bound to its data."""
    if not registered:
        return ""
    path: Any = config.data.options.get("path")
    if key is None or not isinstance(path, str):
        remedy = "Train from the CSV file (data.name = csv) and give the owner's key (run.key)."
        raise Refused(f"Dataset {dataset!r} is bound to its data, and this run cannot show that it uses them. {remedy}")
    return fingerprint_csv(path, key)
