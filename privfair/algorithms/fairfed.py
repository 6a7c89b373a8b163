"""FairFed: clients whose own fairness is far from the global one count less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfair.algorithms.base import Plain
from privfair.arrays import FloatArray
from privfair.interfaces import Ask, Memory, ServerState, measured
from privfair.messages import MeasureRequest, Objective, OwnPenalty
from privfair.terms import Terms

# which labels a notion conditions on; None: all records
CONDITIONS: dict[str, tuple[int | None, ...]] = {
    "statistical_parity": (None,),
    "equal_opportunity": (1,),
    "predictive_equality": (0,),
    "equalized_odds": (0, 1),
}


@dataclass(frozen=True)
class FairFed(Plain):
    """Fairness-aware weights (Ezzeldin et al. 2023, arXiv 2110.00857v3, algorithm 1, equations 6 and 7).

        Δ_k = |F_global − F_k|  (or |Acc_k − Acc| where F_k is undefined),   w̄_k ← w̄_k − β(Δ_k − mean Δ),   w = w̄/Σw̄

    F is the difference of positive rates between groups, from the model the round starts with. Clients train with the
    local MMD penalty, as the paper does ("FairFed's global fair aggregation with MMD-based local fair training").

    Choices: equation 6 can make weights negative; they are cut at 0 (all 0: back to the shares of records). With more
    than two groups or several conditioning sets F is the vector of differences to the first group present, and Δ its
    largest difference. F_global is the exact pooled one: the counts that equation 7 combines.
    """

    name: ClassVar[str] = "fairfed"
    measures: ClassVar[tuple[str, ...]] = ("confusion",)
    per_example: ClassVar[bool] = False

    strength: float
    kernel: str
    beta: float
    notion: str

    def start(self, terms: Terms) -> Memory:
        """The clients' shares."""
        return {"weights": terms.weights}

    def joined(self, memory: Memory, terms: Terms) -> Memory:
        """The clients' shares again: they are those of other clients than before."""
        return {"weights": terms.weights}

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """Ask for confusion counts, move the weights; clients follow their own penalty."""
        everyone = [int(k) for k in np.flatnonzero(state.terms.records)]  # without records there is nothing to compare
        tables = measured(everyone, ask(everyone, lambda _: MeasureRequest(state.model, self.measures)), "confusion")
        moved, heard = state.algorithm["weights"].copy(), list(tables)
        if heard:  # who is silent keeps its weight, up to the common factor
            confusion = np.stack(list(tables.values()))
            moved[heard] = fairfed_weights(moved[heard], confusion, self.beta, CONDITIONS[self.notion])
        if not moved.sum() > 0:
            moved = state.terms.weights
        return OwnPenalty(self.kernel, self.strength), {"weights": moved / moved.sum()}

    def weights(self, state: ServerState, memory: Memory) -> FloatArray:
        """The fairness-aware weights."""
        return memory["weights"]


def fairfed_weights(
    weights: FloatArray, confusion: FloatArray, beta: float, conditions: tuple[int | None, ...]
) -> FloatArray:
    """Equation 6, cut at 0; `confusion` is (clients, groups, label, decision)."""
    everyone = confusion.sum(axis=0)
    reference = int(np.argmax(everyone.sum(axis=(1, 2)) > 0))  # the first group that anybody has
    pooled = gaps(everyone, conditions, reference)
    correct = confusion[:, :, 0, 0].sum(axis=1) + confusion[:, :, 1, 1].sum(axis=1)
    total = confusion.sum(axis=(1, 2, 3))
    accuracy = np.divide(correct, total, out=np.zeros_like(correct), where=total > 0)
    overall = correct.sum() / max(total.sum(), 1.0)
    difference = np.empty(len(weights))
    for k, table in enumerate(confusion):
        apart = np.abs(pooled - gaps(table, conditions, reference))
        defined = apart[~np.isnan(apart)]
        difference[k] = defined.max() if defined.size else abs(accuracy[k] - overall)
    moved: FloatArray = np.maximum(weights - beta * (difference - difference.mean()), 0.0)
    return moved


def gaps(table: FloatArray, conditions: tuple[int | None, ...], reference: int = 0) -> FloatArray:
    """P(decision = 1 | reference, …) − P(decision = 1 | other group, …) on each conditioning set; NaN if undefined."""
    result = []
    for label in conditions:
        by_decision = table.sum(axis=1) if label is None else table[:, label]
        size = by_decision.sum(axis=1)
        rate = np.divide(by_decision[:, 1], size, out=np.full(len(size), np.nan), where=size > 0)
        result.append(rate[reference] - np.delete(rate, reference))
    return np.concatenate(result)
