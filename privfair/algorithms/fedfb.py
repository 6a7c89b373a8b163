"""FedFB: the server steers the weights of (group, label) cells in everyone's loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfair.algorithms.base import Plain
from privfair.algorithms.fairfed import CONDITIONS
from privfair.arrays import FloatArray
from privfair.interfaces import Ask, Memory, ServerState, measured
from privfair.messages import MeasureRequest, Model, Objective, Reweighted
from privfair.terms import Terms


@dataclass(frozen=True)
class FedFB(Plain):
    """Federated FairBatch (Zeng, Chen & Lee 2021, arXiv 2110.15545, algorithm 1; Roh et al. 2021, arXiv 2012.01696).

    With n_ya records of label y in group a, n_a in group a, p_a = n_a/n, and L_ya the sum of their losses, for
    statistical parity and a ≥ 1

        f_a = [−L_00 + L_10]/n_0 + [L_0a − L_1a]/n_a + n_00/n_0 − n_0a/n_a

    (the difference of positive rates if the loss were the error), and after round t, with α_t = α/√(t + 1),

        λ_00 ← clip(λ_00 − α_t Σ f_a, 0, 2p_0),   λ_0a ← clip(λ_0a + α_t f_a, 0, 2p_a),   λ_1a = 2p_a − λ_0a.

    A record of cell (y, a) weighs λ_ya/p_a in the loss. For the notions that condition on a label y, with mean losses:
    λ_ya ≥ 0 of sum P(Y=y), λ_ya ← λ_ya + α_t(L̄_ya − L̄_y0) for a ≥ 1, and the weight is λ_ya·n/n_ya.

    Choices: the clients' weighted losses are averaged by their numbers of records, so that the pooled weighted loss is
    what is minimised; losses are those of the training records under the new model; the step decays as in the authors'
    code (their paper normalises it instead).
    """

    name: ClassVar[str] = "fedfb"
    measures: ClassVar[tuple[str, ...]] = ("group_losses",)

    step: float
    notion: str
    groups: int

    def start(self, terms: Terms) -> Memory:
        """All weights 1: plain risk minimisation."""
        return {"weights": np.ones((self.groups, 2))}

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The reweighted task."""
        return Reweighted(state.algorithm["weights"]), state.algorithm

    def after(self, state: ServerState, memory: Memory, model: Model, ask: Ask) -> Memory:
        """Ask for the losses of every cell under the new model; move the weights."""
        everyone = range(state.clients)
        tables = measured(everyone, ask(everyone, lambda _: MeasureRequest(model, self.measures)), "group_losses")
        if not tables:
            return memory
        table = np.sum(list(tables.values()), axis=0)
        step = self.step / np.sqrt(state.round + 1)
        sizes, losses = table[..., 0], table[..., 1]
        if self.notion == "statistical_parity":
            return {"weights": parity_weights(memory["weights"], sizes, losses, step)}
        labels = [label for label in CONDITIONS[self.notion] if label is not None]
        return {"weights": conditional_weights(memory["weights"], sizes, losses, step, labels)}


def parity_weights(weights: FloatArray, sizes: FloatArray, losses: FloatArray, step: float) -> FloatArray:
    """One step for statistical parity; all arrays are (groups, labels)."""
    n_a = sizes.sum(axis=1)
    present = n_a > 0
    if present.sum() < 2:
        return weights
    reference = int(np.argmax(present))
    safe = np.where(present, n_a, 1.0)
    shares = n_a / n_a.sum()
    signal = (losses[:, 0] - losses[:, 1] - sizes[:, 0]) / safe
    f = np.where(present, signal - signal[reference], 0.0)  # 0 for the reference itself
    multipliers = weights[:, 0] * shares + step * np.where(np.arange(len(f)) == reference, -f.sum(), f)
    multipliers = np.clip(multipliers, 0.0, 2 * shares)
    negative = np.divide(multipliers, shares, out=np.ones_like(shares), where=present)
    return np.stack([negative, 2 - negative], axis=1)


def conditional_weights(
    weights: FloatArray, sizes: FloatArray, losses: FloatArray, step: float, labels: Sequence[int]
) -> FloatArray:
    """One step for equal opportunity, predictive equality or equalized odds."""
    result = weights.copy()
    total = sizes.sum()
    for label in labels:
        n = sizes[:, label]
        present = np.flatnonzero(n > 0)
        if present.size < 2:
            continue
        mean = losses[present, label] / n[present]
        multipliers = weights[present, label] * n[present] / total
        change = step * (mean - mean[0])
        change[0] = -change.sum()
        moved = np.maximum(multipliers + change, 0.0)
        moved *= n.sum() / total / moved.sum()  # back to the sum P(Y=y)
        result[present, label] = moved * total / n[present]
    return result
