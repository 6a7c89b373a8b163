"""The ledger of a private run: which one it is, under which name, and by which rules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accountant.budget import Budget
from accountant.errors import InputError, Refused
from accountant.events import Neighbouring, Unit
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import State, remembering
from accountant.ledger.signing import OwnerKey, fingerprint_csv
from accountant.ledger.storage import exists, ledger_url
from accountant.spending import Spend
from privfair.channels.base import label_of, plain_name
from privfair.config import Config
from privfair.datasets.records import Federation, Schema
from privfair.fairness.notions import Cells, Notion, own_notion
from privfair.run_names import division_of, require_whole_noise, run_name

# what a data holder settles once in a run with masks: which roster it signed, and for which survivors of a sum it
# opened shares. These rows cost nothing. They are here because a ledger is not put back to an earlier day.
ROSTERS, SURVIVORS = SETTLED = ("mask rosters", "mask survivors")


@dataclass(frozen=True)
class RunLedger:
    """A ledger, opened for one run on one dataset."""

    ledger: Ledger
    dataset: str
    run: str
    fingerprint: str
    seeded: bool
    budgeted: bool

    @staticmethod
    def open(
        config: Config,
        federation: Federation,
        run: str,
        *,
        ledger_id: str | None = None,
        without_noise: Sequence[str] = (),
    ) -> RunLedger:
        """Open the ledger and check that the run is allowed on this dataset; nothing is spent yet.

        `ledger_id`: of the ledger in which a run that is being resumed was begun. `without_noise`: channels of it that
        have none.
        """
        key = None if config.run.key is None else OwnerKey.load(Path(config.run.key))
        url, dataset = ledger_url(config.run.ledger), dataset_name(config, federation.name)
        if not exists(url):  # before a new one is made, which would know of no budget
            require_its_budget(config, dataset, url, key)
        ledger = Ledger(url, key=key, create=ledger_id is None)
        try:
            if ledger_id not in (None, ledger.ledger_id):
                raise Refused(
                    f"The ledger of this run is {ledger_id}, and {ledger.url} is another one: what the run has "
                    "released so far is not in it. Put the ledger back where it was (run.ledger)."
                )
            ledger.require_known()
            state = ledger.dataset(dataset)
            dataset = state.name  # as the ledger spells it
            budgeted = state.budget is not None
            _require_its_name(ledger, config, key, dataset)
            if not budgeted:
                require_its_budget(config, dataset, ledger.url, key)
            seeded = config.run.reproducible_noise
            if budgeted:
                require_allowed(config, federation.schema, dataset, state.neighbouring, without_noise)
                _require_same_partition(ledger, dataset, run)
                if not federation.loaded:
                    _require_known_clients(ledger, dataset, {client.name for client in federation.clients})
                require_whole_noise(dataset, ledger.runs(dataset))
            fingerprint = _fingerprint(config, state.fingerprint, key, dataset)
            if seeded and not state.simulation:
                ledger.register(dataset, simulation=True)
        except BaseException:
            ledger.close()
            raise
        return RunLedger(ledger, dataset, run, fingerprint, seeded, budgeted)

    def spends(self, client: str | None = None) -> list[Spend]:
        """What the run has released so far, or may have; with a name, what that client has."""
        return [spend for spend in self._rows(client) if spend.channel not in SETTLED]

    def rows(self, client: str) -> int:
        """How many rows of the run a client has, those that are no releases too."""
        return len(self._rows(client))

    def _rows(self, client: str | None) -> list[Spend]:
        rows = [spend for _, spend in self.ledger.spends(run=self.run)]
        return rows if client is None else [spend for spend in rows if spend.client == client]


def cell_labels(cells: Cells, schema: Schema) -> tuple[str, ...]:
    """The ledger's names of all cells."""
    plain = [plain_name(a.name) for a in schema.sensitive]
    # attributes whose names would meet stay apart: their groups overlap, and overlapping groups add up
    attributes = tuple(f"{name} #{i}" if plain.count(name) > 1 else name for i, name in enumerate(plain))
    groups = [""] * len(cells)
    for comparison in cells.comparisons:
        for group, cell in enumerate(comparison.cells):
            groups[cell] = schema.sensitive[comparison.attribute].values[group]
    label = f"{schema.label} is {schema.positive}" if schema.positive else schema.label
    return tuple(label_of(cells, attributes, tuple(groups), label, cell) for cell in range(len(cells)))


def budget_at_hand(config: Config, name: str) -> tuple[str, str, Budget | None]:
    """Where the ledger is, without its password, the dataset's name in it, and its budget there; no ledger is made."""
    url, dataset = ledger_url(config.run.ledger), dataset_name(config, name)
    if not exists(url):
        return url, dataset, None
    with Ledger(url, create=False) as ledger:
        return ledger.url, dataset, ledger.budget(dataset)


def require_its_budget(config: Config, dataset: str, url: str, key: OwnerKey | None = None) -> None:
    """Raise if data without a budget in the ledger at `url` have one elsewhere, as this machine remembers.

    By name, however it is spelt; and, where the owner's key is given, by what is in the data file. The configuration
    can say that a budget must be there in any case, or that it need not (privacy.require_budget).
    """
    if not remembering() or config.privacy.require_budget is False:
        return
    path: Any = config.data.options.get("path")
    bound = key is not None and isinstance(path, str) and Path(path).is_file()
    fingerprint = fingerprint_csv(path, key) if bound and key is not None else ""
    known = State().budgets(dataset, fingerprint)
    if known:
        other = known[0]
        what = "these very data have" if fingerprint and other.fingerprint == fingerprint else "data of this name have"
        raise Refused(
            f"Dataset {dataset!r} has no budget in {url}, and on this machine {what} one, as {other.dataset!r} in "
            f"{other.url}: what is released here would not be counted there. Spend from that one: run.ledger = "
            f'"{other.url}" (or $PRIVFAIR_LEDGER). If these are other data, or the budget is over: '
            "privacy.require_budget = false."
        )
    if config.privacy.require_budget:
        remedy = f"Set one: privfair budget set {dataset} --ledger {url} --epsilon … --delta …"
        raise Refused(f"Dataset {dataset!r} has no budget in {url}, and privacy.require_budget is true. {remedy}")


def require_no_budget(config: Config, federation: Federation) -> None:
    """Raise if a run without privacy is asked for on data that have a budget, in the ledger at hand or elsewhere."""
    url, dataset, budget = budget_at_hand(config, federation.name)
    if budget is not None:
        raise Refused(
            f"Dataset {dataset!r} has a budget (ε = {budget.epsilon:g}, δ = {budget.delta:g}) in {url}, and training "
            "without [privacy] would release everything. Give privacy.epsilon."
        )
    require_its_budget(config, dataset, url)


def dataset_name(config: Config, name: str) -> str:
    """The dataset's name in the ledger: configured, that of the data file, or that of the data."""
    path: Any = config.data.options.get("path")
    return config.privacy.dataset or (Path(path).stem if isinstance(path, str) else name)


def named_run(beginning: str, config: Config, schema: Schema, notion: Notion | None) -> str:
    """The name of a run in the ledger."""
    # under masks every row has the event of one share as well, and the name need not say it
    inferred, shares = schema.inferred, bool(config.privacy.distributed_noise) and not config.masks
    return run_name(beginning, definition(config, schema, notion), inferred=inferred, shares=shares)


def definition(config: Config, schema: Schema, notion: Notion | None) -> str:
    """A digest of how the data are divided among clients and groups, as the end of every run's name in the ledger.

    Clients exclude each other, and so do groups: that is why each pays for itself only. Between runs that divide the
    same records differently nothing excludes anything. `notion`: one of the user's own, with sets of its own (given, or
    named in the configuration); those of the known ones follow from the label, which groups have in their names.
    """
    notion = notion or own_notion(config.fairness.notion, schema)
    dividing = ("client", "by", "sensitive", "clients", "min_communities", "conditions")
    options = {key: str(value) for key, value in config.data.options.items() if key in dividing}
    own = None if notion is None else [notion.name, *(s.name for s in notion.sets)]
    groups = [[attribute.name, list(attribute.values)] for attribute in schema.sensitive]
    text = json.dumps([config.data.name, options, groups, own], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def sides_of(config: Config) -> str:
    """A digest of how records are divided into training and test records, for the names of the sides.

    Sides of one run exclude each other because it divides the records once. A run that goes on with another seed or
    fraction under the same name has other sides, and what a record pays on both divisions adds up.
    """
    options = {key: str(value) for key, value in config.data.options.items() if key in ("test", "id")}
    text = json.dumps([config.run.seed, config.data.test_fraction, options], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _require_same_partition(ledger: Ledger, dataset: str, run: str) -> None:
    """Raise unless all runs that ever spent from a budget divided the records alike."""
    others = {division_of(name) for name in ledger.runs(dataset)} - {division_of(run)}
    if others:
        raise _another_division(dataset, "another client or sensitive column, other values, other sets")


def _require_known_clients(ledger: Ledger, dataset: str, names: set[str]) -> None:
    """Raise if some clients that paid before are missing while others are new: they may hold the same records.

    Some of the earlier clients may be absent, and others may join, but not both.
    """
    before = {client for client, _ in ledger.spent(dataset) if client}
    if before - names and names - before:
        new = ", ".join(sorted(names - before)[:4])
        raise _another_division(dataset, f"{new} had paid for nothing, and some who had are not here")


def _another_division(dataset: str, how: str) -> Refused:
    return Refused(
        f"Earlier runs on {dataset!r} divided its records among clients or groups differently ({how}). A budget counts "
        "each client's and group's records for themselves, which holds for one division only. Use the earlier one."
    )


def require_allowed(
    config: Config, schema: Schema, dataset: str, budget: Neighbouring | None, without_noise: Sequence[str]
) -> None:
    """Raise if data with a budget do not allow such a run, whatever has been spent of it."""
    _require_real(config, schema, dataset)
    if without_noise:
        rule = f"must have noise for {dataset!r}, which has a budget"
        key = {"embeddings": "predictions"}.get(without_noise[0], without_noise[0])  # one key for both trackers
        raise InputError(f"privacy.{key}", rule, "none", "Without noise ε is infinite.")
    _require_its_unit(config, dataset, budget)


def _require_real(config: Config, schema: Schema, dataset: str) -> None:
    """What data with a budget does not allow."""
    if config.run.reproducible_noise:
        remedy = "Whoever knows the seed can take seeded noise off again."
        raise InputError("run.reproducible_noise", f"must be false for {dataset!r}, which has a budget", True, remedy)
    if config.shares_noise and not config.masks:
        rule = f"must be false for {dataset!r}, which has a budget, or come with masks"
        remedy = (
            "The ledger would count the noise of the sum, and the server with one client sees less of it. Set "
            "aggregation.masks = true: then they see sums alone."
        )
        raise InputError("privacy.distributed_noise", rule, True, remedy)
    if config.masks_in_the_open:
        rule = f"must not be stacked with masks for {dataset!r}, which has a budget"
        why = "It adds up parts with a share of noise each in the open."
        remedy = f'{why} Set run.engine = "local", or aggregation.masks = false.'
        raise InputError("run.engine", rule, "stacked", remedy)
    if schema.inferred:
        remedy = "Declare groups, categories and ranges (data.schema); looking at the data for them is a release, too."
        raise InputError("data", f"must have a declared schema for {dataset!r}, which has a budget", "inferred", remedy)


def _require_its_unit(config: Config, dataset: str, budget: Neighbouring | None) -> None:
    """Raise if the budget is for records and the run protects clients, or the other way round."""
    unit = Unit.CLIENT if config.privacy.client_level else Unit.RECORD
    if budget is not None and budget.unit is not unit:
        rule = f"must protect a {budget.unit}, as the budget of {dataset!r} does"
        remedy = "What a record and what a client have spent do not add up: use the updates that the budget is for."
        raise InputError("privacy.updates", rule, config.privacy.updates, remedy)


def _require_its_name(ledger: Ledger, config: Config, key: OwnerKey | None, dataset: str) -> None:
    """Raise if the same data are in the ledger under another name; only the owner's key can show that."""
    path: Any = config.data.options.get("path")
    others = {state.fingerprint: state.name for state in ledger.datasets() if state.fingerprint}
    if key is None or not isinstance(path, str) or not others:
        return
    known = others.get(_of_file(config, path, key))
    if known not in (None, dataset):
        raise Refused(
            f"These data are in the ledger as {known!r}, and spend from there: set privacy.dataset = {known!r}."
        )


def _fingerprint(config: Config, registered: str, key: OwnerKey | None, dataset: str) -> str:
    """The fingerprint to show with every release, where the dataset's name is bound to its data."""
    if not registered:
        return ""
    path: Any = config.data.options.get("path")
    if key is None or not isinstance(path, str):
        remedy = "Train from the CSV file (data.name = csv) and give the owner's key (run.key)."
        raise Refused(f"Dataset {dataset!r} is bound to its data, and this run cannot show that it uses them. {remedy}")
    return _of_file(config, path, key)


def _of_file(config: Config, path: str, key: OwnerKey) -> str:
    """The fingerprint of the file, read as for training."""
    given = {
        name: config.data.options[name] for name in ("delimiter", "quote", "encoding") if name in config.data.options
    }
    return fingerprint_csv(path, key, **given)
