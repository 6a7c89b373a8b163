"""What must be said below the figures of an audit, on the terminal and on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privfair.run_names import has_inferred_schema, has_noise_in_shares

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
_SEVERAL_RUNS = (
    "Over several runs ε by RDP and by PLD holds if all of them were planned before the first. For runs that were "
    "chosen after a look at earlier ones, what a budget counts does (a Rényi filter of fixed order)."
)
_IN_SHARES = (
    "In runs with “shares” in their name every client added a part of the noise, and these books have that of the sum: "
    "their ε holds as long as the server and a client do not pool what they see. If they do, the larger ε in the run's "
    "statement (privacy.json, collusion) holds."
)


def remarks(dataset: DatasetAudit) -> list[str]:
    """Sentences, in order."""
    found = [_RDP_FOR_PLD] if dataset.rdp_for_pld else []
    if any(has_inferred_schema(line.name) for line in dataset.by_run):
        found.append(_NOT_CLAIMED)
    if shares(dataset):
        found.append(_IN_SHARES)
    if len(dataset.by_run) > 1:
        found.append(_SEVERAL_RUNS)
    return found


def shares(dataset: DatasetAudit) -> bool:
    """Whether the noise of some run was in shares."""
    return any(has_noise_in_shares(line.name) for line in dataset.by_run)
