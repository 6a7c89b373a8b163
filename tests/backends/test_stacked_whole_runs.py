"""A full run by the stacked engine ends where the sequential one ends, for every method."""

from __future__ import annotations

import os
from functools import cache

import pytest

from privfair.config import Config
from privfair.runs.assembly import build
from privfair.runs.batched import build_stacked, run_stacked
from privfair.runs.loop import RunOutcome, run
from privfair.sweeps.jobs import METHODS, WITHOUT_LAMBDA
from tests.backends.settings import distance, history_distance

ROUNDS = 100
CASES = [(m, s) for m in METHODS for s in ((1.0,) if m in WITHOUT_LAMBDA else (0.1, 1.0))]


def config(method: str, strength: float) -> Config:
    """COMPAS where it is there, otherwise the built-in federation."""
    real = bool(os.environ.get("PRIVFAIR_DATA"))
    return Config.build(
        {
            "data": {"name": "compas" if real else "synthetic"},
            "model": {"name": "mlp", "hidden": [16]},
            "fairness": {"lambda": strength, "samples": 100},
            "federation": {
                "method": method,
                "rounds": ROUNDS,
                "local_epochs": 2,
                "batch_size": 500 if real else 100,
                "learning_rate": 0.05,
                "learning_rate_decay": 0.99,
            },
            "run": {"dtype": "float64", "evaluate_every": ROUNDS},
        }
    )


@cache
def stacked() -> dict[tuple[str, float], RunOutcome]:
    """All of them in one stack."""
    return dict(zip(CASES, run_stacked(build_stacked([config(*case) for case in CASES])), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, λ = {case[1]:g}")
def test_a_whole_run_is_the_same_to_1e_5(case: tuple[str, float]) -> None:
    together = stacked()[case]
    alone = run(build(config(*case)))
    assert together.state.round == alone.state.round == ROUNDS
    assert distance(together, alone) <= 1e-5
    assert history_distance(together, alone) <= 1e-5
    assert (together.simulation.backend.bytes_up, together.simulation.backend.bytes_down) == (
        alone.simulation.backend.bytes_up,
        alone.simulation.backend.bytes_down,
    )
