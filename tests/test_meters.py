"""The architecture stays as it is drawn: meters with goals, and commands that start without heavy libraries."""

import subprocess
import sys

import pytest

from tools.meters import mutual_pairs, run_meters, static_meters


@pytest.mark.parametrize("meter", static_meters(), ids=lambda meter: meter.name)
def test_no_meter_of_the_tree_gets_worse(meter):
    assert meter.kept, f"{meter.name}: {meter.value}, and the goal is at most {meter.goal}. See python -m tools.meters."


def test_no_meter_of_runs_gets_worse():
    assert not [f"{m.name}: {m.value}, goal {m.goal}" for m in run_meters() if not m.kept]


def test_packages_that_import_each_other_are_found_inside_functions_too():
    graph = {"privfair.a.x": {"privfair.b.y"}, "privfair.b.y": set(), "privfair.b.z": {"privfair.a.x"}}
    assert mutual_pairs(graph) == [("privfair.a", "privfair.b")]


HEAVY = (
    "torch",
    "opacus",
    "tenseal",
    "opendp",
    "flwr",
    "numba",
    "scipy",
    "pandas",
    "sqlalchemy",
    "matplotlib",
    "plotly",
)


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("privfair.cli", ()),
        ("privfair.config", ()),
        ("privfair.datasets.registry", ()),
        ("privfair.secure_aggregation", ()),
        ("privfair.kernels", ("scipy",)),
        ("accountant", ()),
        ("accountant.audit", ("sqlalchemy",)),
        ("privfair.api", ("torch", "numba", "scipy", "sqlalchemy")),
    ],
)
def test_importing_does_not_load_what_is_seldom_needed(module, allowed):
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules and m not in {allowed!r}])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
