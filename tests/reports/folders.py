"""Makes the small runs and sweeps that reports are tested on."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import privfair
from privfair.config import Config
from privfair.sweeps.jobs import Grid
from privfair.sweeps.sweep import comparable, run_sweep

HOSTILE_GROUPS = ("<script>alert(1)</script>", "M & <b>co</b>")
HOSTILE_CLIENTS = ('"><img src=x onerror=alert(2)>', "south")
SCHEMA = {
    "task": "binary",
    "positive": "yes",
    "numeric": {"age": [18, 70]},
    "categories": {
        "sex": {"values": ["F", "M"], "unknown": "drop"},
        "branch": {"values": ["north", "south"], "unknown": "drop"},
    },
}


def make_people(path: Path, *, groups: tuple[str, ...], clients: tuple[str, ...]) -> Path:
    """A table of 400 people."""
    draw = random.Random(1)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "sex", "branch", "hired"])
        for _ in range(400):
            sex, age = draw.choice(groups), draw.randint(18, 70)
            hired = draw.random() < 0.2 + age / 150 + 0.2 * (sex == groups[1])
            writer.writerow([age, sex, draw.choice(clients), "yes" if hired else "no"])
    return path


def make_two_attributes(path: Path) -> Path:
    """A table of 900 people: decisions differ little by sex and much by race, and all of the race "c" were hired."""
    draw = random.Random(2)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["points", "sex", "race", "branch", "hired"])
        for _ in range(900):
            sex, race = draw.choice("FM"), draw.choices("abc", (5, 5, 1))[0]
            points = draw.gauss({"a": 0.0, "b": 1.0, "c": 3.0}[race] + 0.2 * (sex == "M"), 1.0)
            hired = race == "c" or draw.gauss(points, 0.5) > 0.5
            writer.writerow([f"{points:.4f}", sex, race, draw.choice(("north", "south")), "yes" if hired else "no"])
    return path


def make_run(out: Path, *, run: dict[str, Any], **sections: Any) -> Path:
    """A finished run of two rounds."""
    federation = {"rounds": 2, "learning_rate": 0.3, **sections.pop("federation", {})}
    privfair.train(out=out, federation=federation, run=run, aggregation={"scheme": "plain"}, **sections)
    return out


def make_sweep(out: Path, *, data: dict[str, Any]) -> Path:
    """A finished sweep of eight short runs."""
    config = Config.build({"data": data, "federation": {"rounds": 1}, "run": {"engine": "local"}})
    grid = Grid((0.0, 1.0), 2, ("mmd_fedavg", "local_fairness"), (float("inf"),))
    run_sweep(grid.jobs(config), out, configuration=comparable(config), workers=1)
    return out
