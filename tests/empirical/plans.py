"""Plans to attack, on a toy federation, with noise from a generator: the same laws, many times faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privfair.audit import audit, updates
from privfair.audit.attack import Attack, Subject, prepare
from privfair.config import Config
from privfair.mechanisms.entropy import SeededEntropy
from privfair.runs import assembly as simulation
from tests.end_to_end.federations import toy

PUBLIC: dict[str, Any] = {
    **{"counts": "public", "prediction_noise": 0.5, "prediction_rate": 1.0},
    **{"noise_multiplier": 2.0, "sampling_rate": 1.0, "local_steps": 1},
}
PRIVATE: dict[str, Any] = {
    **{"count_noise": 1.0, "prediction_noise": 0.5, "prediction_rate": 1.0},
    **{"noise_multiplier": 1.0, "sampling_rate": 1.0, "local_steps": 1},
}
SHARED: dict[str, Any] = {**PRIVATE, "distributed_noise": True}
MASKED: dict[str, Any] = {
    **{"count_noise": 0.7, "prediction_noise": 0.7, "noise_multiplier": 0.7, "sampling_rate": 1.0},
    **{"evaluation": "gaussian", "evaluation_noise": 0.7},
}
CLIENTS_MASKED: dict[str, Any] = {
    **{"counts": "public", "updates": "client_level", "noise_multiplier": 1.4, "prediction_noise": 9.0},
}
FIVE: dict[str, Any] = {"masks": True, "colluders": 2, "smallest_cohort": 4}  # of five holders: two honest shares


class Quiet(SeededEntropy):
    """Every choice as always, and no noise at all."""

    def normal(self, size: int) -> np.ndarray:
        return np.zeros(size)

    def discrete_gaussian(self, scale: float, size: int) -> np.ndarray:
        return np.zeros(size, dtype=np.int64)

    def discrete_laplace(self, scale: float, size: int) -> np.ndarray:
        return np.zeros(size, dtype=np.int64)


def trials(attack: Attack, present: bool, count: int) -> np.ndarray:
    """The numbers of so many trials of the first client, whose neighbours have what it has."""
    coins = np.full(len(attack.clients), present)
    return np.array([attack.trial(coins)[0] for _ in range(count)])


def generator_noise(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """From now on clients draw from one generator, which goes on from draw to draw; so do the audit's own coins."""
    rng, coins = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    monkeypatch.setattr(audit, "fresh_coins", lambda: coins)
    monkeypatch.setattr(updates, "SystemEntropy", lambda: SeededEntropy(coins))
    monkeypatch.setattr(simulation, "entropy_of", lambda config, client: lambda channel, number: SeededEntropy(rng))


def plan(folder: Path, privacy: dict[str, Any], rounds: int = 1, clients: int = 1, **sections: Any) -> Subject:
    """The plan of this [privacy], ready for attacks."""
    if not privacy.get("distributed_noise"):  # encryption takes time, and has tests of its own
        sections.setdefault("aggregation", {"scheme": "plain"})
    sections.setdefault("aggregation", {"masks": False})
    config = Config.build({"privacy": privacy, "federation": {"rounds": rounds}, **sections})
    return prepare(config, folder, federation=toy(clients=clients, records=120))


def plan_of_sums(
    folder: Path, privacy: dict[str, Any], rounds: int = 1, clients: int = 1, kernel: str = "energy", **sections: Any
) -> Subject:
    """The same for the tracker of features, which samples no record."""
    whole = {key: value for key, value in privacy.items() if key != "prediction_rate"}
    return plan(folder, whole, rounds, clients, fairness={"tracker": "embedding", "kernel": kernel}, **sections)


def plan_with_masks(
    folder: Path, privacy: dict[str, Any], rounds: int = 1, clients: int = 3, **sections: Any
) -> Subject:
    """The same for masked sums, whose noise comes in shares of the honest holders."""
    sections.setdefault("aggregation", {"masks": True})
    return plan(folder, privacy, rounds, clients, fairness={"tracker": "embedding"}, **sections)
