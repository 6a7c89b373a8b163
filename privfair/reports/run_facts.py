"""The facts of a finished run, divided by who may see them: what was released, and exact figures of a simulation.

Everything that a page shows by default comes from `released_part`, which lists what may be shown; a new figure in
metrics.json stays out until somebody decides that it is covered.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from sqlalchemy.engine import make_url

from accountant.errors import InputError, Refused
from accountant.ledger.ledger import Ledger
from accountant.ledger.machine_state import State
from accountant.ledger.storage import exists, ledger_url
from privfair.config import Config
from privfair.privacy.run_ledger import dataset_name
from privfair.runs.folder import RunDirectory

FIGURES = ("accuracy", "unfairness", "unfairness_of", "confidence_intervals", "by_attribute", "groups")
Table = dict[str, Any]


@dataclass(frozen=True)
class RunFacts:
    """A run for people. `exact` is None and `history` empty unless they were asked for."""

    path: Path
    config: Config
    released: Table
    exact: Table | None
    history: tuple[dict[str, float | None], ...]
    files: Mapping[str, str]  # name -> SHA-256
    # figures of a run without privacy, on data without a budget: exact, and covered by nothing
    unprotected: Table | None = None

    @property
    def notion(self) -> str:
        """The name of the notion that the model was trained for; it may be the user's own."""
        return str(self.released["notion"])

    @property
    def private(self) -> bool:
        """Whether noise was used, so that there is a statement of what ε covers."""
        return "ledger" in self.released["privacy"]


def read_run(path: Path, *, include_private: bool) -> RunFacts:
    """The facts of the run in a folder. Raise if exact figures are asked for of data with a budget."""
    directory = RunDirectory.open(path)
    config, metrics = directory.read_config(), directory.read_metrics()
    if directory.read_privacy() != metrics["privacy"]:
        rule, remedy = "must be the statement of this run", "It was replaced or changed."
        raise InputError("privacy.json", rule, "another than in metrics.json", remedy)
    if include_private:
        require_unbudgeted(config, metrics)
    private = "ledger" in metrics["privacy"]
    # Digests of exact figures, or of a model without noise, would confirm a guess of what is in them.
    safe = ["config.toml", "privacy.json", *(["model.safetensors"] if private else [])]
    names = [*safe, "model.safetensors", "metrics.json", "history.csv"] if include_private else safe
    plain = not private and metrics["figures"] == "exact" and bool(metrics["groups"]) and "verdict" in metrics
    if plain:
        plain = not has_budget(config, dataset_name(config, metrics["data"]["name"]))
    released = released_part(metrics, config, _released_counts(directory, metrics) if private else None)
    if plain:
        released |= {"verdict": metrics["verdict"], "warnings": metrics["warnings"]}
    return RunFacts(
        path,
        config,
        released,
        metrics if include_private else None,
        tuple(_history(path / "history.csv")) if include_private else (),
        {name: directory.digest(name) for name in dict.fromkeys(names)},
        {name: metrics[name] for name in FIGURES if name in metrics} if plain else None,
    )


def released_part(metrics: Mapping[str, Any], config: Config, counts: list[int] | None) -> Table:
    """The metrics that anybody may see: the statement, what the server saw, and figures from noisy counts.

    `counts`: of each client's records, as they were released. Left out, because no ε covers them: exact figures, exact
    numbers of records (and the notes that contain them), losses, and the duration.
    """
    figures = metrics if metrics["figures"] == "released" else metrics.get("released")
    if figures is not None and not figures["groups"]:
        figures = None
    names = list(metrics["data"]["clients"])
    known = counts is not None and len(counts) == len(names)
    return {
        "figures": None if figures is None else {name: figures[name] for name in FIGURES if name in figures},
        # of a private run it comes from released counts; one of exact counts is no part of what was released
        "verdict": _released_verdict(metrics.get("verdict")),
        "privacy": metrics["privacy"],
        # a private run's come from what was released; of another run only the fact is shown, without its numbers
        "warnings": [w if counts is not None else f"{w.partition(':')[0]}." for w in metrics.get("warnings", [])],
        "aggregation": metrics["aggregation"],
        "bytes": metrics["bytes"],
        "engine": metrics["engine"],
        # named, not measured; runs of older versions have it in the configuration only
        "notion": metrics.get("notion", config.fairness.notion),
        "rounds": metrics["rounds"],
        "unseen": metrics.get("unseen_groups", []),
        "absent": metrics["absent"],
        "budgeted": metrics["figures"] == "released",
        "data": {
            "name": metrics["data"]["name"],
            "clients": dict(zip(names, counts, strict=True)) if known and counts else dict.fromkeys(names),
            "counts": config.privacy.counts if known else None,
            "totals": known and config.sums_counts and config.privacy.counts != "public",
            "schema_inferred": metrics["data"]["schema_inferred"],
        },
        "model": {name: metrics["model"][name] for name in ("name", "task", "parameters")},
        "versions": metrics.get("versions", {}),
    }


def _released_verdict(verdict: Table | None) -> Table | None:
    return verdict if verdict is not None and verdict["basis"] != "exact" else None


def require_unbudgeted(config: Config, metrics: Mapping[str, Any]) -> None:
    """Raise if the data of a run have a budget: exact figures of such data are shown to nobody."""
    statement = metrics["privacy"].get("ledger")
    name = statement["dataset"] if statement else dataset_name(config, metrics["data"]["name"])
    if metrics["figures"] == "released" or has_budget(config, name):
        raise Refused(
            f"Dataset {name!r} has a budget: exact figures of it are shown to nobody, and --include-private is "
            "refused. Without that option the report has the released figures; for noisy accuracy and unfairness "
            'train with privacy.evaluation = "gaussian".'
        )


def has_budget(config: Config, dataset: str) -> bool:
    """Whether the dataset has a budget in the run's ledger, or in another that this machine remembers."""
    if config.privacy.require_budget is not False and State().budgets(dataset):
        return True
    url = ledger_url(config.run.ledger)
    if not exists(url):
        return False
    with Ledger(url, create=False) as ledger:
        return ledger.budget(dataset) is not None


def shown_config(config: Config) -> str:
    """The configuration as TOML, without the password of its ledger."""
    tables = config.as_tables()
    if tables["run"].get("ledger"):
        tables["run"]["ledger"] = without_password(tables["run"]["ledger"])
    return tomli_w.dumps(tables)


def without_password(url: str) -> str:
    """The address of a ledger without its password, and without options, which can hold one."""
    return make_url(url).set(query={}).render_as_string(hide_password=True)


def _released_counts(directory: RunDirectory, metrics: Mapping[str, Any]) -> list[int] | None:
    """Records of each client as they were released; None if they are not kept."""
    clients = metrics["data"]["clients"].values()
    if metrics["figures"] == "released":
        return [int(client["released"]) for client in clients]
    checkpoint = directory.read_checkpoint()
    return None if checkpoint is None else [int(n) for n in checkpoint.release_plan.records]


def _history(path: Path) -> list[dict[str, float | None]]:
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        return [{name: float(text) if text else None for name, text in row.items()} for row in reader]
    except (OSError, ValueError) as error:
        raise InputError("history.csv", "must be whole and readable", str(path), f"({error})") from None
