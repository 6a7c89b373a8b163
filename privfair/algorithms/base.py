"""What most algorithms do, so that each file says only what is special about its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from privfair.arrays import FloatArray
from privfair.interfaces import Ask, Memory, ServerState
from privfair.messages import Model, Request, Scores
from privfair.terms import Terms


class Plain:
    """Remembers nothing, asks nothing, weighs clients by their records."""

    measures: ClassVar[tuple[str, ...]] = ()
    snapshots: ClassVar[bool] = False
    per_example: ClassVar[bool] = True

    def start(self, terms: Terms) -> Memory:
        """Nothing."""
        return {}

    def joined(self, memory: Memory, terms: Terms) -> Memory:
        """As before."""
        return memory

    def weights(self, state: ServerState, memory: Memory) -> FloatArray:
        """ν_k, each client's share of all records."""
        return state.terms.weights

    def snapshot_at(self, state: ServerState) -> float | None:
        """Not needed."""
        return None

    def beside(self, state: ServerState) -> Mapping[int, Request]:
        """Nothing."""
        return {}

    def heard(self, state: ServerState, memory: Memory, replies: Mapping[int, Scores]) -> Memory:
        """As before."""
        return memory

    def after(self, state: ServerState, memory: Memory, model: Model, ask: Ask) -> Memory:
        """As before."""
        return memory
