"""The part of a run's report about privacy: what was spent by whom, what it means, and what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accountant.audit import DatasetAudit, audit
from accountant.errors import InputError, Refused
from accountant.ledger.ledger import Ledger
from accountant.ledger.storage import exists, ledger_url
from privfair.numbers import Cell, epsilon_cell, shown
from privfair.reports.figures import Figure, over_rounds, shown_guesses
from privfair.reports.run_facts import RunFacts

MOST_ROWS = 50_000  # a ledger with more takes seconds to add up; `privfair audit --html` does it
EXAMPLES = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
WHO = {"channel": "what was sent", "group": "group", "client": "data holder"}
CHANNELS = {
    "counts": "numbers of records",
    "predictions": "shared scores",
    "updates": "model updates",
    "evaluation": "final evaluation",
    "embeddings": "shared embeddings",
}


def bound(privacy: Mapping[str, Any]) -> float | None:
    """The smaller one of the two bounds on ε; both hold. None where none is claimed."""
    if not privacy["private"]:
        return None
    known = [value for value in privacy["epsilon"].values() if value is not None]
    return min(known) if known else None


def spending(privacy: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tables of ε by what was sent, by group and by data holder."""
    tables = []
    for kind, reported in WHO.items():
        rows = []
        for name, value in privacy[f"by_{kind}"].items():
            # where RDP is finite and PLD is not told, it was not computed: there were too many different ones
            missing = value["pld"] is None and value["rdp"] is not None
            pld = Cell("–") if missing else epsilon_cell(value["pld"], infinite=True)
            rows.append([CHANNELS.get(name, name) if kind == "channel" else name, pld,
                         epsilon_cell(value["rdp"], infinite=True)])  # fmt: skip
        if kind == "client" and len(rows) > 3 and len({row[1:] for row in map(tuple, rows)}) == 1:
            rows = [[f"each of the {len(rows)} data holders", *rows[0][1:]]]
        if rows:
            tables.append({"kind": kind, "columns": [reported, "ε (PLD)", "ε (RDP)"], "rows": rows})
    return tables


def guesses(epsilon: float | None, delta: float) -> list[list[str]]:
    """What ε means for somebody who guesses: the run's own ε among some others."""
    values = sorted({*EXAMPLES, *([] if epsilon is None else [epsilon])})
    return [
        [f"ε = {shown(value)}, this run" if value == epsilon else f"ε = {value:g}", shown_guesses(value, delta)]
        for value in values
    ]


def exposed(unit: str) -> str:
    """Whose ε is told: that of a record, or of a data holder as a whole."""
    return "the record that is exposed most" if unit == "record" else "the data holder that is exposed most"


def epsilon_by_round(privacy: Mapping[str, Any]) -> Figure | None:
    """How the cost grew over the rounds, by RDP."""
    by_round = {int(number): value for number, value in privacy.get("by_round", {}).items()}
    if len(by_round) < 2 or any(value is None for value in by_round.values()):
        return None
    figure = over_rounds(
        "epsilon-rounds",
        "What it cost, round by round.",
        f"ε of everything released up to a round, for {exposed(privacy['unit'])} (by RDP).",
        [number + 1 for number in by_round],
        {"ε so far": list(by_round.values())},
        y="ε so far",
        percent=False,
    )
    figure.rows[:] = [[str(number + 1), epsilon_cell(value)] for number, value in by_round.items()]
    return figure


def noise_rows(privacy: Mapping[str, Any]) -> list[list[str]]:
    """What left each data holder, how often, and with which noise: one line for each channel."""
    rows = []
    for channel, noise in privacy["noise"].items():
        if channel == "updates" and "max_update_norm" in noise:
            reported = (f"{noise['mechanism']}, {noise['noise_multiplier']:.3g} times {noise['unit']}"
                    + (f", by {noise['shares']} of them together" if noise["shares"] > 1 else ""))  # fmt: skip
            often = f"each round, one change of all parameters, cut to a length of {noise['max_update_norm']:g}"
        elif channel == "updates":
            reported = (f"{noise['mechanism']}, {noise['noise_multiplier']:.3g} times the clipping bound of "
                    f"{noise['max_grad_norm']:g}")  # fmt: skip
            often = f"each round, {noise['steps_per_round']} × {100 * noise['sampling_rate']:.3g}% of the records"
        elif channel == "predictions":
            reported = f"{noise['mechanism']}, scale {noise['scale']:.3g} on scores between 0 and 1"
            often = f"each round, {noise['scores_per_round']} scores of all data holders together"
        elif channel == "embeddings":
            reported = f"{noise['mechanism']}, {noise['scale']:.3g} times {noise['unit']}"
            often = f"each round, {noise['vectors_per_round']} sums of {noise['features']} features"
        else:
            reported = f"{noise['mechanism']}, scale {noise['scale']:.3g} {noise.get('unit', '')}".strip()
            often = "once"
        rows.append([CHANNELS.get(channel, channel), often, reported])
    return rows


def lifetime(facts: RunFacts) -> tuple[DatasetAudit | None, str]:
    """(account of the run's dataset over all runs, or None; why there is none, in words)."""
    known = facts.released["privacy"].get("ledger")
    url = ledger_url(facts.config.run.ledger)
    if known is None:
        return None, ""
    if not exists(url):
        return None, "The ledger was not there when this report was made; privfair audit reads it where it is."
    try:
        with Ledger(url, create=False) as ledger:
            if ledger.ledger_id != known["id"]:
                return None, "Another ledger is in the place of the run's when this report was made."
            if ledger.budget(known["dataset"]) is None:
                return None, f"No lifetime budget is set for {known['dataset']!r}: nothing limits further runs on it."
            if ledger.head().sequence > MOST_ROWS:
                return None, "The ledger is long; for what is left of the budget use privfair audit --html."
            report = audit(ledger, pld=False)
    except (InputError, Refused) as error:
        return None, f"The ledger could not be read: {error}"
    if not report.verified:
        return None, "The ledger's rows contradict each other: see privfair audit."
    return next((dataset for dataset in report.datasets if dataset.state.name == known["dataset"]), None), ""
