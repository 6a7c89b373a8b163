"""Small federations and configurations for both engines."""

from __future__ import annotations

from typing import Any

import numpy as np

from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Records, Schema, SensitiveAttribute
from privfair.runs.loop import RunOutcome

SIZES = (50, 7, 23, 0, 36)  # ragged; one client has nothing to train on


def federation(*, groups: int = 2, task: str = "binary", sizes: tuple[int, ...] = SIZES) -> Federation:
    """Clients of very different size, some records twice, so that there are exact ties."""
    rng = np.random.default_rng(1)
    holders = []
    for k, size in enumerate(sizes):
        g = rng.integers(groups, size=(size + 6, 1))
        x = np.round(rng.normal(size=(size + 6, 4)) + 0.5 * g, 1)
        x[: size // 4] = x[size // 4 : 2 * (size // 4)]
        place = np.clip(x.sum(axis=1) / 12 + 0.5, 0, 1)
        y = (place > 0.5).astype(float) if task == "binary" else -3 + 6 * place
        records = Records(x, y, g, (x[:, :1] > 0))
        parts = records.take(np.arange(size)), records.take(np.arange(size, size + 6))
        holders.append(ClientData(f"client{k}", *parts))
    label_range = (0.0, 1.0) if task == "binary" else (-3.0, 3.0)
    sensitive = (SensitiveAttribute("s", tuple(str(v) for v in range(groups))),)
    schema = Schema(tuple("abcd"), task, "y", label_range, sensitive, ("a is positive",))  # type: ignore[arg-type]
    return Federation("ragged", schema, tuple(holders))


def config(*, rounds: int = 1, seed: int = 0, dtype: str = "float64", **case: Any) -> Config:
    """A run; `case` names fairness, model or federation keys."""
    fairness = {k: case.pop(k) for k in ("kernel", "notion", "lambda", "samples", "tracker", "target") if k in case}
    privacy = {"score_range": case.pop("score_range")} if "score_range" in case else {}
    model = {"name": case.pop("model", "mlp"), "hidden": case.pop("hidden", [5])}
    work = {"rounds": rounds, "local_epochs": 2, "batch_size": 16, "learning_rate": 0.1, **case}
    run = {"seed": seed, "dtype": dtype}
    return Config.build(
        {
            "model": model,
            "fairness": {"samples": 20, **fairness},
            "federation": work,
            "privacy": privacy,
            "run": run,
        }
    )


def distance(first: RunOutcome, second: RunOutcome) -> float:
    """The largest difference between two runs' parameters."""
    return float(np.abs(first.simulation.replica.parameters - second.simulation.replica.parameters).max())


def history_distance(first: RunOutcome, second: RunOutcome) -> float:
    """The largest difference between two runs' histories, which must have the same figures."""
    apart = 0.0
    for one, other in zip(first.history, second.history, strict=True):
        assert one.keys() == other.keys()
        assert {k for k, v in one.items() if v is None} == {k for k, v in other.items() if v is None}
        apart = max(apart, *(abs(one[k] - other[k]) for k in one if one[k] is not None))  # type: ignore[operator]
    return apart
