"""The published methods that the tracked ones are compared with; each says only what is special about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfair.federated.exchange import Ask, Memory, Plain, ServerState, measured
from privfair.federated.messages import MeasureRequest, Model, Objective, OwnPenalty, Reweighted, Task
from privfair.federated.release_plan import ReleasePlan
from privfair.mechanisms.entropy import stream
from privfair.util import FloatArray

# ---- FedAvg without a fairness term.


class FedAvgOnly(Plain):
    """Clients minimise the task loss (McMahan et al. 2017, arXiv 1602.05629v4, algorithm 1)."""

    name: ClassVar[str] = "fedavg"

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The task alone."""
        return Task(), state.algorithm


# ---- Local fairness, and the centralized reference: the penalty on the records at hand.


@dataclass(frozen=True)
class LocalFairness(Plain):
    """FedAvg where client k adds λ·MMD²(P_k^{h(X)|A=0}, P_k^{h(X)|A=1}), taken on each minibatch.

    The paper's "local group fairness" (section 6). A minibatch with one group only has no penalty. It does not make
    the model fair over all data: local and global fairness differ (Proposition 3.1).
    """

    name: ClassVar[str] = "local_fairness"
    per_example: ClassVar[bool] = False

    strength: float
    kernel: str

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """Task and own penalty."""
        return OwnPenalty(self.kernel, self.strength), state.algorithm


class Centralized(LocalFairness):
    """Full-gradient descent on E L + λ·MMD² over the pooled records: what is possible without a federation.

    It runs with one client that holds everything, all records in each step. In an epoch it takes as many steps as the
    client with the most minibatches of `federation.batch_size` would: as many as the methods it is compared with. A
    batch size of at least the largest client's records gives one step an epoch, as in the paper's experiments.
    """

    name: ClassVar[str] = "centralized"


# ---- Agnostic federated learning: minimise the loss of the worst mixture of clients.


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

    def start(self, release_plan: ReleasePlan) -> Memory:
        """The clients' shares."""
        return {"mixture": release_plan.weights}

    def joined(self, memory: Memory, release_plan: ReleasePlan) -> Memory:
        """The clients' shares again: they are those of other clients than before."""
        return {"mixture": release_plan.weights}

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
        present = [int(k) for k in np.flatnonzero(state.release_plan.records)]
        request = MeasureRequest(model, self.measures, at_snapshot=True)
        losses = measured(present, ask(present, lambda _: request), "loss")
        received = list(losses)
        moved = np.zeros_like(mixture)
        moved[present] = mixture[present]
        mass = 1.0 if received == present else float(mixture[received].sum())  # who is silent keeps its share
        if received and mass > 0:
            wanted = (mixture[received] + self.step * np.concatenate(list(losses.values()))) / mass
            moved[received] = mass * project_to_simplex(wanted)
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


# ---- FairFed: clients whose own fairness is far from the global one count less.


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

    def start(self, release_plan: ReleasePlan) -> Memory:
        """The clients' shares."""
        return {"weights": release_plan.weights}

    def joined(self, memory: Memory, release_plan: ReleasePlan) -> Memory:
        """The clients' shares again: they are those of other clients than before."""
        return {"weights": release_plan.weights}

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """Ask for confusion counts, move the weights; clients follow their own penalty."""
        everyone = [
            int(k) for k in np.flatnonzero(state.release_plan.records)
        ]  # without records there is nothing to compare
        tables = measured(everyone, ask(everyone, lambda _: MeasureRequest(state.model, self.measures)), "confusion")
        moved, received = state.algorithm["weights"].copy(), list(tables)
        if received:  # who is silent keeps its weight, up to the common factor
            confusion = np.stack(list(tables.values()))
            moved[received] = fairfed_weights(moved[received], confusion, self.beta, CONDITIONS[self.notion])
        if not moved.sum() > 0:
            moved = state.release_plan.weights
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


# ---- FedFB: the server steers the weights of (group, label) cells in everyone's loss.


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

    def start(self, release_plan: ReleasePlan) -> Memory:
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
