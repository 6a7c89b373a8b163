"""Sums of many encrypted vectors in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from accountant.errors import InputError
from privfair.aggregation.base import ServerKeys
from privfair.aggregation.ciphertext import Ciphertext, Header
from privfair.aggregation.errors import BadCiphertext


class SumOfChunks:
    """A running sum over contributions in the order in which they come.

    Memory: the sum and one contribution, whatever the number of contributors. A contribution that is refused
    leaves the sum as it was.
    """

    def __init__(self, keys: ServerKeys) -> None:
        """Start with nothing."""
        self._keys = keys
        self._header: Header | None = None
        self._chunks: list[Any] = []

    def add(self, contribution: Ciphertext, name: str = "contribution") -> None:
        """Add one more; nothing is changed before every chunk of it has proved readable."""
        keys, header = self._keys, contribution.header
        if self._header is None:
            keys.check(header, name)
            total = header
        else:
            total = keys.sum_header(self._header, header, name)
        counts = keys.counts(header.length)
        loaded = [keys.load_chunk(c, n, name) for c, n in zip(contribution.chunks, counts, strict=True)]
        if self._header is None:
            self._chunks = loaded
        else:
            self._chunks = [keys.add_chunk(a, b) for a, b in zip(self._chunks, loaded, strict=True)]
        self._header = total

    def total(self) -> Ciphertext:
        """The encrypted sum so far."""
        if self._header is None:
            raise InputError("contributions", "must be at least one", 0, "Nobody has sent anything to add.")
        return Ciphertext(self._header, tuple(self._keys.dump_chunk(chunk) for chunk in self._chunks))


def add_streams(
    keys: ServerKeys, streams: Sequence[tuple[Header, Iterable[bytes]]], names: Sequence[str] | None = None
) -> tuple[Header, Iterator[bytes]]:
    """The header of the sum and its chunks, one at a time: all streams (see `read_frame`) are read in step.

    Memory: two chunks, whatever the length of the vectors and the number of contributors.
    """
    if not streams:
        raise InputError("contributions", "must be at least one", 0, "Nobody has sent anything to add.")
    names = names or [f"contribution {i + 1}" for i in range(len(streams))]
    header = streams[0][0]
    keys.check(header, names[0])
    for (more, _), name in zip(streams[1:], names[1:], strict=True):
        header = keys.sum_header(header, more, name)
    return header, _add_in_step(keys, header, [iter(chunks) for _, chunks in streams], names)


def _add_in_step(
    keys: ServerKeys, header: Header, streams: list[Iterator[bytes]], names: Sequence[str]
) -> Iterator[bytes]:
    for count in keys.counts(header.length):
        total = None
        for stream, name in zip(streams, names, strict=True):
            loaded = keys.load_chunk(_next(stream, name), count, name)
            total = loaded if total is None else keys.add_chunk(total, loaded)
        yield keys.dump_chunk(total)
    for stream, name in zip(streams, names, strict=True):
        if next(stream, None) is not None:  # also lets the reader of a message check that it ends here
            raise BadCiphertext(name, "must end with its last chunk", "more chunks", "Send it again.")


def _next(stream: Iterator[bytes], name: str) -> bytes:
    chunk = next(stream, None)
    if chunk is None:
        raise BadCiphertext(name, "must have all its chunks", "an early end", "Send it again.")
    return chunk
