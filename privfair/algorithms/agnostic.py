"""Agnostic federated learning: minimise the loss of the worst mixture of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privfair.algorithms.base import Plain
from privfair.arrays import FloatArray
from privfair.interfaces import Ask, Memory, ServerState, measured
from privfair.messages import MeasureRequest, Objective, Task, Update
from privfair.randomness import stream


@dataclass(frozen=True)
class Agnostic(Plain):
    """min over θ, max over mixtures w of Σ_k w_k f_k(θ) (Mohri et al. 2019, arXiv 1902.00146v1).

    By distributionally robust federated averaging (Deng, Kamani & Mahdavi 2020, arXiv 2102.12660v1, algorithm 1) in its
    full-participation form: models are averaged with w; at a random moment of the local steps, the same share for all,
    clients also report a snapshot; w moves along their losses at the averaged snapshot and is projected to the simplex.

    Choices: w starts at the clients' shares of records; `step` is the product γτ of the paper; losses are over all of
    a client's records; every client takes part in every round. It is fairness among clients: groups are not looked at.
    """

    name: ClassVar[str] = "agnostic"
    measures: ClassVar[tuple[str, ...]] = ("loss",)

    step: float
    seed: int

    def start(self, records: NDArray[np.int64]) -> Memory:
        """The clients' shares."""
        return {"mixture": records / records.sum()}

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The task alone."""
        return Task(), state.algorithm

    def weights(self, state: ServerState, memory: Memory) -> FloatArray:
        """The mixture."""
        return memory["mixture"]

    def snapshot_at(self, state: ServerState) -> float | None:
        """One draw for all clients."""
        return 1.0 - float(stream(self.seed, "snapshot", state.round).random())  # in (0, 1]

    def after(
        self, state: ServerState, memory: Memory, parameters: FloatArray, updates: Mapping[int, Update], ask: Ask
    ) -> Memory:
        """w ← Π(w + γτ·losses), over the clients that have records."""
        mixture = memory["mixture"]
        present = [k for k in sorted(updates) if state.records[k]]
        deltas = ((mixture[k], updates[k].snapshot_delta) for k in present)
        snapshot = state.parameters + sum(w * d for w, d in deltas if d is not None)
        snapshot = snapshot.astype(parameters.dtype)
        losses = np.concatenate(measured(ask(present, lambda _: MeasureRequest(snapshot, self.measures)), "loss"))
        moved = np.zeros_like(mixture)
        moved[present] = project_to_simplex(mixture[present] + self.step * losses)
        return {"mixture": moved}


def project_to_simplex(v: FloatArray) -> FloatArray:
    """The nearest vector of shares (Duchi et al. 2008, figure 1)."""
    descending = np.sort(v)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, v.size + 1)
    kept = int(np.flatnonzero(descending > excess)[-1])
    projected: FloatArray = np.maximum(v - excess[kept], 0.0)
    return projected
