"""Verify the hash chain: which rows were changed, are missing, or do not follow the row before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from accountant.chain import NO_HASH, Head, chained_text
from accountant.signing import OwnerKey
from accountant.spending import Source

SHOWN_PROBLEMS = 20

LOST = "(what this row was about is missing)"

Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Problem:
    """Something wrong with the books, and the row where it shows; row 0 when it is no single row."""

    row: int
    what: str

    def __str__(self) -> str:
        """For example "row 17: was changed"."""
        return f"row {self.row}: {self.what}" if self.row else self.what


@dataclass
class ChainCheck:
    """Verifies rows as they stream past; `problems` holds the first of those found, `found` counts all.

    found_heads: the row of every noted head that was met.
    """

    signed_by: str = ""
    key: OwnerKey | None = None
    noted_heads: Collection[str] = ()
    problems: list[Problem] = field(default_factory=list)
    found: int = 0
    rows: int = 0
    head: Head = field(default_factory=lambda: Head(0, NO_HASH))
    missing_heads: set[str] = field(init=False)
    found_heads: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """No noted head has been met yet."""
        self.missing_heads = set(self.noted_heads)

    @property
    def intact(self) -> bool:
        """Whether nothing wrong was found."""
        return self.found == 0

    def report(self, row: int, what: str) -> None:
        """Count a problem, and keep it if it is among the first: one insertion breaks every row after it."""
        self.found += 1
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(Problem(row, what))

    def passing(self, batches: Iterable[Rows], sources: Mapping[int, Source]) -> Iterator[Rows]:
        """The same batches, each verified before it is handed on."""
        expected, last = self.head.sequence + 1, self.head.hash
        texts = {number: "\n".join(source) for number, source in sources.items()}
        look_closer = bool(self.signed_by or self.key or self.missing_heads)
        for rows in batches:
            # Spelled out: this loop is most of an audit's time.
            for row in rows:
                sequence, kind, at, round_number, count, token, source, previous, stored, _ = row
                about = texts.get(source, LOST)
                text = chained_text(sequence, kind, at, round_number, count, token, previous, about)
                if sha256(text.encode()).hexdigest() != stored or sequence != expected or previous != last:
                    self._explain(row, expected, last, sha256(text.encode()).hexdigest() == stored)
                if look_closer:
                    self._look_closer(sequence, *row[-2:])
                expected, last = sequence + 1, stored
            self.rows += len(rows)
            self.head = Head(expected - 1, last)
            yield rows

    def finish(self, noted: Head) -> None:
        """After the last row: does the ledger end where it was noted to end?"""
        for hash_ in sorted(self.missing_heads):
            self.report(0, f"the noted head {hash_} is not in the ledger: rows were cut off or replaced")
        if noted != self.head:
            self.report(
                0,
                f"the ledger ends with row {self.head.sequence}, but its head is noted as row "
                f"{noted.sequence}: rows were cut off, or added past the program",
            )

    def _look_closer(self, sequence: int, stored: str, signature: str) -> None:
        if stored in self.missing_heads:
            self.missing_heads.discard(stored)
            self.found_heads[stored] = sequence
        if self.key is not None and not self.key.signed(stored, signature):
            self.report(sequence, "is not signed with this key")
        elif self.signed_by and not signature:
            self.report(sequence, f"is not signed, though the ledger is signed with key {self.signed_by}")

    def _explain(self, row: tuple[Any, ...], expected: int, last: str, intact: bool) -> None:
        sequence = row[0]
        if sequence != expected:
            gap = f"row {expected} is" if sequence == expected + 1 else f"rows {expected} to {sequence - 1} are"
            self.report(expected, f"{gap} missing before row {sequence}")
        if not intact:
            self.report(sequence, "was changed: its hash does not fit its content")
        elif row[7] != last and sequence == expected:
            self.report(sequence, "does not follow the row before it: one of the two was replaced or inserted")
