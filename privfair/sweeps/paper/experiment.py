"""An experiment as a description: lines of runs, claims, figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.config import Config
from privfair.sweeps.jobs import Job
from privfair.sweeps.paper.claims import AnyClaim
from privfair.sweeps.paper.evidence import Evidence

Settings = Mapping[str, Any]  # by dotted key: {"federation.rounds": 100}
LAMBDA = "fairness.lambda"
FULL_BATCH = 1_000_000  # more than any client has: every step is a full gradient, one an epoch


@dataclass(frozen=True)
class Line:
    """One line of a figure: a method, and the key that is varied along it. No key: a single point."""

    series: str
    method: str
    varied: str | None
    values: tuple[float, ...] = ()
    quick_values: tuple[float, ...] = ()
    settings: Settings = field(default_factory=dict)
    quick: Settings | None = field(default_factory=dict)  # None: left out of a quick run
    epsilon: float = math.inf  # the target, where its settings have one


@dataclass(frozen=True)
class Experiment:
    """One experiment, of the paper or beyond it (then its claims are what was expected).

    A run's settings are `common`, then the line's own; a quick run then takes `quick` and the line's `quick`. Runs go
    to the stacked engine unless told otherwise. `notes` say what the paper leaves open and what was taken.
    """

    name: str
    title: str
    source: str  # where in the paper
    common: Settings
    lines: tuple[Line, ...]
    quick: Settings
    claims: tuple[AnyClaim, ...]
    draw: Callable[[Evidence, Path], list[Path]]
    notes: tuple[str, ...] = ()
    seeds: int = 10
    quick_seeds: int = 3
    paper: bool = True
    areas: bool = False  # tell the area of every frontier

    @property
    def private(self) -> bool:
        """Whether some of its runs have noise, and so a ledger."""
        return any(math.isfinite(line.epsilon) for line in self.lines)

    def jobs(self, *, quick: bool, overrides: Sequence[str] = ()) -> list[Job]:
        """All runs; `overrides` (section.key=value) apply to every one.

        Both ends of every line first, then the middles of its gaps: whoever stops early has a thinner line, not a
        shorter one.
        """
        seeds = range(self.quick_seeds if quick else self.seeds)
        placed = []
        for number, line in enumerate(self.lines):
            if quick and line.quick is None:
                continue
            values = (line.quick_values if quick else line.values) or (None,)
            for place, value in enumerate(values):
                turn = halvings(place, len(values) - 1)
                placed += [((turn, seed, number, place), (line, value, seed)) for seed in seeds]
        placed.sort(key=lambda pair: pair[0])
        return [self._job(*what, quick, overrides) for _, what in placed]

    def _job(self, line: Line, value: float | None, seed: int, quick: bool, overrides: Sequence[str]) -> Job:
        settings = {**self.common, **line.settings}
        if quick:
            settings |= {**self.quick, **(line.quick or {})}
        settings |= {"federation.method": line.method, "run.seed": seed}
        if line.varied is not None:
            settings[line.varied] = value
        settings.setdefault("run.engine", "stacked")
        settings.setdefault("run.evaluate_every", settings["federation.rounds"])
        for override in overrides:
            key = override.partition("=")[0].strip()
            if key in (line.varied, "federation.method", "run.seed"):
                raise InputError("--set", f"must not be {key}, which {self.name} varies itself", override)
        parameter = "" if line.varied is None else line.varied.partition(".")[2]
        return Job(line.series, parameter, value, line.epsilon, Config.build(nested(settings), overrides))


def nested(settings: Settings) -> dict[str, dict[str, Any]]:
    """Tables from dotted keys."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    return tables


def log_steps(low: float, high: float, steps: int = 50) -> tuple[float, ...]:
    """Logarithmically spaced strengths, as in the appendix; rounded to 6 digits, so that files stay readable."""
    return tuple(float(f"{value:.6g}") for value in np.geomspace(low, high, steps))


def halvings(place: int, last: int) -> int:
    """How often 0 … last must be halved until the place is a middle; 0 for both ends."""
    low, high, count = 0, last, 0
    while place not in (low, high):
        middle = (low + high) // 2
        low, high = (middle, high) if place >= middle else (low, middle)
        count += 1
    return count
