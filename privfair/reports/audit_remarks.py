"""What must be said below the figures of an audit, on the terminal and on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privfair.run_names import has_inferred_schema

if TYPE_CHECKING:
    from accountant.audit import DatasetAudit

_RDP_FOR_PLD = (
    "PLD takes long, and was computed for some of these lines only. In the others ε (PLD) is RDP's bound: larger, and "
    "still a bound."
)
_NOT_CLAIMED = (
    "Runs with “inferred” in their name read groups, categories and ranges off the records, which no ε covers: for "
    "them nothing is claimed."
)


def remarks(dataset: DatasetAudit) -> list[str]:
    """Sentences, in order."""
    found = [_RDP_FOR_PLD] if dataset.rdp_for_pld else []
    if any(has_inferred_schema(line.name) for line in dataset.by_run):
        found.append(_NOT_CLAIMED)
    return found
