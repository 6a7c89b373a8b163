"""The datasets by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets import csv_file
from privfair.datasets.downloads import REQUIRED, Dataset, DatasetInfo
from privfair.datasets.records import Federation
from privfair.datasets.sources import adult, communities, compas, credit, drug, synthetic
from privfair.datasets.table import fraction, nearest, whole_number

DATASETS: dict[str, Dataset] = {
    module.DATASET.name: module.DATASET for module in (synthetic, compas, communities, adult, drug, credit, csv_file)
}


def load(name: str, /, *, seed: int = 0, test_fraction: float = 0.25, **options: Any) -> Federation:
    """The federation of that name, split into training and test records by the seed.

    `describe` lists which options each dataset has; what they do is in the docstring of its loader.
    """
    dataset = find(name)
    seed = whole_number("seed", seed, at_least=0)
    remedy = "It is the expected share of test records."
    share = fraction("test_fraction", test_fraction, below_one=True, remedy=remedy)
    known = dataset.options()
    for option in options:
        if option not in known:
            raise InputError(f"option {option}", f"must be an option of {name}", option, nearest(option, known))
    for option, default in known.items():
        if default is REQUIRED and option not in options:
            remedy = f"{name} needs: {', '.join(o for o, d in known.items() if d is REQUIRED)}."
            raise InputError(f"option {option}", f"must be given for {name}", "nothing", remedy)
    return replace(dataset.load(seed=seed, test_fraction=share, **options), loaded=True)


def load_configured(config: Config) -> Federation:
    """The federation that a configuration names, with its options, seed and share of test records."""
    data = config.data
    return load(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)


def find(name: str) -> Dataset:
    """The dataset of that name; an unknown name is an error that suggests the nearest."""
    if not isinstance(name, str) or name not in DATASETS:
        raise InputError("dataset", "must be in the registry", name, nearest(str(name), DATASETS))
    return DATASETS[name]


def describe() -> list[DatasetInfo]:
    """Every dataset: what it is, where it comes from, its options, and whether its files are on this machine."""
    return [dataset.info() for dataset in DATASETS.values()]
