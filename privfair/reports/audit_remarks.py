"""Remarks below the figures of an audit, on the terminal and on the page."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from privfair.config import COMPLETE_UP_TO
from privfair.numbers import shown
from privfair.run_names import has_inferred_schema, has_noise_in_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from accountant.audit import Collusion, DatasetAudit, Line
    from accountant.worst_case import Epsilon

MOMENT, HALF_A_DAY = timedelta(seconds=1), timedelta(hours=12)
_RDP_FOR_PLD = (
    "PLD takes long and was computed for some of these lines only. In the others ε (PLD) is RDP's bound, which is "
    "larger and still a bound."
)
_NOT_CLAIMED = (
    "Runs with “inferred” in their name read groups, categories and ranges off the records, which no ε covers: no "
    "privacy is claimed for them."
)
_SEVERAL_RUNS = (
    "Over several runs, ε by RDP and by PLD holds if all of them were planned before the first. If runs were chosen "
    "after a look at earlier ones, what a budget counts still holds (a Rényi filter of fixed order)."
)
_IN_SHARES = (
    "In runs with “shares” in their name every client added a part of the noise, and this ledger has the noise of the "
    "sum: their ε holds as long as the server and a client do not pool what they see. If they do, the larger ε in the "
    "run's statement (privacy.json, collusion) holds."
)
_QUOTE = (
    "To quote one run, take ε and δ of its statement (privacy.json). Its rows here give the same ε at the same δ, or a "
    "smaller one if the statement has the bound of the whole plan. Rows do not have a run's δ: if it is not "
    "{delta}, give its statement (--head RUN/privacy.json) or --delta."
)
_FILTER = (
    "By the budget’s Rényi filter ε = {spent} of {size} is spent at δ = {delta} (privfair budget show). At one δ that "
    "is never below ε by RDP, because it also holds if runs were chosen after a look at earlier ones."
)


def remarks(dataset: DatasetAudit) -> list[str]:
    """Sentences, in order."""
    found = [_RDP_FOR_PLD] if dataset.rdp_for_pld else []
    if dataset.epsilon is not None and any(line.name for line in dataset.by_run):
        found.append(_QUOTE.format(delta=f"{dataset.delta:g}"))
    budget, spent = dataset.state.budget, dataset.filter_epsilon
    if budget is not None and spent:
        found.append(_FILTER.format(spent=shown(spent), size=f"{budget.epsilon:g}", delta=f"{budget.delta:g}"))
    if any(has_inferred_schema(line.name) for line in dataset.by_run):
        found.append(_NOT_CLAIMED)
    if shares(dataset):
        found.append(_IN_SHARES)
    if dataset.collusion is not None:
        found.append(_masked(dataset.collusion, beyond(dataset)))
    if len(dataset.by_run) > 1:
        found.append(_SEVERAL_RUNS)
    return found


def beyond(dataset: DatasetAudit) -> Epsilon | None:
    """ε where more holders collude than runs with masks assume; None where there is none.

    Rows of noise in shares without masks do not have the event of one share, so that nothing is known with them.
    """
    return None if dataset.collusion is None or shares(dataset) else dataset.collusion.beyond


def _masked(collusion: Collusion, epsilon: Epsilon | None) -> str:
    """Whom ε is for where noise came in shares under masks, and the ε beyond that."""
    whom = " and ".join(f"{k} of {n} data holders" for n, k, _ in collusion.cohorts)
    text = f"Noise came in shares of masked sums: ε holds against the server together with at most {whom}."
    if any(n > COMPLETE_UP_TO for n, _, _ in collusion.cohorts):
        text += f" Of more than {COMPLETE_UP_TO:,} data holders: if the server does not lie about survivors."
    if epsilon is None:
        return text
    larger = epsilon.rdp if epsilon.pld is None else epsilon.pld
    return f"{text} If more of them collude, ε = {shown(larger)} holds, by each data holder's own share."


def shares(dataset: DatasetAudit) -> bool:
    """Whether the noise of some run was in shares."""
    return any(has_noise_in_shares(line.name) for line in dataset.by_run)


def largest_first(lines: Iterable[Line]) -> list[Line]:
    """The lines by ε: by RDP, then by PLD; equal ones in their order."""

    def size(line: Line) -> tuple[float, float]:
        epsilon = line.epsilon
        return (0.0, 0.0) if epsilon is None else (-epsilon.rdp, -(epsilon.pld or 0.0))

    return sorted(lines, key=size)


def line_name(line: Line) -> str:
    """What a line is of, with its δ where that is its own."""
    name = line.name or "(not named)"
    return name if line.delta is None else f"{name} (at its own δ = {line.delta:g})"


def time_window(times: Sequence[str]) -> tuple[datetime, datetime] | None:
    """Half a day around the only moment that there is, for the axis of time; None where it follows from the points."""
    first, last = (datetime.fromisoformat(choice(times)) for choice in (min, max))
    return None if last - first >= MOMENT else (first - HALF_A_DAY, last + HALF_A_DAY)
