"""What most algorithms do, so that each file says only what is special about its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.interfaces import Ask, Memory, ServerState
from privfair.messages import Update


class Plain:
    """Remembers nothing, asks nothing, weighs clients by their records."""

    measures: ClassVar[tuple[str, ...]] = ()

    def start(self, records: NDArray[np.int64]) -> Memory:
        """Nothing."""
        return {}

    def weights(self, state: ServerState, memory: Memory) -> FloatArray:
        """ν_k, each client's share of all records."""
        return state.weights

    def snapshot_at(self, state: ServerState) -> float | None:
        """Not needed."""
        return None

    def after(
        self,
        state: ServerState,
        memory: Memory,
        parameters: FloatArray,
        updates: Mapping[int, Update],
        ask: Ask,
    ) -> Memory:
        """As before."""
        return memory
