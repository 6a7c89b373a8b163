"""Local fairness, and the centralized reference: the penalty on the records at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privfair.algorithms.base import Plain
from privfair.interfaces import Ask, Memory, ServerState
from privfair.messages import Objective, OwnPenalty


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
