"""The server's half of a scheme that TenSEAL provides: it adds, and holds the public context only."""

from __future__ import annotations

from typing import Any, ClassVar

from privfair.aggregation import seal
from privfair.aggregation.base import ServerKeys


class SealServer(ServerKeys):
    """Adds ciphertexts of the scheme whose parameters a subclass names."""

    parameters: ClassVar[seal.Parameters]

    def __init__(self, content: bytes, key_id: str) -> None:
        """Take the public context."""
        super().__init__(key_id)
        self.context = seal.load_context(content, self.parameters, secret=False)

    def load_chunk(self, chunk: bytes, count: int, name: str) -> Any:
        """The ciphertext."""
        return seal.load(self.context, self.parameters, chunk, self.slots, name)

    def add_chunk(self, left: Any, right: Any) -> Any:
        """The sum, in the place of the left one."""
        return seal.add(left, right)

    def dump_chunk(self, loaded: Any) -> bytes:
        """The ciphertext's bytes."""
        return seal.dump(loaded, self.parameters)
