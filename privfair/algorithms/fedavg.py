"""FedAvg without a fairness term."""

from __future__ import annotations

from typing import ClassVar

from privfair.algorithms.base import Plain
from privfair.interfaces import Ask, Memory, ServerState
from privfair.messages import Objective, Task


class FedAvgOnly(Plain):
    """Clients minimise the task loss (McMahan et al. 2017, arXiv 1602.05629v4, algorithm 1)."""

    name: ClassVar[str] = "fedavg"

    def objective(self, state: ServerState, ask: Ask) -> tuple[Objective, Memory]:
        """The task alone."""
        return Task(), state.algorithm
