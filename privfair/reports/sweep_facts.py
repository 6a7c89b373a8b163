"""What is known of a sweep from its folder, read without touching it. Its figures are exact figures of simulations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.privacy.books import dataset_name
from privfair.reports.run_facts import has_budget, without_password
from privfair.sweeps.carrying_out import Sweep
from privfair.sweeps.jobs import Key
from privfair.sweeps.journal import ABOUT, HISTORIES, RESULTS, by_round, newest, read_lines
from privfair.sweeps.paper import EXPERIMENTS, Experiment
from privfair.sweeps.rows import Ended, Row


@dataclass(frozen=True)
class SweepFacts(Ended):
    """A sweep for people."""

    path: Path
    configuration: Mapping[str, Any]  # as asked for; without the digest of the data
    planned: int
    rows: tuple[Row, ...]  # the line that counts of every run, failed ones too
    histories: Mapping[Key, list[Row]]

    @property
    def experiment(self) -> Experiment | None:
        """The paper's experiment, if it is one."""
        return EXPERIMENTS.get(self.configuration.get("experiment", ""))

    def by_series(self) -> list[tuple[str, str, int, int]]:
        """(series, ε, runs done, runs failed), in the order in which they appear."""
        done = Counter((row["series"], row["epsilon_target"]) for row in self.done)
        failed = Counter((row["series"], row["epsilon_target"]) for row in self.failed)
        names = dict.fromkeys((row["series"], row["epsilon_target"]) for row in self.rows)
        return [(series, _epsilon(e), done[series, e], failed[series, e]) for series, e in names]


def read_sweep(path: Path, *, include_private: bool) -> SweepFacts:
    """The sweep in a folder; exact figures are allowed only where its data have no budget."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        configuration = dict(about["configuration"])
        planned = int(about["runs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(ABOUT, "must be whole and readable", str(path / ABOUT), f"({error})") from None
    configuration.pop("data fingerprint", None)  # a digest of the records would confirm a guess of them
    if include_private:
        _require_unbudgeted(configuration)
    rows = tuple(newest(read_lines(path / RESULTS)).values())
    planned = max(planned, len(rows))  # earlier versions wrote down what the last call had asked for
    return SweepFacts(path, _shown(configuration), planned, rows, by_round(read_lines(path / HISTORIES)))


def as_sweep(facts: SweepFacts, experiment: Experiment) -> Sweep:
    """The paper's experiment as it was carried out, with as many seeds as there are."""
    seeds = len({row["seed"] for row in facts.rows}) or 1
    asked = replace(experiment, seeds=seeds, quick_seeds=seeds)
    jobs = asked.jobs(quick=bool(facts.configuration["quick"]), overrides=list(facts.configuration["set"]))
    return Sweep(tuple(jobs), facts.rows, facts.histories, 0, facts.path)


def _require_unbudgeted(configuration: Mapping[str, Any]) -> None:
    if "experiment" in configuration:
        experiment = EXPERIMENTS[configuration["experiment"]]
        jobs = experiment.jobs(quick=bool(configuration["quick"]), overrides=list(configuration["set"]))
        configs = {job.config.data.name: job.config for job in jobs}.values()
    else:
        named = configuration.get("privacy", {}).get("dataset")
        run = configuration.get("run", {}).get("ledger")
        tables = {"data": configuration["data"], "privacy": {"dataset": named} if named else {}}
        configs = {"": Config.build({**tables, "run": {"ledger": run} if run else {}})}.values()
    for config in configs:
        name = dataset_name(config, config.data.name)
        if has_budget(config, name):
            raise Refused(
                f"Dataset {name!r} has a budget: exact figures of it are shown to nobody, and --include-private is "
                "refused. Without that option the report tells which runs there are, and their settings."
            )


def _shown(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they may be shown: without the password of a ledger."""
    run = configuration.get("run", {})
    if run.get("ledger"):
        return {**configuration, "run": {**run, "ledger": without_password(run["ledger"])}}
    return dict(configuration)


def _epsilon(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:g}"
