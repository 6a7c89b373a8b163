"""What a private run has beside the training itself: its plan, its books, and the desk between them."""

from __future__ import annotations

from dataclasses import dataclass

from privfair.privacy.books import Books
from privfair.privacy.desk import Desk
from privfair.privacy.planning import Planner


@dataclass(frozen=True)
class PrivateSide:
    """Planner, ledger and desk of one run."""

    planner: Planner
    books: Books
    desk: Desk

    def close(self) -> None:
        """Close the ledger."""
        self.books.ledger.close()
