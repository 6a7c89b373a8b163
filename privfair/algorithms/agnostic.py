"""Agnostic federated learning: minimise the loss of the worst mixture of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfair.algorithms.base import Plain
from privfair.arrays import FloatArray
from privfair.interfaces import Ask, Memory, ServerState, measured
from privfair.messages import MeasureRequest, Model, Objective, Task
from privfair.randomness import stream
from privfair.terms import Terms


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
    snapshots: ClassVar[bool] = True

    step: float
    seed: int

    def start(self, terms: Terms) -> Memory:
        """The clients' shares."""
        return {"mixture": terms.weights}

    def joined(self, memory: Memory, terms: Terms) -> Memory:
        """The clients' shares again: they are those of other clients than before."""
        return {"mixture": terms.weights}

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The task alone."""
        return Task(), state.algorithm

    def weights(self, state: ServerState, memory: Memory) -> FloatArray:
        """The mixture."""
        return memory["mixture"]

    def snapshot_at(self, state: ServerState) -> float | None:
        """One draw for all clients."""
        return 1.0 - float(stream(self.seed, "snapshot", state.round).random())  # in (0, 1]

    def after(self, state: ServerState, memory: Memory, model: Model, ask: Ask) -> Memory:
        """w ← Π(w + γτ·losses at the mean snapshot), over the clients that have records and answered."""
        mixture = memory["mixture"]
        present = [int(k) for k in np.flatnonzero(state.terms.records)]
        request = MeasureRequest(model, self.measures, at_snapshot=True)
        losses = measured(present, ask(present, lambda _: request), "loss")
        heard = list(losses)
        moved = np.zeros_like(mixture)
        moved[present] = mixture[present]
        mass = 1.0 if heard == present else float(mixture[heard].sum())  # who is silent keeps its share
        if heard and mass > 0:
            wanted = (mixture[heard] + self.step * np.concatenate(list(losses.values()))) / mass
            moved[heard] = mass * project_to_simplex(wanted)
        return {"mixture": moved}


def project_to_simplex(v: FloatArray) -> FloatArray:
    """The nearest vector of shares (Duchi et al. 2008, figure 1).

    Adding a constant to all entries does not change it. So the largest becomes 0 first: beside large entries 1 would
    be lost to rounding, and no entry would be found to keep.
    """
    v = v - v.max()
    descending = np.sort(v)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, v.size + 1)
    kept = int(np.flatnonzero(descending > excess)[-1])
    projected: FloatArray = np.maximum(v - excess[kept], 0.0)
    return projected
