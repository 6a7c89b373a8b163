"""Fairness tracking, the paper's algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from privfair.algorithms.base import Plain
from privfair.fairness.quotas import largest_remainder_quotas, random_quotas
from privfair.fairness.tracking import SharedScores, equal_weights
from privfair.interfaces import Ask, Memory, ServerState, expect
from privfair.messages import Drift, Objective, Scores, ScoresRequest, Tracked
from privfair.randomness import stream


@dataclass(frozen=True)
class MmdFedAvg(Plain):
    """MMD-fair FedAvg (Rychener, Kuhn & Hu 2025, algorithms 1 and 2).

    Each round all clients share `samples` scores per cell, together a simple random sample of the cell; local training
    follows the witness functions built from them. Aggregation weighs clients by their records, as the paper's text
    says (its listing has 1/S, which is the same for equal clients).
    """

    name: ClassVar[str] = "mmd_fedavg"

    strength: float
    kernel: str
    samples: int
    drift: Drift
    quotas: Literal["random", "largest_remainder"]
    domain: tuple[float, float] | None
    seed: int

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """Gather the scores of every cell and broadcast them, pooled."""
        if self.quotas == "random":
            quotas = random_quotas(state.cells, self.samples, stream(self.seed, "quotas", state.round))
        else:
            quotas = largest_remainder_quotas(state.cells, self.samples)
        everyone = range(len(state.cells))
        replies = ask(everyone, lambda k: ScoresRequest(state.round, state.parameters, quotas[k]))
        shared = [reply.cells for reply in expect(Scores, replies)]
        pooled = tuple(np.concatenate(cell) for cell in zip(*shared, strict=True))
        return Tracked(
            SharedScores(
                kernel=self.kernel,
                strength=self.strength,
                scores=pooled,
                weights=equal_weights(pooled),
                counts=state.cells.sum(axis=0).astype(float),
                records=float(state.records.sum()),
                domain=self.domain,
            ),
            self.drift,
        ), state.algorithm
